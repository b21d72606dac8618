-- Renew leases by the server's clock. ARGV 3: index of unacknowledged tags; then pairs of tag and delivery ('' for a
-- message that is no ticket). A ticket that was delivered to another worker since is left to that one.
-- Returns how many were renewed.
local index, now, renewed = ARGV[3], string.format('%.6f', now_s()), 0
for i = 4, #ARGV, 2 do
  local tag, delivery = ARGV[i], ARGV[i + 1]
  if delivery == '' or redis.call('HGET', message_key(tag), 'deliveries') == delivery then
    if redis.call('ZSCORE', index, tag) then
      redis.call('ZADD', index, 'XX', now, tag)
      renewed = renewed + 1
    end
  end
end
return renewed
