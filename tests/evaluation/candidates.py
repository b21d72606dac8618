"""Sources for the tests, made from one honest kernel of T4 (``diag(a) @ b``)."""

from benchmarks.honest.base import BODY, FORWARD, plain, t4

__all__ = ["BODY", "FORWARD", "plain", "t4"]
