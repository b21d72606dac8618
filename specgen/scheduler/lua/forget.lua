-- Drops everything kept of devices that have been gone for long (containers come back under other names: without this
-- the hashes grow for ever). ARGV 3, 4: the scheduler's name, which must hold the lease; seconds.
-- Gone is a device without a heartbeat; `gone` remembers since when, for those that left in order. Returns how many
-- were dropped, or -1 where the lease is another's.
if redis.call('GET', P .. ':leader') ~= ARGV[3] then return -1 end
local now, seconds, gone, known, dropped = now_s(), tonumber(ARGV[4]), P .. ':gone', {}, 0
local hashes = { 'roles', 'info', 'labels', 'busy', 'groups', 'quarantined' }
for _, hash in ipairs(hashes) do
  for _, worker in ipairs(redis.call('HKEYS', P .. ':' .. hash)) do known[worker] = true end
end
for _, key in ipairs({ P .. ':devices', gone }) do
  for _, worker in ipairs(redis.call('ZRANGE', key, 0, -1)) do known[worker] = true end
end
for worker in pairs(known) do
  local beat = tonumber(redis.call('ZSCORE', P .. ':devices', worker) or 0)
  if beat > now - DEVICE_TTL_S then
    redis.call('ZREM', gone, worker)
  else
    redis.call('ZADD', gone, 'NX', string.format('%.6f', beat > 0 and beat or now), worker)
    if tonumber(redis.call('ZSCORE', gone, worker)) <= now - seconds then
      redis.call('ZREM', P .. ':devices', worker)
      reindex(worker) -- while its labels are known
      for _, hash in ipairs(hashes) do redis.call('HDEL', P .. ':' .. hash, worker) end
      redis.call('ZREM', gone, worker)
      dropped = dropped + 1
    end
  end
end
return dropped
