"""What an attempt at an iteration that died had received and measured, for the one that goes on in its place.

Nothing that was answered is paid again, and what follows from the stored outcomes (a boundary that was due) follows
again. Pure. Not here: going on with it (`loop`), unfinished requests (`evaluations`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property

from specgen.controller.evaluations import Outcome
from specgen.controller.ports import Answered, Left, prefix_key
from specgen.controller.receipts import Receipt
from specgen.types import Origin, source_id

ENDED = ("stop", "length")  # the LLM's own end of a generation


@dataclass(frozen=True)
class Former:
    """The attempt before this one; empty where this one is the first."""

    left: Left = field(default_factory=Left)
    base: str = ""  # the kernel that answers may edit

    def _source(self, it: Answered) -> str | None:
        return Receipt.restored(it).answer(prefilled=it.prefix_chars > 0, base=self.base).source

    @property
    def main(self) -> Answered | None:
        """The main generation, where it had ended."""
        return next((it for it in reversed(self.left.answered) if it.origin is Origin.MAIN), None)

    @property
    def without_code(self) -> bool:
        """The main generation had ended by itself and gave no kernel: a boundary, whatever the forks give."""
        return self.main is not None and self.main.finish_reason in ENDED and self._source(self.main) is None

    @cached_property
    def forks(self) -> tuple[tuple[Answered, str], ...]:
        """Forks that gave a kernel which this iteration has not measured yet, with its source."""
        done = {measured.candidate_id for measured in self.left.measured}
        answers = ((it, self._source(it)) for it in self.left.answered if it.origin is Origin.FORK and not _of_main(it))
        return tuple((it, source) for it, source in answers if source is not None and source_id(source) not in done)

    def paid(self, seed: int, prefix: str) -> bool:
        """Whether a trigger's fork with that seed, on that prefix, was answered."""
        return self._fork(seed, prefix, of_main=False) is not None

    def continuation(self, seed: int, prefix: str) -> Answered | None:
        """The answer that was asked for from ``prefix``, where the main generation had been cut short."""
        return self._fork(seed, prefix, of_main=True)

    @property
    def cut_at(self) -> int | None:
        """Where the main generation was cut, if its answer was asked for from there."""
        return next((it.prefix_chars for it in self.left.answered if _of_main(it)), None)

    def _fork(self, seed: int, prefix: str, *, of_main: bool) -> Answered | None:
        asked = (Origin.FORK, seed, prefix_key(prefix), of_main)
        same = (it for it in self.left.answered if (it.origin, it.seed, it.prefix_key, _of_main(it)) == asked)
        return next(same, None)

    def outcomes(self) -> Iterator[Outcome]:
        """Those of this iteration, in the order in which they were stored, with the generations that gave each."""
        gave: dict[str, list[Origin]] = {}
        for it in self.left.answered:
            if (source := self._source(it)) is not None:
                gave.setdefault(source_id(source), []).append(Origin.MAIN if _of_main(it) else it.origin)
        for measured in self.left.measured:
            origins = gave.get(measured.candidate_id) or [measured.origin]
            yield Outcome(measured.candidate_id, tuple(origins), measured.result, fresh=True)


def _of_main(it: Answered) -> bool:
    """It continues a main generation that was cut short: no trigger launched it."""
    return it.origin is Origin.FORK and it.trigger_id is None
