"""The truth: everything that a job was, in SQL (§6: "validation and profiling feedback drives the next iteration").

`Store` is synchronous and thread-safe; a caller in an event loop uses ``asyncio.to_thread``. Every write for a running
job carries its fencing token. Not here: queues and live state, which Redis holds and may lose.
"""

from __future__ import annotations

from typing import Self

from specgen.store.database import connect
from specgen.store.iterations import Iterations
from specgen.store.migrations import check, downgrade, migrate
from specgen.store.outcomes import Outcomes
from specgen.store.queries import Queries
from specgen.store.records import (
    BestKernel,
    CandidateRecord,
    Control,
    EvaluatedRecord,
    GenerationRow,
    IterationRecord,
    JobRecord,
    JobSummary,
    RequestRecord,
    SchedulerDecision,
    SideCall,
    TokenTotals,
    TriggerRecord,
    UnfinishedRecord,
)


class Store(Queries, Iterations, Outcomes):
    """One database. Its parts: jobs and leases, iterations, outcomes, queries."""

    @classmethod
    def open(cls, url: str) -> Self:
        """Connect and check the schema.

        Raises StoreUnavailable (nobody answers), EnvironmentLacking (not migrated, or newer), SettingsError (URL).
        """
        engine = connect(url)
        try:
            check(engine)
        except BaseException:
            engine.dispose()
            raise
        return cls(engine)


__all__ = [
    "BestKernel",
    "CandidateRecord",
    "Control",
    "EvaluatedRecord",
    "GenerationRow",
    "IterationRecord",
    "JobRecord",
    "JobSummary",
    "RequestRecord",
    "SchedulerDecision",
    "SideCall",
    "Store",
    "TokenTotals",
    "TriggerRecord",
    "UnfinishedRecord",
    "downgrade",
    "migrate",
]
