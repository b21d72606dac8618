-- Tags whose lease nobody renewed, oldest first. ARGV 3..5: index of unacknowledged tags, timeout (s), how many at most.
return redis.call('ZRANGE', ARGV[3], '-inf', string.format('%.6f', now_s() - tonumber(ARGV[4])), 'BYSCORE',
  'LIMIT', 0, ARGV[5])
