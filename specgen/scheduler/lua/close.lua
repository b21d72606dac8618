-- The boundary of a scope. ARGV 3..5: scope, how long it stays closed (s), now (unix s).
-- Closes it, drops its queued requests, gives back its claims, resets the recorded maxima to the present lengths and
-- tells the scheduler. Returns {dropped, claims given back, L_v, L_p}.
local scope = ARGV[3]
redis.call('SET', P .. ':closed:' .. scope, ARGV[5], 'EX', ARGV[4])
local dropped = 0
for _, tag in ipairs(redis.call('SMEMBERS', scope_key(scope))) do
  local queue = redis.call('HGET', message_key(tag), 'queue')
  local removed
  if queue == 'validate' then removed = redis.call('ZREM', queue, tag)
  else removed = redis.call('LREM', 'profile', 1, tag) end
  if removed == 1 then
    dropped = dropped + 1
    forget(tag)
  end
end
redis.call('DEL', scope_key(scope))
local claims = drop_claims(scope)
local maxima = redis.call('HMGET', P .. ':maxima', 'validate', 'profile')
local l_val, l_prof = tonumber(maxima[1] or 0), tonumber(maxima[2] or 0)
redis.call('HSET', P .. ':maxima', 'validate', length('validate'), 'profile', length('profile'))
redis.call('LPUSH', P .. ':boundaries', cjson.encode({ scope = scope, l_val = l_val, l_prof = l_prof, dropped = dropped }))
redis.call('LTRIM', P .. ':boundaries', 0, 999)
return { dropped, claims, l_val, l_prof }
