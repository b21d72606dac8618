"""Matrix products in C++, written in several ways with one signature:

``gemm(a, ai, al, b, bl, bj, c, n, m, k)``: ``c[i*m+j] = sum over l of a[i*ai + l*al] * b[l*bl + j*bj]``.
"""

from __future__ import annotations

_SIGNATURE = """static void gemm(const float* a, int64_t ai, int64_t al, const float* b, int64_t bl, int64_t bj,
                 float* c, int64_t n, int64_t m, int64_t k)"""

_ROWS = f"""
{_SIGNATURE} {{
  std::vector<float> packed;
  if (bj != 1) {{
    packed.resize(k * m);
    for (int64_t j = 0; j < m; ++j)
      for (int64_t l = 0; l < k; ++l) packed[l * m + j] = b[l * bl + j * bj];
    b = packed.data();
    bl = m;
  }}
  for (int64_t i = 0; i < n; ++i) {{
    float* row = c + i * m;
    std::fill(row, row + m, 0.0f);
    for (int64_t l = 0; l < k; ++l) {{
      const float x = a[i * ai + l * al];
      const float* line = b + l * bl;
      for (int64_t j = 0; j < m; ++j) row[j] += x * line[j];
    }}
  }}
}}
"""
_FOUR_ROWS = f"""
{_SIGNATURE} {{
  std::vector<float> packed(k * m);
  for (int64_t l = 0; l < k; ++l)
    for (int64_t j = 0; j < m; ++j) packed[l * m + j] = b[l * bl + j * bj];
  std::fill(c, c + n * m, 0.0f);
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int64_t l = 0; l < k; ++l) {{
      const float x0 = a[i * ai + l * al], x1 = a[(i + 1) * ai + l * al];
      const float x2 = a[(i + 2) * ai + l * al], x3 = a[(i + 3) * ai + l * al];
      const float* line = packed.data() + l * m;
      float *c0 = c + i * m, *c1 = c0 + m, *c2 = c1 + m, *c3 = c2 + m;
      for (int64_t j = 0; j < m; ++j) {{
        const float y = line[j];
        c0[j] += x0 * y;
        c1[j] += x1 * y;
        c2[j] += x2 * y;
        c3[j] += x3 * y;
      }}
    }}
  for (; i < n; ++i)
    for (int64_t l = 0; l < k; ++l)
      for (int64_t j = 0; j < m; ++j) c[i * m + j] += a[i * ai + l * al] * packed[l * m + j];
}}
"""
_TILED = f"""
constexpr int64_t TILE = 64;
{_SIGNATURE} {{
  std::vector<float> left(TILE * TILE), right(TILE * TILE);
  std::fill(c, c + n * m, 0.0f);
  for (int64_t l0 = 0; l0 < k; l0 += TILE)
    for (int64_t j0 = 0; j0 < m; j0 += TILE) {{
      const int64_t lk = std::min(TILE, k - l0), jm = std::min(TILE, m - j0);
      for (int64_t l = 0; l < lk; ++l)
        for (int64_t j = 0; j < jm; ++j) right[l * TILE + j] = b[(l0 + l) * bl + (j0 + j) * bj];
      for (int64_t i0 = 0; i0 < n; i0 += TILE) {{
        const int64_t in = std::min(TILE, n - i0);
        for (int64_t i = 0; i < in; ++i)
          for (int64_t l = 0; l < lk; ++l) left[i * TILE + l] = a[(i0 + i) * ai + (l0 + l) * al];
        for (int64_t i = 0; i < in; ++i)
          for (int64_t l = 0; l < lk; ++l) {{
            const float x = left[i * TILE + l];
            float* out = c + (i0 + i) * m + j0;
            for (int64_t j = 0; j < jm; ++j) out[j] += x * right[l * TILE + j];
          }}
      }}
    }}
}}
"""
_DOTS = f"""
{_SIGNATURE} {{
  std::vector<float> row(k), columns(k * m);
  for (int64_t j = 0; j < m; ++j)
    for (int64_t l = 0; l < k; ++l) columns[j * k + l] = b[l * bl + j * bj];
  for (int64_t i = 0; i < n; ++i) {{
    for (int64_t l = 0; l < k; ++l) row[l] = a[i * ai + l * al];
    for (int64_t j = 0; j < m; ++j) {{
      float part[16] = {{0}};
      const float* column = columns.data() + j * k;
      int64_t l = 0;
      for (; l + 16 <= k; l += 16)
        for (int64_t u = 0; u < 16; ++u) part[u] += row[l + u] * column[l + u];
      float sum = 0;
      for (; l < k; ++l) sum += row[l] * column[l];
      for (int64_t u = 0; u < 16; ++u) sum += part[u];
      c[i * m + j] = sum;
    }}
  }}
}}
"""
_DOUBLE = f"""
{_SIGNATURE} {{
  std::vector<double> row(m);
  std::vector<float> packed(k * m);
  for (int64_t l = 0; l < k; ++l)
    for (int64_t j = 0; j < m; ++j) packed[l * m + j] = b[l * bl + j * bj];
  for (int64_t i = 0; i < n; ++i) {{
    std::fill(row.begin(), row.end(), 0.0);
    for (int64_t l = 0; l < k; ++l) {{
      const double x = a[i * ai + l * al];
      for (int64_t j = 0; j < m; ++j) row[j] += x * packed[l * m + j];
    }}
    for (int64_t j = 0; j < m; ++j) c[i * m + j] = static_cast<float>(row[j]);
  }}
}}
"""
_PANELS = f"""
template <int64_t ROWS, int64_t WIDE>
static void block(const float* a, int64_t ai, int64_t al, const float* panel, float* c, int64_t m, int64_t k) {{
  float sums[ROWS][WIDE] = {{}};
  for (int64_t l = 0; l < k; ++l)
    for (int64_t r = 0; r < ROWS; ++r) {{
      const float x = a[r * ai + l * al];
      for (int64_t w = 0; w < WIDE; ++w) sums[r][w] += x * panel[l * WIDE + w];
    }}
  for (int64_t r = 0; r < ROWS; ++r)
    for (int64_t w = 0; w < WIDE; ++w) c[r * m + w] = sums[r][w];
}}
{_SIGNATURE} {{
  constexpr int64_t WIDE = 32;
  std::vector<float> panel(k * WIDE);
  for (int64_t j0 = 0; j0 + WIDE <= m; j0 += WIDE) {{
    for (int64_t l = 0; l < k; ++l)
      for (int64_t w = 0; w < WIDE; ++w) panel[l * WIDE + w] = b[l * bl + (j0 + w) * bj];
    int64_t i = 0;
    for (; i + 4 <= n; i += 4) block<4, WIDE>(a + i * ai, ai, al, panel.data(), c + i * m + j0, m, k);
    for (; i < n; ++i) block<1, WIDE>(a + i * ai, ai, al, panel.data(), c + i * m + j0, m, k);
  }}
  for (int64_t j = m / WIDE * WIDE; j < m; ++j)
    for (int64_t i = 0; i < n; ++i) {{
      float sum = 0;
      for (int64_t l = 0; l < k; ++l) sum += a[i * ai + l * al] * b[l * bl + j * bj];
      c[i * m + j] = sum;
    }}
}}
"""


def _short(convert: str) -> str:
    """Operands rounded first, sums in fp32: what tensor cores do."""
    return f"""
static inline float rounded(float v) {{
  {convert}
}}
{_SIGNATURE} {{
  std::vector<float> left(k), packed(k * m);
  for (int64_t l = 0; l < k; ++l)
    for (int64_t j = 0; j < m; ++j) packed[l * m + j] = rounded(b[l * bl + j * bj]);
  for (int64_t i = 0; i < n; ++i) {{
    float* row = c + i * m;
    std::fill(row, row + m, 0.0f);
    for (int64_t l = 0; l < k; ++l) left[l] = rounded(a[i * ai + l * al]);
    for (int64_t l = 0; l < k; ++l)
      for (int64_t j = 0; j < m; ++j) row[j] += left[l] * packed[l * m + j];
  }}
}}
"""


TF32 = (
    "uint32_t u;\n  std::memcpy(&u, &v, 4);\n  u = (u + 0x1000u) & 0xffffe000u;\n  std::memcpy(&v, &u, 4);\n  return v;"
)
HALF = "return static_cast<float>(static_cast<_Float16>(v));"

GEMMS = {
    "rows": _ROWS,
    "four_rows": _FOUR_ROWS,
    "tiled": _TILED,
    "dots": _DOTS,
    "double": _DOUBLE,
    "panels": _PANELS,
    "tf32": _short(TF32),
    "half": _short(HALF),
}
