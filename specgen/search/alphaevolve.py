"""alphaevolve: islands of MAP-Elites grids (a baseline of §8; the numbers are OpenEvolve's defaults, the public ones).

A kernel's place in an island's grid is (length of its source, how much it differs from the island's first); each cell
keeps its fastest. A parent comes from the whole island (20 %), from the archive of the fastest (70 %), or in proportion
to speedup (10 %). Failures score 0 and may be parents: their log is shown then. Every 50 generations the best tenth of
each island goes to its neighbours on the ring. Kernels are rewritten whole, or by search/replace blocks (`diffs`).
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable
from dataclasses import dataclass

from specgen.search.base import Context, Evaluated, History, IterationResult, Step, distinct, known
from specgen.types import Json, Prompt

LENGTH_PER_BIN = 800  # characters


@dataclass(frozen=True)
class Evolution:
    """The numbers of the search."""

    islands: int = 5
    bins: int = 10
    archive: int = 100
    population: int = 1000  # over all islands
    explore: float = 0.2
    exploit: float = 0.7
    inspirations: int = 2
    migration_every: int = 50  # generations of the furthest island
    migration_share: float = 0.1
    diffs: bool = False  # answers are search/replace blocks against the parent


class AlphaEvolve:
    """State: per island its grid, its first kernel and its generations; the archive; whose turn it is."""

    max_lanes = 20  # four an island, so that parents are not too old

    def __init__(self, evolution: Evolution | None = None) -> None:
        self.numbers = evolution or Evolution()
        self.grids: list[dict[str, str]] = [{} for _ in range(self.numbers.islands)]  # cell -> candidate id
        self.founders = [""] * self.numbers.islands
        self.generations = [0] * self.numbers.islands
        self.archive: list[str] = []  # fastest first
        self.turn = 0
        self.migrated = 0  # at which generation

    def select(self, history: History, rng: random.Random) -> Step:
        """The islands take turns. A parent, and others of the island to be inspired by."""
        island, self.turn = self.turn, (self.turn + 1) % self.numbers.islands
        members = self._members(island) or [name for grid in self.grids for name in sorted(grid.values())]
        if not members:
            return Step("seed", (), {"island": island})
        parent = self._parent(members, history, rng)
        others = [name for name in members if name != parent]
        inspirations: list[Json] = [*rng.sample(others, min(self.numbers.inspirations, len(others)))]
        args: dict[str, Json] = {"island": island, "inspirations": inspirations}
        return Step("evolve", (parent,), args | ({"edits": True} if self.numbers.diffs else {}))

    def _parent(self, members: list[str], history: History, rng: random.Random) -> str:
        draw = rng.random()
        if draw < self.numbers.explore:
            return rng.choice(members)
        if draw < self.numbers.explore + self.numbers.exploit:
            return rng.choice([name for name in self.archive if name in members] or members)
        weights = [max(history.get(name).speedup or 0.0, 1e-3) for name in members]
        return rng.choices(members, weights)[0]

    def _members(self, island: int) -> list[str]:
        return sorted(set(self.grids[island].values()))

    async def compose(self, step: Step, context: Context) -> Prompt:
        """The parent with its feedback, the inspirations with their speedups."""
        variables: dict[str, object] = {}
        if step.parents:
            names = step.args["inspirations"]
            others = [context.history.get(str(name)) for name in names] if isinstance(names, list) else []
            edits = bool(step.args.get("edits"))
            variables = {"entry": context.history.get(step.parents[0]), "inspirations": others, "edits": edits}
        text = context.render(f"alphaevolve/{step.kind}.md.j2", **variables)
        return Prompt(context.render("shared/system.md.j2"), text)

    def update(self, result: IterationResult, history: History) -> None:
        """Everything evaluated goes into the island's grid; the fastest into the archive; migrate when it is time."""
        island = int(str(result.step.args["island"]))
        for entry in result.evaluated:
            self._place(island, entry, history)
        valid = [*self.archive, *(entry.candidate_id for entry in result.evaluated if entry.valid)]
        self.archive = distinct(valid, history)[: self.numbers.archive]
        self.generations[island] += 1
        if max(self.generations) - self.migrated >= self.numbers.migration_every:
            self.migrated = max(self.generations)
            self._migrate(history)
        self._limit(history)

    def _place(self, island: int, entry: Evaluated, history: History) -> None:
        self.founders[island] = self.founders[island] or entry.candidate_id
        founder = history.get(self.founders[island])
        bins = self.numbers.bins - 1
        length = min(bins, len(entry.source) // LENGTH_PER_BIN)
        cell = f"{length}-{min(bins, int(difference(entry.source, founder.source) * self.numbers.bins))}"
        holder = self.grids[island].get(cell)
        if holder is None or (entry.speedup or 0.0) > (history.get(holder).speedup or 0.0):
            self.grids[island][cell] = entry.candidate_id

    def _migrate(self, history: History) -> None:
        leaving = [_fastest(self._members(island), history) for island in range(self.numbers.islands)]
        for island, members in enumerate(leaving):
            count = max(1, int(len(members) * self.numbers.migration_share))
            for name in members[:count]:
                for neighbour in (island + 1, island - 1):
                    self._place(neighbour % self.numbers.islands, history.get(name), history)

    def _limit(self, history: History) -> None:
        """Over the population's limit the slowest go, founders' places included."""
        everyone = _fastest((name for grid in self.grids for name in grid.values()), history)
        gone = set(everyone[self.numbers.population :])
        if gone:
            self.grids = [{cell: n for cell, n in grid.items() if n not in gone} for grid in self.grids]

    def dump(self) -> Json:
        """Ids and counters."""
        return {
            "version": 1,
            "grids": [dict(grid) for grid in self.grids],
            "founders": list(self.founders),
            "generations": list(self.generations),
            "archive": list(self.archive),
            "turn": self.turn,
            "migrated": self.migrated,
        }

    def load(self, state: Json) -> None:
        """The same, back. A state of another number of islands is refused by the lists' lengths."""
        fresh = AlphaEvolve(self.numbers).dump()
        assert isinstance(fresh, dict), "just made"
        del fresh["version"]
        match known(state, 1, **fresh):
            case {"grids": list(grids), "founders": list(founders), "generations": list(generations), **rest}:
                self.grids = [{str(c): str(n) for c, n in grid.items()} for grid in grids if isinstance(grid, dict)]
                self.founders = [str(name) for name in founders]
                self.generations = [int(str(number)) for number in generations]
                archive = rest["archive"]
                self.archive = [str(name) for name in archive] if isinstance(archive, list) else []
                self.turn, self.migrated = int(str(rest["turn"])), int(str(rest["migrated"]))


def difference(source: str, other: str) -> float:
    """0 for the same words, 1 for none in common (Jaccard)."""
    mine, theirs = (set(re.findall(r"\w+", text)) for text in (source, other))
    return 1.0 - len(mine & theirs) / len(mine | theirs) if mine | theirs else 0.0


def _fastest(names: Iterable[str], history: History) -> list[str]:
    """Each once, fastest first; of equals the first named."""
    return sorted(dict.fromkeys(names), key=lambda name: -(history.get(name).speedup or 0.0))
