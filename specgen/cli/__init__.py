"""The command line: a thin layer over `specgen.Client` and the embedded system."""

from specgen.cli.main import main

__all__ = ["main"]
