-- A device failed its probe, or passed it again. ARGV 3, 4: worker, reason ('' to lift). Returns 1 if that is a change.
local worker, reason = ARGV[3], ARGV[4]
local changed
if reason == '' then
  changed = redis.call('HDEL', P .. ':quarantined', worker)
else
  local entry = cjson.encode({ reason = reason, since = now_s() })
  changed = redis.call('HSETNX', P .. ':quarantined', worker, entry)
end
reindex(worker)
return changed
