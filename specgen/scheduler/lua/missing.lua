-- Of these request ids (ARGV from 3), those that are neither queued, nor leased, nor being evaluated.
local missing = {}
for i = 3, #ARGV do
  if redis.call('EXISTS', P .. ':tag:' .. ARGV[i], P .. ':start:' .. ARGV[i]) == 0 then missing[#missing + 1] = ARGV[i] end
end
return missing
