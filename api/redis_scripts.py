"""What the API computes inside Redis."""

READ = """
-- A page of a reply's frames, bounded in number and (to about twice) in bytes. KEYS: frames, head.
-- ARGV: offset after which, frames at most, bytes at most. Returns {newest offset, newest frame, frames, status}.
local newest = redis.call('LLEN', KEYS[1])
local after, frames_max, bytes_max = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local frames, bytes, step = {}, 0, 2
while after < newest and #frames < frames_max and bytes < bytes_max do
  local part = redis.call('LRANGE', KEYS[1], after, after + math.min(step, frames_max - #frames) - 1)
  for _, frame in ipairs(part) do
    frames[#frames + 1] = frame
    bytes = bytes + #frame
  end
  after = after + #part
  step = math.min(step * 2, 128)
end
return {newest, redis.call('LINDEX', KEYS[1], -1), frames, redis.call('HGET', KEYS[2], 'status')}
"""

UNCLAIM = """
-- Delete a claim, if it is still what it was when it was made. KEYS[1]: the claim. ARGV[1]: what it was.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  redis.call('DEL', KEYS[1])
end
"""
