"""A context of `compose` over the real templates, and outcomes to search among."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import jsonschema

from specgen.prompts import CpuFacts, Renderer
from specgen.search import Evaluated, History, IterationResult, Step
from specgen.types import IterationReason, Json, Origin, ProblemSpec, Profile, Status, Timing

PROBLEM = ProblemSpec(name="T4", source="class Model(nn.Module):\n    pass\n")
RENDERER = Renderer()
DEVICE = CpuFacts("Some CPU", 8, ("avx2", "fma"), 32, 1024, None)


@dataclass
class Desk:
    """`Context` over the real templates. Roles answer whatever their schema allows, derived from the key; replies are
    kept under it, as the engine keeps them. ``silent`` roles never give anything usable."""

    history: History = field(default_factory=History)
    renderer: Renderer = RENDERER
    problem: ProblemSpec = PROBLEM
    silent: bool = False
    asked: dict[str, str] = field(default_factory=dict)  # key -> the role's prompt
    replies: dict[str, Json] = field(default_factory=dict)

    def render(self, template: str, **variables: object) -> str:
        return self.renderer.render(template, problem=self.problem, device=DEVICE, **variables).text

    async def ask(self, role: str, key: str, template: str, schema: Mapping[str, Json], **variables: object) -> Json:
        if key not in self.replies:
            assert self.render("shared/role.md.j2", role=role)
            self.asked[key] = self.render(template, **variables)
            self.replies[key] = None if self.silent else example(schema, key)
            if not self.silent:
                jsonschema.validate(self.replies[key], schema)
        return self.replies[key]


def example(schema: Mapping[str, Json], seed: str) -> Json:
    """Something that fits."""
    match schema:
        case {"type": "array", "items": dict(items), "minItems": int(number)}:
            return [example(items, f"{seed}#{place}") for place in range(number)]
        case {"type": "object", "properties": dict(properties)}:
            return {key: f"{key} of {seed}" for key in properties}
    raise AssertionError(schema)


def timing(mean: float) -> Timing:
    return Timing(mean_ms=mean, std_ms=0.01, min_ms=mean, median_ms=mean, runs=40)


def evaluated(
    source: str,
    status: Status = Status.VALID,
    speedup: float | None = None,
    origin: Origin = Origin.FORK,
    iteration: int = 1,
    error: str = "",
) -> Evaluated:
    if status is Status.VALID and speedup is None:
        speedup = 1.5
    profile = None
    if speedup is not None:
        profile = Profile(
            candidate=timing(2.0),
            reference=timing(2.0 * speedup),
            achieved_gb_s=5.0,
            ceiling_gb_s=10.0,
            roofline="memory",
            counters={"ipc": 2.5, "cache_misses": None, "weird.counter": 12_345_678.0},
        )
    name = hashlib.sha256(source.encode()).hexdigest()
    return Evaluated(name, source, origin, iteration, status, error, speedup, profile)


def closed(
    *entries: Evaluated,
    chosen: Evaluated | None = None,
    iteration: int = 1,
    main_failure: str = "",
    step: Step | None = None,
) -> IterationResult:
    return IterationResult(
        iteration,
        step or Step("seed"),
        entries,
        chosen.candidate_id if chosen else None,
        IterationReason.MAIN,
        main_failure,
    )
