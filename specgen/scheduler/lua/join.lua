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
-- 0.1 kept some queues as lists; nobody of it lives any more. What waited there is in the database: jobs and requests
-- without an outcome are enqueued again.
local function forget_old_queues()
  local old = false
  for _, queue in ipairs({ 'profile', 'iterations' }) do old = old or redis.call('TYPE', queue).ok == 'list' end
  if not old then return end
  redis.call('DEL', 'validate', 'profile', 'iterations', 'unacked_index', 'unacked', P .. ':busy')
  for _, kind in ipairs({ 'message', 'tag', 'scope', 'bell', 'start' }) do
    for _, key in ipairs(redis.call('KEYS', P .. ':' .. kind .. ':*')) do redis.call('DEL', key) end
  end
end

if name ~= '' then
  forget_old_queues()
  redis.call('ZADD', members, string.format('%.6f', now), name)
  redis.call('HSET', infos, name, info)
end
return {}
