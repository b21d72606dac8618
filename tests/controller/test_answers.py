"""What counts as a candidate in an answer."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgen.controller.answers import Answer, FirstBlock, extract
from specgen.types import Status

MODEL = """import torch

class ModelNew(torch.nn.Module):
    def forward(self, x):
        return x + 1
"""
DRAFT = MODEL.replace("x + 1", "x + 2")
WITH_FENCE = '''import torch

class ModelNew(torch.nn.Module):
    """Use it so:

    ```python
    ModelNew()(x)
    ```

    and no other way.
    """

    def forward(self, x):
        return x
'''


def block(code: str, tag: str = "python", fence: str = "```") -> str:
    return f"{fence}{tag}\n{code}{fence}\n"


def test_the_last_block_that_defines_the_model_wins() -> None:
    answer = extract(
        f"A draft:\n{block(DRAFT)}\nBetter:\n{block(MODEL)}\nUse it so:\n{block('m = ModelNew()' + chr(10))}"
    )
    assert answer == Answer(MODEL, None)


@pytest.mark.parametrize("tag", ["python", "py", "", "Python3", 'python title="model.py"', "python {.numberLines}"])
@pytest.mark.parametrize("fence", ["```", "````", "~~~"])
def test_tags_and_fences(tag: str, fence: str) -> None:
    assert extract("Here:\n" + block(MODEL, tag, fence)).source == MODEL


def test_a_fence_in_a_docstring_does_not_end_the_block() -> None:
    assert extract("Here:\n" + block(WITH_FENCE) + "Done.").source == WITH_FENCE


def test_a_block_inside_a_longer_fence() -> None:
    assert extract("````markdown\nText\n" + block(MODEL) + "````\n").source == MODEL


def test_an_indented_block() -> None:
    indented = "".join("   " + line + "\n" for line in block(MODEL).splitlines())
    assert extract("1. The file:\n" + indented).source == MODEL


def test_unclosed_at_the_token_limit_is_kept_and_marked() -> None:
    cut = MODEL.replace("x + 1", "torch.cat([x")
    assert extract("Here:\n```python\n" + cut, truncated=True) == Answer(cut, None, truncated=True)
    assert extract("Here:\n```python\n" + MODEL, truncated=False) == Answer(MODEL, None, truncated=False)
    assert extract(block(MODEL) + "And it wo", truncated=True) == Answer(MODEL, None, truncated=False)


def test_code_without_the_class_and_no_code_at_all() -> None:
    cu = "__global__ void k(float* x) { x[0] = 1; }\n"
    assert extract(block(cu, "cuda")).status is Status.NO_MODELNEW
    assert extract("#include <torch/extension.h>\n" + cu).status is Status.NO_MODELNEW
    assert extract(block("class Model: pass\n")).status is Status.NO_MODELNEW
    for nothing in ("None", "", "I cannot do that.", "<think>class ModelNew", "```python\n```"):
        assert extract(nothing).status is Status.NO_CODE, nothing


def test_a_draft_in_the_reasoning_is_not_the_answer() -> None:
    assert extract(f"<think>{block(DRAFT)}</think>\n{block(MODEL)}").source == MODEL
    assert extract(f"{block(DRAFT)}</think>\nNone").status is Status.NO_CODE


def test_drafts_within_reasoning_anywhere_are_not_the_answer() -> None:
    assert extract(f"Sure.\n<think>\n{block(DRAFT)}</think>\nNone").status is Status.NO_CODE
    assert extract(f"<thinking>{block(DRAFT)}</thinking>\n{block(MODEL)}<reasoning>{DRAFT}</reasoning>").source == MODEL
    assert extract(f"<reasoning>\n{block(DRAFT)}").status is Status.NO_CODE
    within = MODEL.replace("x + 1", "x + len('</think>')")
    assert extract(f"<think>short</think>\n{block(within)}").source == within


def test_tags_around_a_block_on_its_own_lines_or_on_the_fences() -> None:
    assert extract(f"<answer>\n{block(MODEL)}</answer>").source == MODEL
    assert extract(f"<answer>```python\n{MODEL}```</answer>\n").source == MODEL
    assert extract(f'<file name="kernel.py">\n{MODEL}</file>\n').source == MODEL


def test_only_a_cuda_file_is_no_model_however_it_is_written() -> None:
    cu = "#include <cuda_runtime.h>\n__global__ void k(float* x) { x[0] = 1; }\n"
    for answer in (block(cu, "cu"), block(cu, "cpp", "~~~"), cu, f"kernel.cu:\n{cu}", "```cuda\n" + cu):
        assert extract(answer) in (Answer(None, Status.NO_MODELNEW), Answer(None, Status.NO_MODELNEW, truncated=False))


def test_words_behind_the_closing_fence() -> None:
    assert extract(f"```python\n{MODEL}``` Hope this helps!\nBye.").source == MODEL
    assert extract(f"\ufeff```python\n{MODEL}```").source == MODEL


def test_bare_python_without_fences() -> None:
    assert extract(MODEL).source == MODEL
    assert extract("Here is the file:\n\n" + MODEL).source == MODEL
    assert extract("<answer>\n" + MODEL + "</answer>\n").source == MODEL


def test_a_syntax_error_is_the_candidates_not_ours() -> None:
    broken = MODEL + "def f(:\n    pass\n"
    assert extract(block(broken)) == Answer(broken, None)
    assert extract(block(MODEL) + block(broken)).source == MODEL


def test_aliases_and_conditional_definitions_count() -> None:
    assert extract(block("class A: pass\nModelNew = A\n")).source is not None
    assert extract(block("try:\n    class ModelNew: pass\nfinally:\n    pass\n")).source is not None


def test_a_fork_begins_inside_the_block() -> None:
    assert extract(MODEL + "```\nThis kernel …", prefilled=True) == Answer(MODEL, None)
    assert extract(MODEL, prefilled=True) == Answer(MODEL, None)  # a stop sequence swallowed the fence
    assert extract(MODEL, prefilled=True, truncated=True) == Answer(MODEL, None, truncated=True)
    assert extract("```python\n" + MODEL + "```", prefilled=True) == Answer(MODEL, None)
    assert extract("x = 1\n```\n" + block(MODEL), prefilled=True).source == MODEL


def test_windows_line_ends() -> None:
    assert extract(block(MODEL).replace("\n", "\r\n")).source == MODEL


def test_an_answer_cannot_be_both() -> None:
    with pytest.raises(ValueError, match="either"):
        Answer("x", Status.NO_CODE)
    with pytest.raises(ValueError, match="no status of an answer"):
        Answer(None, Status.HANG)


@pytest.mark.parametrize("code", [MODEL, WITH_FENCE, "x = 1\n"])
@pytest.mark.parametrize("opening", ["", "```python\n"])
@given(data=st.data())
def test_the_first_block_is_complete_when_its_fence_arrives(code: str, opening: str, data: st.DataObject) -> None:
    text = opening + code + "```"
    after = "\nThat is all.\n```python\nmore\n```\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    watcher = FirstBlock()
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    got = [watcher.feed(piece) for piece in pieces]
    assert [result for result in got if result is not None] == [code]
    assert watcher.feed(after) is None


@given(st.text(alphabet="`~\nMod elNw:class<>/thinkpy'\"", max_size=300), st.booleans(), st.booleans())
def test_any_text_gives_an_answer(text: str, truncated: bool, prefilled: bool) -> None:
    answer = extract(text, truncated=truncated, prefilled=prefilled)
    assert (answer.source is None) != (answer.status is None)
