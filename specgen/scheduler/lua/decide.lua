-- A decision of the scheduler: recorded together with the end of the boundaries that it answers, so that a scheduler
-- which dies between leaves them to its successor. ARGV 3..5: its name, which must hold the lease, how many boundaries
-- (the oldest ones), how many decisions are kept; then pairs of field and value.
-- Returns the entry's id, by the server's clock and unique, or '' where the lease is another's.
if redis.call('GET', P .. ':leader') ~= ARGV[3] then return '' end
for _ = 1, tonumber(ARGV[4]) do redis.call('RPOP', P .. ':boundaries') end
local fields = { 'at', string.format('%.6f', now_s()) }
for i = 6, #ARGV do fields[#fields + 1] = ARGV[i] end
return redis.call('XADD', P .. ':decisions', 'MAXLEN', '~', ARGV[5], '*', unpack(fields))
