"""Looking at a source before compiling it: what the façade must not take, and what it should include.

Refusing is always safe (the stock route decides); what is not refused and not understood simply does not compile.
So only two kinds of words are listed: those whose meaning the façade could change silently, and those for which a
failing compile is a foregone conclusion. Not here: compiling.
"""

from __future__ import annotations

import re

_COMMENTS = re.compile(r'"(?:\\.|[^"\\\n])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)

_REFUSED: tuple[tuple[str, str], ...] = (
    (r"\bpy(?:bind11)?::(?:arg|kw_only|pos_only|args|kwargs|call_guard)\b|\"_a\b", "keyword arguments"),
    (r"\bpy(?:bind11)?::(?!module_?\b)\w+", "Python objects in C++"),
    (r"\bTORCH_LIBRARY\w*\b", "a torch library"),
    (r"\btorch::(?:nn|jit|autograd|optim|data|serialize|indexing)::", "torch's C++ front end"),
    (r"\bat::(?:native|indexing|vec|meta|functorch)::", "ATen's inside"),
    (r"\bPy(?:Object|_BuildValue|Arg_|GILState)\w*", "Python's C interface"),
    (r"\bextern\s+\"C\"\s+.*\bPyInit_", "an own module initialiser"),
    (r"^[ \t]*#[ \t]*(?:el)?if.*\b(?:TORCH|AT|C10|PYTORCH|PYBIND11)_\w+", "a condition on torch's macros"),
    (r"__has_include", "a condition on headers"),
    (r"\bspecgen_\w+|\bspecgen::", "the façade's own names"),
    (r"\bC10_\w*(?:REGISTER|REGISTRY)\w*", "registration"),
)
_PATTERNS = tuple((re.compile(pattern, re.MULTILINE), why) for pattern, why in _REFUSED)

_HALF = re.compile(r"\b(?:Half|BFloat16)\b|_AND_HALF\b|REDUCED_FLOATING")
_CUBLAS = re.compile(r"cublas|CUDABlas", re.IGNORECASE)

# Standard headers that torch/extension.h brings along (measured with `g++ -M`), by the names that need them. Those
# that the façade includes anyway, and those that torch does not reach (<random>, <future>), are not listed.
_HEADERS: dict[str, str] = {
    "atomic": r"std::(?:atomic\w*|memory_order\w*)",
    "bitset": r"std::bitset",
    "chrono": r"std::chrono",
    "complex": r"std::complex",
    "condition_variable": r"std::condition_variable",
    "deque": r"std::deque",
    "functional": r"std::(?:function|plus|minus|multiplies|greater|less|bind|ref|cref|hash)\b",
    "iomanip": r"std::(?:setprecision|setw|setfill|put_time)",
    "iostream": r"std::(?:cout|cerr|clog|cin|endl|ostream|istream)\b",
    "iterator": r"std::(?:back_inserter|inserter|istream_iterator|ostream_iterator|make_move_iterator)",
    "list": r"std::list\b",
    "map": r"std::(?:map|multimap)\b",
    "memory": r"std::(?:unique_ptr|shared_ptr|weak_ptr|make_unique|make_shared|align)\b",
    "mutex": r"std::(?:mutex|recursive_mutex|lock_guard|unique_lock|scoped_lock|once_flag|call_once)",
    "numbers": r"std::numbers",
    "queue": r"std::(?:queue|priority_queue)\b",
    "set": r"std::(?:set|multiset)\b",
    "sstream": r"std::(?:ostringstream|istringstream|stringstream)",
    "stack": r"std::stack\b",
    "thread": r"std::(?:thread|this_thread)\b",
    "unordered_map": r"std::unordered_(?:multi)?map",
    "unordered_set": r"std::unordered_(?:multi)?set",
    "variant": r"std::(?:variant|visit|monostate|get_if|holds_alternative)\b",
}
_HEADER_PATTERNS = tuple((header, re.compile(pattern)) for header, pattern in _HEADERS.items())
_INTRINSICS = re.compile(r"\b_mm\w*|\b__m(?:128|256|512)[di]?\b|\b__mmask\d+\b")
_OPENMP = re.compile(r"\bomp_\w+")


def without_comments(source: str) -> str:
    """The source with comments blanked; strings stay, so that `"//"` does no harm."""
    return _COMMENTS.sub(lambda m: m[0] if m[0].startswith('"') else " ", source)


def refusal(source: str) -> str:
    """Why the façade must not build this source; empty where it may try."""
    code = without_comments(source)
    for pattern, why in _PATTERNS:
        if pattern.search(code):
            return why
    return ""


def prelude(source: str, *, cuda: bool) -> str:
    """Lines to put before the façade: its switches, and the standard headers that stock would have brought."""
    code = without_comments(source)
    lines = ["#define SPECGEN_WITH_HALF 1"] if _HALF.search(code) else []
    if cuda and _CUBLAS.search(code):
        lines.append("#define SPECGEN_WITH_CUBLAS 1")
    lines.append("#include <specgen/prelude.h>")  # before any declaration, or g++ cannot take it precompiled
    lines += [f"#include <{header}>" for header, pattern in _HEADER_PATTERNS if pattern.search(code)]
    if _INTRINSICS.search(code) and not cuda:
        lines.append("#include <immintrin.h>")
    if _OPENMP.search(code):
        lines.append("#ifdef _OPENMP\n#include <omp.h>\n#endif")
    return "".join(f"{line}\n" for line in lines)
