"""A in Algorithm 1: the interface of search algorithms, split where state, cost and failure differ.

``P ← A(k*, H)`` (line 27) becomes three calls: `select` decides whom to start from, `compose` writes the prompt and may
ask LLM roles, `update` learns from a closed iteration. Only `select` and `update` change state, both are cheap and
synchronous, and what `dump` gives is stored with each iteration: a job killed anywhere resumes to the same search.

Not here: triggers, forks, termination, budgets, the global best. No algorithm knows of speculation: forks are further
entries of `IterationResult.evaluated`. Pure: no I/O, and randomness comes in as an argument (`rng_for`).
"""

from __future__ import annotations

import hashlib
import random
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Protocol, Self

from specgen.errors import SettingsError
from specgen.types import IterationReason, Json, Origin, Profile, Prompt, Status

FURTHEST = (  # of failures: a later one got further on its way to a valid kernel
    Status.NO_CODE,
    Status.NO_MODELNEW,
    Status.COMPILE_TIMEOUT,
    Status.COMPILE_ERROR,
    Status.LOAD_ERROR,
    Status.HANG,
    Status.DEVICE_FAULT,
    Status.OUT_OF_MEMORY,
    Status.RUNTIME_ERROR,
    Status.REJECTED,
    Status.WRONG_DTYPE,
    Status.WRONG_SHAPE,
    Status.NOT_FINITE,
    Status.WRONG_VALUE,
    Status.PROFILER_UNAVAILABLE,
    Status.VALID,
)


class Verdict(Enum):
    """What `select` may say instead of a step."""

    WAIT = "wait"  # a round barrier: other lanes' iterations must close first
    STOP = "stop"  # the search is over before the iterations are


WAIT = Verdict.WAIT
STOP = Verdict.STOP


@dataclass(frozen=True)
class Step:
    """What `select` decided: the kind of prompt, the candidates it starts from, and what else `compose` needs."""

    kind: str
    parents: tuple[str, ...] = ()  # candidate ids
    # ``"edits": True``: the answer may be search/replace blocks, which are applied to the first parent
    args: Mapping[str, Json] = field(default_factory=dict)

    def dump(self) -> Json:
        """For the store."""
        return {"kind": self.kind, "parents": list(self.parents), "args": dict(self.args)}

    @classmethod
    def load(cls, data: Json) -> Self:
        """The way back."""
        match data:
            case {"kind": str(kind), "parents": list(parents), "args": dict(args)}:
                return cls(kind, tuple(str(parent) for parent in parents), args)
        raise ValueError(f"not a step: {data!r}")


@dataclass(frozen=True)
class Evaluated:
    """A candidate with its final outcome, as an algorithm sees it."""

    candidate_id: str
    source: str
    origin: Origin
    iteration: int
    status: Status
    error: str = ""
    speedup: float | None = None
    profile: Profile | None = None

    @property
    def valid(self) -> bool:
        """It is correct, and has a speedup."""
        return self.speedup is not None

    @property
    def furthest(self) -> int:
        """How far it got: grows from no code at all to valid."""
        return FURTHEST.index(self.status) if self.status in FURTHEST else -1


class History:
    """All evaluated candidates of a job in the order of their outcomes. Algorithms only read it."""

    def __init__(self, entries: Iterable[Evaluated] = ()) -> None:
        self._entries: dict[str, Evaluated] = {}
        for entry in entries:
            self.add(entry)

    def add(self, entry: Evaluated) -> None:
        """For the engine. A candidate that is there already stays as it is."""
        self._entries.setdefault(entry.candidate_id, entry)

    def get(self, candidate_id: str) -> Evaluated:
        """Raises KeyError for a candidate without an outcome."""
        return self._entries[candidate_id]

    def __contains__(self, candidate_id: str) -> bool:
        return candidate_id in self._entries

    def __iter__(self) -> Iterator[Evaluated]:
        return iter(self._entries.values())

    def __len__(self) -> int:
        return len(self._entries)

    def valid(self) -> tuple[Evaluated, ...]:
        """Those with a speedup, in order."""
        return tuple(entry for entry in self if entry.valid)

    def best(self) -> Evaluated | None:
        """The fastest, the earliest of equals."""
        return max(self.valid(), key=lambda entry: entry.speedup or 0.0, default=None)

    def speedups(self) -> tuple[float, ...]:
        """H: 0, then the speedups in order."""
        return (0.0, *(entry.speedup for entry in self if entry.speedup is not None))


@dataclass(frozen=True)
class IterationResult:
    """One closed iteration. ``chosen`` is k*, None where nothing was valid. ``main_failure`` says what became of a main
    generation that gave no candidate at all (such as ``no_code``); empty where it gave one or was cut off."""

    iteration: int
    step: Step
    evaluated: tuple[Evaluated, ...]
    chosen: str | None
    reason: IterationReason
    main_failure: str = ""

    def focus(self) -> Evaluated | None:
        """What the next prompt is about: k*; else the main generation's failure; else the fork that got furthest
        (the latest of equals); None where nothing was evaluated."""
        if self.chosen is not None:
            return next((entry for entry in self.evaluated if entry.candidate_id == self.chosen), None)
        ranked = sorted(self.evaluated, key=lambda entry: (entry.origin is Origin.MAIN, entry.furthest))
        return ranked[-1] if ranked else None


class Context(Protocol):
    """What `compose` may use. The engine supplies it, and fills `Prompt.template_hash` from what was rendered."""

    history: History

    def render(self, template: str, **variables: object) -> str:
        """A template of specgen/prompts (or the user's), with ``problem`` and ``device`` given already."""

    async def ask(self, role: str, key: str, template: str, schema: Mapping[str, Json], **variables: object) -> Json:
        """Ask an LLM role for JSON; metered, and memoised by ``key``: never paid twice, also not after a crash. None
        where no reply fits the schema."""


class SearchAlgorithm(Protocol):
    """The contract of every algorithm. Made by a call without arguments, for one job.

    An attribute ``max_lanes`` says how many iterations of it may run side by side; without it, one. With several,
    `select` is called while others are open, whose outcomes the history does not hold yet; it may answer WAIT.
    """

    def select(self, history: History, rng: random.Random) -> Step | Verdict:
        """Whom to start the next iteration from. May change state."""

    async def compose(self, step: Step, context: Context) -> Prompt:
        """The iteration's prompt P. Must not change state: it is called again after a crash."""

    def update(self, result: IterationResult, history: History) -> None:
        """Learn from a closed iteration. May change state. Called once for each."""

    def dump(self) -> Json:
        """All of the state, as JSON."""

    def load(self, state: Json) -> None:
        """Take up what `dump` gave, perhaps in another process. None: the job is fresh."""


def rng_for(seed: int, iteration: int) -> random.Random:
    """The iteration's randomness, derived from the job's seed: nothing to save, the same after a resume."""
    digest = hashlib.sha256(f"{seed}/{iteration}".encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


def known(state: Json, version: int, **defaults: Json) -> dict[str, Json]:
    """A dumped state checked against the fields an algorithm has, and against the version of their meaning (a state
    without one is version 1). None means fresh; SettingsError for another's, or another version's."""
    if state is None:
        return dict(defaults)
    fields = dict(state) if isinstance(state, dict) else {}
    if (stored := fields.pop("version", 1)) != version:
        raise SettingsError(
            f"the stored search state is version {stored}, and this SpecGen reads version {version}",
            "go on with the version that began the job, or submit it anew",
        )
    if not isinstance(state, dict) or set(fields) != set(defaults):
        raise SettingsError("the stored state is another search algorithm's", "was the job's search changed?")
    return fields


_COMMENT = re.compile(r"^\s*(?://|#(?!\s*(?:include|pragma|define|undef|if|el|endif|error)\b)).*", re.MULTILINE)


def essence(source: str) -> str:
    """The code without blanks, line ends and lines of comment: the same for two kernels of equal code."""
    return re.sub(r"\s+", "", _COMMENT.sub("", source))


def distinct(names: Iterable[str], history: History) -> list[str]:
    """Fastest first, equal code once (the fastest of it); of equals the first named."""
    ranked = sorted(dict.fromkeys(names), key=lambda name: -(history.get(name).speedup or 0.0))
    first: dict[str, str] = {}
    for name in ranked:
        first.setdefault(essence(history.get(name).source), name)
    return list(first.values())


def object_of(*keys: str) -> dict[str, Json]:
    """The JSON schema of an object with these strings, and no others."""
    strings: dict[str, Json] = {key: {"type": "string", "minLength": 1} for key in keys}
    return {"type": "object", "properties": strings, "required": list(keys), "additionalProperties": False}
