-- The scheduler gives roles. ARGV 3: its name, which must hold the lease ('' to skip that); then pairs of worker and
-- role. Returns the new epoch, or -1 where the lease is another's.
if ARGV[3] ~= '' and redis.call('GET', P .. ':leader') ~= ARGV[3] then return -1 end
for i = 4, #ARGV, 2 do
  redis.call('HSET', P .. ':roles', ARGV[i], ARGV[i + 1])
  reindex(ARGV[i])
end
count('moved', (#ARGV - 3) / 2)
return redis.call('INCR', P .. ':epoch')
