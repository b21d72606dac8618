"""Every error SpecGen raises on purpose, in three branches that are never confused.

::

    SpecGenError
    ├── UserError               the user's input: one line, a hint, exit code 2, nothing half-written
    │   ├── ProblemError            no such file, no Model, a reference that raises
    │   ├── SettingsError           a setting or name that does not exist (with the list of those that do)
    │   ├── ModelAccessError        wrong key, unknown model, a request that the LLM refuses
    │   │   ├── ModelUnreachable        nobody answers: the user's at submit, waited for by a worker
    │   │   └── ContextTooLong          the prompt and its answer do not fit the LLM: composed again, tighter
    │   └── EnvironmentLacking      no compiler, no device, no sandbox, a database that is not migrated
    ├── CandidateFault          what a candidate did wrong: becomes a stored outcome, never propagates
    └── InfrastructureError     ours: retried, never shown to the LLM as its fault
        ├── StaleLease              a writer that lost its lease (fencing token refused)
        ├── ModelUnavailable        the LLM server broke off, timed out or answered 5xx/429
        ├── PoolUnavailable         Redis cannot be reached
        └── StoreUnavailable        the database cannot be reached
"""

from __future__ import annotations


class SpecGenError(Exception):
    """Base of the tree. ``hint`` says what the user can do about it (one line, may be empty)."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UserError(SpecGenError):
    """The user's input is at fault; the CLI prints message and hint and exits with 2."""


class ProblemError(UserError):
    """The problem file cannot be used."""


class SettingsError(UserError):
    """A setting, or a name of a search algorithm, criterion or profile, is not valid."""


class ModelAccessError(UserError):
    """The LLM cannot be used as configured (address, key, model name)."""


class ModelUnreachable(ModelAccessError):
    """The LLM's address does not answer, or answers that it cannot now."""


class ContextTooLong(ModelAccessError):
    """The LLM refuses a prompt because it is too long for its context."""


class EnvironmentLacking(UserError):
    """This machine lacks something that the command needs."""


class CandidateFault(SpecGenError):
    """A candidate's own failure on its way to becoming an outcome."""


class InfrastructureError(SpecGenError):
    """Something of SpecGen's own surroundings failed; the operation may be tried again."""


class StaleLease(InfrastructureError):
    """A write carried a fencing token that is no longer the newest."""


class ModelUnavailable(InfrastructureError):
    """A generation failed for a reason that is not the configuration's."""


class PoolUnavailable(InfrastructureError):
    """Redis (queues, roles, events) cannot be reached."""


class StoreUnavailable(InfrastructureError):
    """The database cannot be reached."""
