"""Searches at the engine: faults of the user's code, roles, and prompts that must fit the LLM's context."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from specgen.errors import ContextTooLong, ModelAccessError, SettingsError, UserError
from specgen.llm import Capabilities, OpenAICompatible
from specgen.llm.openai_compatible import Completion
from specgen.scheduler.pool import PoolState
from specgen.settings import ModelProfile, Price, Role, Settings
from specgen.store import migrate, tables
from specgen.types import JobState, Prompt, Usage
from tests.llm.scripted_server import Status, scripted_server
from tests.workers import mortal
from tests.workers.jobs import SHORT, World, start_model, start_world  # noqa: F401 (fixtures)
from tests.workers.mortal import Devices, Mortal, Stream, Worker, play, rows, spec, until_over


@pytest.fixture(name="store")
def open_store(tmp_path: Path) -> Iterator[Mortal]:
    url = f"sqlite:///{tmp_path / 'specgen.db'}"
    migrate(url)
    store = Mortal.open(url)
    yield store
    store.close()


def run(store: Mortal, worker: Worker, search: str, **of: object) -> tuple[str, str]:
    """The job to its end: its id, and what became of it."""
    store.watch(worker)
    job = store.create_job(spec(search, **of))
    return job, play(until_over(store, job, worker))


# ------------------------------------------------------------------------------------------------ faults of the user's


@pytest.mark.parametrize(
    ("search", "says", "place"),
    [
        ("InSelect", "select raised ValueError: select is broken", "in select"),
        ("Nothing", "select raised TypeError: it returned None, which is no Step, WAIT or STOP", ""),
        ("InCompose", "compose raised KeyError: 'absent'", "in compose"),
        ("NoPrompt", "compose raised TypeError: it returned str, which is no Prompt", ""),
        ("InUpdate", "update raised RuntimeError: update is broken", "in update"),
        ("NoJson", "select raised TypeError: Object of type set is not JSON serializable", ""),
    ],
)
def test_a_users_algorithm_that_raises_is_named_with_its_traceback(
    store: Mortal, search: str, says: str, place: str
) -> None:
    name = f"tests.workers.bad_search:{search}"
    with pytest.raises(UserError) as caught:
        run(store, Worker(Devices()), name)
    first, _, rest = caught.value.message.partition("\n")
    assert first == f"search '{name}': {says}"
    assert "Traceback" in rest or "File " in rest
    assert place in rest


def test_a_criterion_that_raises_is_named_with_its_traceback(store: Mortal) -> None:
    with pytest.raises(UserError, match="the termination criterion raised ZeroDivisionError: the criterion is broken"):
        run(store, Worker(Devices()), "best_of_n", termination="tests.workers.bad_search:criterion")


@pytest.mark.parametrize("fault", ["InSelect", "InUpdate"])
def test_it_fails_its_job_and_nothing_else(world: World, fault: str) -> None:
    job = world.submit(SHORT, search=f"tests.workers.bad_search:{fault}")
    assert world.run(job).startswith(f"failed: search 'tests.workers.bad_search:{fault}': ")
    assert world.state(job) is JobState.FAILED
    assert "bad_search.py" in world.client.job(job).reason  # the traceback
    with PoolState(world.settings.redis) as pool:
        assert pool.open_scopes() == []
    other = world.submit(SHORT, iterations=1)
    assert world.run(other).startswith("running")
    assert world.run(other).startswith("done")


def test_a_state_of_another_version_names_both(store: Mortal) -> None:
    worker = Worker(Devices())
    store.watch(worker)
    job = store.create_job(spec("refine"))
    with store.engine.begin() as connection:
        connection.execute(update(tables.jobs).values(search_state={"version": 2, "turns": [], "note": ""}))
    with pytest.raises(SettingsError, match="search state is version 2, and this SpecGen reads version 1"):
        play(until_over(store, job, worker))


def test_a_prompt_directory_that_does_not_exist(store: Mortal, tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no prompt directory '.*absent'"):
        run(store, Worker(Devices()), "refine", prompt_dir=str(tmp_path / "absent"))


def test_a_template_with_an_unknown_variable(store: Mortal, tmp_path: Path) -> None:
    (tmp_path / "refine").mkdir()
    (tmp_path / "refine" / "seed.md.j2").write_text("Hello.\n\n{{ colour }}\n")
    with pytest.raises(SettingsError, match=r"^template refine/seed.md.j2, line 3: 'colour' is undefined$"):
        run(store, Worker(Devices()), "refine", prompt_dir=str(tmp_path))


# ------------------------------------------------------------------------------------------------ roles


@dataclass
class Mute(Worker):
    """Roles never answer in JSON."""

    async def complete(self, prompt: Prompt, *, seed: int, max_tokens: int, schema: Any) -> Completion:
        self.asked.append(("side", prompt.user, seed))
        return Completion("I think it is slow.", Usage(7, 0, 0, 3, reported=True), "stop")


def test_a_judge_that_never_answers_in_json_is_asked_twice_and_gone_on_without(store: Mortal) -> None:
    worker = Mute(Devices())
    job, told = run(store, worker, "cudaforge", iterations=4)
    assert told.startswith("done: iteration budget reached")
    prompts = [row[3] for row in rows(store, mortal.STORY["iterations"], job)]
    assert all("## Diagnosis" not in prompt for prompt in prompts)
    questions = [prompt for _, prompt, _ in (key for key in worker.asked if key[0] == "side")]  # type: ignore[misc]
    assert questions
    assert all(questions.count(question) == 2 for question in questions)
    assert store.tokens(job).side.completion_tokens == 3 * len(questions)


def test_a_role_has_its_own_model_effort_and_price(store: Mortal, monkeypatch: pytest.MonkeyPatch) -> None:
    role = Role(model="judge-9", effort="low", price=Price(input=1e6, output=0))
    profile = ModelProfile(
        base_url="http://nowhere", model="m", extra_body={"top_k": 1}, roles={"judge": role},
        price=Price(input=0, output=0),
    )  # fmt: skip
    monkeypatch.setattr(mortal, "SETTINGS", Settings(llm={"default": profile}))
    worker = Worker(Devices())
    job, _ = run(store, worker, "cudaforge", iterations=3)
    used = [(it.model, it.extra_body) for it in worker.connected]
    assert used.count(("judge-9", {"top_k": 1, "reasoning_effort": "low"})) == 2  # an iteration that asked, each
    assert all(it in (("m", {"top_k": 1}), ("judge-9", {"top_k": 1, "reasoning_effort": "low"})) for it in used)
    side = len(rows(store, mortal.STORY["side_calls"], job))
    assert side
    assert store.cost(job) == pytest.approx(7 * side)
    assert worker.lanes is not None
    assert all(price == role.price for _, price in worker.lanes._side)  # what counts while an iteration runs


# ------------------------------------------------------------------------------------------------ context too long


@dataclass
class Narrow(Worker):
    """Takes prompts of so many characters."""

    takes: int = 10**9

    @asynccontextmanager
    async def main(self, prompt: Prompt, *, seed: int, max_tokens: int) -> AsyncIterator[Stream]:
        self.look_at(prompt)
        async with super().main(prompt, seed=seed, max_tokens=max_tokens) as stream:
            yield stream

    async def complete(self, prompt: Prompt, *, seed: int, max_tokens: int, schema: Any) -> Completion:
        self.look_at(prompt)
        return await super().complete(prompt, seed=seed, max_tokens=max_tokens, schema=schema)

    def look_at(self, prompt: Prompt) -> None:
        if len(prompt.user) > self.takes:
            raise ContextTooLong(f"{len(prompt.user)} characters are too many", "fewer max_tokens")


@pytest.fixture(name="templates")
def write_templates(tmp_path: Path) -> str:
    """Prompts of 50,000 characters, and 10,000 less for each step of trimming."""
    for name in ("best_of_n/seed", "cudaforge/judge_optimise", "cudaforge/judge_correct"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.md.j2").write_text("{{ 'x' * (50000 - 10000 * trim) }}")
    return str(tmp_path)


def test_a_prompt_that_is_refused_is_composed_again_tighter(store: Mortal, templates: str) -> None:
    job, told = run(store, Narrow(Devices(), takes=25_000), "best_of_n", iterations=2, prompt_dir=templates)
    assert told.startswith("done: iteration budget reached")
    sizes = [len(row[3]) for row in rows(store, mortal.STORY["iterations"], job)]
    assert sizes == [20_000, 20_000]
    mains = [row for row in store.generations(job, 0) if row.kind == "main"]
    assert [row.finish_reason for row in mains[:3]] == ["broken"] * 3
    assert mains[3].finish_reason != "broken"


def test_a_prompt_that_never_fits_fails_the_job_with_the_reason(store: Mortal, templates: str) -> None:
    with pytest.raises(ContextTooLong, match="10000 characters are too many"):
        run(store, Narrow(Devices(), takes=500), "best_of_n", prompt_dir=templates)


def test_a_question_that_is_refused_is_asked_tighter_or_not_at_all(store: Mortal, templates: str) -> None:
    for takes, asked in ((25_000, True), (5_000, False)):
        job, told = run(store, Narrow(Devices(), takes=takes), "cudaforge", iterations=2, prompt_dir=templates)
        assert told.startswith("done")
        assert bool(rows(store, mortal.STORY["side_calls"], job)) is asked


def test_the_profile_says_what_fits(store: Mortal, templates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """I expect prompts that leave room for the answer, before anything is refused."""
    profile = ModelProfile(base_url="http://nowhere", model="m", context_tokens=32_000)
    monkeypatch.setattr(mortal, "SETTINGS", Settings(llm={"default": profile}))
    job, _ = run(store, Worker(Devices()), "best_of_n", iterations=1, prompt_dir=templates, max_tokens=20_000)
    (row,) = rows(store, mortal.STORY["iterations"], job)
    assert len(row[3]) == 30_000  # 10,000 of 32,000 - 20,000 - 512 tokens


REFUSALS: list[tuple[dict[str, Any], bool]] = [
    ({"message": "no", "code": "context_length_exceeded"}, True),
    ({"message": "This model's maximum context length is 8192 tokens. You requested 9000."}, True),
    ({"message": "the request exceeds the available context size", "type": "exceed_context_size_error"}, True),
    ({"message": "temperature must be below 2"}, False),
]


def test_servers_refusals_of_long_prompts_are_known() -> None:
    async def ask(url: str) -> None:
        profile = ModelProfile(base_url=url, model="m", retries=0)
        client = OpenAICompatible(profile, Capabilities("generic", "m"))
        try:
            async with client.main(Prompt("s", "u"), seed=1, max_tokens=10):
                pass
        finally:
            await client.aclose()

    with scripted_server() as server:
        for error, too_long in REFUSALS:
            server.scripts.append(Status(400, {"error": error}))
            with pytest.raises(ModelAccessError) as caught:
                asyncio.run(ask(server.url))
            assert isinstance(caught.value, ContextTooLong) is too_long
            assert "\n" not in caught.value.message
