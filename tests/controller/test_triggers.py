"""What fires and what does not, class by class. The labelled traces are in benchmarks/data/triggers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from specgen.controller.triggers import TriggerParser
from specgen.settings import ForkPolicy
from specgen.types import Trigger, TriggerClass


def parse(text: str, *classes: str) -> list[Trigger]:
    parser = TriggerParser(classes) if classes else TriggerParser()
    return parser.feed(text) + parser.finish()


def ends(text: str, kind: str) -> list[str]:
    """The text up to each trigger of ``kind``, its last 40 characters."""
    return [text[max(0, found.position - 40) : found.position] for found in parse(text, kind)]


# ------------------------------------------------------------------------------------------------ decisions


@pytest.mark.parametrize(
    "text",
    [
        "I'll use BLOCK_SIZE = 32. ",
        "Let's go with 64x64 tiles. ",
        "We will launch 256 threads per block. ",
        "- BLOCK_M = 128, BLOCK_N = 64",
        "1. Each thread block computes a 32x32 output tile\n",
        "- Use tensor cores on H200\n",
        "BM = 128, BN = 128, BK = 8.\n",
        "So 4 warps per block, 16 rows per block.\n",
        "I am going to use __shfl_xor_sync for the reduction. ",
        "We can't fit 128, so I'll take a 64×64 tile. ",
        "- **Block size**: 256 threads\n",
        "Let me set `num_warps = 8`. ",
        "It spills otherwise... so a 32x64 tile it is. ",
        "Use `#pragma omp parallel for` over the rows. ",
    ],
)
def test_commitments_fire_once(text: str) -> None:
    assert len(parse(text, "decision")) == 1, text


@pytest.mark.parametrize(
    "text",
    [
        "Should I use 64x64 tiles? ",
        "If we use 512 threads per block, each handles 4 elements. ",
        "We could use 256 threads per block. ",
        "Maybe BLOCK_SIZE = 64. ",
        "128 threads per block is better than 256 threads per block. ",
        "The previous kernel used 128 threads per block. ",
        "cuBLAS uses 128x128 tiles. ",
        "PyTorch launches 512 threads per block here. ",
        "A block has at most 1024 threads. ",
        "Let me consider using float4 for vectorized loads. ",
        "I'll use either 32x32 or 64x64 tiles. ",
        "I'll try 128 or 256 threads. ",
        "Suppose BLOCK = 64. ",
        "M = 1024, N = 4096, K = 512. ",
        "x.view(16, 64) has 16 rows. ",
        "What about 8 warps per block? ",
        "Options:\n- 32x32 tiles\n- 64x64 tiles\n",
        "The tile loop needs shared memory. ",
        "I don't want to use tensor cores. ",
    ],
)
def test_talk_about_a_value_is_no_commitment(text: str) -> None:
    assert parse(text, "decision") == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("My plan:\n\n1. 8 warps per block\n2. shared memory for the rows\n", 2),
        ("What the profile says:\n- 8 warps per block\n- shared memory for the rows\n", 0),
        ("The plan:\n- the tile:\n  - BM = 64, BN = 32\n- the rest is easy\n", 1),
        ("The issues are:\n- the tile:\n  - should it be larger:\n    - BM = 64\n", 0),
        ("Let me use these:\n- BM = 64, BN = 128\n- BM = 32, BN = 256\n", 0),
        ("Here's the design:\n- Grid: (cdiv(N, BLOCK),)\n- one block per row\n", 2),
    ],
)
def test_the_line_over_a_list_says_what_its_items_are(text: str, count: int) -> None:
    assert len(parse(text, "decision")) == count


@pytest.mark.parametrize(
    "text",
    [
        "The design:\n- 3 stages: 3 * 16 KB = 48 KB\n",
        "With BLOCK_N = 64, each warp reads 64 bytes. ",
        "For N = 4096, grid = 8 blocks. ",
        "The tile: 32x64 (4 warps along M, wait, that is 8 warps). ",
        "Let me also consider a different shape: use 64x64 tiles. ",
        "Or use BLOCK_N = 32. ",
        "Now BLOCK_M: 64, 128 and so on. ",
        "Warp 3 is at (tile=0, lane=3). ",
    ],
)
def test_estimates_cases_and_indices_are_no_commitment(text: str) -> None:
    assert parse(text, "decision") == []


@pytest.mark.parametrize(
    "text",
    [
        "Let me try BLOCK_N = 64. ",
        "I'll use one block per (row, head) pair. ",
        "Let me accumulate in fp32. ",
        "Let me try raising num_warps to 8. ",
        "The plan:\n- BM64/BN128/BK32\n",
        "Let's set BLOCK_D = next_pow2(D). ",
    ],
)
def test_trials_mappings_precisions_and_symbols_are_commitments(text: str) -> None:
    assert len(parse(text, "decision")) == 1


@pytest.mark.parametrize(
    "withdrawal",
    [
        "Wait, that's too much shared memory. ",
        "Hmm, that exceeds the limit. ",
        "Scratch that. ",
        "Actually, let me use 128 instead. ",
        "No. That won't fit. ",
        "Hmm. That's too many registers. ",
        "On second thought, I would rather keep it simple. ",
    ],
)
def test_the_next_sentence_may_withdraw_it(withdrawal: str) -> None:
    assert parse("I'll use 512 threads per block. " + withdrawal + "The rest is clear. ", "decision") == []


@pytest.mark.parametrize("doubt", ["Wait, is N a multiple of 32? ", "Hmm, let me double check that it compiles. "])
def test_a_doubt_does_not(doubt: str) -> None:
    assert len(parse("I'll use 512 threads per block. " + doubt, "decision")) == 1


def test_a_withdrawal_after_200_characters_comes_too_late() -> None:
    long = "The loads are coalesced " + "and the rows are long " * 10 + "but that exceeds the limit. "
    parser = TriggerParser(["decision"])
    assert parser.feed("I'll use 512 threads per block. ") == []
    assert parser.feed(long[:199]) == []
    (found,) = parser.feed(long[199:201])
    assert found.text == "512 threads"


def test_a_list_of_values_is_one_decision_and_ends_at_its_last() -> None:
    text = "I'll use BM = 64, BN = 64, BK = 16 for now. "
    (found,) = parse(text, "decision")
    assert text[: found.position].endswith("BK = 16")
    assert found.text == "BM = 64, BN = 64, BK = 16"


def test_a_repeated_commitment_is_silent_and_a_changed_one_is_not() -> None:
    first, second = "I'll use BLOCK_SIZE = 64. ", "I'll use BLOCK_SIZE = 128. "
    assert len(parse(first + "Good. " + first, "decision")) == 1
    assert len(parse(first + "Good. " + second + "Good. " + first, "decision")) == 3


def test_values_inside_code_are_the_codes_business() -> None:
    assert parse("```cuda\n#define BLOCK_SIZE 32\n// I'll use 64x64 tiles.\n```\n", "decision") == []


# ------------------------------------------------------------------------------------------------ fences


@pytest.mark.parametrize("tag", ["cuda", "cpp", "c++", "python", "Triton", "cu", "c", 'python title="k.py"'])
@pytest.mark.parametrize("fence", ["```", "````", "~~~"])
def test_a_complete_tagged_block_fires_at_its_closing_fence(tag: str, fence: str) -> None:
    text = f"So:\n{fence}{tag}\nint x;\n{fence}\nThen"
    (found,) = parse(text, "fence")
    assert text[: found.position] == f"So:\n{fence}{tag}\nint x;\n{fence}"


@pytest.mark.parametrize(
    "text",
    [
        "```cuda\nint x;\n",  # unclosed
        "```\nint x;\n```\n",  # no tag
        "```text\nhello\n```\n```json\n{}\n```\n```bash\nls\n```\n",  # no program
        "Use ```cuda``` blocks.\n",
        "```cuda\n\n```\n",  # nothing in it
        "````cuda\nint x;\n```\n",  # a shorter fence does not close
    ],
)
def test_what_is_no_complete_tagged_block(text: str) -> None:
    assert parse(text, "fence") == []


def test_blocks_that_were_abandoned_quoted_or_indented() -> None:
    assert len(ends("```cuda\nint x\nWait, no.\n```cuda\nint x;\n```\nText.", "fence")) == 1
    assert len(ends("```markdown\n```python\nx = 1\n```\n```\n", "fence")) == 1
    assert len(ends("1. First:\n   ```cpp\n   int x;\n   ```\n", "fence")) == 1
    assert len(ends("Here it is: ```cpp\nint x;\n```\n", "fence")) == 1
    assert len(ends("```cpp\nint x;\n```\nAgain:\n```cpp\nint x;\n```\n", "fence")) == 1  # the same block


# ------------------------------------------------------------------------------------------------ kernel bodies

KERNEL = "__global__ void k(const float* __restrict__ x, float* y) {\n  if (x) { y[0] = x[0]; }\n}"


@pytest.mark.parametrize(
    "code",
    [
        KERNEL,
        'extern "C" ' + KERNEL,
        "template <typename T, int N>\n" + KERNEL,
        KERNEL.replace("void k", "void __launch_bounds__(256, (2)) k"),
        KERNEL.replace("__global__ void", "__global__ __launch_bounds__(256) void\n"),
        KERNEL.replace("__global__ void", "static __global__ void"),
        KERNEL.replace("{\n", "\n{\n", 1),
        KERNEL.replace("  if", '  printf("}} { \\" }"); // } }\n  char c = \'}\'; /* }\n } */\n  if'),
        "torch::Tensor f(torch::Tensor x, const at::Tensor& y) {\n  for (;;) { x += y; }\n  return x;\n}",
        "std::vector<at::Tensor> f(\n    const at::Tensor& x,\n    double s) {\n  return {x * s};\n}",
        "void f(at::Tensor out) {\n  out.zero_();\n}",
    ],
)
@pytest.mark.parametrize("frame", ["{}\n", "```cpp\n{}\n```\n", "The kernel:\n\n{}\n\nNext.\n", 'src = """\n{}\n"""\n'])
def test_a_complete_kernel_fires_at_its_last_brace(code: str, frame: str) -> None:
    text = frame.format(code)
    (found,) = parse(text, "kernel_body")
    assert text[: found.position].endswith(code)


@pytest.mark.parametrize(
    "text",
    [
        KERNEL[:-1],  # one brace short
        "__global__ void k(float* x);\n",
        "Every __global__ function returns void (see the manual).\n",
        "Use `__global__ void f()` there. Then { } follow; so.\n",
        "__global__ void k(float* x, ...) { ... }\n",
        "__global__ void k(float* x) { /* later */ }\n",
        "__device__ float f(float x) { return x; }\n",
        "static void f(const float* x) { x[0]; }\n",
        "torch::Tensor f(torch::Tensor x);\n",
        "torch::Tensor f(torch::Tensor x) {\n  k<<<1, 256>>>(x.data_ptr<float>());\n  return x;\n}\n",
    ],
)
def test_what_is_no_complete_kernel(text: str) -> None:
    assert parse(text, "kernel_body") == []


TRITON = '''@triton.jit
def k(
    x_ptr, n,
    BLOCK: tl.constexpr,
):
    """Adds one.

    Not indented text in a string:
(see below)
    """
    o = tl.arange(0, BLOCK)

    x = tl.load(
        x_ptr + o,
    )
    tl.store(x_ptr + o, x + 1)'''


@pytest.mark.parametrize("frame", ["{}\n\ndef g():\n    pass\n", "```python\n{}\n```\n", "So:\n\n{}\n\nNext.\n"])
def test_a_triton_function_fires_at_the_end_of_its_body(frame: str) -> None:
    text = frame.format(TRITON)
    (found,) = parse(text, "kernel_body")
    assert text[: found.position].endswith(TRITON)


@pytest.mark.parametrize(
    "text",
    [
        TRITON.replace("tl.store(x_ptr + o, x + 1)", "...") + "\n\nNext.\n",
        TRITON.replace("x_ptr, n,", "x_ptr, ...,") + "\n\nNext.\n",
        "__global__ void k(float* x) {\n    x[0] = 1.0f;\n    ...\n}\n",
    ],
)
def test_a_body_with_an_elision_is_not_complete(text: str) -> None:
    assert parse(text, "kernel_body") == []


@pytest.mark.parametrize(
    "text", [TRITON + "\n", "@triton.jit\ndef k(x):\n    ...\n\nNext.\n", "Use @triton.jit there.\n"]
)
def test_what_is_no_complete_triton_function(text: str) -> None:
    assert parse(text, "kernel_body") == []


def test_prose_after_an_unbalanced_body_is_read_again() -> None:
    text = "__global__ void k(float* x) {\n  for (;;) {\n  x[0] = 1;\n\nThat is the idea.\nI'll use 8 warps per block. "
    assert [found.kind for found in parse(text)] == [TriggerClass.DECISION]


# ------------------------------------------------------------------------------------------------ phrases


@pytest.mark.parametrize(
    "text",
    [
        "Let me implement this.",
        "Let me write the kernel:",
        "Now I'll write the CUDA code.",
        "Here is the plan:",
        "Here's my final implementation:",
        "Let me rewrite it with padding.",
        "Let me refine the kernel:",
        "I'm going to write the Triton version now.",
        "Time to write the code.",
        "**Implementation plan:**\n",
        "Let’s code this up.",
        "Let me put everything together.",
        "OK, writing the final kernel.",
        "Let me not overthink it and just write the code.",
        "Let me now focus on writing the solution.",
        "Let me revise the kernel:",
        "### Detailed Plan\n",
        "So my final answer is:",
    ],
)
def test_announcements_fire(text: str) -> None:
    assert len(parse(text, "phrase")) == 1


@pytest.mark.parametrize(
    "text",
    [
        "Let me think about how to write the kernel.",
        "Let me check the kernel again.",
        "Let me read the code.",
        "Let me write a test for the kernel.",
        "Before I write the kernel, some numbers.",
        "If I implement it with shuffles, it takes 5 steps.",
        "Shall I write the kernel?",
        "I could implement this in Triton.",
        "The task is to write a CUDA kernel.",
        "I need to implement the kernel.",
        "Here is the reference code:",
        "Let me not write the kernel yet.",
        "Let me think about the implementation approach:",
        "In my kernel:",
        "Let me create the wrapper first.",
        "Let me simplify and follow the code again.",
        "Let me update the kernel to print its sizes.",
    ],
)
def test_other_talk_of_writing_does_not(text: str) -> None:
    assert parse(text, "phrase") == []


# ------------------------------------------------------------------------------------------------ all


def test_only_the_chosen_classes_are_reported() -> None:
    text = "I'll use 8 warps per block. Let me write the kernel:\n```cuda\n" + KERNEL + "\n```\n"
    assert [found.kind.value for found in parse(text)] == ["decision", "phrase", "kernel_body", "fence"]
    assert [found.kind.value for found in parse(text, "fence", "phrase")] == ["phrase", "fence"]
    with pytest.raises(ValueError, match="nonsense"):
        TriggerParser(["nonsense"])


def test_the_matched_words_are_short() -> None:
    name = "k" * 900
    (found,) = parse(KERNEL.replace("void k", f"void {name}") + "\n")
    assert len(found.text) <= 200


def test_a_class_that_does_not_exist_is_refused_by_the_settings_and_by_the_parser() -> None:
    with pytest.raises(ValidationError, match="kernel_body"):
        ForkPolicy.model_validate({"classes": ["decisions"]})
    with pytest.raises(ValueError, match="decisions"):
        TriggerParser(["decisions"])
    assert ForkPolicy.model_validate({"classes": ["phrase"]}).classes == ("phrase",)
