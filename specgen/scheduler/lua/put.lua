-- Enqueue. ARGV 3..10: queue, tag, payload, scope, main (0|1), task id, label, priority.
-- Returns how many wait there with that label, or -1 where the scope is closed. A task id that is queued or running is
-- not doubled.
local queue, tag, payload, scope, main, task = ARGV[3], ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local label, priority = ARGV[9], ARGV[10]
if is_closed(scope) then
  count('refused_closed', 1)
  return -1
end
if task ~= '' and not redis.call('SET', P .. ':tag:' .. task, tag, 'NX') then return length(queue, label) end
local arrival = redis.call('INCR', P .. ':sequence')
local lane, turn, base = lane_of(scope, main, priority)
redis.call('HSET', message_key(tag), 'payload', payload, 'queue', queue, 'label', label, 'scope', scope, 'task', task,
  'lane', lane, 'turn', turn, 'base', exact(base), 'priority', priority, 'arrival', arrival,
  'score', exact(queue == 'validate' and -base + FORK_STEP + arrival or base + arrival), 'at', string.format('%.6f', now_s()), 'deliveries', 0)
if scope ~= '' then redis.call('SADD', scope_key(scope), tag) end
count('enqueued:' .. queue, 1)
return insert(tag)
