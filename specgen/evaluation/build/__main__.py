"""``python -m specgen.evaluation.build [--cache DIR]``: make the façade's support library before it is needed."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from specgen.errors import SpecGenError
from specgen.evaluation.build.support import Support, ensure_support
from specgen.settings import get_settings


def main(argv: list[str] | None = None) -> int:
    """Prints one line: the directory and what it was built for; exits with 2 and one line of error otherwise."""
    parser = argparse.ArgumentParser(prog="python -m specgen.evaluation.build", description=__doc__)
    parser.add_argument("--cache", type=Path, help="where to keep it (default: SPECGEN_CACHE, or the user's cache)")
    cache: Path = parser.parse_args(argv).cache or get_settings().cache_path
    try:
        support = Support(ensure_support(cache.expanduser().resolve()))
    except SpecGenError as error:
        hint = f" ({error.hint})" if error.hint else ""
        sys.stderr.write(f"error: {error.message}{hint}\n")
        return 2
    made = support.manifest
    sys.stdout.write(f"{support.directory}: torch {made['torch']}, {made['compiler']}, {made['seconds']} s\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
