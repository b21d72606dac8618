-- The boundary of a scope. ARGV 3..5: scope, how long it stays closed (s), 1 to close it without telling the scheduler
-- (nobody worked on it). Closes it, drops its queued requests, gives back its claims, and hands the maximum lengths of
-- the queues since it was opened to the scheduler: the recorded maxima start anew for its successor.
-- Returns {dropped, claims given back}.
local scope, silent = ARGV[3], ARGV[5] == '1'
local again = is_closed(scope)
redis.call('SET', P .. ':closed:' .. scope, string.format('%.6f', now_s()), 'EX', ARGV[4])
local dropped = 0
for _, tag in ipairs(redis.call('SMEMBERS', scope_key(scope))) do
  if take(tag) then -- what runs is left to its device, which watches for this boundary
    dropped = dropped + 1
    forget(tag)
  end
end
redis.call('DEL', scope_key(scope))
local claims = drop_claims(scope)
local opened = tonumber(redis.call('ZSCORE', P .. ':open', scope) or 0)
redis.call('ZREM', P .. ':open', scope)

local maxima, oldest = {}, redis.call('ZRANGE', P .. ':open', 0, 0, 'WITHSCORES')[2]
for _, field in ipairs(redis.call('HKEYS', P .. ':lengths')) do
  local queue, label = string.match(field, '^(%a+):(.+)$')
  if label then
    maxima[label] = maxima[label] or { 0, 0 }
    maxima[label][queue == 'validate' and 1 or 2] = peak_since(queue, label, opened)
    redis.call('ZREMRANGEBYSCORE', peaks_key(queue, label), '-inf', '(' .. (oldest or '+inf'))
  end
end
if not again and not silent then
  local text = next(maxima) and cjson.encode(maxima) or '{}'
  redis.call('LPUSH', P .. ':boundaries', '{"scope":' .. cjson.encode(scope) .. ',"dropped":' .. dropped ..
    ',"maxima":' .. text .. '}')
  redis.call('LTRIM', P .. ':boundaries', 0, 999)
  count('boundaries', 1)
end
if dropped > 0 then count('dropped', dropped) end
return { dropped, claims }
