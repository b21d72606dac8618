-- The pool in numbers, as a job of label ARGV[3] sees it ('*' for all). Costs the same for any number of devices.
-- Returns {devices, validators, profilers, busy, waiting to validate, to profile, claims}.
local label = ARGV[3]
local pool = survey(label)
local of = label ~= '*' and label or nil
local claims = 0
for _, name in ipairs(of and { of } or redis.call('SMEMBERS', P .. ':claim_labels')) do
  claims = claims + redis.call('ZCARD', claims_key(name))
end
return { pool.devices, pool.validators, pool.profilers, pool.devices - pool.free, length('validate', of),
  length('profile', of), claims }
