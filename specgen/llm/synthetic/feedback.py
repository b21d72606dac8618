"""Reading a prompt: which task it is about, which kernels it shows, and what became of the latest.

The kernels carry their designs in a comment (`specgen.llm.synthetic.design`); statuses are the words of
`specgen.types.Status` after "status:", as every prompt template writes them. A prompt from
elsewhere gives no feedback, and no error.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from specgen.llm.synthetic.design import Design
from specgen.llm.synthetic.flaws import Flaw
from specgen.llm.synthetic.flaws import recognise as recognise_flaw
from specgen.llm.synthetic.tasks import AnyTask, recognise
from specgen.types import Status

_FAILED = {status.value for status in Status if status.kind == "candidate" and status is not Status.VALID}
_STATUS = re.compile(r"\bstatus\W{1,4}(\w+)", re.IGNORECASE)
_SPEEDUP = re.compile(r"speed-?up\W{0,6}(?:\w+\W{1,3}){0,4}?(\d+(?:\.\d+)?)", re.IGNORECASE)
_LOG = re.compile(r"(?:^|\W)error:|Traceback \(most recent|[Ss]egmentation fault|Mismatch", re.MULTILINE)


@dataclass(frozen=True)
class Feedback:
    """What the prompt says. ``base`` is the kernel to start from, ``others`` further kernels it shows."""

    task: AnyTask | None
    base: Design | None = None
    others: tuple[Design, ...] = ()
    failed: str = ""  # the base's status where it is not valid
    speedup: float | None = None
    untold: Flaw = Flaw.NONE  # the base's mistake, where the prompt says nothing of what became of it


@lru_cache(maxsize=64)
def read_prompt(prompt: str) -> Feedback:
    """Task and feedback. The first kernel shown is taken for the one to be improved. Kept: the forks of an iteration
    share its prompt."""
    task = recognise(prompt)
    if task is None:
        return Feedback(None)
    designs = list(task.space.comments_in(prompt))
    if not designs:
        return Feedback(task)
    rest = prompt[prompt.index("# design: task=") :]
    stated = _STATUS.search(rest)
    if stated is not None:
        failed = stated[1] if stated[1] in _FAILED else ""
    else:
        failed = "an error" if _LOG.search(rest) else ""
    speedup = None if failed else _SPEEDUP.search(rest)
    told = stated is not None or failed or speedup is not None
    return Feedback(
        task=task,
        base=designs[0],
        others=tuple(designs[1:]),
        failed=failed,
        speedup=float(speedup[1]) if speedup else None,
        untold=Flaw.NONE if told else _mistake(rest.partition("\n```")[0], task, designs[0]),
    )


def _mistake(source: str, task: AnyTask, design: Design) -> Flaw:
    found = recognise_flaw(source, task, design)
    return Flaw.NONE if found is None else found[0]
