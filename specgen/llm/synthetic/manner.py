"""What a trace about kernels of one language talks of beside its decisions: remarks, arithmetic, snippets.

Own text, like all of :mod:`specgen.llm.synthetic.words`; nothing here commits a decision. ``CXX`` is one CPU core,
``CUDA`` a GPU.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Manner:
    """``sums`` write a sentence of arithmetic each, with their weights; ``tag`` is of the snippets' fences."""

    analysis: tuple[str, ...]
    snippets: tuple[str, ...]
    sums: tuple[tuple[Callable[[random.Random], str], float], ...]
    tag: str


_CXX_ANALYSIS = (
    "The reference reads {inputs} and produces {output}, and {remark}.",
    "What matters here is traffic: {remark}.",
    "Looking at the forward pass again, {remark}.",
    "The eager version launches several operators one after another, each with its own trip through memory.",
    "One core, so there is nothing to gain from threads; the gain has to come from the loop itself.",
    "The framework's own kernels are good, beating them needs fewer passes over {inputs} and not better instructions.",
    "I keep coming back to the same point: {remark}.",
    "Alignment is not guaranteed by the allocator beyond 64 bytes, unaligned loads are as fast on aligned addresses.",
    "The call overhead of the extension is a few microseconds, small against the run but not nothing.",
    "{output_c} must have the same shape and type as the reference gives, including dimensions of size one.",
    "Numerically this is benign as long as partial sums stay short, and {remark}.",
    "The hardware prefetcher follows forward streams well and strided ones badly.",
    "The inner loop must be free of branches, otherwise the vectoriser gives up on it.",
    "Register pressure is the limit for deeper unrolling: there are only so many named registers.",
    "A page is four kilobytes, and walking down a column touches a new one nearly every row.",
    "Stores are the expensive half: each line is first read for ownership unless the store bypasses the cache.",
)
_CHECKS = (
    "Check with small sizes: n = {a}, m = {b}: the last full vector ends at {c}, and the rest has {d} elements.",
    "Index of the last element is {a} * {b} - 1 = {e}, which is inside the allocation.",
    "Dry run for the second row: offset {b}, first element {b}, last one {f}.",
    "For lo = {c} and hi = {b} the loop body runs {g} times, fine.",
)
_CXX_SNIPPETS = (
    "for (int64_t i = {low}; i < n; ++i) {{\n  const float* row = src + i * m;\n  dst[i] = f(row[{low}]);\n}}",
    "// the rest after the last full vector\nfor (int64_t k = j; k < hi; ++k) {{\n  {name}[k] = g(x[k]);\n}}",
    "const int64_t hi = lo + TILE < m ? lo + TILE : m;\nbody({name}, lo, hi);",
    "float {name} = 0.0f;\nfor (int64_t k = lo; k < hi; ++k) {name} += x[k] * y[k + {low}];",
    'TORCH_CHECK({name}.dim() == {dim}, "unexpected rank");\nauto {name}_c = {name}.contiguous();',
    "float* {name} = out.data_ptr<float>() + i * m + {low};  // start of the row",
)


def _bytes(rng: random.Random) -> str:
    width = rng.choice((16, 32, 48, 64, 96, 128, 192, 256, 512, 1024))
    rows = rng.choice((1, 2, 3, 4, 8, 12, 16))
    total = width * rows * 4
    room = "fits easily" if total < 16_384 else "is about what L1 holds" if total < 49_152 else "spills out of L1"
    return f"{width} floats times {rows} rows at four bytes are {total} bytes, that {room}."


def _bandwidth(rng: random.Random) -> str:
    megabytes, rate = rng.choice((4, 8, 12, 16, 24, 32)), rng.choice((8, 10, 12, 14, 18, 20))
    return f"Moving {megabytes} MB at {rate} GB/s takes {megabytes / rate:.2f} ms, that is the floor for any version."


def _latency(rng: random.Random) -> str:
    chains, latency = rng.choice((1, 2, 3, 4, 6, 8)), rng.choice((4, 4, 5))
    return (
        f"An addition takes {latency} cycles and two can start per cycle, so {2 * latency} independent chains are"
        f" needed to be busy; {chains} of them give {min(1.0, chains / (2 * latency)):.0%} of the peak."
    )


def _check(rng: random.Random) -> str:
    rows, columns = rng.randint(2, 9), rng.choice((17, 33, 50, 65, 100, 129, 130))
    full = columns // 16 * 16
    numbers = {"a": rows, "b": columns, "c": full, "d": columns - full, "e": rows * columns - 1}
    return rng.choice(_CHECKS).format(**numbers, f=2 * columns - 1, g=columns - full)


CXX = Manner(_CXX_ANALYSIS, _CXX_SNIPPETS, ((_bytes, 0.8), (_bandwidth, 0.5), (_latency, 0.4), (_check, 0.8)), "cpp")


_CUDA_ANALYSIS = (
    "The reference reads {inputs} and produces {output}, and {remark}.",
    "What matters here is traffic: {remark}.",
    "Looking at the forward pass again, {remark}.",
    "The eager version launches several kernels one after another, each with its own trip through device memory.",
    "A launch costs a few microseconds, which matters only if the kernel itself is that short.",
    "I keep coming back to the same point: {remark}.",
    "Neighbouring threads must touch neighbouring addresses, otherwise a warp pays for sectors it throws away.",
    "{output_c} must have the same shape and type as the reference gives, including dimensions of size one.",
    "Numerically this is benign as long as partial sums stay short, and {remark}.",
    "Divergence is no issue in the main loop, only in the tail.",
    "Register pressure decides how many blocks fit on a multiprocessor, and spilling would undo everything.",
    "The level-2 cache holds tens of megabytes, so blocks that run together should share what they read.",
    "Bank conflicts come from strides that are multiples of 32 words; a little padding removes them.",
    "A barrier between writing and reading the shared buffer is not optional.",
    "The work has to be launched on the current stream, or the timing and the order are wrong.",
    "Occupancy is a means and not an end: a few warps with enough independent work hide latency as well.",
)
_CUDA_SNIPPETS = (
    "const int64_t i = static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;\n"
    "if (i + {low} < n) {name}[i] = f(x[i]);",
    "// the tail after the last full block\nif (row < m && column < n) {name}[row * n + column] = value;",
    "__syncthreads();\nfor (int k = {low}; k < depth; ++k) {name} += left[k] * right[k];\n__syncthreads();",
    "for (int width = 16; width > {low}; width /= 2) {name} += __shfl_down_sync(0xffffffffu, {name}, width);",
    'TORCH_CHECK({name}.dim() == {dim}, "unexpected rank");\nauto {name}_c = {name}.contiguous();',
    "float* {name} = out.data_ptr<float>() + row * n + {low};  // start of the row",
)


def _tile_bytes(rng: random.Random) -> str:
    side, depth, stages = rng.choice((32, 64, 128)), rng.choice((8, 16, 32, 64)), rng.choice((1, 2, 3, 4))
    kib = 2 * side * depth * stages * 4 / 1024
    room = (
        "leaves room for several blocks" if kib <= 48 else "needs the opt-in" if kib <= 227 else "does not fit at all"
    )
    return f"Two operands of {side} by {depth} floats, {stages} deep, are {kib:.0f} KiB a block, that {room}."


def _device_bandwidth(rng: random.Random) -> str:
    megabytes = rng.choice((64, 128, 256, 512, 1024, 4096))
    return f"Moving {megabytes} MB at 4 TB/s takes {megabytes / 4e3:.3f} ms, that is the floor for any version."


def _occupancy(rng: random.Random) -> str:
    registers, threads = rng.choice((32, 48, 64, 96, 128, 168, 255)), rng.choice((128, 256, 512))
    blocks = 65_536 // (registers * threads)
    return f"{registers} registers for each of {threads} threads allow {blocks} blocks on a multiprocessor."


def _intensity(rng: random.Random) -> str:
    tile = rng.choice((16, 32, 64, 128))
    return f"A tile of side {tile} reuses every loaded value {tile} times, so {tile / 4:.0f} operations a byte."


def _grid(rng: random.Random) -> str:
    count, threads = rng.choice((1_000_000, 4_194_304, 16_777_216)), rng.choice((128, 256, 512))
    blocks = -(-count // threads)
    return f"{count} elements over blocks of {threads} are {blocks} blocks, {blocks * threads - count} threads idle."


CUDA = Manner(
    _CUDA_ANALYSIS,
    _CUDA_SNIPPETS,
    ((_tile_bytes, 0.7), (_device_bandwidth, 0.5), (_occupancy, 0.5), (_intensity, 0.4), (_grid, 0.4)),
    "cuda",
)
