"""A compile error is settled by torch's own headers without a stock build, and only where that is the same verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from specgen.evaluation.build import verify

COMMAND = (
    "c++ -MMD -MF main.o.d -DTORCH_EXTENSION_NAME=k -isystem /t/include -fPIC -std=c++20 -O3 -fopenmp -c m.cpp -o m.o"
)
FACADE = (
    "cpp_source.cpp: In function f\ncpp_source.cpp:8:11: error: 'x' was not declared\ncpp_source.cpp:9:1: error: y\n"
)


def test_the_front_end_sees_the_same_translation_unit_and_the_headers_flags() -> None:
    quick = verify._front_end(COMMAND.split(), Path("/pch"))
    assert quick is not None
    assert quick[:2] == ["c++", "-I/pch"]
    assert "-DTORCH_EXTENSION_NAME=k" in quick
    assert quick[-2:] == ["-Wfatal-errors", "-fsyntax-only"]
    assert "m.cpp" in quick
    assert not {"-c", "-o", "m.o", "-fopenmp", "-MF", "main.o.d"} & set(quick)
    assert quick.count("-std=c++20") == 1


@pytest.mark.parametrize("word", ["-std=c++17", "-x", "--param", "@file"])
def test_what_might_be_other_code_is_left_to_the_full_build(word: str) -> None:
    assert verify._front_end([*COMMAND.split(), word], Path("/pch")) is None or word == "@file"


def test_another_compiler_is_left_to_the_full_build() -> None:
    assert verify._front_end(COMMAND.replace("c++ -MMD", "nvcc -MMD").split(), Path("/pch")) is None


def test_further_errors_are_shown_only_where_the_first_is_the_same() -> None:
    assert verify.agree("cpp_source.cpp:8:11: fatal error: 'x' was not declared\n".replace("fatal ", ""), FACADE)
    assert not verify.agree("cpp_source.cpp:7:1: error: 'x' was not declared\n", FACADE)
    assert not verify.agree("", FACADE)


@pytest.mark.parametrize(
    ("source", "flags", "other"),
    [
        ("#if defined(__AVX512F__)", "-O3 -march=native", False),
        ("#if defined(__AVX512F__)", "-O3", True),
        ("#if defined(__AVX512F__)", "-O3 -march=native -mno-avx512f", True),
        ("#ifdef _OPENMP", "-O3 -march=native -fopenmp", True),
        ("#ifdef _OPENMP", "-O3 -march=native", False),
        ("#ifdef __FAST_MATH__", "-O3 -march=native -ffast-math", True),
        ("#ifdef __OPTIMIZE__", "-march=native", True),
        ("int x;", "-O3 -fopenmp -ffast-math", False),
    ],
)
def test_a_source_that_asks_for_macros_is_checked_only_with_the_flags_that_define_them(
    source: str, flags: str, other: bool
) -> None:
    assert verify._sees_other_macros(source, ["c++", *flags.split(), "-c", "m.cpp"]) is other
