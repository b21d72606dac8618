"""What one iteration writes while it runs: its opening, triggers, generations, side calls, and its boundary.

Every write carries the job's fencing token. Not here: candidates and what became of them (outcomes.py).
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection, select, update

from specgen.store import tables as t
from specgen.store.database import Database, from_unix, now
from specgen.store.records import IterationRecord, SchedulerDecision, SideCall
from specgen.types import IterationReason, Json, Origin, Prompt, Trigger, Usage


class Iterations(Database):
    """The part of `Store` about iterations and generations."""

    def open_iteration(
        self, job_id: str, iteration: int, *, step: Json, prompt: Prompt, search_state: Json, token: int
    ) -> IterationRecord:
        """Commit what the iteration starts from: the search algorithm's decision, the prompt, its state after select().

        Idempotent: where the iteration exists (a redelivered task), what was stored first is returned and stands; the
        caller looks at ``closed``. Raises StaleLease.
        """
        row = {
            "job_id": job_id,
            "iteration": iteration,
            "step": step,
            "prompt_system": prompt.system,
            "prompt_user": prompt.user,
            "template_hash": prompt.template_hash,
            "state_opened": search_state,
            "opened_at": now(),
        }
        with self._fenced(job_id, token) as connection:
            if self._insert_new(connection, t.iterations, row):
                self._keep_state(connection, job_id, search_state)
            stored = connection.execute(select(t.iterations).where(*_key(job_id, iteration))).one()
        return iteration_record(stored)

    def tighten_prompt(self, job_id: str, iteration: int, prompt: Prompt, *, token: int) -> None:
        """Another prompt for an open iteration, whose first was too long for the LLM. Raises StaleLease."""
        open_one = update(t.iterations).where(*_key(job_id, iteration), t.iterations.c.closed_at.is_(None))
        values = {"prompt_system": prompt.system, "prompt_user": prompt.user, "template_hash": prompt.template_hash}
        with self._fenced(job_id, token) as connection:
            connection.execute(open_one.values(values))

    def close_iteration(
        self,
        job_id: str,
        iteration: int,
        *,
        reason: IterationReason,
        chosen_candidate: str | None,
        threshold: float | None,
        search_state: Json,
        token: int,
    ) -> bool:
        """The boundary, in one transaction; False if it was committed before.

        ``threshold`` is what the terminating speedup had to exceed (None where nothing terminated). Requests still
        queued become ``dropped``, generations still open (of a worker that died) ``abandoned``. Raises StaleLease.
        """
        values = {
            "closed_at": now(),
            "reason": reason.value,
            "chosen_candidate": chosen_candidate,
            "threshold": threshold,
            "state_closed": search_state,
        }
        requests, generations = t.requests.c, t.generations.c
        dropped = update(t.requests).where(
            requests.job_id == job_id, requests.iteration == iteration, requests.status == "queued"
        )
        abandoned = update(t.generations).where(
            generations.job_id == job_id, generations.iteration == iteration, generations.ended_at.is_(None)
        )
        with self._fenced(job_id, token) as connection:
            closing = update(t.iterations).where(*_key(job_id, iteration), t.iterations.c.closed_at.is_(None))
            if connection.execute(closing.values(values)).rowcount == 0:
                return False
            self._keep_state(connection, job_id, search_state)
            connection.execute(dropped.values(status="dropped"))
            connection.execute(abandoned.values(ended_at=now(), finish_reason="abandoned"))
            return True

    def _keep_state(self, connection: Connection, job_id: str, search_state: Json) -> None:
        connection.execute(update(t.jobs).where(t.jobs.c.id == job_id).values(search_state=search_state))

    # ------------------------------------------------------------------------------------------ generations

    def add_trigger(
        self, job_id: str, iteration: int, trigger: Trigger, launched: int, *, token: int, key: str | None = None
    ) -> int:
        """Store a trigger and how many forks it launched (0: the brake held it back); returns its id.

        ``key`` makes the call repeatable: a second one under the same key stores nothing and returns the first's id.
        """
        row = {
            "job_id": job_id,
            "iteration": iteration,
            "trigger_class": trigger.kind.value,
            "position": trigger.position,
            "text": trigger.text,
            "launched": launched,
            "fired_at": now(),
            "row_key": key,
        }
        with self._fenced(job_id, token) as connection:
            return self._insert_once(connection, t.triggers, row)

    def start_generation(
        self,
        job_id: str,
        iteration: int,
        *,
        kind: Origin,
        seed: int,
        model: str,
        template_hash: str,
        prefix_chars: int = 0,
        trigger_id: int | None = None,
        token: int,
        key: str | None = None,
    ) -> int:
        """Store that a stream was asked for; returns its id. ``prefix_chars`` is the length of π (0 for a main);
        ``key`` as in `add_trigger`."""
        row = {
            "job_id": job_id,
            "iteration": iteration,
            "kind": kind.value,
            "trigger_id": trigger_id,
            "seed": seed,
            "model": model,
            "template_hash": template_hash,
            "prefix_chars": prefix_chars,
            "started_at": now(),
            "row_key": key,
        }
        with self._fenced(job_id, token) as connection:
            return self._insert_once(connection, t.generations, row)

    def finish_generation(
        self,
        job_id: str,
        generation_id: int,
        *,
        usage: Usage,
        finish_reason: str,
        reasoning: str = "",
        content: str = "",
        first_token_at: float | None = None,
        longest_gap_s: float | None = None,
        cost: float | None = None,
        token: int,
    ) -> None:
        """Store how it ended, and its texts: an early-terminated main keeps the reasoning it stopped at.

        ``first_token_at`` in unix seconds, ``cost`` in the price's unit. Only the first call counts. Raises StaleLease.
        """
        values = {
            "ended_at": now(),
            "finish_reason": finish_reason,
            "first_token_at": None if first_token_at is None else from_unix(first_token_at),
            "longest_gap_s": longest_gap_s,
            "cost": cost,
            "reasoning": reasoning,
            "content": content,
            **usage_columns(usage),
        }
        generations = t.generations.c
        ending = update(t.generations).where(
            generations.id == generation_id, generations.job_id == job_id, generations.ended_at.is_(None)
        )
        with self._fenced(job_id, token) as connection:
            connection.execute(ending.values(values))

    # ------------------------------------------------------------------------------------------ side calls

    def side_call(self, job_id: str, key: str) -> SideCall | None:
        """The memoised reply of an LLM role, None if it was never asked under that key."""
        calls = t.side_calls.c
        with self._read() as connection:
            row = connection.execute(select(t.side_calls).where(calls.job_id == job_id, calls.key == key)).one_or_none()
        return None if row is None else SideCall(key, row.reply, usage_of(row))

    def save_side_call(
        self, job_id: str, key: str, reply: Json, usage: Usage, *, cost: float | None = None, token: int
    ) -> SideCall:
        """Memoise a reply; returns what stands under the key, which is the first that was saved. Raises StaleLease."""
        row = {"job_id": job_id, "key": key, "reply": reply, "cost": cost, "made_at": now(), **usage_columns(usage)}
        with self._fenced(job_id, token) as connection:
            self._insert_new(connection, t.side_calls, row)
        saved = self.side_call(job_id, key)
        assert saved is not None, "it was inserted a moment ago"
        return saved

    # ------------------------------------------------------------------------------------------ scheduler

    def add_decision(
        self, decision: SchedulerDecision, decided_at: float | None = None, *, key: str | None = None
    ) -> int:
        """Store a reallocation of ``decided_at`` (unix seconds; None: now); returns its id. The pool belongs to all
        jobs: no token. ``key`` as in `add_trigger`."""
        row = {
            "decided_at": now() if decided_at is None else from_unix(decided_at),
            "scope": decision.scope,
            "policy": decision.policy,
            "devices": decision.devices,
            "validators": decision.validators,
            "profilers": decision.profilers,
            "max_validate": decision.max_validate,
            "max_profile": decision.max_profile,
            "moved": decision.moved,
            "dropped": decision.dropped,
            "row_key": key,
        }
        with self._write() as connection:
            return self._insert_once(connection, t.scheduler_decisions, row)


def _key(job_id: str, iteration: int) -> tuple[Any, Any]:
    return t.iterations.c.job_id == job_id, t.iterations.c.iteration == iteration


def iteration_record(row: Any) -> IterationRecord:
    """A row of ``iterations`` as a record."""
    return IterationRecord(
        job_id=row.job_id,
        iteration=row.iteration,
        step=row.step,
        prompt=Prompt(row.prompt_system, row.prompt_user, row.template_hash),
        search_state=row.state_opened if row.closed_at is None else row.state_closed,
        opened_at=row.opened_at,
        closed_at=row.closed_at,
        reason=None if row.reason is None else IterationReason(row.reason),
        chosen_candidate=row.chosen_candidate,
        threshold=row.threshold,
    )


def usage_columns(usage: Usage) -> dict[str, object]:
    """The token columns of a generation or a side call."""
    return {
        "prompt_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "reasoning_tokens": usage.reasoning_tokens,
        "completion_tokens": usage.completion_tokens,
        "usage_reported": usage.reported,
    }


def usage_of(row: Any) -> Usage:
    """The way back."""
    return Usage(
        prompt_tokens=row.prompt_tokens,
        cached_tokens=row.cached_tokens,
        reasoning_tokens=row.reasoning_tokens,
        completion_tokens=row.completion_tokens,
        reported=row.usage_reported,
    )
