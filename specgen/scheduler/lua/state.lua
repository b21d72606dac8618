-- The whole pool now: {time, claims, epoch, leader, {{queue, label, waiting, oldest wait}…}, {{worker, heartbeat, role,
-- busy queue, busy scope, info, quarantined}…}}. Costs something for each device: for people and for reallocation.
local now, queues, devices, claims = now_s(), {}, {}, 0
for _, field in ipairs(redis.call('HKEYS', P .. ':lengths')) do
  local queue, label = string.match(field, '^(%a+):(.*)$')
  local oldest = 0
  for _, lane in ipairs(redis.call('ZRANGE', lanes_key(queue, label), 0, -1)) do
    local tag = redis.call('ZRANGE', lane_key(queue, label, lane), 0, 0)[1]
    if tag then oldest = math.max(oldest, now - tonumber(redis.call('HGET', message_key(tag), 'at') or now)) end
  end
  queues[#queues + 1] = { queue, label, length(queue, label), string.format('%.3f', oldest) }
end
for _, label in ipairs(redis.call('SMEMBERS', P .. ':claim_labels')) do
  claims = claims + redis.call('ZCARD', claims_key(label))
end
for _, worker in ipairs(redis.call('ZRANGE', P .. ':devices', exact(now - DEVICE_TTL_S), '+inf', 'BYSCORE')) do
  local tag, busy = redis.call('HGET', P .. ':busy', worker), {}
  if tag then busy = redis.call('HMGET', message_key(tag), 'queue', 'scope') end
  devices[#devices + 1] = { worker, redis.call('ZSCORE', P .. ':devices', worker),
    redis.call('HGET', P .. ':roles', worker) or 'both', busy[1] or '', busy[2] or '',
    redis.call('HGET', P .. ':info', worker) or '{}', redis.call('HGET', P .. ':quarantined', worker) or '' }
end
return { string.format('%.6f', now), claims, redis.call('GET', P .. ':epoch') or '0',
  redis.call('GET', P .. ':leader') or '', queues, devices }
