-- The lease of the scheduler that decides. ARGV 3, 4: name, milliseconds (0 gives it up). Returns 1 where the lease is
-- held by that name now, or was given up; 0 while another holds it.
local name, ms = ARGV[3], tonumber(ARGV[4])
local holder = redis.call('GET', P .. ':leader')
if holder and holder ~= name then return 0 end
if ms > 0 then redis.call('SET', P .. ':leader', name, 'PX', ms) else redis.call('DEL', P .. ':leader') end
return 1
