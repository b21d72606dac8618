"""How designs become candidate files: C++ loops in four styles, and the Python file around them.

A task gives an *expression* for one element, written once and valid both for a ``float`` and for a vector ``V`` of
floats; this module wraps it in a loop: plain, ``#pragma omp simd``, or unrolled over AVX registers with a scalar rest.
The decisions shared by all tasks (how loops are vectorised, unrolled and compiled) are defined here too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from specgen.llm.synthetic.design import Axis, Design, Option

SIMD = Axis(
    "simd",
    "vectorisation",
    (
        Option("scalar", "plain scalar loops", 0.1),
        Option("omp", "`#pragma omp simd` loops", 0.6),
        Option("avx2", "AVX2 intrinsics", 0.8),
        Option("avx512", "AVX-512 intrinsics", 0.9),
    ),
)
UNROLL = Axis(
    "unroll",
    "unroll factor",
    tuple(Option(n, f"an unroll factor of {n}", q) for n, q in (("1", 0.4), ("2", 0.6), ("4", 0.9), ("8", 0.8))),
    constant="UNROLL",
)
TILE = Axis(
    "tile",
    "tile",
    tuple(
        Option(n, f"a tile of {n} elements", q)
        for n, q in (("16", 0.1), ("32", 0.3), ("64", 0.5), ("128", 0.6), ("256", 0.8), ("1024", 0.9))
    ),
    constant="TILE",
)
FLAGS = Axis(
    "flags",
    "compiler flags",
    (
        Option("o1", "the -O1 optimisation level", 0.1),
        Option("o3", "the -O3 optimisation level", 0.8),
        Option("fast", "the -Ofast optimisation level", 0.9),
    ),
)
_LEVEL = {"o1": "-O1", "o3": "-O3", "fast": "-Ofast"}

_AVX512 = """
struct V {
  __m512 r;
  static constexpr int64_t W = 16;
  V() : r(_mm512_setzero_ps()) {}
  V(__m512 x) : r(x) {}
  V(float x) : r(_mm512_set1_ps(x)) {}
};
static inline V operator+(V a, V b) { return _mm512_add_ps(a.r, b.r); }
static inline V operator-(V a, V b) { return _mm512_sub_ps(a.r, b.r); }
static inline V operator*(V a, V b) { return _mm512_mul_ps(a.r, b.r); }
static inline V operator/(V a, V b) { return _mm512_div_ps(a.r, b.r); }
static inline V max_of(V a, V b) { return _mm512_max_ps(a.r, b.r); }
static inline V min_of(V a, V b) { return _mm512_min_ps(a.r, b.r); }
template <> inline V load<V>(const float* p) { return _mm512_loadu_ps(p); }
static inline void store(float* p, V a) { _mm512_storeu_ps(p, a.r); }
static inline void stream(float* p, V a) {
  if (reinterpret_cast<uintptr_t>(p) % 64 == 0) _mm512_stream_ps(p, a.r);
  else _mm512_storeu_ps(p, a.r);
}
"""
_AVX2 = """
struct V {
  __m256 r;
  static constexpr int64_t W = 8;
  V() : r(_mm256_setzero_ps()) {}
  V(__m256 x) : r(x) {}
  V(float x) : r(_mm256_set1_ps(x)) {}
};
static inline V operator+(V a, V b) { return _mm256_add_ps(a.r, b.r); }
static inline V operator-(V a, V b) { return _mm256_sub_ps(a.r, b.r); }
static inline V operator*(V a, V b) { return _mm256_mul_ps(a.r, b.r); }
static inline V operator/(V a, V b) { return _mm256_div_ps(a.r, b.r); }
static inline V max_of(V a, V b) { return _mm256_max_ps(a.r, b.r); }
static inline V min_of(V a, V b) { return _mm256_min_ps(a.r, b.r); }
template <> inline V load<V>(const float* p) { return _mm256_loadu_ps(p); }
static inline void store(float* p, V a) { _mm256_storeu_ps(p, a.r); }
static inline void stream(float* p, V a) {
  if (reinterpret_cast<uintptr_t>(p) % 32 == 0) _mm256_stream_ps(p, a.r);
  else _mm256_storeu_ps(p, a.r);
}
"""
_ONE_LANE = """
struct V {  // this machine has no such registers: one lane
  float r;
  static constexpr int64_t W = 1;
  V() : r(0.0f) {}
  V(float x) : r(x) {}
};
static inline V operator+(V a, V b) { return a.r + b.r; }
static inline V operator-(V a, V b) { return a.r - b.r; }
static inline V operator*(V a, V b) { return a.r * b.r; }
static inline V operator/(V a, V b) { return a.r / b.r; }
static inline V max_of(V a, V b) { return a.r > b.r ? a.r : b.r; }
static inline V min_of(V a, V b) { return a.r < b.r ? a.r : b.r; }
template <> inline V load<V>(const float* p) { return *p; }
static inline void store(float* p, V a) { *p = a.r; }
static inline void stream(float* p, V a) { *p = a.r; }
"""
_SCALAR_OPS = """
template <class T> static inline T load(const float* p);
template <> inline float load<float>(const float* p) { return *p; }
static inline void store(float* p, float a) { *p = a; }
static inline void stream(float* p, float a) { *p = a; }
static inline float max_of(float a, float b) { return a > b ? a : b; }
static inline float min_of(float a, float b) { return a < b ? a : b; }
"""
_SUM = """
static inline float sum_of(V a) {
  alignas(64) float lane[V::W];
  store(lane, a);
  float s = 0.0f;
  for (int64_t i = 0; i < V::W; ++i) s += lane[i];
  return s;
}
"""


def prelude(design: Design) -> str:
    """Includes, the constants of the design, and the vector type that its loops use."""
    lines = ["#include <torch/extension.h>", "#include <algorithm>", "#include <cstdint>", "#include <vector>"]
    vector = ""
    if design["simd"] in ("avx2", "avx512"):
        lines.append("#include <immintrin.h>")
        guard, body = ("__AVX512F__", _AVX512) if design["simd"] == "avx512" else ("__AVX2__", _AVX2)
        vector = f"#if defined({guard}){body}#else{_ONE_LANE}#endif\n{_SUM}"
    constants = [f"constexpr int64_t {axis.constant} = {design[axis.name]};" for axis in (TILE, UNROLL)]
    return "\n".join([*lines, "", *constants, _SCALAR_OPS + vector])


def map_loop(design: Design, expression: str, *, out: str, store: str = "store") -> str:
    """``out[k] = expression`` for k in [lo, hi). The expression is over ``T`` and ``k``, see the module docstring."""
    if design["simd"] in ("scalar", "omp"):
        pragma = "#pragma omp simd\n    " if design["simd"] == "omp" else ""
        return f"""{pragma}for (int64_t k = lo; k < hi; ++k) {{
      using T = float;
      {out}[k] = {expression};
    }}"""
    return f"""int64_t j = lo;
    for (; j + UNROLL * V::W <= hi; j += UNROLL * V::W)
      for (int64_t u = 0; u < UNROLL; ++u) {{
        using T = V;
        const int64_t k = j + u * V::W;
        {store}({out} + k, T({expression}));
      }}
    for (int64_t k = j; k < hi; ++k) {{
      using T = float;
      {out}[k] = {expression};
    }}"""


def sum_loop(design: Design, expression: str) -> str:
    """Declares ``float part``: the sum of the expression for k in [lo, hi)."""
    if design["simd"] in ("scalar", "omp"):
        pragma = "#pragma omp simd reduction(+ : part)\n    " if design["simd"] == "omp" else ""
        return f"""float part = 0.0f;
    {pragma}for (int64_t k = lo; k < hi; ++k) {{
      using T = float;
      part += {expression};
    }}"""
    return f"""float part = 0.0f;
    int64_t j = lo;
    V chain[UNROLL];
    for (; j + UNROLL * V::W <= hi; j += UNROLL * V::W)
      for (int64_t u = 0; u < UNROLL; ++u) {{
        using T = V;
        const int64_t k = j + u * V::W;
        chain[u] = chain[u] + {expression};
      }}
    for (int64_t u = 0; u < UNROLL; ++u) part += sum_of(chain[u]);
    for (int64_t k = j; k < hi; ++k) {{
      using T = float;
      part += {expression};
    }}"""


def compiler_flags(design: Design) -> list[str]:
    """What ``extra_cflags`` holds."""
    flags = [_LEVEL[design["flags"]], "-march=native"]
    if design["simd"] == "omp":
        flags.append("-fopenmp-simd")
    if design["simd"] == "scalar":
        flags.append("-fno-tree-vectorize")
    return flags


def candidate_file(comment: str, cpp: str, flags: Sequence[str], model: str, stem: str) -> str:
    """The whole Python file. The extension's name depends on the source, so that no two builds share a directory."""
    name = f"{stem}_{hashlib.sha256(f'{cpp}{flags}'.encode()).hexdigest()[:10]}"
    listed = ", ".join(f'"{flag}"' for flag in flags)
    return f'''{comment}
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

cpp_source = r"""
{cpp.strip()}
"""

ext = load_inline(
    name="{name}",
    cpp_sources=[cpp_source],
    functions=["run"],
    extra_cflags=[{listed}],
    verbose=False,
)


{model.strip()}
'''
