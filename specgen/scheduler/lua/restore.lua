-- Put a leased ticket back at its own place. ARGV 3..6: index of unacknowledged tags, tag, 1 where its delivery does
-- not count (it was never started), the delivery that gives it back ('' for whoever restores an expired lease).
-- Returns 1 if restored, 0 if it was not leased to that delivery or its scope is closed, -1 if the tag is no ticket.
local index, tag = ARGV[3], ARGV[4]
if redis.call('EXISTS', message_key(tag)) == 0 then return -1 end
if ARGV[6] ~= '' and redis.call('HGET', message_key(tag), 'deliveries') ~= ARGV[6] then return 0 end
set_idle(tag)
if redis.call('ZREM', index, tag) == 0 then return 0 end
local it = redis.call('HMGET', message_key(tag), 'scope', 'task')
redis.call('DEL', P .. ':start:' .. it[2]) -- whoever held the start claim is dead, or gave the message back
if is_closed(it[1]) then
  forget(tag)
  return 0
end
if ARGV[5] == '1' then redis.call('HINCRBY', message_key(tag), 'deliveries', -1) else count('restored', 1) end
insert(tag)
return 1
