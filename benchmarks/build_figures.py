"""The figures of pairs: how much faster, how often the same, how often not by the façade, kernels as fast."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from benchmarks.build_pairs import Pair
from benchmarks.build_subjects import Corpus
from benchmarks.figures import figure

BAR = 15.0
LEAST_SOURCES = 30
SPEED_BAR = 1.03  # a kernel's median time by either route; single runs of a busy machine differ more
LEAST_ERRORS = 40


def figures(pairs: Sequence[Pair], corpus: Corpus) -> bool:
    """Print them; True if every bar holds. On a GPU machine the bar is on wall time, on shared cores on CPU time."""
    fast = [pair for pair in pairs if pair.route == "facade" and not pair.failed]
    name, rows = f"build_{corpus}", []
    rows.append(figure(f"{name}_sources", len(pairs), "sources", f">= {LEAST_SOURCES}", len(pairs) >= LEAST_SOURCES))
    for kind in ("cpu", "wall") if fast else ():
        ours = [getattr(pair, f"fast_{kind}_s") for pair in fast]
        theirs = [getattr(pair, f"stock_{kind}_s") for pair in fast]
        barred = (kind == "wall") == (corpus == "gpu")
        bar = f">= {BAR:g}" if barred else ""
        for label, value in (
            ("ratio_of_medians", statistics.median(theirs) / statistics.median(ours)),
            ("paired_ratio_median", statistics.median(b / a for a, b in zip(ours, theirs, strict=True))),
        ):
            rows.append(figure(f"{name}_{kind}_{label}", value, "x", bar, value >= BAR if barred else None))
        figure(f"{name}_{kind}_facade_median", statistics.median(ours), "s", "", None)
        figure(f"{name}_{kind}_stock_median", statistics.median(theirs), "s", "", None)
    same = sum(not pair.differing for pair in pairs) / max(1, len(pairs))
    rows.append(figure(f"{name}_same_verdicts", same, "share", "= 1", same == 1))
    expected = sum(pair.as_expected for pair in pairs) / max(1, len(pairs))
    rows.append(figure(f"{name}_expected_routes", expected, "share", "= 1", expected == 1))
    right = [pair for pair in pairs if not pair.failed]
    figure(f"{name}_fallbacks", sum(pair.route == "stock" for pair in right), f"of {len(right)} that build", "", None)
    speeds = [pair.speed_ratio for pair in pairs if pair.speed_ratio is not None]
    if speeds:
        median = statistics.median(speeds)
        holds = 1 / SPEED_BAR <= median <= SPEED_BAR
        rows.append(figure(f"{name}_kernel_time_ratio_median", median, "x", f"within {SPEED_BAR:g}", holds))
        figure(f"{name}_kernel_time_ratio_max", max(speeds), "x", "", None)
        figure(f"{name}_kernel_time_kernels", len(speeds), "kernels", "", None)
    return all(row["holds"] is not False for row in rows)


def audit_figures(pairs: Sequence[Pair], backend: str, wanted: int) -> bool:
    """Pairs that the façade built, and how many of them disagreed."""
    audited = [pair for pair in pairs if pair.route == "facade"]
    disagreed = sum(bool(pair.differing) for pair in audited)
    rows = [
        figure(f"build_audit_{backend}_pairs", len(audited), "pairs", f">= {wanted}", len(audited) >= wanted),
        figure(f"build_audit_{backend}_disagreements", disagreed, "pairs", "= 0", disagreed == 0),
        figure(f"build_audit_{backend}_outcomes", sum(p.calls for p in audited), "outcomes compared", "", None),
    ]
    return all(row["holds"] is not False for row in rows)


def error_figures(pairs: Sequence[Pair]) -> bool:
    """Sources that fail, or nearly: what the short cut (`verify`) and the routes say, against stock in full."""
    disagreed = sum(bool(pair.differing) for pair in pairs)
    failing = [pair for pair in pairs if pair.failed]
    cut = [pair for pair in failing if pair.fast_cpu_s < 0.5 * pair.stock_cpu_s]
    rows = [
        figure("build_errors_sources", len(pairs), "sources", f">= {LEAST_ERRORS}", len(pairs) >= LEAST_ERRORS),
        figure("build_errors_disagreements", disagreed, "sources", "= 0", disagreed == 0),
    ]
    figure("build_errors_failing", len(failing), "sources", "", None)
    figure("build_errors_settled_early", len(cut), f"of {len(failing)} that fail", "", None)
    every = sum(pair.further_errors_agree for pair in failing) / max(1, len(failing))
    figure("build_errors_further_lines_agree", every, "share", "", None)
    if cut:
        ratio = statistics.median(pair.stock_cpu_s / pair.fast_cpu_s for pair in cut)
        figure("build_errors_cpu_ratio_median", ratio, "x", "", None)
    return all(row["holds"] is not False for row in rows)
