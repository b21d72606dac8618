"""``python -m benchmarks.build --cpu|--gpu|--errors``: the façade against stock, same machine, same sources.

Every source is built by both routes and every result and message of what was built is compared bit for bit; a line a
source, then the figures. ``--audit N`` adds rendered candidates until N pairs were built by the façade, and
``--record`` keeps the result with the product. ``--errors`` compares sources that do not compile, or nearly do not.

A stock build takes half a minute of CPU (CUDA: over a minute). An interrupted run goes on where it was with the same
``--state``; ``--part 2/4`` and ``--limit-s`` cut one into pieces; figures are of all pairs in the state file. On a GPU
machine several sources are built at once, as cores and memory allow.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from itertools import chain
from pathlib import Path

import torch

from benchmarks.build_compile_only import compile_only
from benchmarks.build_figures import audit_figures, error_figures, figures
from benchmarks.build_pairs import Engine, Pair
from benchmarks.build_subjects import Corpus, Subject, subjects
from benchmarks.figures import machine
from specgen.evaluation.build import ensure_support
from specgen.evaluation.build.sampling import audit_hash, record
from specgen.evaluation.build.toolchain import builds_at_once
from specgen.settings import get_settings


def main() -> int:
    options = _options()
    corpus: Corpus = "gpu" if options.gpu else "errors" if options.errors else "cpu"
    chosen = list(chain(subjects(corpus), subjects("candidates") if options.audit and corpus == "cpu" else ()))
    if options.only:
        chosen = [subject for subject in chosen if subject.name in options.only]
    part, parts = options.part
    chosen = chosen[part - 1 :: parts]
    cache: Path = options.cache or get_settings().cache_path
    support = ensure_support(cache)
    gpu = f", {torch.cuda.get_device_name()}" if torch.cuda.is_available() else ""
    print(f"{machine()}{gpu}, torch {torch.__version__}, {len(chosen)} sources", flush=True)
    if options.compile_only:
        return 0 if compile_only(chosen, support, options.stock_pairs) else 1
    if corpus == "gpu" and not torch.cuda.is_available():
        print("no GPU that torch can use here: nothing to compare (--compile-only shows what compiles)")
        return 2
    # a stock build compiles two files at once, CUDA's and the bindings'
    at_once = options.at_once or (max(1, builds_at_once() // 2) if corpus == "gpu" else 1)
    state = options.state or _default_state(cache, corpus, audit=bool(options.audit))
    engine = Engine(corpus, support, state, at_once, time.monotonic() + options.limit_s)
    print(f"{at_once} pairs at once, kept in {state}", flush=True)
    pairs = _run(engine, chosen, options.audit)
    return 0 if _report(pairs, corpus, options) else 1


def _run(engine: Engine, chosen: list[Subject], audit: int) -> list[Pair]:
    pairs: list[Pair] = []
    for pair in engine.run(chosen):
        pairs.append(pair)
        print(pair.line, flush=True)
        for difference in pair.differing:
            print(f"  {difference}", flush=True)
        if audit and sum(one.route == "facade" for one in pairs) >= audit:
            break
    if len(pairs) < len(chosen) and not audit:
        print(f"{len(chosen) - len(pairs)} sources are left: go on with the same --state")
    return pairs


def _report(pairs: list[Pair], corpus: Corpus, options: argparse.Namespace) -> bool:
    for pair in pairs:
        if not pair.as_expected:
            print(f"{pair.name}: built by {pair.route} ({pair.fallback})")
    if corpus == "errors":
        return error_figures(pairs)
    holds = figures(pairs, corpus)
    if options.audit:
        backend = "cuda" if corpus == "gpu" else "cpu"
        holds = audit_figures(pairs, backend, options.audit) and holds
        if options.record:
            audited = [pair for pair in pairs if pair.route == "facade"]
            record(backend, torch.__version__, len(audited), sum(bool(pair.differing) for pair in audited))
    return holds


def _default_state(cache: Path, corpus: Corpus, *, audit: bool) -> Path:
    if audit:
        return cache / f"audit-{corpus}-{audit_hash('cuda' if corpus == 'gpu' else 'cpu')}.jsonl"
    return Path(tempfile.mkdtemp(prefix="specgen-build-")) / "pairs.jsonl"


def _part(text: str) -> tuple[int, int]:
    number, _, of = text.partition("/")
    part, parts = int(number), int(of)
    if not 1 <= part <= parts:
        raise argparse.ArgumentTypeError(f"{text}: give 1/4 to 4/4 for four parts")
    return part, parts


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.build", description=__doc__)
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--cpu", action="store_true", help="C++ sources")
    which.add_argument("--gpu", action="store_true", help="CUDA sources, on a machine with a GPU")
    which.add_argument("--errors", action="store_true", help="C++ sources that fail, or nearly")
    parser.add_argument("--only", nargs="*", default=(), metavar="NAME", help="only these sources")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="I/N", help="every Nth source from the Ith")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start no pair after so many seconds")
    parser.add_argument("--at-once", type=int, default=0, metavar="N", help="pairs at once (by default as fits)")
    parser.add_argument("--state", type=Path, help="file of finished pairs; they are not run again")
    parser.add_argument("--audit", type=int, default=0, metavar="N", help="until N pairs were built by the façade")
    parser.add_argument("--record", action="store_true", help="with --audit: keep its result with the product")
    parser.add_argument("--compile-only", action="store_true", help="with --gpu: compile, run nothing (no GPU needed)")
    parser.add_argument("--stock-pairs", type=int, default=3, metavar="N", help="of --compile-only: also by stock")
    parser.add_argument("--cache", type=Path, help="of the support library (default: SPECGEN_CACHE, or the user's)")
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
