"""Compilers' and processes' words made short: first errors with their places in the candidate's own file."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specgen.evaluation.feedback import LIMIT, cap, file_line, from_compiler, from_dump, from_exception

SOURCE = '''import torch
CPP = """
void launch(torch::Tensor x);
"""
CUDA = r"""
__global__ void k(float* x) {
    x[threadIdx.x] = y[threadIdx.x];
    int a = 1
    x[0] = a;
}
"""
'''
NVCC = """Error building extension 'ext': [1/3] /usr/local/cuda/bin/nvcc -c cuda.cu -o cuda.cuda.o
FAILED: [code=2] /usr/local/cuda/bin/nvcc -c cuda.cu -o cuda.cuda.o
cuda_source.cu(3): error: identifier "y" is undefined
      x[threadIdx.x] = y[threadIdx.x];
                       ^

cuda_source.cu(5): error: expected a ";"
      x[0] = a;
      ^

2 errors detected in the compilation of "cuda.cu".
ninja: build stopped: subcommand failed.
"""
PTXAS = "ptxas error   : Entry function '_Z1kPf' uses too much shared data (0x13880 bytes, 0xc000 max)\n"


def test_nvccs_errors_are_placed_in_the_candidates_file() -> None:
    assert from_compiler(NVCC, source=SOURCE) == (
        'cuda_source.cu(3): error: identifier "y" is undefined  [candidate.py line 7]\n'
        "      x[threadIdx.x] = y[threadIdx.x];\n"
        "                       ^\n"
        'cuda_source.cu(5): error: expected a ";"  [candidate.py line 9]\n'
        "      x[0] = a;\n"
        "      ^"
    )


def test_an_error_of_the_assembler_names_the_kernel() -> None:
    assert from_compiler(PTXAS) == (
        "ptxas error   : Entry function 'k(float*)' uses too much shared data (0x13880 bytes, 0xc000 max)"
    )


def test_the_linkers_words_are_kept_without_directories() -> None:
    text = "[2/2] c++ main.o -shared\n/usr/bin/ld: /cache/b-1/main.o: in function `f':\n"
    text += "main.cpp: undefined reference to `_Z5otherPf'\n"
    said = from_compiler(text)
    assert "undefined reference to `other(float*)'" in said
    assert "-shared" not in said


def test_an_output_without_an_error_keeps_its_end() -> None:
    assert from_compiler("first\nsomething odd\n") == "first\nsomething odd"
    assert len(from_compiler("x" * 9000)) <= LIMIT


def test_other_words_follow_the_errors() -> None:
    said = from_compiler(NVCC + "the driver says no\n", source=SOURCE)
    assert said.endswith("[and]\nthe driver says no")


@pytest.mark.parametrize(
    ("number", "quoted", "line"),
    [
        (3, "    x[threadIdx.x] = y[threadIdx.x];", 7),  # of the literal that reads so there
        (99, "    int a = 1", 8),  # the only line of the file that reads so
        (6, "}", 10),
        (6, "", 0),
        (3, "somewhere else", 0),
    ],
)
def test_a_line_of_a_string_is_found_in_the_file(number: int, quoted: str, line: int) -> None:
    assert file_line(SOURCE, number, quoted) == line


def test_a_line_that_stands_twice_is_not_guessed() -> None:
    doubled = SOURCE + SOURCE.replace("CUDA", "OTHER")
    assert file_line(doubled, 3, "    x[threadIdx.x] = y[threadIdx.x];") == 0


def test_a_missing_symbol_is_named() -> None:
    said = from_exception(ImportError("/cache/5e/ext.so: undefined symbol: _Z5otherPf"), "")
    assert "ext.so: undefined symbol: other(float*)" in said
    assert "/cache" not in said
    assert "defined in none of the sources" in said


def test_what_an_llm_cannot_set_is_left_out_of_cudas_errors() -> None:
    error = RuntimeError(
        "CUDA error: an illegal memory access was encountered\n"
        "CUDA kernel errors might be asynchronously reported at some other API call, so the stacktrace below might be"
        " incorrect.\nFor debugging consider passing CUDA_LAUNCH_BLOCKING=1\n"
        "Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.\n"
    )
    said = from_exception(error, "")
    assert "illegal memory access" in said
    assert "next wait for the device" in said
    assert "LAUNCH_BLOCKING" not in said
    assert "DSA" not in said


DUMP = """printed before
Fatal Python error: Segmentation fault

Current thread 0x00007f11 (most recent call first):
  File "candidate.py", line 2 in helper
  File "candidate.py", line 4 in forward
  File "/usr/lib/python3.11/site-packages/torch/nn/modules/module.py", line 1775 in _call_impl

Extension modules: numpy.core (total: 20)
"""


def test_a_crash_shows_the_candidates_frames_with_their_lines() -> None:
    source = "def helper(x):\n    return ext.run(x)\ndef forward(x):\n    return helper(x)\n"
    assert from_dump(DUMP, source) == (
        "candidate.py:4 in forward\n    return helper(x)\ncandidate.py:2 in helper\n    return ext.run(x)\n"
        "printed before"
    )
    assert from_dump("nothing but words") == "nothing but words"
    assert from_dump("") == ""


@given(st.text(), st.text())
def test_any_text_is_read(output: str, source: str) -> None:
    assert len(from_compiler(output, source=source)) <= LIMIT + 100
    assert len(from_dump(output, source)) <= LIMIT + 100
    assert len(cap(output, 100)) <= 140
