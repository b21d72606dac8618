-- The tickets that wait, in the order in which devices would take them if nothing else came; takes none. ARGV 3, 4:
-- queue, how many at most; from 5: labels. Returns their tags. Served jobs move behind the others as in pass_turn.
local queue, wanted, lanes, found = ARGV[3], tonumber(ARGV[4]), {}, {}
for i = 5, #ARGV do
  local heads = redis.call('ZRANGE', lanes_key(queue, ARGV[i]), 0, 2 * wanted - 1, 'WITHSCORES')
  for at = 1, #heads, 2 do
    local priority, kind, turn = string.match(heads[at], '^(-?%d+)([mf])(.*)$')
    lanes[#lanes + 1] = { label = ARGV[i], name = heads[at], rank = tonumber(heads[at + 1]), taken = 0,
      priority = priority, fork = kind == 'f', turn = turn }
  end
end

local moment = tonumber(redis.call('GET', P .. ':sequence') or 0)
while #found < wanted do
  local best
  for _, lane in ipairs(lanes) do
    if not lane.empty and (not best or lane.rank < best.rank) then best = lane end
  end
  if not best then break end
  local at = queue == 'validate' and -1 - best.taken or best.taken
  local tag = redis.call('ZRANGE', lane_key(queue, best.label, best.name), at, at)[1]
  if not tag then
    best.empty = true
  else
    found[#found + 1] = tag
    best.taken = best.taken + 1
    moment = moment + 1
    for _, lane in ipairs(lanes) do
      if best.turn ~= '' and lane.turn == best.turn and lane.label == best.label and lane.priority == best.priority then
        lane.rank = -tonumber(lane.priority) * PRIORITY_STEP + moment + (lane.fork and FORK_STEP or 0)
      end
    end
  end
end
return found
