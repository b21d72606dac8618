"""How a build fails: two faults of the candidate and one of the machine.

Not here: turning them into statuses (``compile_error``, ``compile_timeout``, ``infra_error``); the harness does that.
"""

from __future__ import annotations

from specgen.errors import CandidateFault, InfrastructureError


class BuildFailed(CandidateFault, RuntimeError):
    """The candidate's C++ or CUDA does not compile or link. ``message`` is the stock route's text, in full.

    A RuntimeError as well, because that is what ``load_inline`` raises and what a candidate may catch.
    """


class BuildTimeout(CandidateFault, RuntimeError):
    """The build exceeded its time; ``message`` says how long it had and ends with what the compiler had printed."""


class CompilerKilled(InfrastructureError):
    """The compiler was killed from outside (out of memory) twice, the second time running alone."""


class FacadeRefused(Exception):
    """The fast route does not apply; the stock route decides. Never leaves this package."""

    def __init__(self, reason: str, output: str = "") -> None:
        super().__init__(reason)
        self.reason = reason
        self.output = output
