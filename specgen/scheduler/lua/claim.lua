-- Reserve K forks. ARGV 3..6: scope, max_k, 1 for at least one, seconds after which a forgotten claim lapses.
-- K = max(1, min(C.val, C.prof)), Algorithm 1 line 10; C = devices - busy - queued - forks still generating.
-- Where every device serves both queues, both splits are the same free devices. Returns K.
local scope, max_k, at_least_one, lapse = ARGV[3], tonumber(ARGV[4]), ARGV[5] == '1', tonumber(ARGV[6])
if is_closed(scope) then return 0 end
local now = now_s()
redis.call('ZREMRANGEBYSCORE', P .. ':claims', '-inf', now)
local pool, claims = survey(), redis.call('ZCARD', P .. ':claims')
local queued_val, queued_prof = length('validate'), length('profile')
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
  redis.call('ZADD', P .. ':claims', now + lapse, redis.call('INCR', P .. ':sequence') .. ' ' .. scope)
end
return k
