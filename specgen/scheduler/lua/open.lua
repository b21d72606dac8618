-- An iteration starts, or is taken up again after its worker died: claims of the earlier attempt are void, and a
-- boundary that was never committed no longer holds. ARGV 3: scope. Returns the claims dropped.
redis.call('DEL', P .. ':closed:' .. ARGV[3])
return drop_claims(ARGV[3])
