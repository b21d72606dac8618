-- Hold a device, or let it go. ARGV 3..7: its identity, who holds it (JSON with owner), owner, milliseconds until that
-- lapses unless repeated (0: let go), the owner that is known to be dead ('' for none).
-- Returns '' where it is held (or let go) now, else the JSON of who holds it.
local key, owner, ttl = P .. ':held:' .. ARGV[3], ARGV[5], tonumber(ARGV[6])
local holder = redis.call('GET', key)
local free = not holder
if holder then
  local its = cjson.decode(holder).owner
  free = its == owner or its == ARGV[7]
end
if ttl == 0 then
  if holder and free then redis.call('DEL', key) end
  return ''
end
if not free then return holder end
redis.call('SET', key, ARGV[4], 'PX', ttl)
return ''
