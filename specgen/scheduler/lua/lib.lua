-- Prepended to every script. ARGV[1] is the key prefix, ARGV[2] the order (fair_laf | mains_first | paper).
-- Queues hold tickets (delivery tags); a message lives in <prefix>:message:<tag> from its put until its
-- acknowledgement. Keys are computed here, so one server holds them all (no Redis Cluster).
--
-- The key named as its queue is a sorted set of every waiting ticket: in `validate` the highest score goes first (last
-- arrival), in the others the lowest (first arrival). Who is served next is read from lanes: one lane for each label, priority, kind (main or fork) and, under
-- fair_laf, job. A lane orders its tickets by arrival, the index of lanes orders lanes by their rank.
local P, ORDER = ARGV[1], ARGV[2]
local DEVICE_TTL_S = 6 -- three missed heartbeats; the only device of a role is missed for so long
local PRIORITY_STEP, FORK_STEP = 2 ^ 48, 2 ^ 47 -- ranks: turns and arrivals stay below 2^47, all sums are exact doubles
local TURNS_KEPT = 10000
local ROLES = { 'validate', 'profile', 'both' }

local function message_key(tag) return P .. ':message:' .. tag end
local function bell_key(queue, label) return P .. ':bell:' .. queue .. ':' .. label end
local function scope_key(scope) return P .. ':scope:' .. scope end
local function lanes_key(queue, label) return P .. ':lanes:' .. queue .. ':' .. label end
local function lane_key(queue, label, lane) return P .. ':lane:' .. queue .. ':' .. label .. ':' .. lane end
local function peaks_key(queue, label) return P .. ':peaks:' .. queue .. ':' .. label end
local function claims_key(label) return P .. ':claims:' .. label end
local function claimed_key(scope) return P .. ':claimed:' .. scope end
local function count(name, n) redis.call('HINCRBY', P .. ':counters', name, n) end

local function now_s()
  local time = redis.call('TIME')
  return tonumber(time[1]) + tonumber(time[2]) / 1000000
end

local function exact(number) return string.format('%.0f', number) end

local function is_closed(scope)
  return scope ~= '' and redis.call('EXISTS', P .. ':closed:' .. scope) == 1
end

local function job_of(scope) return string.match(scope, '^(.*)/[^/]*$') or scope end

-- Waiting tickets of a queue, of one label or (label nil) of all.
local function length(queue, label)
  if label then return tonumber(redis.call('HGET', P .. ':lengths', queue .. ':' .. label) or 0) end
  return redis.call('ZCARD', queue)
end

-- ---------------------------------------------------------------------------------------------------------- order

-- Which lane a message waits in; whose turn it takes ('' for nobody's), and where its lane begins among the others.
local function lane_of(scope, main, priority)
  local fork = main == '0' or ORDER == 'paper'
  local turn = ORDER == 'fair_laf' and job_of(scope) or ''
  local base = -tonumber(priority) * PRIORITY_STEP + (fork and FORK_STEP or 0)
  return priority .. (fork and 'f' or 'm') .. turn, turn, base
end

-- Remembers the longest a queue was, as far back as a scope is open: lengths strictly decrease with time, so the first
-- entry at or after a moment is the maximum since then.
local function peak(queue, label, n, moment)
  local key = peaks_key(queue, label)
  while true do
    local last = redis.call('ZRANGE', key, -1, -1)[1]
    if not last or tonumber(string.match(last, ':(%d+)$')) > n then break end
    redis.call('ZREM', key, last)
  end
  redis.call('ZADD', key, moment, exact(moment) .. ':' .. n)
end

local function peak_since(queue, label, moment)
  local first = redis.call('ZRANGE', peaks_key(queue, label), exact(moment), '+inf', 'BYSCORE', 'LIMIT', 0, 1)[1]
  return first and tonumber(string.match(first, ':(%d+)$')) or length(queue, label)
end

-- Puts a ticket at its own place, new or restored, and rings the bell for one waiting worker.
local function insert(tag)
  local it = redis.call('HMGET', message_key(tag), 'queue', 'label', 'lane', 'turn', 'base', 'arrival', 'score')
  local queue, label, lane, turn, base, arrival = it[1], it[2], it[3], it[4], tonumber(it[5]), it[6]
  redis.call('ZADD', queue, it[7], tag)
  redis.call('ZADD', lane_key(queue, label, lane), arrival, tag)
  local served = turn ~= '' and redis.call('ZSCORE', P .. ':turns:' .. queue, turn) or 0
  redis.call('ZADD', lanes_key(queue, label), exact(base + tonumber(served or 0)), lane)
  local n = redis.call('HINCRBY', P .. ':lengths', queue .. ':' .. label, 1)
  if label ~= '' then peak(queue, label, n, redis.call('INCR', P .. ':sequence')) end
  redis.call('LPUSH', bell_key(queue, label), '1')
  return n
end

-- Takes a waiting ticket out of its queue; false where it does not wait.
local function take(tag)
  local it = redis.call('HMGET', message_key(tag), 'queue', 'label', 'lane')
  local queue, label, lane = it[1], it[2], it[3]
  if not queue or redis.call('ZREM', lane_key(queue, label, lane), tag) == 0 then return false end
  redis.call('ZREM', queue, tag)
  if redis.call('EXISTS', lane_key(queue, label, lane)) == 0 then redis.call('ZREM', lanes_key(queue, label), lane) end
  local n = redis.call('HINCRBY', P .. ':lengths', queue .. ':' .. label, -1)
  if n == 0 then redis.call('DEL', bell_key(queue, label)) else redis.call('LTRIM', bell_key(queue, label), 0, n - 1) end
  return true
end

-- The ticket to serve next of those that carry one of these labels, taken out of its queue; nil where none waits.
local function next_ticket(queue, labels)
  local best, best_label, best_rank
  for _, label in ipairs(labels) do
    local head = redis.call('ZRANGE', lanes_key(queue, label), 0, 0, 'WITHSCORES')
    if head[1] and (not best or tonumber(head[2]) < best_rank) then
      best, best_label, best_rank = head[1], label, tonumber(head[2])
    end
  end
  if not best then return nil end
  local at = queue == 'validate' and -1 or 0
  local tag = redis.call('ZRANGE', lane_key(queue, best_label, best), at, at)[1]
  take(tag)
  return tag
end

-- The job of this message was served: it goes behind the other jobs, with its mains and with its forks.
local function pass_turn(queue, label, turn, priority)
  if turn == '' then return end
  local turns, moment = P .. ':turns:' .. queue, redis.call('INCR', P .. ':sequence')
  redis.call('ZADD', turns, moment, turn)
  if redis.call('ZCARD', turns) > TURNS_KEPT then redis.call('ZREMRANGEBYRANK', turns, 0, 99) end
  local base = -tonumber(priority) * PRIORITY_STEP + moment
  redis.call('ZADD', lanes_key(queue, label), 'XX', exact(base), priority .. 'm' .. turn)
  redis.call('ZADD', lanes_key(queue, label), 'XX', exact(base + FORK_STEP), priority .. 'f' .. turn)
end

local function forget(tag)
  local it = redis.call('HMGET', message_key(tag), 'scope', 'task')
  if it[1] and it[1] ~= '' then redis.call('SREM', scope_key(it[1]), tag) end
  if it[2] and it[2] ~= '' then redis.call('DEL', P .. ':tag:' .. it[2]) end
  return redis.call('DEL', message_key(tag))
end

-- -------------------------------------------------------------------------------------------------------- devices

local function each_label(worker, act)
  act('*')
  for label in string.gmatch(redis.call('HGET', P .. ':labels', worker) or '', '%S+') do act(label) end
end

local function index_key(kind, label, role) return P .. ':' .. kind .. ':' .. label .. ':' .. role end

local function role_of(worker)
  if redis.call('HEXISTS', P .. ':quarantined', worker) == 1 then return 'none' end
  return redis.call('HGET', P .. ':roles', worker) or 'both'
end

-- Keeps the counts of devices by label and role right after anything about this worker changed.
local function reindex(worker)
  local beat, role = redis.call('ZSCORE', P .. ':devices', worker), role_of(worker)
  local idle = redis.call('HEXISTS', P .. ':busy', worker) == 0
  each_label(worker, function(label)
    for _, known in ipairs(ROLES) do
      local here = beat and known == role
      if here then redis.call('ZADD', index_key('present', label, known), beat, worker)
      else redis.call('ZREM', index_key('present', label, known), worker) end
      if here and idle then redis.call('ZADD', index_key('idle', label, known), beat, worker)
      else redis.call('ZREM', index_key('idle', label, known), worker) end
    end
  end)
end

-- The device that held this ticket is free again.
local function set_idle(tag)
  local device = redis.call('HGET', message_key(tag), 'device')
  if device and redis.call('HGET', P .. ':busy', device) == tag then
    redis.call('HDEL', P .. ':busy', device)
    reindex(device)
  end
end

-- Devices with a label, and those of each split that are free; a device without a role serves both queues.
local function survey(label)
  local since, n = exact(now_s() - DEVICE_TTL_S), { present = {}, idle = {} }
  for kind, counts in pairs(n) do
    for _, role in ipairs(ROLES) do counts[role] = redis.call('ZCOUNT', index_key(kind, label, role), since, '+inf') end
  end
  local present, idle = n.present, n.idle
  return {
    devices = present.validate + present.profile + present.both,
    validators = present.validate + present.both,
    profilers = present.profile + present.both,
    free = idle.validate + idle.profile + idle.both,
    free_validators = idle.validate + idle.both,
    free_profilers = idle.profile + idle.both,
    flexible = present.validate + present.profile == 0,
  }
end

-- What a device held that is certainly not running any more goes back; returns how many messages.
local function give_back(worker, index)
  local restored = 0
  redis.call('HDEL', P .. ':busy', worker)
  for _, tag in ipairs(redis.call('ZRANGE', index, 0, -1)) do
    local it = redis.call('HMGET', message_key(tag), 'device', 'scope', 'task')
    if it[1] == worker then
      redis.call('ZREM', index, tag)
      redis.call('DEL', P .. ':start:' .. it[3])
      if is_closed(it[2]) then
        forget(tag)
      else
        insert(tag)
        restored = restored + 1
      end
    end
  end
  if restored > 0 then count('restored', restored) end
  return restored
end

-- --------------------------------------------------------------------------------------------------------- claims

local function drop_claims(scope)
  local dropped = 0
  for _, claim in ipairs(redis.call('SMEMBERS', claimed_key(scope))) do
    local label, id = string.match(claim, '^(%S+) (%S+)$')
    dropped = dropped + redis.call('ZREM', claims_key(label), id)
  end
  redis.call('DEL', claimed_key(scope))
  return dropped
end
