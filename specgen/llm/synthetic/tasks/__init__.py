"""The problems that the synthetic model knows, each with its design space and its kernels (C++, or CUDA files)."""

from __future__ import annotations

import re

from specgen.llm.synthetic.tasks import diagonal, elementwise, gemm_sum, hinge
from specgen.llm.synthetic.tasks.base import Edit, Task
from specgen.llm.synthetic.tasks.stock import CUDA_TASKS, StockTask, identify_cuda, wants_cuda

__all__ = ["CUDA_TASKS", "TASKS", "AnyTask", "Edit", "StockTask", "Task", "identify", "recognise"]

AnyTask = Task | StockTask

TASKS: tuple[Task, ...] = (hinge.TASK, diagonal.TASK, gemm_sum.TASK, elementwise.TASK)

_REFERENCE = re.compile(r"^class Model\(.*?(?=^def get_inputs|\Z)", re.MULTILINE | re.DOTALL)


def identify(prompt: str) -> Task | None:
    """The task whose reference module stands in the prompt, judged by the body of its ``class Model``."""
    found = _REFERENCE.search(prompt)
    if found is None:
        return None
    return next((task for task in TASKS if all(mark.search(found[0]) for mark in task.marks)), None)


def recognise(prompt: str) -> AnyTask | None:
    """The task of a prompt, by its reference and the language that it asks for."""
    return identify_cuda(prompt) if wants_cuda(prompt) else identify(prompt)
