"""All cheats of the CPU, and those that the default tests run."""

from __future__ import annotations

from dataclasses import replace

from benchmarks.honest import cheats_checks, cheats_results, cheats_time, cheats_values
from benchmarks.honest.base import T2_NAME

_ALL = (*cheats_results.CHEATS, *cheats_time.CHEATS, *cheats_checks.CHEATS, *cheats_values.CHEATS)
CHEATS = tuple(replace(cheat, problem="T2") if T2_NAME in cheat.source else cheat for cheat in _ALL)
QUICK = tuple(cheat for cheat in CHEATS if cheat.quick)
