-- A device is there. ARGV 3, 4: worker, info (JSON; empty to leave it). The server's clock, so that hosts may differ.
redis.call('ZADD', P .. ':devices', now_s(), ARGV[3])
if ARGV[4] ~= '' then redis.call('HSET', P .. ':info', ARGV[3], ARGV[4]) end
return redis.call('HGET', P .. ':roles', ARGV[3]) or 'both'
