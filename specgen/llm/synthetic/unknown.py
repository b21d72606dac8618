"""What the synthetic model says about a problem that it does not know: it reasons, decides nothing, and says so.

Its answer holds no usable kernel: either no code, or the reference with another class name, which evaluation
rejects.
"""

from __future__ import annotations

import random
import re

from specgen.llm.synthetic.cxx import FLAGS, SIMD, TILE, UNROLL
from specgen.llm.synthetic.tasks.base import Subject

SUBJECT = Subject(
    axes=(TILE, SIMD, UNROLL, FLAGS),
    operands=("the inputs", "the output"),
    remarks=(
        "each operator of the reference reads and writes its operands in full",
        "the shapes are fixed, so the loop bounds are known",
        "the result has to match the reference within the tolerance",
        "whatever is computed twice should be computed once",
    ),
)

_MODEL = re.compile(r"^class Model\(.*?(?=^def |^class |^```|\Z)", re.MULTILINE | re.DOTALL)


def code(prompt: str, rng: random.Random) -> str:
    """Python for the answer, empty where it gives none."""
    found = _MODEL.search(prompt)
    if found is None or rng.random() < 0.5:
        return ""
    body = re.sub(r"\bModel\b", "ModelNew", found[0]).rstrip()
    return f"import torch\nimport torch.nn as nn\nimport torch.nn.functional as F\n\n\n{body}\n"


def apology() -> str:
    """The prose beside it."""
    return "This synthetic model knows no kernel for this problem; it can only restate the reference."
