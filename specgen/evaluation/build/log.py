"""What the builds of one candidate were: the record that the harness reports.

Not here: deciding anything. Routes are those of ``EvaluationResult.build_route``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

Route = Literal["facade", "stock", "cached"]


@dataclass(frozen=True)
class Build:
    """One call of ``load_inline`` or ``load``."""

    name: str  # the extension's name, as the candidate gave it
    route: Route  # "cached": an earlier process built it
    made_by: Literal["facade", "stock"]  # which route made the library, cached or not
    seconds: float  # wall time, a failed attempt at the façade included
    output: str = ""  # what the compilers printed
    fallback: str = ""  # why the stock route was taken; empty where it was not
    library: Path | None = None  # the shared object; None where the build failed
    error: str = ""  # the message of a failed build


@dataclass
class BuildLog:
    """All builds of this process, in order. Filled while the candidate runs."""

    builds: list[Build] = field(default_factory=list)

    @property
    def route(self) -> Literal["facade", "stock", "cached", "none"]:
        """The slowest route that was taken: stock, else façade, else cached; none if nothing was built."""
        routes = {build.route for build in self.builds}
        if "stock" in routes:
            return "stock"
        if "facade" in routes:
            return "facade"
        return "cached" if routes else "none"

    @property
    def seconds(self) -> float:
        """Wall time of all builds."""
        return sum(build.seconds for build in self.builds)

    @property
    def output(self) -> str:
        """What all compilers printed."""
        return "\n".join(build.output for build in self.builds if build.output)

    @property
    def failed(self) -> bool:
        """True if any build failed, even if the candidate caught the exception."""
        return any(build.error for build in self.builds)
