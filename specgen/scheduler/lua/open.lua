-- An iteration starts, or is taken up again after its worker died: claims of the earlier attempt are void, and a
-- boundary that was never committed no longer holds. ARGV 3, 4: scope, label. Returns the claims dropped.
local scope, label = ARGV[3], ARGV[4]
redis.call('DEL', P .. ':closed:' .. scope)
local moment = redis.call('INCR', P .. ':sequence')
redis.call('ZADD', P .. ':open', moment, scope)
redis.call('HINCRBY', P .. ':lengths', 'validate:' .. label, 0)
for _, field in ipairs(redis.call('HKEYS', P .. ':lengths')) do -- of every label: the boundary tells of all
  local queue, other = string.match(field, '^(%a+):(.+)$')
  if other then peak(queue, other, length(queue, other), moment) end
end
return drop_claims(scope)
