#!lua name=turnlog_limits_@VERSION@
-- The buckets of accounts: what is reserved for a reply that may run, and what is settled when it has ended. Rules:
--
-- 1. One call takes of all buckets of a request, or of none. A denial changes nothing but what time has changed.
-- 2. Time is the server's. Levels are whole numbers of millionths of a token, below 2^53.
-- 3. A reservation stands under its reply's id until its lease is over; then its share is free, and what the reply uses
--    is charged when it is settled. Reserving again under an id that stands, or that is settled, takes nothing.
-- 4. A reply is settled once: `done` says so, and with how many tokens, for as long as its record is young enough to be
--    charged.
-- 5. Calls of `redis.call` and numbers as text are what these functions cost, so there are few: reservations are looked
--    through for leases that are over only when the time has come that `next` tells (none is over before it); how long
--    keys are kept is renewed once in a while (`RENEW_US`); levels and times are packed as doubles.
-- 6. A bucket that is not there is full. What is given back is added to the level as it stood when it was last written,
--    which is the same as adding it now, because the capacity is looked at when it is read.
-- 7. `first` is when a hash was begun, which after a loss is after it. What ended before that and is charged again is
--    taken as it would have been then: `again:<name>` is a second bucket, without what was taken since. It begins empty,
--    two refill times before all that is read again, and is charged in the order of time, with its refill in between and
--    never more than it holds. What it lacked at `first` is what the bucket itself has less. So the time at which the log
--    is read makes no difference, nor does what is reserved meanwhile. A bucket never lacks more than what was used in
--    the refill time before, whatever the order (accounts of an organisation are in several partitions).
--
-- Keys. KEYS[1] is the account's, `<namespace>:limits:{<tag>}:<account>`, KEYS[2] what its hash tag shares,
-- `<namespace>:limits:{<tag>}`; both hash: name of a bucket -> level and time (us), packed; `first`, and `again:<name>` ->
-- level, time and what was charged in the last refill time; the account's also `next`. With the same tag, derived from the first: `:held` hash, reply -> the end of its lease (us) and its millionths, packed, and
-- the names of its buckets, a line each; `:done:<reply>`; `:said:<conversation>` hash, what a prompt that goes on there weighs.

local MICRO = 1000000
local PAIR = '<dd'
local NAMES_FROM = 17
local SHARED = 'organisation'
local NEXT = 'next'
local FIRST = 'first'
local AGAIN = 'again:'
local TRIPLE = '<ddd'
local AT_ONCE = 1000
local RENEW_US = 600000000
local RENEW_MS = 600000
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

-- As schemas.tiers.time_for_us, within what doubles hold exactly.
local function time_for(micro, rate)
  local minutes = math.floor(micro / rate)
  return minutes * 60 + math.ceil((micro - minutes * rate) * 60 / rate)
end

local function parsed(value)
  local level, at = struct.unpack(PAIR, value)
  return level, at
end

local function packed(level, at)
  return struct.pack(PAIR, level, at)
end

-- As schemas.tiers.refilled; then the time from which on it counts (the clock may have gone back), and when the bucket was
-- last written, if ever.
local function refilled(value, capacity, rate, now)
  if not value then
    return capacity, now, nil
  end
  local level, at = parsed(value)
  if level >= capacity then
    return capacity, math.max(at, now), at
  end
  local elapsed = now - at
  if elapsed <= 0 then
    return level, at, at
  end
  if elapsed >= time_for(capacity - level, rate) then
    return capacity, now, at
  end
  local a_us = math.floor(rate / 60)
  return level + elapsed * a_us + math.floor(elapsed * (rate - a_us * 60) / 60), now, at
end

-- The buckets in args[first..]: name, capacity in millionths, refill in a minute; with what they hold now. Then `next`.
local function read(keys, args, first, now)
  local buckets, names = {}, {}
  for i = first, #args, PER_BUCKET do
    local bucket = {name = args[i], capacity = tonumber(args[i + 1]), rate = tonumber(args[i + 2])}
    buckets[#buckets + 1] = bucket
    names[#names + 1] = bucket.name
  end
  names[#names + 1] = NEXT
  local values = redis.call('HMGET', keys[1], unpack(names))
  for i, bucket in ipairs(buckets) do
    local value = values[i]
    if bucket.name == SHARED then
      value = redis.call('HGET', keys[2], SHARED)
    end
    local at
    bucket.level, bucket.at, at = refilled(value, bucket.capacity, bucket.rate, now)
    bucket.begun = not at
    bucket.stale = not at or math.floor(at / RENEW_US) ~= math.floor(now / RENEW_US)
  end
  return buckets, tonumber(values[#names])
end

-- `due`: what `next` has to say, if that changes.
local function write(keys, buckets, keep_ms, due)
  local words, stale, begun = {}, false, nil
  for _, bucket in ipairs(buckets) do
    local value = packed(bucket.level, bucket.at)
    if bucket.name == SHARED then
      redis.call('HSET', keys[2], SHARED, value)
      if bucket.begun then
        redis.call('HSETNX', keys[2], FIRST, whole(bucket.at))
      end
      if bucket.stale then
        redis.call('PEXPIRE', keys[2], keep_ms + RENEW_MS)
      end
    else
      words[#words + 1] = bucket.name
      words[#words + 1] = value
      stale = stale or bucket.stale
      begun = bucket.begun and bucket.at or begun
    end
  end
  if due then
    words[#words + 1] = NEXT
    words[#words + 1] = whole(due)
  end
  if #words > 0 then
    redis.call('HSET', keys[1], unpack(words))
  end
  if begun then
    redis.call('HSETNX', keys[1], FIRST, whole(begun))
  end
  if stale then
    redis.call('PEXPIRE', keys[1], keep_ms + RENEW_MS)
    redis.call('PEXPIRE', keys[1] .. ':held', keep_ms + RENEW_MS)
  end
  return stale
end

-- Add to levels as they stand: names and millionths, in pairs.
local function add(keys, back)
  local names = {}
  for i = 1, #back, 2 do
    names[#names + 1] = back[i]
  end
  local values, words = redis.call('HMGET', keys[1], unpack(names)), {}
  for i, name in ipairs(names) do
    local shared = name == SHARED
    local value = shared and redis.call('HGET', keys[2], SHARED) or values[i]
    if value then
      local level, at = parsed(value)
      local now = packed(level + back[2 * i], at)
      if shared then
        redis.call('HSET', keys[2], SHARED, now)
      else
        words[#words + 1] = name
        words[#words + 1] = now
      end
    end
  end
  if #words > 0 then
    redis.call('HSET', keys[1], unpack(words))
  end
end

-- The end of a reservation's lease, its millionths, and the names of its buckets.
local function opened(value)
  local until_us, micro = parsed(value)
  local names = {}
  for line in string.gmatch(string.sub(value, NAMES_FROM), '[^\n]+') do
    names[#names + 1] = line
  end
  return until_us, micro, names
end

local function each(names, micro)
  local back = {}
  for _, name in ipairs(names) do
    back[#back + 1] = name
    back[#back + 1] = micro
  end
  return back
end

-- Free the share of those whose lease is over. Returns when the next one may be.
local function lapse(keys, held, now)
  local found = redis.call('HGETALL', held)
  local gone, back, due = {}, {}, nil
  for i = 1, #found, 2 do
    local until_us, micro, names = opened(found[i + 1])
    if until_us > now then
      due = due and math.min(due, until_us) or until_us
    else
      gone[#gone + 1] = found[i]
      for _, name in ipairs(names) do
        back[name] = (back[name] or 0) + micro
      end
    end
  end
  local pairs_of = {}
  for name, micro in pairs(back) do
    pairs_of[#pairs_of + 1] = name
    pairs_of[#pairs_of + 1] = micro
  end
  if #pairs_of > 0 then
    add(keys, pairs_of)
  end
  for i = 1, #gone, AT_ONCE do
    redis.call('HDEL', held, unpack(gone, i, math.min(i + AT_ONCE - 1, #gone)))
  end
  if due then
    redis.call('HSET', keys[1], NEXT, whole(due))
  else
    redis.call('HDEL', keys[1], NEXT)
  end
end

-- The buckets now, when those whose lease is over have been freed.
local function current(keys, args, first, now)
  local buckets, due = read(keys, args, first, now)
  if due and due <= now then
    lapse(keys, keys[1] .. ':held', now)
    buckets, due = read(keys, args, first, now)
  end
  return buckets, due
end

-- What the model will read of the conversation before the new message. `before`: a number; `last`: as the newest reply
-- left it; `most`: the most that any left. Nil: not known here.
local function weight(base, conversation, before)
  if before ~= 'last' and before ~= 'most' then
    return tonumber(before)
  end
  local found = redis.call('HMGET', base .. ':said:' .. conversation, 'prompt', 'output', 'most')
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
-- is not known), replies that run, and the level of each bucket. What became of it: GRANTED; KNOWN: it stands; DENIED;
-- TOO_LARGE for that bucket, ever; UNWEIGHED: say what the conversation weighs, and ask again.
local function reserve(keys, args)
  local now = now_us()
  local reply, held = args[1], keys[1] .. ':held'
  local buckets, due = current(keys, args, 10, now)
  local running = redis.call('HLEN', held)
  local before = weight(keys[1], args[2], args[9])
  local code, lacking, wait, tokens = GRANTED, '', 0, 0
  if before then
    tokens = math.min(args[6] + before + args[7], tonumber(args[8]))
    for _, bucket in ipairs(buckets) do
      bucket.cost = (bucket.name == 'requests' and 1 or tokens) * MICRO
      if bucket.cost > bucket.capacity then
        code, lacking, wait = TOO_LARGE, bucket.name, 0
        break
      end
      if bucket.cost > bucket.level then
        local time = time_for(bucket.cost - bucket.level, bucket.rate) + math.max(bucket.at - now, 0)
        if time > wait then
          code, lacking, wait = DENIED, bucket.name, time
        end
      end
    end
    if code == GRANTED and running >= tonumber(args[5]) then
      code, lacking = DENIED, 'running'
    end
  else
    code = UNWEIGHED
  end
  local done = keys[1] .. ':done:' .. reply
  if code ~= GRANTED then
    if (running > 0 and redis.call('HEXISTS', held, reply) == 1) or redis.call('EXISTS', done) == 1 then
      return answer(now, KNOWN, 0, '', 0, running, buckets)
    end
    return answer(now, code, tokens, lacking, wait, running, buckets)
  end
  local until_us = now + args[3]
  local value = {packed(until_us, tokens * MICRO)}
  for _, bucket in ipairs(buckets) do
    if bucket.name ~= 'requests' then
      value[#value + 1] = bucket.name
    end
  end
  if redis.call('EXISTS', done) == 1 or redis.call('HSETNX', held, reply, table.concat(value, '\n')) == 0 then
    return answer(now, KNOWN, 0, '', 0, running, buckets)
  end
  for _, bucket in ipairs(buckets) do
    bucket.level = bucket.level - bucket.cost
  end
  local stale = write(keys, buckets, args[4], (not due or until_us < due) and until_us or nil)
  if running == 0 and not stale then
    redis.call('PEXPIRE', held, args[4] + RENEW_MS)
  end
  return answer(now, GRANTED, tokens, '', 0, running + 1, buckets)
end

-- The message is in the log: the reservation stands for as long as the reply may run. ARGV: reply, conversation, lease
-- in us, tokens of the prompt, of output, of the model, `before`, all as they were reserved.
-- Returns whether it stood.
local function confirm(keys, args)
  local reply, held = args[1], keys[1] .. ':held'
  local value = redis.call('HGET', held, reply)
  if value then
    local _, micro = parsed(value)
    redis.call('HSET', held, reply, packed(now_us() + args[3], micro) .. string.sub(value, NAMES_FROM))
  end
  local said = keys[1] .. ':said:' .. args[2]
  local found = redis.call('HMGET', said, 'last', 'prompt', 'output', 'most')
  if found[1] ~= reply and (value or redis.call('EXISTS', keys[1] .. ':done:' .. reply) == 0) then
    local before, most = tonumber(args[7]) or 0, 0
    if found[1] then
      local last = found[2] + found[3]
      most = math.max(last, tonumber(found[4]))
      before = args[7] == 'last' and last or args[7] == 'most' and most or before
    end
    local prompt = math.min(before + args[4], tonumber(args[6]))
    redis.call('HSET', said, 'last', reply, 'prompt', prompt, 'output', args[5], 'most', most)
    redis.call('PEXPIRE', said, SAID_MS)
  end
  return value and 1 or 0
end

-- Nothing came of it: everything is given back, the request too. ARGV: reply. Returns whether it stood.
local function release(keys, args)
  local held = keys[1] .. ':held'
  local value = redis.call('HGET', held, args[1])
  if not value then
    return 0
  end
  local _, micro, names = opened(value)
  local back = each(names, micro)
  back[#back + 1] = 'requests'
  back[#back + 1] = MICRO
  add(keys, back)
  redis.call('HDEL', held, args[1])
  return 1
end

local function weigh(said, reply, input, output)
  local found = redis.call('HMGET', said, 'last', 'prompt', 'most')
  if found[1] ~= reply and found[1] then
    redis.call('HSET', said, 'most', math.max(tonumber(found[3]), input + output))
  elseif found[1] or input > 0 then
    local prompt = input > 0 and input or tonumber(found[2])
    local most = math.max(tonumber(found[3] or '0'), prompt + output)
    redis.call('HSET', said, 'last', reply, 'prompt', prompt, 'output', output, 'most', most)
    if not found[1] then
      redis.call('PEXPIRE', said, SAID_MS)
    end
  end
end

-- Charge a bucket that is made again with a reply that ended then. See rule 7.
local function charge_again(key, bucket, cost, ended, since, now)
  local name, capacity, rate = bucket.name, bucket.capacity, bucket.rate
  local found = redis.call('HMGET', key, name, FIRST, AGAIN .. name)
  local value, first = found[1], tonumber(found[2] or now)
  if ended >= first then
    local level, at = refilled(value, capacity, rate, math.min(ended, now))
    redis.call('HSET', key, name, packed(math.max(level - cost, math.min(level, 0)), at))
    return
  end
  local span = time_for(capacity, rate)
  local level, at, lately = 0, since - 2 * span, 0
  if found[3] then
    level, at, lately = struct.unpack(TRIPLE, found[3])
  elseif ended < at then
    return
  end
  local function lacking()
    return math.min(capacity - refilled(packed(level, at), capacity, rate, first), lately)
  end
  local before = lacking()
  level, at = refilled(packed(level, at), capacity, rate, ended)
  level = math.max(level - cost, 0)
  lately = lately + (ended > first - span and cost or 0)
  local there, then_at = capacity, first
  if value then
    there, then_at = parsed(value)
  end
  there = math.min(there, capacity) - (lacking() - before)
  redis.call('HSET', key, FIRST, whole(first), name, packed(there, then_at), AGAIN .. name, struct.pack(TRIPLE, level, at, lately))
end

-- The reply has ended. ARGV: reply, conversation, how long `done` is kept in ms, keep_ms, '1' if its record is young
-- enough to be charged; where the buckets are made again from usage, the time (us) from which on all was read again, and two
-- refill times of a bucket before it, else '0'; when the reply ended (us); tokens to be charged, tokens of the whole
-- prompt (0: not counted), of output, the buckets.
-- Returns the time (0 where it does not matter), what became of it (0: nothing, it was settled before or is too old; 1:
-- settled with its reservation; 2: charged without one) and the millionths given back (negative: charged besides).
local function settle(keys, args)
  local reply = args[1]
  local held, done = keys[1] .. ':held', keys[1] .. ':done:' .. reply
  local value = redis.call('HGET', held, reply)
  local used = args[8] * MICRO
  local now, code, back = 0, 1, 0
  if value then
    local _, micro, names = opened(value)
    back = micro - used
    if back >= 0 then
      add(keys, each(names, back))
    else
      now = now_us()
      local changed, known, others = {}, {}, {}
      for _, bucket in ipairs((read(keys, args, 11, now))) do
        known[bucket.name] = bucket
      end
      for _, name in ipairs(names) do
        local bucket = known[name]
        if bucket then
          bucket.level = bucket.level + back
          changed[#changed + 1] = bucket
        else
          others[#others + 1] = name
        end
      end
      write(keys, changed, args[4])
      if #others > 0 then
        add(keys, each(others, back))
      end
    end
    redis.call('HDEL', held, reply)
  elseif args[5] ~= '1' or redis.call('EXISTS', done) == 1 then
    return {0, 0, 0}
  else
    now = now_us()
    code, back = 2, -used
    local buckets, since = read(keys, args, 11, now), tonumber(args[6])
    for _, bucket in ipairs(buckets) do
      local cost = bucket.name == 'requests' and MICRO or used
      if since > 0 then
        local key = bucket.name == SHARED and keys[2] or keys[1]
        charge_again(key, bucket, cost, tonumber(args[7]), since, now)
        redis.call('PEXPIRE', key, args[4] + RENEW_MS)
      end
      bucket.level = bucket.level - cost
    end
    if since == 0 then
      write(keys, buckets, args[4])
    end
  end
  redis.call('SET', done, args[8], 'PX', args[3])
  weigh(keys[1] .. ':said:' .. args[2], reply, tonumber(args[9]), tonumber(args[10]))
  return {now, code, back}
end

-- A reply was settled with other tokens than its record has: the difference is charged, or given back. ARGV: reply,
-- tokens to be charged, the names of the buckets. Returns whether there was one.
local function correct(keys, args)
  local done = keys[1] .. ':done:' .. args[1]
  local charged = redis.call('GET', done)
  if not charged or charged == args[2] then
    return 0
  end
  add(keys, each({unpack(args, 3)}, ((tonumber(charged) or 0) - args[2]) * MICRO))
  redis.call('SET', done, args[2], 'KEEPTTL')
  return 1
end

-- ARGV: the buckets. Returns the time, the replies that run, and of each bucket its level and what is reserved of it.
local function look(keys, args)
  local now = now_us()
  local buckets = current(keys, args, 1, now)
  local reserved, running = {}, 0
  for _, value in ipairs(redis.call('HVALS', keys[1] .. ':held')) do
    local _, micro, names = opened(value)
    running = running + 1
    for _, name in ipairs(names) do
      reserved[name] = (reserved[name] or 0) + micro
    end
  end
  local said = {now, running}
  for _, bucket in ipairs(buckets) do
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
redis.register_function('turnlog_correct_@VERSION@', correct)
redis.register_function('turnlog_look_@VERSION@', look)
redis.register_function('turnlog_note_@VERSION@', note)
