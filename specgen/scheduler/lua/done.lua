-- Acknowledge. ARGV 3, 4: index of unacknowledged tags, tag. Returns 1 if the message was there.
set_idle(ARGV[4])
redis.call('ZREM', ARGV[3], ARGV[4])
return forget(ARGV[4])
