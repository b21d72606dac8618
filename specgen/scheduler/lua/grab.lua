-- Pop the first ticket of the first queue that has one and lease it, in one step: no message is ever outside both
-- its queue and the index of unacknowledged tags.
-- ARGV 3..5: index of unacknowledged tags, now (unix s), device; from 6: queues by precedence.
-- Returns {queue, tag, payload, deliveries}, or nil.
for i = 6, #ARGV do
  local queue = ARGV[i]
  while true do
    local tag
    if queue == 'validate' then tag = redis.call('ZPOPMAX', queue)[1] else tag = redis.call('RPOP', queue) end
    if not tag then break end
    local it = redis.call('HMGET', message_key(tag), 'payload', 'scope')
    if it[1] and is_closed(it[2]) then
      forget(tag)
    elseif it[1] then
      redis.call('HSET', message_key(tag), 'device', ARGV[5])
      redis.call('ZADD', ARGV[3], ARGV[4], tag)
      if ARGV[5] ~= '' then redis.call('HSET', P .. ':busy', ARGV[5], tag) end
      redis.call('LTRIM', bell_key(queue), 0, length(queue) - 1)
      if length(queue) == 0 then redis.call('DEL', bell_key(queue)) end
      return { queue, tag, it[1], redis.call('HINCRBY', message_key(tag), 'deliveries', 1) }
    end
  end
  redis.call('DEL', bell_key(queue)) -- the queue is empty: a later put rings again
end
return false
