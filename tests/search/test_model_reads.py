"""The project's own model server understands these prompts: what was tried, what became of it, what a role is asked."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import replace

import jsonschema
import pytest

from specgen.evaluation.problems import load_problem
from specgen.llm.server_types import Chat
from specgen.llm.synthetic import roles
from specgen.llm.synthetic.feedback import read_prompt
from specgen.llm.synthetic.tasks import identify
from specgen.search.base import object_of
from specgen.search.cudaforge import CORRECTION, OPTIMISATION
from specgen.search.kernelagent import LESSON
from specgen.types import Json, Status
from tests.search.conftest import DEVICE, RENDERER, evaluated

PROBLEM = load_problem("T4")
TASK = identify(PROBLEM.source)
FAILURES = [status for status in Status if status.kind == "candidate" and status is not Status.VALID]


def kernel() -> str:
    """A source that carries a design, as the server writes them."""
    assert TASK is not None
    return f"{TASK.space.comment(TASK.space.extreme(best=False))}\nclass ModelNew: ...\n"


def prompt(template: str, **variables: object) -> str:
    return RENDERER.render(template, problem=PROBLEM, device=DEVICE, **variables).text


CODERS: list[tuple[str, Mapping[str, object]]] = [
    ("refine/refine.md.j2", {"earlier": [], "note": ""}),
    ("cudaforge/optimise.md.j2", {"advice": {"bottleneck": "memory"}}),
    ("kernelagent/optimise.md.j2", {"bottleneck": None, "lessons": []}),
    ("alphaevolve/evolve.md.j2", {"inspirations": [], "edits": False}),
]


@pytest.mark.parametrize(("template", "variables"), CODERS)
def test_a_valid_kernels_speedup_is_read(template: str, variables: Mapping[str, object]) -> None:
    entry = evaluated(kernel(), speedup=1.75)
    text = prompt(template, entry=entry, latest=entry, **variables)
    feedback = read_prompt(text)
    assert feedback.base is not None
    assert (feedback.failed, feedback.speedup) == ("", 1.75)
    assert not roles.asks_for_json(Chat((("user", text),), seed=0))


@pytest.mark.parametrize("status", FAILURES)
@pytest.mark.parametrize("template", ["refine/refine.md.j2", "cudaforge/correct.md.j2", "kernelagent/repair.md.j2"])
def test_a_failures_status_is_read(template: str, status: Status) -> None:
    entry = evaluated(kernel(), status, error="candidate.py:3: error: expected ';'")
    feedback = read_prompt(prompt(template, entry=entry, latest=entry, earlier=[], note="", advice=None))
    assert feedback.base is not None
    assert feedback.failed == status.value


def test_a_prompt_from_scratch_has_no_feedback() -> None:
    feedback = read_prompt(prompt("refine/seed.md.j2", note=""))
    assert feedback.task is not None
    assert feedback.base is None


BOTTLENECKS: dict[str, Json] = {
    "type": "array",
    "items": object_of("bottleneck", "cause", "evidence", "fix"),
    "minItems": 2,
}
ASKED: list[tuple[str, Mapping[str, Json]]] = [
    ("cudaforge/judge_optimise.md.j2", OPTIMISATION),
    ("cudaforge/judge_correct.md.j2", CORRECTION),
    ("kernelagent/diagnose.md.j2", BOTTLENECKS),
    ("kernelagent/reflect.md.j2", LESSON),
]


@pytest.mark.parametrize(("template", "schema"), ASKED)
def test_a_roles_question_is_answered_in_the_shape_it_asks_for(template: str, schema: Mapping[str, Json]) -> None:
    entry = evaluated(kernel(), speedup=1.5)
    if template.endswith("correct.md.j2"):
        entry = replace(entry, status=Status.WRONG_VALUE, speedup=None, profile=None, error="max error 3e-2")
    text = prompt(template, entry=entry, before=entry, after=entry, number=2)
    chat = Chat((("user", text),), seed=0)
    assert roles.asks_for_json(chat)
    jsonschema.validate(json.loads(roles.reply(chat, read_prompt(text), random.Random(1))), schema)
