"""The scorecard's part on isolation: attacks, canaries, hostile evaluations, broken infrastructure, cost.

    python -m benchmarks.hostile [--short] [--seed S] [--only attacks,canaries,evaluations,broken,cost]

Run as root it attacks a sandbox that gave up root; run by a user, one in a user namespace. Ten minutes on two idle
cores, two with ``--short``. What breaks is its own: it is harmless to run beside other work.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from benchmarks.figures import figure, machine
from benchmarks.hostile import breakage, canaries, cost, evaluations
from benchmarks.hostile.candidates import CANDIDATES
from benchmarks.hostile.ground import ATTACKS, Ground, new_canary
from benchmarks.hostile.services import services
from specgen.evaluation import sandbox
from specgen.evaluation.build import ensure_support
from specgen.evaluation.cell import close_zygote
from specgen.settings import get_settings

_RUNS = 3


class Scorecard:
    """The parts, each printing its figures as soon as it has them."""

    def __init__(self, cache_root: Path, short: bool, seed: int) -> None:
        self.cache_root, self.short, self.seed = cache_root, short, seed
        self.support = ensure_support(cache_root)
        self.runs = 1 if short else _RUNS

    def attacks(self) -> None:
        """Each in a sandbox of its own, with a control outside."""
        canary = new_canary()
        with services(canary) as targets, Ground(self.support, targets, canary) as ground:
            got = []
            for number in range(self.runs):
                found = ground.walled(list(ATTACKS)) if self.short else [ground.walled([name])[0] for name in ATTACKS]
                got += [finding for finding in found if finding.got]
                print(f"# attacks, run {number + 1}: {len(found)}, got something: {sum(f.got for f in found)}")
            controls = ground.unwalled(list(ATTACKS))
        for finding in got:
            print(f"# ESCAPE {finding.name}: {finding.said}")
        for finding in controls:
            if not finding.got:
                print(f"# no control here: {finding.name}: {finding.said}")
        name = f"escapes of {len(ATTACKS)} attacks x {self.runs}"
        figure(name, len(got), "escapes", "0", not got)
        figure("attacks that succeed outside the walls", sum(f.got for f in controls), f"of {len(ATTACKS)}", "", None)

    def canaries(self) -> None:
        """The same attacks, and a search, by candidates in whole evaluations."""
        canary = new_canary()
        with services(canary) as targets, Ground(self.support, targets, canary) as ground:
            with canaries.secret_environment(canary):
                outside = canaries.searched_outside(ground)
                ran, got = canaries.attacked_from_within(ground, self.cache_root)
                found = canaries.searched_from_within(ground, self.cache_root)
        for word in got:
            print(f"# ESCAPE in an evaluation: {word}")
        print(f"# canaries found outside: { {kind: len(places) for kind, places in outside.items()} }")
        print(f"# canaries found by a candidate: { {kind: len(places) for kind, places in found.items()} }")
        reachable = sum(map(len, found.values()))
        figure(f"escapes of {ran} attacks inside an evaluation", len(got), "escapes", "0", not got)
        figure("canary secrets within a candidate's reach", reachable, "places", "0", reachable == 0)
        figure("canary secrets that the same search finds outside", sum(map(len, outside.values())), "places", "", None)

    def evaluations(self) -> None:
        """Candidates that attack their evaluation."""
        wanted = [one for one in CANDIDATES if not (self.short and (one.long or one.again))]
        bad = 0
        for number in range(self.runs):
            for one in wanted:
                outcome = evaluations.run(one, self.cache_root)
                bad += bool(outcome.escape)
                print(f"# {one.name}: {outcome.status}, {outcome.seconds:.1f} s {outcome.escape}", flush=True)
            print(f"# evaluations, run {number + 1}: done")
        close_zygote()
        figure(f"harm done by {len(wanted)} hostile candidates x {self.runs}", bad, "candidates", "0", bad == 0)

    def broken(self) -> None:
        """Infrastructure that breaks under an honest candidate."""
        results = []
        for result in breakage.run(self.support, self.short, self.seed):
            results.append(result)
            blame = "BLAMED: " if result.blamed else ""
            print(f"# {result.kind} {result.told}: {blame}{result.status} {result.error[:120]!r}", flush=True)
        kinds = {kind: Counter(r.status for r in results if r.kind == kind) for kind in {r.kind for r in results}}
        for kind in sorted(kinds):
            print(f"# {kind}: {', '.join(f'{status} {count}' for status, count in kinds[kind].items())}")
        blamed = sum(result.blamed for result in results)
        figure(f"broken infrastructure blamed on the candidate, of {len(results)}", blamed, "cases", "0", blamed == 0)

    def cost(self) -> None:
        """Launches in turns."""
        found = cost.measure(self.support, 40 if self.short else 120)
        difference = found.difference_ms
        for share in (0.5, 0.95):
            values = [cost.percentile(each, share) for each in (found.walled_ms, found.plain_ms)]
            print(f"# p{share * 100:.0f}: inside {values[0]:.1f} ms, outside {values[1]:.1f} ms")
        p50, p95 = cost.percentile(difference, 0.5), cost.percentile(difference, 0.95)
        figure(f"sandbox cost p50, {len(difference)} pairs", p50, "ms", "", None)
        figure(f"sandbox cost p95, {len(difference)} pairs", p95, "ms", "<= 50", p95 <= 50)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.hostile", description=__doc__.partition("\n")[0])
    parser.add_argument("--short", action="store_true", help="one run of each, fewer cases: two minutes")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="parts, such as attacks,cost")
    options = parser.parse_args()
    sandbox.probe()
    card = Scorecard(get_settings().cache_path, options.short, options.seed)
    parts: dict[str, Callable[[], None]] = {
        "cost": card.cost, "attacks": card.attacks, "canaries": card.canaries, "evaluations": card.evaluations,
        "broken": card.broken,
    }  # fmt: skip
    wanted = [name for name in options.only.split(",") if name] or list(parts)
    if unknown := set(wanted) - set(parts):
        parser.error(f"no such part: {', '.join(unknown)}; parts are {', '.join(parts)}")
    who = "root, the uid given up inside" if os.geteuid() == 0 else "a user, in a user namespace"
    print(f"# {machine()}, load {os.getloadavg()[0]:.1f}, as {who}, seed {options.seed}")
    begun = time.monotonic()
    for name in wanted:
        parts[name]()
    print(f"# took {time.monotonic() - begun:.0f} s")


if __name__ == "__main__":
    main()
