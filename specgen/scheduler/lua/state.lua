-- The pool now: {time, validate length, profile length, claims, epoch, {{worker, heartbeat, role, busy queue, info}…}}.
local devices = {}
for _, worker in ipairs(redis.call('ZRANGE', P .. ':devices', now_s() - DEVICE_TTL_S, '+inf', 'BYSCORE')) do
  local tag, busy = redis.call('HGET', P .. ':busy', worker), ''
  if tag then busy = redis.call('HGET', message_key(tag), 'queue') or '' end
  devices[#devices + 1] = { worker, redis.call('ZSCORE', P .. ':devices', worker),
    redis.call('HGET', P .. ':roles', worker) or 'both', busy, redis.call('HGET', P .. ':info', worker) or '{}' }
end
return { tostring(now_s()), length('validate'), length('profile'), redis.call('ZCARD', P .. ':claims'),
  redis.call('GET', P .. ':epoch') or '0', devices }
