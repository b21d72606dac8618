-- Pop the ticket to serve next and lease it, in one step: no message is ever outside both its queue and the index of
-- unacknowledged tags. ARGV 3..6: index of unacknowledged tags, device ('' for none), labels (separated by blanks; '-'
-- stands for the empty one), histogram bounds (likewise); from 7: queues by precedence.
-- Returns {queue, tag, payload, deliveries, seconds waited}, or nil.
local index, device, labels = ARGV[3], ARGV[4], {}
for label in string.gmatch(ARGV[5], '%S+') do labels[#labels + 1] = label ~= '-' and label or '' end

local function observe(queue, waited)
  local key, bucket = P .. ':wait:' .. queue, '+Inf'
  for bound in string.gmatch(ARGV[6], '%S+') do
    if waited <= tonumber(bound) then
      bucket = bound
      break
    end
  end
  redis.call('HINCRBY', key, bucket, 1)
  redis.call('HINCRBYFLOAT', key, 'sum', string.format('%.6f', waited))
end

for i = 7, #ARGV do
  local queue = ARGV[i]
  while true do
    local tag = next_ticket(queue, labels)
    if not tag then break end
    local it = redis.call('HMGET', message_key(tag), 'payload', 'scope', 'label', 'turn', 'priority', 'at')
    if is_closed(it[2]) then
      forget(tag)
    else
      local now = now_s()
      local waited = math.max(0, now - tonumber(it[6]))
      redis.call('HSET', message_key(tag), 'device', device)
      redis.call('ZADD', index, string.format('%.6f', now), tag)
      if device ~= '' then
        redis.call('HSET', P .. ':busy', device, tag)
        reindex(device)
      end
      pass_turn(queue, it[3], it[4], it[5])
      count('served:' .. queue, 1)
      observe(queue, waited)
      local deliveries = redis.call('HINCRBY', message_key(tag), 'deliveries', 1)
      return { queue, tag, it[1], deliveries, string.format('%.6f', waited) }
    end
  end
end
return false
