"""Honest CPU kernels of the tasks that are matrix products (T2, T3, T5 to T10) or nearly so (T1, T4)."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.honest.files import FAST, FASTER, Kernel, candidate, plain
from benchmarks.honest.gemms import GEMMS

# How the operands of a task lie: shape of the output, then n, m, k and strides (a: i, l; b: l, j).
_CALL = """
torch::Tensor run(torch::Tensor a, torch::Tensor b) {{
  a = a.contiguous();
  b = b.contiguous();
  {sizes}
  auto out = torch::empty({shape}, a.options());
  gemm(a.data_ptr<float>(), {a}, b.data_ptr<float>(), {b}, out.data_ptr<float>(), n, m, k);
  {after}
  return out;
}}
"""
_AB = {"a": "k, 1", "b": "m, 1"}
_SQUARE = "const int64_t n = a.size(0), m = b.size(1), k = b.size(0);"
_TRIANGLE = "float* po = out.data_ptr<float>();\n  for (int64_t i = 0; i < n; ++i)\n    for (int64_t j = 0; j < m; ++j)"
LAYOUTS = {
    "T2": {"sizes": "const int64_t k = b.size(0), m = b.size(1), n = a.numel() / k;",
           "shape": "{a.size(0), a.size(1), m}", **_AB},
    "T3": {"sizes": "const int64_t k = b.size(0), m = b.size(1), n = a.numel() / k;",
           "shape": "{a.size(0), a.size(1), a.size(2), m}", **_AB},
    "T5": {"sizes": _SQUARE, "shape": "{n, m}", **_AB},
    "T6": {"sizes": _SQUARE, "shape": "{n, m}", **_AB, "after": f"{_TRIANGLE} if (j < i) po[i * m + j] = 0.0f;"},
    "T7": {"sizes": _SQUARE, "shape": "{n, m}", **_AB, "after": f"{_TRIANGLE} if (j > i) po[i * m + j] = 0.0f;"},
    "T8": {"sizes": "const int64_t n = a.size(1), m = b.size(1), k = b.size(0);", "shape": "{n, m}",
           "a": "1, n", "b": "m, 1"},
    "T9": {"sizes": "const int64_t n = a.size(0), m = b.size(0), k = b.size(1);", "shape": "{n, m}",
           "a": "k, 1", "b": "1, k"},
    "T10": {"sizes": "const int64_t n = a.size(1), m = b.size(0), k = b.size(1);", "shape": "{n, m}",
            "a": "1, n", "b": "1, k"},
}  # fmt: skip
_STYLE_OF = {
    "rows": ("inline", FAST), "four_rows": ("pybind", FAST), "tiled": ("constants", FASTER), "dots": ("lazy", FAST),
    "double": ("file", FAST), "panels": ("inline", FASTER), "tf32": ("pybind", FAST), "half": ("inline", FAST),
}  # fmt: skip


def product(task: str, gemm: str) -> Kernel:
    """One task by one way to multiply."""
    style, flags = _STYLE_OF[gemm]
    cpp = GEMMS[gemm] + _CALL.format(**{"after": ""} | LAYOUTS[task])
    return Kernel(f"{task} {gemm}", task, candidate(cpp, ("run",), plain("a, b", "return ext.run(a, b)"),
                                                    style=style, flags=flags))  # fmt: skip


_UPPER = """
torch::Tensor run(torch::Tensor a, torch::Tensor b) {
  const int64_t n = a.size(0);
  auto out = torch::zeros_like(a);
  const float *pa = a.data_ptr<float>(), *pb = b.data_ptr<float>();
  float* po = out.data_ptr<float>();
  for (int64_t i = 0; i < n; ++i)
    for (int64_t l = LOW; l < HIGH; ++l) {
      const float x = pa[i * n + l];
      for (int64_t j = FROM; j < TO; ++j) po[i * n + j] += x * pb[l * n + j];
    }
  return out;
}
"""
_OUT = """
void run_out(torch::Tensor a, torch::Tensor b, torch::Tensor out) {
  const int64_t k = b.size(0), m = b.size(1), n = a.numel() / k;
  gemm(a.data_ptr<float>(), k, 1, b.data_ptr<float>(), m, 1, out.data_ptr<float>(), n, m, k);
}
"""
_SYMMETRIC = """
torch::Tensor run(torch::Tensor a, torch::Tensor b) {  // b equals its transpose: rows against rows
  const int64_t n = a.size(0);
  auto out = torch::empty({n, n}, a.options());
  const float *pa = a.data_ptr<float>(), *pb = b.data_ptr<float>();
  float* po = out.data_ptr<float>();
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j) {
      float sum = 0;
      for (int64_t l = 0; l < n; ++l) sum += pa[i * n + l] * pb[j * n + l];
      po[i * n + j] = sum;
    }
  return out;
}
"""
_PARALLEL = """
#include <ATen/Parallel.h>
torch::Tensor run(torch::Tensor a, torch::Tensor b) {
  const int64_t k = b.size(0), m = b.size(1), n = a.numel() / k;
  auto out = torch::zeros({a.size(0), a.size(1), m}, a.options());
  const float *pa = a.data_ptr<float>(), *pb = b.data_ptr<float>();
  float* po = out.data_ptr<float>();
  at::parallel_for(0, n, 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t l = 0; l < k; ++l)
        for (int64_t j = 0; j < m; ++j) po[i * m + j] += pa[i * k + l] * pb[l * m + j];
  });
  return out;
}
"""
_PACKED = """
torch::Tensor pack(torch::Tensor b) {  // panels of 16 columns
  const int64_t k = b.size(0), m = b.size(1);
  auto out = torch::empty({m / 16, k, 16}, b.options());
  const float* pb = b.data_ptr<float>();
  float* po = out.data_ptr<float>();
  for (int64_t p = 0; p < m / 16; ++p)
    for (int64_t l = 0; l < k; ++l)
      for (int64_t w = 0; w < 16; ++w) po[(p * k + l) * 16 + w] = pb[l * m + p * 16 + w];
  return out;
}
torch::Tensor multiply(torch::Tensor a, torch::Tensor packed) {
  const int64_t panels = packed.size(0), k = packed.size(1), m = panels * 16, n = a.numel() / k;
  auto out = torch::empty({n, m}, a.options());
  const float *pa = a.data_ptr<float>(), *pp = packed.data_ptr<float>();
  float* po = out.data_ptr<float>();
  for (int64_t p = 0; p < panels; ++p)
    for (int64_t i = 0; i < n; ++i) {
      float sums[16] = {0};
      for (int64_t l = 0; l < k; ++l)
        for (int64_t w = 0; w < 16; ++w) sums[w] += pa[i * k + l] * pp[(p * k + l) * 16 + w];
      for (int64_t w = 0; w < 16; ++w) po[i * m + p * 16 + w] = sums[w];
    }
  return out;
}
"""


def special_products() -> Iterator[Kernel]:
    """What a task's structure invites, and other ways around the same kernel."""
    for task, bounds in (
        ("T6", {"LOW": "i", "HIGH": "n", "FROM": "l", "TO": "n"}), ("T7", {"LOW": "0", "HIGH": "i + 1", "FROM": "0", "TO": "l + 1"})
    ):  # fmt: skip
        cpp = _UPPER
        for word, value in bounds.items():
            cpp = cpp.replace(word, value)
        yield Kernel(f"{task} triangle only", task, candidate(cpp, ("run",), plain("a, b", "return ext.run(a, b)")))
    yield Kernel("T5 symmetric", "T5", candidate(
        _SYMMETRIC, ("run",), plain("a, b", "return ext.run(a, b)"), flags=FASTER))  # fmt: skip
    yield Kernel("T2 output made in Python", "T2", candidate(
        GEMMS["panels"] + _OUT, ("run_out",), plain("a, b", """
out = torch.empty(a.shape[0], a.shape[1], b.shape[1])
ext.run_out(a, b, out)
return out""")))  # fmt: skip
    yield Kernel("T3 a view of its own output", "T3", candidate(
        GEMMS["four_rows"] + _OUT, ("run_out",), plain("a, b", """
out = torch.empty(a.numel() // b.shape[0], b.shape[1])
ext.run_out(a, b, out)
return out.view(*a.shape[:3], b.shape[1])""")))  # fmt: skip
    yield Kernel("T2 parallel_for", "T2", candidate(_PARALLEL, ("run",), plain("a, b", "return ext.run(a, b)")))
    yield Kernel("T2 packed in each call", "T2", candidate(
        _PACKED, ("pack", "multiply"), plain("a, b", """
packed = ext.pack(b)
return ext.multiply(a, packed).view(a.shape[0], a.shape[1], -1)""")))  # fmt: skip
    yield Kernel("T10 transposed by torch first", "T10", candidate(
        GEMMS["panels"] + _CALL.format(after="", **LAYOUTS["T5"]), ("run",),
        plain("a, b", "return ext.run(a.t().contiguous(), b.t().contiguous())")))  # fmt: skip
    yield Kernel("T8 out of a pool of its own", "T8", candidate(
        GEMMS["rows"] + _CALL.format(after="", **LAYOUTS["T8"]), ("run",),
        plain("a, b", "scratch = torch.zeros(16)\nscratch.add_(1.0)\nresult = ext.run(a, b)\nreturn result[:, :]")))  # fmt: skip


_T4 = """
torch::Tensor run(torch::Tensor a, torch::Tensor b) {
  const int64_t n = b.size(0), m = b.size(1);
  auto out = torch::empty_like(b);
  const float *pa = a.data_ptr<float>(), *pb = b.data_ptr<float>();
  float* po = out.data_ptr<float>();
  LOOP
  return out;
}
"""
_T4_LOOPS = {
    "plain": "for (int64_t i = 0; i < n; ++i)\n    for (int64_t j = 0; j < m; ++j) po[i * m + j] = pa[i] * pb[i * m + j];",
    "flat": "for (int64_t x = 0; x < n * m; ++x) po[x] = pa[x / m] * pb[x];",
    "columns": "for (int64_t j0 = 0; j0 < m; j0 += 256)\n    for (int64_t i = 0; i < n; ++i)\n"
               "      for (int64_t j = j0; j < std::min(m, j0 + 256); ++j) po[i * m + j] = pb[i * m + j] * pa[i];",
    "double": "for (int64_t i = 0; i < n; ++i)\n    for (int64_t j = 0; j < m; ++j)\n"
              "      po[i * m + j] = (float)((double)pa[i] * (double)pb[i * m + j]);",
    "dense": "std::vector<float> d(n * n, 0.0f);\n  for (int64_t i = 0; i < n; ++i) d[i * n + i] = pa[i];\n"
             "  for (int64_t i = 0; i < n; ++i)\n    for (int64_t j = 0; j < m; ++j) po[i * m + j] = d[i * n + i] * pb[i * m + j];",
    "half": "for (int64_t i = 0; i < n; ++i) {\n    const _Float16 s = (_Float16)pa[i];\n"
            "    for (int64_t j = 0; j < m; ++j) po[i * m + j] = (float)s * (float)(_Float16)pb[i * m + j];\n  }",
}  # fmt: skip
_T4_STREAM = """
#include <immintrin.h>
torch::Tensor run(torch::Tensor a, torch::Tensor b) {
  const int64_t n = b.size(0), m = b.size(1);
  auto out = torch::empty({n, m}, b.options());
  const float *pa = a.data_ptr<float>(), *pb = b.data_ptr<float>();
  float* po = out.data_ptr<float>();
  for (int64_t i = 0; i < n; ++i) {
    const __m256 s = _mm256_set1_ps(pa[i]);
    for (int64_t j = 0; j + 8 <= m; j += 8) _mm256_STORE_ps(po + i * m + j, _mm256_mul_ps(s, _mm256_loadu_ps(pb + i * m + j)));
    for (int64_t j = m / 8 * 8; j < m; ++j) po[i * m + j] = pa[i] * pb[i * m + j];
  }
  return out;
}
"""
_T4_IN_PLACE = """
void scale_rows(torch::Tensor b, torch::Tensor a) {
  const int64_t n = b.size(0), m = b.size(1);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < m; ++j) b.data_ptr<float>()[i * m + j] *= a.data_ptr<float>()[i];
}
"""
_T1 = """
torch::Tensor run(torch::Tensor p, torch::Tensor t) {
  const int64_t n = p.size(0), m = p.size(1);
  const float *pp = p.data_ptr<float>(), *pt = t.data_ptr<float>();
  double total = 0;
  BODY
  auto out = torch::empty({}, p.options());
  *out.data_ptr<float>() = static_cast<float>(total / static_cast<double>(n * m));
  return out;
}
"""
_T1_BODIES = {
    "rows": "for (int64_t i = 0; i < n; ++i) {\n    float row = 0;\n    for (int64_t j = 0; j < m; ++j)"
            " row += std::max(0.0f, 1.0f - pp[i * m + j] * pt[j]);\n    total += row;\n  }",
    "columns": "std::vector<float> sums(m, 0.0f);\n  for (int64_t i = 0; i < n; ++i)\n    for (int64_t j = 0; j < m; ++j) {\n"
               "      const float v = 1.0f - pp[i * m + j] * pt[j];\n      sums[j] += v > 0 ? v : 0;\n    }\n"
               "  for (float s : sums) total += s;",
    "double": "for (int64_t i = 0; i < n; ++i)\n    for (int64_t j = 0; j < m; ++j) {\n"
              "      const double v = 1.0 - (double)pp[i * m + j] * pt[j];\n      if (v > 0) total += v;\n    }",
    "chains": "float part[64] = {0};\n  for (int64_t i = 0; i < n; ++i) {\n    for (int64_t j = 0; j + 64 <= m; j += 64)\n"
              "      for (int64_t u = 0; u < 64; ++u) part[u] += std::max(0.0f, 1.0f - pp[i * m + j + u] * pt[j + u]);\n"
              "    for (int64_t u = 0; u < 64; ++u) { total += part[u]; part[u] = 0; }\n"
              "    for (int64_t j = m / 64 * 64; j < m; ++j) total += std::max(0.0f, 1.0f - pp[i * m + j] * pt[j]);\n  }",
}  # fmt: skip
_T1_PARTIAL = """
torch::Tensor partial(torch::Tensor p, torch::Tensor t) {
  const int64_t n = p.size(0), m = p.size(1);
  auto out = torch::empty({n}, p.options());
  for (int64_t i = 0; i < n; ++i) {
    float row = 0;
    for (int64_t j = 0; j < m; ++j) row += std::max(0.0f, 1.0f - p.data_ptr<float>()[i * m + j] * t.data_ptr<float>()[j]);
    out.data_ptr<float>()[i] = row / static_cast<float>(m);
  }
  return out;
}
"""


def elementwise() -> Iterator[Kernel]:
    """T1 and T4."""
    call = plain("a, b", "return ext.run(a, b)")
    for number, (name, loop) in enumerate(_T4_LOOPS.items()):
        style = ("inline", "pybind", "lazy", "constants", "file", "inline")[number]
        yield Kernel(f"T4 {name}", "T4", candidate(_T4.replace("LOOP", loop), ("run",), call, style=style))
    for store in ("storeu", "stream"):
        cpp = _T4_STREAM.replace("STORE", store)
        if store == "stream":  # rows of a multiple of 32 bytes, from memory that is aligned to 64
            cpp = cpp.replace(
                "  for (int64_t i = 0; i < n; ++i) {",
                "  TORCH_CHECK(m % 8 == 0);\n  for (int64_t i = 0; i < n; ++i) {",
                1,
            )
        yield Kernel(f"T4 avx {store}", "T4", candidate(cpp, ("run",), call, style="pybind"))
    yield Kernel("T4 in place on a copy of its own", "T4", candidate(
        _T4_IN_PLACE, ("scale_rows",), plain("a, b", "out = b.clone()\next.scale_rows(out, a)\nreturn out")))  # fmt: skip
    yield Kernel("T4 slow", "T4", candidate(
        _T4.replace("LOOP", _T4_LOOPS["plain"]), ("run",), call, flags=("-O0",)))  # fmt: skip
    for number, (name, body) in enumerate(_T1_BODIES.items()):
        style = ("inline", "lazy", "pybind", "constants")[number]
        yield Kernel(f"T1 {name}", "T1", candidate(
            _T1.replace("BODY", body), ("run",), plain("p, t", "return ext.run(p, t)"), style=style, flags=FASTER))  # fmt: skip
    yield Kernel("T1 rows, then torch's mean", "T1", candidate(
        _T1_PARTIAL, ("partial",), plain("p, t", "return ext.partial(p, t).mean()"), flags=FASTER))  # fmt: skip


def kernels() -> Iterator[Kernel]:
    """All of this file."""
    yield from elementwise()
    for task in LAYOUTS:
        for gemm in GEMMS:
            if task == "T3" and gemm == "double":
                continue  # five times as long as any other
            yield product(task, gemm)
    yield from special_products()
