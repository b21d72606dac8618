-- Prepended to every script. ARGV[1] is the key prefix, ARGV[2] the order (mains_first | paper).
-- Device queues hold tickets (delivery tags); a message lives in <prefix>:message:<tag> from its put until its
-- acknowledgement. Keys are computed here, so one server holds them all (no Redis Cluster).
local P, ORDER = ARGV[1], ARGV[2]
local MAIN_BAND = 2 ^ 52 -- above every arrival sequence, below the precision of a double
local DEVICE_TTL_S = 10

local function message_key(tag) return P .. ':message:' .. tag end
local function bell_key(queue) return P .. ':bell:' .. queue end
local function scope_key(scope) return P .. ':scope:' .. scope end

local function now_s()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local function is_closed(scope)
  return scope ~= '' and redis.call('EXISTS', P .. ':closed:' .. scope) == 1
end

local function length(queue)
  return redis.call(queue == 'validate' and 'ZCARD' or 'LLEN', queue)
end

-- FIFO: behind every message that goes before this one, counted from the end that is popped.
local function place(tag, main, arrival)
  local at = -1
  while true do
    local other = redis.call('LINDEX', 'profile', at)
    if not other then return redis.call('LPUSH', 'profile', tag) end
    local it = redis.call('HMGET', message_key(other), 'main', 'arrival')
    local before = tonumber(it[2] or 0) < arrival
    if ORDER == 'mains_first' and it[1] ~= main then before = it[1] == '1' end
    if not before then return redis.call('LINSERT', 'profile', 'AFTER', other, tag) end
    at = at - 1
  end
end

-- Puts a ticket at its own place, new or restored, and rings the bell for one waiting worker.
local function insert(tag, fresh)
  local it = redis.call('HMGET', message_key(tag), 'queue', 'main', 'arrival', 'score')
  local queue, main, arrival = it[1], it[2], tonumber(it[3])
  if queue == 'validate' then
    redis.call('ZADD', queue, it[4], tag)
  elseif fresh and (main == '0' or ORDER ~= 'mains_first') then
    redis.call('LPUSH', queue, tag)
  else
    place(tag, main, arrival)
  end
  redis.call('LPUSH', bell_key(queue), '1')
  return queue
end

local function forget(tag)
  local it = redis.call('HMGET', message_key(tag), 'scope', 'task')
  if it[1] and it[1] ~= '' then redis.call('SREM', scope_key(it[1]), tag) end
  if it[2] and it[2] ~= '' then redis.call('DEL', P .. ':tag:' .. it[2]) end
  return redis.call('DEL', message_key(tag))
end

-- The device that held this ticket is free again.
local function set_idle(tag)
  local device = redis.call('HGET', message_key(tag), 'device')
  if device and redis.call('HGET', P .. ':busy', device) == tag then redis.call('HDEL', P .. ':busy', device) end
end

local function drop_claims(scope)
  local dropped = 0
  for _, claim in ipairs(redis.call('ZRANGE', P .. ':claims', 0, -1)) do
    if string.sub(claim, string.find(claim, ' ', 1, true) + 1) == scope then
      dropped = dropped + redis.call('ZREM', P .. ':claims', claim)
    end
  end
  return dropped
end

-- Devices, and those of each split that are free; a device without a role serves both queues.
local function survey()
  local it = { devices = 0, validators = 0, profilers = 0, free_validators = 0, free_profilers = 0, flexible = true }
  for _, worker in ipairs(redis.call('ZRANGE', P .. ':devices', now_s() - DEVICE_TTL_S, '+inf', 'BYSCORE')) do
    local role = redis.call('HGET', P .. ':roles', worker) or 'both'
    local free = redis.call('HEXISTS', P .. ':busy', worker) == 0 and 1 or 0
    it.devices = it.devices + 1
    if role ~= 'both' then it.flexible = false end
    if role ~= 'profile' then
      it.validators = it.validators + 1
      it.free_validators = it.free_validators + free
    end
    if role ~= 'validate' then
      it.profilers = it.profilers + 1
      it.free_profilers = it.free_profilers + free
    end
  end
  return it
end
