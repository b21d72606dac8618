"""KernelBench's way to validate a candidate, as one program: ``python -m benchmarks.validate_stock JOB.json``.

A fresh process imports torch, sets the seeds, runs the problem's file and the candidate's (whose ``load_inline`` is
torch's own, with a build directory of its own), compares outputs by allclose under five seeds, then times a hundred
runs of either side after three warm-ups, synchronising around each. Written from the description of that procedure.
The last line it prints is a JSON object: ``verdict`` (``not compiled``, ``not correct``, ``correct``), times, speedup.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

TRIALS, WARMUPS, RUNS = 5, 3, 100
SEED = 42


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    os.environ["TORCH_EXTENSIONS_DIR"] = job["build"]
    start = time.perf_counter()
    import torch

    if job["backend"] == "cpu":
        torch.set_num_threads(1)
    found: dict[str, Any] = {"import_s": time.perf_counter() - start}
    print(json.dumps(found | {"verdict": "not compiled"}), flush=True)  # what stands if the process dies in the build
    start = time.perf_counter()
    problem = _executed(job["problem"], "problem.py")
    try:
        candidate = _executed(job["source"], "candidate.py")
        new = candidate["ModelNew"]
    except Exception as error:
        print(json.dumps(found | {"verdict": "not compiled", "error": f"{type(error).__name__}: {error}"[-600:]}))
        return
    found["build_s"] = time.perf_counter() - start
    print(json.dumps(found | {"verdict": "not correct"}), flush=True)
    start = time.perf_counter()
    try:
        wrong = _differs(problem, new, job)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"[-600:]
    found["trials_s"] = time.perf_counter() - start
    if wrong:
        print(json.dumps(found | {"verdict": "not correct", "error": wrong}))
        return
    start = time.perf_counter()
    reference_ms, candidate_ms = (_mean_ms(kind, problem, job) for kind in (problem["Model"], new))
    found |= {"timed_s": time.perf_counter() - start, "speedup": reference_ms / candidate_ms}
    print(json.dumps(found | {"verdict": "correct"}))


def _executed(text: str, name: str) -> dict[str, Any]:
    place: dict[str, Any] = {"__name__": name}
    exec(compile(text, name, "exec"), place)
    return place


def _model(kind: Any, problem: dict[str, Any], device: str) -> Any:
    import torch

    torch.manual_seed(SEED)
    arguments = problem["get_init_inputs"]()
    torch.manual_seed(SEED)
    return kind(*arguments).to(device)


def _inputs(problem: dict[str, Any], seed: int, device: str) -> list[Any]:
    import torch

    torch.manual_seed(seed)
    return [value.to(device) if isinstance(value, torch.Tensor) else value for value in problem["get_inputs"]()]


def _synchronize(device: str) -> None:
    import torch

    if device == "cuda":
        torch.cuda.synchronize()


def _differs(problem: dict[str, Any], new: Any, job: dict[str, Any]) -> str:
    """Empty where all trials agree."""
    import torch

    device = job["backend"]
    old_model, new_model = _model(problem["Model"], problem, device), _model(new, problem, device)
    torch.manual_seed(SEED)
    seeds = [int(torch.randint(0, 2**32 - 1, (1,))) for _ in range(TRIALS)]
    with torch.no_grad():
        for seed in seeds:
            inputs = _inputs(problem, seed, device)
            want = old_model(*inputs)
            _synchronize(device)
            got = new_model(*inputs)
            _synchronize(device)
            if got.shape != want.shape:
                return f"shape {tuple(got.shape)} instead of {tuple(want.shape)}"
            if not torch.allclose(want, got, atol=job["tolerance"], rtol=job["tolerance"]):
                return f"values differ by up to {float((want - got).abs().max()):.4g}"
    return ""


def _mean_ms(kind: Any, problem: dict[str, Any], job: dict[str, Any]) -> float:
    import torch

    device = job["backend"]
    model, inputs = _model(kind, problem, device), _inputs(problem, SEED, device)
    times = []
    with torch.no_grad():
        for number in range(WARMUPS + RUNS):
            _synchronize(device)
            start = time.perf_counter()
            model(*inputs)
            _synchronize(device)
            if number >= WARMUPS:
                times.append(time.perf_counter() - start)
    return 1e3 * sum(times) / len(times)


if __name__ == "__main__":
    main()
