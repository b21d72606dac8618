-- An iteration starts, or is taken up again after its worker died: claims of the earlier attempt are void, and a
-- boundary that was never committed no longer holds. ARGV 3, 4: scope, label. Returns the claims dropped.
local scope, label = ARGV[3], ARGV[4]
redis.call('DEL', P .. ':closed:' .. scope)
local moment = redis.call('INCR', P .. ':sequence')
redis.call('ZADD', P .. ':open', moment, scope)
for _, queue in ipairs({ 'validate', 'profile' }) do peak(queue, label, length(queue, label), moment) end
return drop_claims(scope)
