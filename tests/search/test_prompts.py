"""Templates: strict, the user's first, stable before volatile, one piece of feedback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specgen.errors import SettingsError
from specgen.prompts import TRIMS, CpuFacts, GpuFacts, Renderer, cpu_facts
from specgen.prompts.feedback import FEEDBACK, feedback
from specgen.prompts.renderer import block, head
from specgen.types import Status
from tests.search.conftest import DEVICE, PROBLEM, evaluated

HEADINGS = ("### Answer", "### Compile log", "### Runtime error", "### Mismatch", "### Integrity", "### Profile")
GIVEN = {"problem": PROBLEM, "device": DEVICE, "note": "", "earlier": []}


def refine(**variables: object) -> str:
    return Renderer().render("refine/refine.md.j2", **{**GIVEN, **variables}).text


def test_a_valid_kernel_is_shown_with_its_speedup_and_profile() -> None:
    text = refine(latest=evaluated("import torch\nprint('k')\n", speedup=1.23456))
    assert "```python\nimport torch\nprint('k')\n```" in text
    assert re.findall(r"^status: (.*)$", text, re.MULTILINE) == ["valid"]
    assert re.findall(r"^speedup: (.*)$", text, re.MULTILINE) == ["1.235x"]
    assert "| instructions per cycle | 2.5 |" in text
    assert "| weird.counter | 12,345,678 |" in text
    assert "50 % of 10" in text
    assert "last-level" not in text  # a counter this machine does not have
    assert [heading for heading in HEADINGS if heading in text] == ["### Profile"]


@pytest.mark.parametrize("status", [s for s in Status if s.kind == "candidate" and s is not Status.VALID])
def test_a_failure_is_shown_with_its_status_and_exactly_one_reason(status: Status) -> None:
    text = refine(latest=evaluated("k = 1", status, error="candidate.py:3: error: expected ';'"))
    assert re.findall(r"^status: (.*)$", text, re.MULTILINE) == [status.value]
    assert "speedup:" not in text
    assert "candidate.py:3: error: expected ';'" in text
    assert len([heading for heading in HEADINGS if heading in text]) == 1
    words = re.findall(r"\b(?:" + "|".join(s.value for s in FEEDBACK) + r")\b", text[text.index("k = 1") :])
    assert set(words) == {status.value}  # no other failure is named after the kernel


def test_our_own_faults_are_never_shown_to_the_llm() -> None:
    for status in (Status.INFRA_ERROR, Status.ABORTED, Status.PROFILER_UNAVAILABLE, Status.REFERENCE_ERROR):
        with pytest.raises(SettingsError):
            feedback(status)
        with pytest.raises(SettingsError, match=status.value):
            refine(latest=evaluated("k = 1", status))


def test_timings_without_counters_still_make_a_prompt() -> None:
    text = refine(latest=evaluated("k = 1", Status.PROFILER_UNAVAILABLE, speedup=2.0))
    assert "speedup: 2.000x" in text


def test_sections_go_from_stable_to_volatile() -> None:
    """I expect prompts of different iterations, and of different algorithms, to share all that is not feedback."""
    first = refine(latest=evaluated("k = 1"))
    second = refine(latest=evaluated("other = 2", Status.HANG))
    task = Renderer().render("best_of_n/seed.md.j2", problem=PROBLEM, device=DEVICE).text.rstrip()
    assert first.startswith(task)
    assert second.startswith(task)
    assert (
        first.index("## Problem") < first.index("## Device") < first.index("## Rules") < first.index("## Your latest")
    )


def test_rules_follow_the_backend() -> None:
    cpu = Renderer().render("refine/seed.md.j2", **GIVEN).text
    assert "cpp_sources" in cpu
    assert "CUDA" not in cpu
    cuda_problem = PROBLEM.model_copy(update={"backend": "cuda"})
    gpu = GpuFacts("NVIDIA H200", "9.0", multiprocessors=132, bandwidth_gb_s=4800)
    cuda = Renderer().render("refine/seed.md.j2", problem=cuda_problem, device=gpu, note="").text
    assert "cuda_sources" in cuda
    assert "- multiprocessors: 132" in cuda
    assert "L2" not in cuda
    for text in (cpu, cuda):
        assert "class ModelNew(nn.Module)" in text
        assert PROBLEM.source.strip() in text


def test_a_source_with_fences_stays_in_its_block() -> None:
    assert block("a\n```\nb", "python") == "````python\na\n```\nb\n````"


# ------------------------------------------------------------------------------------------------ strictness


def test_a_missing_variable_names_template_line_and_variable() -> None:
    with pytest.raises(SettingsError) as caught:
        Renderer().render("refine/seed.md.j2", problem=PROBLEM, device=DEVICE)
    assert caught.value.message == "template refine/seed.md.j2, line 2: 'note' is undefined"


def test_the_error_is_placed_in_the_partial_it_is_in(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "rules.md.j2").write_text("fine\n\n{{ problem.colour }}\n")
    with pytest.raises(SettingsError, match=r"shared/rules.md.j2, line 3: .*'colour'"):
        Renderer(tmp_path).render("best_of_n/seed.md.j2", problem=PROBLEM, device=DEVICE)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a\n{% if %}", "line 2"),
        ("{% include 'shared/absent.md.j2' %}", "shared/absent.md.j2"),
        ("\n{{ 1 / 0 }}", "line 2: division by zero"),
        ("{{ ''.__class__.__mro__ }}", "unsafe|undefined"),
        ("{{ 'x' | nosuch }}", "nosuch"),
    ],
)
def test_a_users_broken_template_is_a_settings_error(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "mine.md.j2").write_text(text)
    with pytest.raises(SettingsError, match=says):
        Renderer(tmp_path).render("mine.md.j2")


def test_an_unknown_template_lists_the_known_ones() -> None:
    with pytest.raises(SettingsError, match=r"refine/sead.md.j2") as caught:
        Renderer().render("refine/sead.md.j2")
    assert "refine/seed.md.j2" in caught.value.hint


def test_an_absent_directory_is_a_settings_error(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="absent"):
        Renderer(tmp_path / "absent")


def test_the_users_template_goes_first_and_changes_the_hash(tmp_path: Path) -> None:
    shipped = Renderer().render("best_of_n/seed.md.j2", problem=PROBLEM, device=DEVICE)
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "rules.md.j2").write_text("Only my rule.\n")
    own = Renderer(tmp_path).render("best_of_n/seed.md.j2", problem=PROBLEM, device=DEVICE)
    assert "Only my rule." in own.text
    assert "## Problem" in own.text
    assert own.template_hash != shipped.template_hash
    other = PROBLEM.model_copy(update={"name": "T5"})
    again = Renderer().render("best_of_n/seed.md.j2", problem=other, device=DEVICE)
    assert again.template_hash == shipped.template_hash  # of the sources, not of the text


# ------------------------------------------------------------------------------------------------ trimming

LONG = "line of the log\n" * 500
TRIMMED: list[tuple[str, dict[str, object]]] = [
    ("refine/refine.md.j2", {"latest": evaluated("k = 1", Status.COMPILE_ERROR, error=LONG),
                             "earlier": [evaluated("older = 1")]}),
    ("alphaevolve/evolve.md.j2", {"entry": evaluated("k = 1"), "inspirations": [evaluated("older = 1")],
                                  "edits": False}),
    ("kernelagent/optimise.md.j2", {"entry": evaluated("k = 1"), "bottleneck": None,
                                    "lessons": [{"lesson": "older = 1"}]}),
    ("cudaforge/judge_correct.md.j2", {"entry": evaluated("k = 1", Status.RUNTIME_ERROR, error=LONG)}),
]  # fmt: skip


@pytest.mark.parametrize(("template", "variables"), TRIMMED)
def test_a_prompt_shrinks_as_it_is_trimmed_and_keeps_its_kernel(template: str, variables: dict[str, object]) -> None:
    texts = [Renderer().render(template, **{**GIVEN, **variables, "trim": trim}).text for trim in range(TRIMS)]
    assert texts[0] == Renderer().render(template, **{**GIVEN, **variables}).text
    sizes = [len(text) for text in texts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] < sizes[0]
    assert all("k = 1" in text and PROBLEM.source.strip() in text for text in texts)
    assert "older = 1" not in texts[2]
    assert all("more characters]" not in text for text in texts[:3])


def test_the_first_lines_of_a_log_are_kept() -> None:
    assert head("a\nb\nc\nd", 5) == "a\nb\n[4 more characters]"
    assert head("abc", 3) == "abc"
    assert head("abcdef", 3) == "abc\n[3 more characters]"


# ------------------------------------------------------------------------------------------------ device facts


def test_this_machines_facts_can_be_read() -> None:
    facts = cpu_facts()
    assert facts.cores >= 1
    assert facts.rows()[0] == ("CPU", facts.model_name)


def test_facts_from_files(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc" / "cpuinfo").write_text(
        "processor\t: 0\nmodel name\t: Test CPU @ 3 GHz\nflags\t\t: fpu sse4_2 avx2 nonsense\n\nprocessor\t: 1\n"
    )
    cache = tmp_path / "sys/devices/system/cpu/cpu0/cache"
    for index, (level, kind, size) in enumerate(
        (("1", "Data", "48K"), ("1", "Instruction", "32K"), ("3", "Unified", "30M"))
    ):
        folder = cache / f"index{index}"
        folder.mkdir(parents=True)
        for name, value in (("level", level), ("type", kind), ("size", size)):
            (folder / name).write_text(value + "\n")
    assert cpu_facts(tmp_path) == CpuFacts("Test CPU @ 3 GHz", 2, ("sse4_2", "avx2"), 48, None, 30 * 1024)


def test_a_machine_without_those_files_is_unknown(tmp_path: Path) -> None:
    assert cpu_facts(tmp_path) == CpuFacts("unknown", 1)
