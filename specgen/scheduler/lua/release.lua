-- Give back up to ARGV[4] claims of scope ARGV[3]. Returns how many were held.
local released = 0
for _, claim in ipairs(redis.call('SPOP', claimed_key(ARGV[3]), ARGV[4])) do
  local label, id = string.match(claim, '^(%S+) (%S+)$')
  released = released + redis.call('ZREM', claims_key(label), id)
end
return released
