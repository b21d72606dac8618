-- A device takes up a request. ARGV 3..6: scope, request id, worker, seconds until the claim lapses unless renewed.
-- Returns 'closed', 'held' (another worker evaluates it), or 'mine'.
if is_closed(ARGV[3]) then return 'closed' end
if redis.call('SET', P .. ':start:' .. ARGV[4], ARGV[5], 'NX', 'EX', ARGV[6]) then return 'mine' end
return 'held'
