-- Reserve K forks. ARGV 3..7: scope, max_k, 1 for at least one, seconds after which a forgotten claim lapses, label.
-- K = max(1, min(C.val, C.prof)), Algorithm 1 line 10; C = devices - busy - queued - forks still generating, all of
-- that label. Where every device serves both queues, both splits are the same free devices. Returns K.
local scope, max_k, at_least_one, lapse, label = ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1', tonumber(ARGV[6]), ARGV[7]
if is_closed(scope) then return 0 end
local now = now_s()
redis.call('ZREMRANGEBYSCORE', claims_key(label), '-inf', exact(now))
local pool, claims = survey(label), redis.call('ZCARD', claims_key(label))
local queued_val, queued_prof = length('validate', label), length('profile', label)
if pool.flexible then
  queued_val = queued_val + queued_prof
  queued_prof = queued_val
end
local c_val = math.max(0, pool.free_validators - queued_val - claims)
local c_prof = math.max(0, pool.free_profilers - queued_prof - claims)
local k = math.min(c_val, c_prof)
if at_least_one then k = math.max(1, k) end
k = math.min(k, max_k)
for _ = 1, k do
  local id = redis.call('INCR', P .. ':sequence')
  redis.call('ZADD', claims_key(label), exact(now + lapse), id)
  redis.call('SADD', claimed_key(scope), label .. ' ' .. id)
end
if k > 0 then
  redis.call('EXPIRE', claimed_key(scope), exact(lapse))
  redis.call('SADD', P .. ':claim_labels', label)
end
return k
