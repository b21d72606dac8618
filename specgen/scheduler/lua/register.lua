-- A device worker starts: no process of its name lives, so what it held is put back at once.
-- ARGV 3, 4: worker, index of unacknowledged tags. Returns how many messages were restored.
local worker, restored = ARGV[3], 0
redis.call('HDEL', P .. ':busy', worker)
for _, tag in ipairs(redis.call('ZRANGE', ARGV[4], 0, -1)) do
  local it = redis.call('HMGET', message_key(tag), 'device', 'scope', 'task')
  if it[1] == worker then
    redis.call('ZREM', ARGV[4], tag)
    redis.call('DEL', P .. ':start:' .. it[3])
    if is_closed(it[2]) then
      forget(tag)
    else
      insert(tag, false)
      restored = restored + 1
    end
  end
end
return restored
