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
# Names of namespace std that the headers give which are always there (<string>, <vector>, <optional>, <tuple>, <cmath>
# and such). A source that uses no others does without <algorithm>, <functional>, <memory> and <numeric>.
_LIGHT = re.compile(
    r"(?:string|string_view|to_string|vector|optional|nullopt|nullopt_t|make_optional|array|tuple|make_tuple|tie|get|apply"
    r"|pair|make_pair|move|forward|swap|exchange|initializer_list|numeric_limits|min|max|exception|runtime_error"
    r"|invalid_argument|logic_error|out_of_range|u?int(?:8|16|32|64|ptr|max)_t|size_t|ptrdiff_t|nullptr_t|declval"
    r"|(?:is|add|remove)_\w+|(?:enable_if|conditional|decay|underlying_type|common_type|integral_constant)(?:_t)?"
    r"|true_type|false_type|void_t|index_sequence|make_index_sequence|index_sequence_for|integer_sequence"
    r"|f?abs|fm(?:a|in|ax|od)|pow|sqrt|cbrt|hypot|exp2?|expm1|log(?:2|10|1p)?|a?(?:sin|cos|tan)h?|atan2|erfc?|[lt]gamma"
    r"|floor|ceil|round|l?lround|trunc|rint|nearbyint|copysign|signbit|isnan|isinf|isfinite"
    r"|mem(?:cpy|set|move|cmp)|s?n?printf|fprintf|abort|exit)\b"
)
_STD_NAME = re.compile(r"\bstd\s*::\s*")
_LIST_OF_VALUES = re.compile(r"\bstd\s*::\s*(?:min|max)\s*(?:<[^>]*>)?\s*\(\s*\{")
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


def lean(source: str) -> bool:
    """Whether the source seems to do without the heavy standard headers. Where it does not, it does not compile."""
    code = without_comments(source)
    if re.search(r"\busing\s+namespace\s+std\b", code) or _LIST_OF_VALUES.search(code):
        return False
    return all(_LIGHT.match(code, name.end()) for name in _STD_NAME.finditer(code))


def prelude(source: str, *, cuda: bool, few: bool = False) -> str:
    """Lines to put before the façade: its switches, and the standard headers that stock would have brought.

    ``few``: without the heavy ones, for a :func:`lean` source.
    """
    code = without_comments(source)
    lines = ["#define SPECGEN_WITH_HALF 1"] if _HALF.search(code) else []
    if cuda and _CUBLAS.search(code):
        lines.append("#define SPECGEN_WITH_CUBLAS 1")
    if few:
        lines.append("#define SPECGEN_LEAN 1")
    lines.append("#include <specgen/prelude.h>")  # before any declaration, or g++ cannot take it precompiled
    lines += [f"#include <{header}>" for header, pattern in _HEADER_PATTERNS if pattern.search(code)]
    if _INTRINSICS.search(code) and not cuda:
        lines.append("#include <immintrin.h>")
    if _OPENMP.search(code):
        lines.append("#ifdef _OPENMP\n#include <omp.h>\n#endif")
    return "".join(f"{line}\n" for line in lines)
