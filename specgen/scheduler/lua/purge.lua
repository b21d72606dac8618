-- Empty a queue. ARGV 3: queue. Returns how many messages went.
local queue = ARGV[3]
local tags = redis.call('ZRANGE', queue, 0, -1)
for _, tag in ipairs(tags) do
  take(tag)
  forget(tag)
end
return #tags
