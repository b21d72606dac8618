-- The pool in figures, for Prometheus. ARGV 3: index of unacknowledged tags; from 4: queues. Costs something for each
-- label and each quarantined device; of all other devices only their labels are read.
-- Returns {queues, devices, quarantined, claims, scalars, counters, waits}: {{queue, label, waiting}…};
-- {{label, role, present, busy}…}, '*' for all devices; {{label, role}…} for each label of a quarantined device that is
-- there; {{label, claims}…}; {leases, open scopes, pending boundaries, 1 with a leader}; and hashes as flat lists: the
-- counters, {{queue, buckets}…}.
local now = now_s()
local since = exact(now - DEVICE_TTL_S)

local queues = {}
local lengths = redis.call('HGETALL', P .. ':lengths')
for i = 1, #lengths, 2 do
  local queue, label = string.match(lengths[i], '^(%a+):(.*)$')
  queues[#queues + 1] = { queue, label, tonumber(lengths[i + 1]) }
end

local labels, devices = { ['*'] = true }, {}
for _, names in ipairs(redis.call('HVALS', P .. ':labels')) do
  for label in string.gmatch(names, '%S+') do labels[label] = true end
end
for label in pairs(labels) do
  for _, role in ipairs(ROLES) do
    local present = redis.call('ZCOUNT', index_key('present', label, role), since, '+inf')
    local idle = redis.call('ZCOUNT', index_key('idle', label, role), since, '+inf')
    devices[#devices + 1] = { label, role, present, present - idle }
  end
end

local quarantined = {}
for _, worker in ipairs(redis.call('HKEYS', P .. ':quarantined')) do
  if tonumber(redis.call('ZSCORE', P .. ':devices', worker) or 0) >= now - DEVICE_TTL_S then
    local role = redis.call('HGET', P .. ':roles', worker) or 'both'
    each_label(worker, function(label) quarantined[#quarantined + 1] = { label, role } end)
  end
end

local claims = {}
for _, label in ipairs(redis.call('SMEMBERS', P .. ':claim_labels')) do
  claims[#claims + 1] = { label, redis.call('ZCOUNT', claims_key(label), string.format('(%.6f', now), '+inf') }
end

local scalars = { redis.call('ZCARD', ARGV[3]), redis.call('ZCARD', P .. ':open'),
  redis.call('LLEN', P .. ':boundaries'), redis.call('EXISTS', P .. ':leader') }

local waits = {}
for i = 4, #ARGV do waits[#waits + 1] = { ARGV[i], redis.call('HGETALL', P .. ':wait:' .. ARGV[i]) } end

return { queues, devices, quarantined, claims, scalars, redis.call('HGETALL', P .. ':counters'), waits }
