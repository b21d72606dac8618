-- A device worker starts: no process of its name lives, so what it held is put back at once.
-- ARGV 3, 4: worker, index of unacknowledged tags. Returns how many messages were restored.
local restored = give_back(ARGV[3], ARGV[4])
reindex(ARGV[3])
return restored
