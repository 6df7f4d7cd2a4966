"""What the API computes inside Redis."""

TAKE = """
-- As api.rate.take. KEYS[1]: the bucket. ARGV: interval_us, capacity, cost.
-- Returns {allowed, retry_after_ms, available}.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local interval, capacity, cost = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local tat = math.max(tonumber(redis.call('GET', KEYS[1]) or '0'), now)
local after = tat + cost * interval
local allowed_at = after - capacity * interval
if allowed_at > now then
  local available = math.floor((capacity * interval - (tat - now)) / interval)
  return {0, math.ceil((allowed_at - now) / 1000), math.max(available, 0)}
end
if cost > 0 then
  redis.call('SET', KEYS[1], string.format('%.0f', after), 'PX', math.ceil((after - now) / 1000) + 1000)
end
return {1, 0, math.floor((capacity * interval - (after - now)) / interval)}
"""
