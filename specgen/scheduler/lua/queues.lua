-- Queues as a dashboard shows them. ARGV 3: index of unacknowledged tags; from 4: names of queues.
-- Returns {{name, waiting, delivered and not acknowledged, workers that consume it (0 where not known here)}…}.
local leased, rows = {}, {}
for _, tag in ipairs(redis.call('ZRANGE', ARGV[3], 0, -1)) do
  local queue = redis.call('HGET', message_key(tag), 'queue')
  if queue then leased[queue] = (leased[queue] or 0) + 1 end
end
local pool = survey('*')
local consumers = { validate = pool.validators, profile = pool.profilers }
for i = 4, #ARGV do
  local queue = ARGV[i]
  local kind, waiting = redis.call('TYPE', queue).ok, 0
  if kind == 'zset' then waiting = redis.call('ZCARD', queue)
  elseif kind == 'list' then waiting = redis.call('LLEN', queue) end
  rows[#rows + 1] = { queue, waiting, leased[queue] or 0, consumers[queue] or 0 }
end
return rows
