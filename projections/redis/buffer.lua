#!lua name=turnlog_buffer_@VERSION@
-- The stream buffer's only writer. It decides nothing about a reply: offsets follow from the log, and these functions
-- append by offset, so that any number of writers, replays and retries leave the same list. Rules:
--
-- 1. A reply must be opened before frames are appended; opening one that is open changes nothing.
-- 2. The frame at offset n is item n-1 of the list. Frames that are there are skipped; a frame beyond the next offset
--    is refused (GAP), and so is any frame of a reply that is not open: something was lost, the writer must replay.
-- 3. A closed reply takes nothing more (CLOSED).
-- 4. List, head, message to the live readers and expiry of a reply change together or not at all.
--
-- All keys of a reply share its hash tag. One call may append to many replies; in a cluster the writer puts only
-- replies of one slot into a call.

local GAP = -1
local CLOSED = -2
local PER_REPLY = 5

-- KEYS: frames, head. ARGV: lifetime in ms while open, then the head's fields and values.
-- Returns the newest offset or CLOSED.
local function open(keys, args)
  local closed = redis.call('HGET', keys[2], 'closed')
  if closed then
    return closed == '1' and CLOSED or redis.call('LLEN', keys[1])
  end
  redis.call('DEL', keys[1])
  redis.call('HSET', keys[2], 'closed', '0', unpack(args, 2))
  redis.call('PEXPIRE', keys[2], args[1])
  return 0
end

-- Frames args[from..to] begin at offset `first`; head words are args[words..from-1]; `ends` is the lifetime in ms from
-- the end, or '0' where the reply goes on.
local function append_one(frames, head, channel, args, first, ends, words, from, to, lifetime)
  local closed = redis.call('HGET', head, 'closed')
  if not closed then
    return GAP
  end
  -- The usual case is that the list ends just before `first`, so push first and look at the length then.
  local newest
  if from == to then
    newest = redis.call('RPUSH', frames, args[to])
  elseif from < to then
    newest = redis.call('RPUSH', frames, unpack(args, from, to))
  else
    newest = redis.call('LLEN', frames)
  end
  local there = newest - (to - from + 1)
  local skipped = there - first + 1
  local start = from + skipped
  if skipped ~= 0 or closed == '1' then
    if to >= from then
      redis.call('LTRIM', frames, 0, there - 1)
    end
    if skipped < 0 then
      return GAP
    end
    if closed == '1' then
      return start <= to and CLOSED or there
    end
    if start <= to then
      newest = redis.call('RPUSH', frames, unpack(args, start, to))
    elseif ends == '0' then
      return there
    else
      newest = there
    end
  end
  if there == 0 and newest > 0 then
    redis.call('PEXPIRE', frames, lifetime)
  end
  if words < from then
    redis.call('HSET', head, unpack(args, words, from - 1))
  end
  if ends ~= '0' then
    redis.call('HSET', head, 'closed', '1')
    redis.call('PEXPIRE', frames, ends)
    redis.call('PEXPIRE', head, ends)
  end
  local body = start == to and args[to] or table.concat(args, '', start, to)
  redis.call('SPUBLISH', channel, (there + 1) .. '-' .. newest .. '\n' .. body)
  return newest
end

-- KEYS: frames and head of each reply. ARGV: lifetime in ms while open; then for each reply: channel, offset of the
-- first frame, lifetime in ms from the end ('0': goes on), number of head words, number of frames, the head's fields
-- and values, the frames. Returns for each reply its newest offset, GAP or CLOSED.
local function append(keys, args)
  local results = {}
  local at = 2
  for i = 1, #keys, 2 do
    local words = at + PER_REPLY
    local from = words + args[at + 3]
    local to = from + args[at + 4] - 1
    results[#results + 1] = append_one(
      keys[i], keys[i + 1], args[at], args, tonumber(args[at + 1]), args[at + 2], words, from, to, args[1])
    at = to + 1
  end
  return results
end

-- Is this the store that we know, with everything in it that was acknowledged? KEYS: a partition's marker.
-- ARGV: a new name, the name that is expected ('': any), the position that must be there, the position reached now.
-- Positions never go back, whoever writes them. Returns the store's name, '' when it is another one or was rolled back.
local function mark(keys, args)
  local known = redis.call('HMGET', keys[1], 'name', 'position')
  local name = known[1]
  local position = tonumber(known[2] or '0')
  if args[2] ~= '' and (name ~= args[2] or position < tonumber(args[3])) then
    return ''
  end
  if not name then
    name = args[1]
    redis.call('HSET', keys[1], 'name', name, 'position', args[4])
  elseif tonumber(args[4]) > position then
    redis.call('HSET', keys[1], 'position', args[4])
  end
  return name
end

redis.register_function('turnlog_open_@VERSION@', open)
redis.register_function('turnlog_append_@VERSION@', append)
redis.register_function('turnlog_mark_@VERSION@', mark)
