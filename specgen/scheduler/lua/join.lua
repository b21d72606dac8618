-- A process of the pool is there; or asks whether it may be. ARGV 3..6: name ('' only to ask), info (JSON with version),
-- version, seconds without a heartbeat after which a member counts as gone.
-- Returns {} where it may, else {name, info} of a live member of another version. Who is a member stays one.
local name, info, version, ttl = ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
local members, infos, now = P .. ':members', P .. ':member_info', now_s()
for _, gone in ipairs(redis.call('ZRANGE', members, '-inf', string.format('%.6f', now - ttl), 'BYSCORE')) do
  redis.call('ZREM', members, gone)
  redis.call('HDEL', infos, gone)
end
local mine = name ~= '' and redis.call('ZSCORE', members, name) and redis.call('HGET', infos, name) == info
if not mine then
  for _, other in ipairs(redis.call('ZRANGE', members, 0, -1)) do
    local about = redis.call('HGET', infos, other)
    if other ~= name and about and cjson.decode(about).version ~= version then return { other, about } end
  end
end
if name ~= '' then
  redis.call('ZADD', members, string.format('%.6f', now), name)
  redis.call('HSET', infos, name, info)
end
return {}
