"""How a build fails: two faults of the candidate and one of the machine.

Not here: turning them into statuses (``compile_error``, ``compile_timeout``, ``infra_error``); the harness does that.
"""

from __future__ import annotations

from specgen.errors import CandidateFault, InfrastructureError


class BuildFailed(CandidateFault):
    """The candidate's C++ or CUDA does not compile, link or load. ``message`` is the stock route's text, in full."""


class BuildTimeout(CandidateFault):
    """The build exceeded its time; ``message`` says how long it had and ends with what the compiler had printed."""


class CompilerKilled(InfrastructureError):
    """The compiler was killed from outside (out of memory) twice, the second time running alone."""
