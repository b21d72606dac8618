-- Give back up to ARGV[4] claims of scope ARGV[3], oldest first. Returns how many were held.
local left = tonumber(ARGV[4])
for _, claim in ipairs(redis.call('ZRANGE', P .. ':claims', 0, -1)) do
  if left == 0 then break end
  if string.sub(claim, string.find(claim, ' ', 1, true) + 1) == ARGV[3] then
    left = left - redis.call('ZREM', P .. ':claims', claim)
  end
end
return tonumber(ARGV[4]) - left
