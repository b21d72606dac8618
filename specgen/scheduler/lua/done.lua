-- Acknowledge. ARGV 3..5: index of unacknowledged tags, tag, the delivery that is acknowledged. Returns 1 if the
-- message was there; 0 where it is gone, or was delivered to another worker since (this one's lease had run out).
local index, tag = ARGV[3], ARGV[4]
if redis.call('HGET', message_key(tag), 'deliveries') ~= ARGV[5] then return 0 end
set_idle(tag)
take(tag) -- its lease ran out and it waits again, although it was done
redis.call('ZREM', index, tag)
return forget(tag)
