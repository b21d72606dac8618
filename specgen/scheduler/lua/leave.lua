-- A device worker ends: what it was sent but never finished goes back at once; its role stays, should it return.
-- ARGV 3, 4: worker, index of unacknowledged tags. Returns how many messages were restored.
local restored = give_back(ARGV[3], ARGV[4])
redis.call('ZREM', P .. ':devices', ARGV[3])
reindex(ARGV[3])
return restored
