-- A device is there. ARGV 3, 4: worker, info (JSON; empty to leave it as it is). The server's clock, so that hosts may
-- differ. Returns the role it has now: validate, profile, both, or none while it is quarantined.
local worker = ARGV[3]
redis.call('ZADD', P .. ':devices', string.format('%.6f', now_s()), worker)
if ARGV[4] ~= '' then
  local labels = table.concat(cjson.decode(ARGV[4]).labels or {}, ' ')
  if redis.call('HGET', P .. ':labels', worker) ~= labels then
    each_label(worker, function(label)
      for _, role in ipairs(ROLES) do
        redis.call('ZREM', index_key('present', label, role), worker)
        redis.call('ZREM', index_key('idle', label, role), worker)
      end
    end)
    redis.call('HSET', P .. ':labels', worker, labels)
  end
  redis.call('HSET', P .. ':info', worker, ARGV[4])
end
reindex(worker)
return role_of(worker)
