"""What a prompt says about a failed kernel: exactly one heading per status, and a sentence on what it means."""

from __future__ import annotations

from typing import NamedTuple

from specgen.errors import SettingsError
from specgen.types import Status


class Feedback(NamedTuple):
    """``heading`` is one of: compile log, runtime error, mismatch, integrity, answer."""

    heading: str
    meaning: str
    advice: str


_ANSWER = "Give the whole file in one ```python block."
_COMPILE = "Correct what the compiler reports; look at the first error before the ones that follow from it."
_RUNTIME = "Find the cause in the kernel: indices and bounds, alignment, sizes, lifetimes."
_VALUES = "Compare your arithmetic with the reference step by step: indices, order of operations, precision, tails."

FEEDBACK: dict[Status, Feedback] = {
    Status.NO_CODE: Feedback("Answer", "There was no code block in the answer.", _ANSWER),
    Status.NO_MODELNEW: Feedback(
        "Answer",
        "There was no Python file that defines class ModelNew; C++ or CUDA alone is none, it goes into a string.",
        _ANSWER,
    ),
    Status.COMPILE_ERROR: Feedback("Compile log", "It does not compile.", _COMPILE),
    Status.COMPILE_TIMEOUT: Feedback(
        "Compile log", "Compiling it took too long.", "Instantiate fewer templates, unroll less."
    ),
    Status.LOAD_ERROR: Feedback("Runtime error", "Importing the file or constructing ModelNew raises.", _RUNTIME),
    Status.RUNTIME_ERROR: Feedback("Runtime error", "It compiles, but running it raises.", _RUNTIME),
    Status.DEVICE_FAULT: Feedback("Runtime error", "It reads or writes memory that is not its own.", _RUNTIME),
    Status.HANG: Feedback("Runtime error", "It did not end within its time.", "Look for loops that do not advance."),
    Status.OUT_OF_MEMORY: Feedback(
        "Runtime error", "It asked for more memory than there is.", "Allocate the output and little else."
    ),
    Status.WRONG_SHAPE: Feedback("Mismatch", "The output's shape is not the reference's.", _VALUES),
    Status.WRONG_DTYPE: Feedback("Mismatch", "The output's dtype is not the reference's.", _VALUES),
    Status.WRONG_VALUE: Feedback("Mismatch", "The output's values are not the reference's.", _VALUES),
    Status.NOT_FINITE: Feedback("Mismatch", "The output holds NaN or infinity where the reference does not.", _VALUES),
    Status.REJECTED: Feedback(
        "Integrity", "It was not accepted as an honest kernel.", "Compute the whole result, every time, in your kernel."
    ),
}


def feedback(status: Status) -> Feedback:
    """For a failed candidate. Our own faults are never shown to an LLM: SettingsError for a template that tries."""
    if status not in FEEDBACK:
        raise SettingsError(f"a prompt cannot explain the status {status}", "it is not the candidate's failure")
    return FEEDBACK[status]
