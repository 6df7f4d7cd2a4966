#!lua name=turnlog_limits_@VERSION@
-- The buckets of accounts: what is reserved for a reply that may run, and what is settled when it has ended. Rules:
--
-- 1. One call takes of all buckets of a request, or of none. A denial changes nothing but what time has changed.
-- 2. Time is the server's. Levels are whole numbers of millionths of a token, below 2^53.
-- 3. A reservation stands under its reply's id until its lease is over; then its share is free, and what the reply uses
--    is charged when it is settled. Reserving again under an id that stands, or was settled, takes nothing.
-- 4. A reply is settled once: `done` says so, for as long as its record is young enough to be charged.
-- 5. A bucket that is not there is full. What is given back is added to the level as it stood when it was last written,
--    which is the same as adding it now, because the capacity is looked at when it is read.
--
-- Keys. KEYS[1] is the account's, `<namespace>:limits:{<tag>}:<account>`, KEYS[2] what its hash tag shares,
-- `<namespace>:limits:{<tag>}`; both hash: name of a bucket -> "<level> <time, us>". With the same tag, derived from
-- the first: `:held` hash, reply -> "<millionths>" and the names of its buckets, a line each; `:leases` sorted set, reply
-- by the end of its lease, us; `:done:<reply>`; `:said:<conversation>` hash, what a prompt that goes on there weighs.

local MICRO = 1000000
local SHARED = 'organisation'
local LAPSED_MAX = 1000
local SAID_MS = 86400000
local PER_BUCKET = 3
local GRANTED, KNOWN, DENIED, TOO_LARGE, UNWEIGHED = 1, 2, 0, -1, -2

local function now_us()
  local time = redis.call('TIME')
  return time[1] * 1000000 + time[2]
end

local function whole(number)
  return string.format('%.0f', number)
end

local function place(keys, name)
  return name == SHARED and keys[2] or keys[1]
end

-- As schemas.tiers.time_for_us, within what doubles hold exactly.
local function time_for(micro, rate)
  local minutes = math.floor(micro / rate)
  return minutes * 60 + math.ceil((micro - minutes * rate) * 60 / rate)
end

local function parsed(value)
  local level, at = string.match(value, '^(-?%d+) (%d+)$')
  return tonumber(level), tonumber(at)
end

-- As schemas.tiers.refilled; then the time from which on it counts: the clock may have gone back.
local function refilled(value, capacity, rate, now)
  if not value then
    return capacity, now
  end
  local level, at = parsed(value)
  if level >= capacity then
    return capacity, math.max(at, now)
  end
  local elapsed = now - at
  if elapsed <= 0 then
    return level, at
  end
  if elapsed >= time_for(capacity - level, rate) then
    return capacity, now
  end
  local each = math.floor(rate / 60)
  return level + elapsed * each + math.floor(elapsed * (rate - each * 60) / 60), now
end

-- The buckets in args[first..]: name, capacity in millionths, refill in a minute; with what they hold now.
local function read(keys, args, first, now)
  local buckets, names = {}, {}
  for i = first, #args, PER_BUCKET do
    local bucket = {name = args[i], capacity = tonumber(args[i + 1]), rate = tonumber(args[i + 2])}
    buckets[#buckets + 1] = bucket
    names[#names + 1] = bucket.name
  end
  if #names == 0 then
    return buckets
  end
  local values = redis.call('HMGET', keys[1], unpack(names))
  for i, bucket in ipairs(buckets) do
    local value = values[i]
    if bucket.name == SHARED then
      value = redis.call('HGET', keys[2], SHARED)
    end
    bucket.level, bucket.at = refilled(value, bucket.capacity, bucket.rate, now)
  end
  return buckets
end

local function write(keys, buckets, keep_ms)
  local words = {}
  for _, bucket in ipairs(buckets) do
    local value = whole(bucket.level) .. ' ' .. whole(bucket.at)
    if bucket.name == SHARED then
      redis.call('HSET', keys[2], SHARED, value)
      redis.call('PEXPIRE', keys[2], keep_ms)
    else
      words[#words + 1] = bucket.name
      words[#words + 1] = value
    end
  end
  if #words > 0 then
    redis.call('HSET', keys[1], unpack(words))
    redis.call('PEXPIRE', keys[1], keep_ms)
  end
end

local function add(keys, name, micro)
  local key = place(keys, name)
  local value = redis.call('HGET', key, name)
  if value then
    local level, at = parsed(value)
    redis.call('HSET', key, name, whole(level + micro) .. ' ' .. whole(at))
  end
end

-- A reservation's millionths and the names of its buckets.
local function opened(value)
  local names = {}
  local micro
  for line in string.gmatch(value, '[^\n]+') do
    if micro then
      names[#names + 1] = line
    else
      micro = tonumber(line)
    end
  end
  return micro, names
end

local function lapse(keys, held, leases, now)
  local gone = redis.call('ZRANGE', leases, '-inf', whole(now), 'BYSCORE', 'LIMIT', 0, LAPSED_MAX)
  if #gone == 0 then
    return
  end
  local back = {}
  for _, value in ipairs(redis.call('HMGET', held, unpack(gone))) do
    if value then
      local micro, names = opened(value)
      for _, name in ipairs(names) do
        back[name] = (back[name] or 0) + micro
      end
    end
  end
  for name, micro in pairs(back) do
    add(keys, name, micro)
  end
  redis.call('HDEL', held, unpack(gone))
  redis.call('ZREM', leases, unpack(gone))
end

-- What the model will read of the conversation before the new message. `before`: a number; `last`: as the newest reply
-- left it; `most`: the most that any left. Nil: not known here.
local function weight(said, before)
  if before ~= 'last' and before ~= 'most' then
    return tonumber(before)
  end
  local found = redis.call('HMGET', said, 'prompt', 'output', 'most')
  if not found[1] then
    return nil
  end
  local last = found[1] + found[2]
  return before == 'last' and last or math.max(last, tonumber(found[3]))
end

local function answer(now, code, tokens, name, wait, running, buckets)
  local said = {now, code, tokens, name, wait, running}
  for _, bucket in ipairs(buckets) do
    said[#said + 1] = bucket.level
  end
  return said
end

-- ARGV: reply, conversation, lease in us, keep_ms, running at most, tokens of the prompt that the request brings, tokens
-- of output at most, tokens that the model takes, `before` (see `weight`), the buckets.
-- Returns the time, what became of it, its tokens, the bucket that lacks, the time until it has enough (us, 0 where that
-- is not known), replies that run, and the level of each bucket. What became of it: GRANTED; KNOWN: it stands, or was
-- settled; DENIED; TOO_LARGE for that bucket, ever; UNWEIGHED: say what the conversation weighs, and ask again.
local function reserve(keys, args)
  local now = now_us()
  local reply = args[1]
  local held, leases = keys[1] .. ':held', keys[1] .. ':leases'
  lapse(keys, held, leases, now)
  local buckets = read(keys, args, 10, now)
  local running = redis.call('ZCARD', leases)
  if redis.call('HEXISTS', held, reply) == 1 or redis.call('EXISTS', keys[1] .. ':done:' .. reply) == 1 then
    return answer(now, KNOWN, 0, '', 0, running, buckets)
  end
  local before = weight(keys[1] .. ':said:' .. args[2], args[9])
  if not before then
    return answer(now, UNWEIGHED, 0, '', 0, running, buckets)
  end
  local tokens = math.min(args[6] + before + args[7], tonumber(args[8]))
  local lacking, wait = '', 0
  for _, bucket in ipairs(buckets) do
    bucket.cost = (bucket.name == 'requests' and 1 or tokens) * MICRO
    if bucket.cost > bucket.capacity then
      return answer(now, TOO_LARGE, tokens, bucket.name, 0, running, buckets)
    end
    if bucket.cost > bucket.level then
      local time = time_for(bucket.cost - bucket.level, bucket.rate) + math.max(bucket.at - now, 0)
      if time > wait then
        lacking, wait = bucket.name, time
      end
    end
  end
  if lacking == '' and running >= tonumber(args[5]) then
    lacking = 'running'
  end
  if lacking ~= '' then
    return answer(now, DENIED, tokens, lacking, wait, running, buckets)
  end
  local value = {whole(tokens * MICRO)}
  for _, bucket in ipairs(buckets) do
    bucket.level = bucket.level - bucket.cost
    if bucket.name ~= 'requests' then
      value[#value + 1] = bucket.name
    end
  end
  write(keys, buckets, args[4])
  redis.call('HSET', held, reply, table.concat(value, '\n'))
  redis.call('ZADD', leases, whole(now + args[3]), reply)
  redis.call('PEXPIRE', held, args[4])
  redis.call('PEXPIRE', leases, args[4])
  return answer(now, GRANTED, tokens, '', 0, running + 1, buckets)
end

-- The message is in the log: the reservation stands for as long as the reply may run. ARGV: reply, conversation, lease
-- in us, keep_ms, tokens of the prompt, of output, of the model, `before`, all as they were reserved.
-- Returns whether it stood.
local function confirm(keys, args)
  local now = now_us()
  local reply = args[1]
  local held, leases = keys[1] .. ':held', keys[1] .. ':leases'
  local stood = redis.call('HEXISTS', held, reply)
  if stood == 1 then
    redis.call('ZADD', leases, whole(now + args[3]), reply)
    redis.call('PEXPIRE', held, args[4])
    redis.call('PEXPIRE', leases, args[4])
  end
  local said = keys[1] .. ':said:' .. args[2]
  local found = redis.call('HMGET', said, 'last', 'prompt', 'output', 'most')
  if found[1] ~= reply and redis.call('EXISTS', keys[1] .. ':done:' .. reply) == 0 then
    local prompt = math.min((weight(said, args[8]) or 0) + args[5], tonumber(args[7]))
    local most = found[1] and math.max(found[2] + found[3], tonumber(found[4])) or 0
    redis.call('HSET', said, 'last', reply, 'prompt', whole(prompt), 'output', args[6], 'most', whole(most))
    redis.call('PEXPIRE', said, SAID_MS)
  end
  return stood
end

-- Nothing came of it: everything is given back, the request too. ARGV: reply. Returns whether it stood.
local function release(keys, args)
  local held = keys[1] .. ':held'
  local value = redis.call('HGET', held, args[1])
  if not value then
    return 0
  end
  local micro, names = opened(value)
  for _, name in ipairs(names) do
    add(keys, name, micro)
  end
  add(keys, 'requests', MICRO)
  redis.call('HDEL', held, args[1])
  redis.call('ZREM', keys[1] .. ':leases', args[1])
  return 1
end

local function weigh(said, reply, input, output)
  local found = redis.call('HMGET', said, 'last', 'prompt', 'most')
  if found[1] ~= reply and found[1] then
    redis.call('HSET', said, 'most', whole(math.max(tonumber(found[3]), input + output)))
  elseif found[1] or input > 0 then
    local prompt = input > 0 and input or tonumber(found[2])
    local most = math.max(tonumber(found[3] or '0'), prompt + output)
    redis.call('HSET', said, 'last', reply, 'prompt', whole(prompt), 'output', whole(output), 'most', whole(most))
  end
  redis.call('PEXPIRE', said, SAID_MS)
end

-- The reply has ended. ARGV: reply, conversation, how long `done` is kept in ms, keep_ms, '1' if its record is young
-- enough to be charged, '1' if the buckets are made again from usage (then none is charged more than it holds), tokens
-- to be charged, tokens of the whole prompt (0: not counted), of output, the buckets.
-- Returns the time, what became of it (0: nothing, it was settled before or is too old; 1: settled with its reservation;
-- 2: charged without one) and the millionths that were given back (negative: charged besides).
local function settle(keys, args)
  local now = now_us()
  local reply = args[1]
  local held, done = keys[1] .. ':held', keys[1] .. ':done:' .. reply
  local value = redis.call('HGET', held, reply)
  local used = args[7] * MICRO
  local code, back = 1, 0
  if value then
    local micro, names = opened(value)
    back = micro - used
    if back >= 0 then
      for _, name in ipairs(names) do
        add(keys, name, back)
      end
    else
      local changed, known = {}, {}
      for _, bucket in ipairs(read(keys, args, 10, now)) do
        known[bucket.name] = bucket
      end
      for _, name in ipairs(names) do
        local bucket = known[name]
        if bucket then
          bucket.level = bucket.level + back
          changed[#changed + 1] = bucket
        else
          add(keys, name, back)
        end
      end
      write(keys, changed, args[4])
    end
    redis.call('HDEL', held, reply)
    redis.call('ZREM', keys[1] .. ':leases', reply)
  elseif args[5] ~= '1' or redis.call('EXISTS', done) == 1 then
    return {now, 0, 0}
  else
    code, back = 2, -used
    local buckets = read(keys, args, 10, now)
    for _, bucket in ipairs(buckets) do
      local left = bucket.level - (bucket.name == 'requests' and MICRO or used)
      bucket.level = args[6] == '1' and math.max(left, math.min(bucket.level, 0)) or left
    end
    write(keys, buckets, args[4])
  end
  redis.call('SET', done, '1', 'PX', args[3])
  weigh(keys[1] .. ':said:' .. args[2], reply, tonumber(args[8]), tonumber(args[9]))
  return {now, code, back}
end

-- ARGV: the buckets. Returns the time, the replies that run, and of each bucket its level and what is reserved of it.
local function look(keys, args)
  local now = now_us()
  local held, leases = keys[1] .. ':held', keys[1] .. ':leases'
  lapse(keys, held, leases, now)
  local reserved = {}
  for _, value in ipairs(redis.call('HVALS', held)) do
    local micro, names = opened(value)
    for _, name in ipairs(names) do
      reserved[name] = (reserved[name] or 0) + micro
    end
  end
  local said = {now, redis.call('ZCARD', leases)}
  for _, bucket in ipairs(read(keys, args, 1, now)) do
    said[#said + 1] = bucket.level
    said[#said + 1] = reserved[bucket.name] or 0
  end
  return said
end

-- Is this the store that we know, with everything in it that was acknowledged? KEYS: the marker, and what says that the
-- buckets are whole. ARGV: a new name, the name that is expected ('': any), the partition of `usage`, the position that
-- must be there, the position reached now ('': only ask), how many partitions there are.
-- Returns the store's name ('' when it is another one or was rolled back; then the buckets are not whole) and the
-- partition's position as it was (-1: none).
local function note(keys, args)
  local found = redis.call('HMGET', keys[1], 'name', args[3])
  local name, position = found[1], tonumber(found[2] or '-1')
  if args[2] ~= '' and (name ~= args[2] or position < tonumber(args[4])) then
    redis.call('HDEL', keys[1], args[3])
    redis.call('DEL', keys[2])
    return {'', -1}
  end
  if not name then
    name = args[1]
    redis.call('HSET', keys[1], 'name', name)
  end
  if args[5] ~= '' then
    if tonumber(args[5]) > position then
      redis.call('HSET', keys[1], args[3], args[5])
    end
    if redis.call('HLEN', keys[1]) > tonumber(args[6]) and redis.call('GET', keys[2]) ~= name then
      redis.call('SET', keys[2], name)
    end
  end
  return {name, position}
end

redis.register_function('turnlog_reserve_@VERSION@', reserve)
redis.register_function('turnlog_confirm_@VERSION@', confirm)
redis.register_function('turnlog_release_@VERSION@', release)
redis.register_function('turnlog_settle_@VERSION@', settle)
redis.register_function('turnlog_look_@VERSION@', look)
redis.register_function('turnlog_note_@VERSION@', note)
