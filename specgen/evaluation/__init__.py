"""Judging a kernel: problems, the sandbox, the judge, timing and integrity (docs/evaluation.md).

Importing this package imports no torch; :mod:`specgen.evaluation.cell` is what device workers use, and
:func:`specgen.evaluation.cell.evaluate` is the synchronous call.
"""
