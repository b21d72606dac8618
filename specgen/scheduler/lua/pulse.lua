-- What tells the scheduler that something happened: {epoch, digest of the devices that are there and of those in
-- quarantine, workers that idle although a request waits that they could serve…}. A thousand devices cost a sort of
-- their names.
local since = exact(now_s() - DEVICE_TTL_S)
local names = redis.call('ZRANGE', P .. ':devices', since, '+inf', 'BYSCORE')
local out = redis.call('HKEYS', P .. ':quarantined')
table.sort(names)
table.sort(out)
local answer = { redis.call('GET', P .. ':epoch') or '0',
  redis.sha1hex(table.concat(names, ' ') .. '\n' .. table.concat(out, ' ')) }
local waiting, seen = redis.call('HGETALL', P .. ':lengths'), {}
for i = 1, #waiting, 2 do
  local queue, label = string.match(waiting[i], '^(%a+):(.+)$')
  if label and tonumber(waiting[i + 1]) > 0 then
    for _, role in ipairs({ queue, 'both' }) do
      for _, worker in ipairs(redis.call('ZRANGE', index_key('idle', label, role), since, '+inf', 'BYSCORE')) do
        if not seen[worker] then answer[#answer + 1] = worker end
        seen[worker] = true
      end
    end
  end
end
return answer
