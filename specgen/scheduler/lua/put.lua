-- Enqueue on a device queue. ARGV 3..8: queue, tag, payload, scope, main (0|1), task id.
-- Returns the queue's length, or -1 where the scope is closed. A task id that is queued or running is not doubled.
local queue, tag, payload, scope, main, task = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
if is_closed(scope) then return -1 end
if task ~= '' and not redis.call('SET', P .. ':tag:' .. task, tag, 'NX') then return length(queue) end
local arrival = redis.call('INCR', P .. ':sequence')
local score = arrival
if main == '1' and ORDER == 'mains_first' then score = MAIN_BAND + arrival end
redis.call('HSET', message_key(tag), 'payload', payload, 'queue', queue, 'scope', scope, 'main', main, 'task', task,
  'arrival', arrival, 'score', string.format('%.0f', score), 'deliveries', 0)
if scope ~= '' then redis.call('SADD', scope_key(scope), tag) end
insert(tag, true)
local n = length(queue)
if n > tonumber(redis.call('HGET', P .. ':maxima', queue) or 0) then redis.call('HSET', P .. ':maxima', queue, n) end
return n
