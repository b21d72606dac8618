"""SpecGen: agentic kernel optimisation with speculative generation.

`Client`, `JobSpec` and `problem` are `specgen.client`'s, loaded when they are asked for: a device worker imports this
package too, and must not load a database driver for it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from specgen.client import Client, JobSpec, problem

__version__ = "0.1.0"
__all__ = ["Client", "JobSpec", "__version__", "problem"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'specgen' has no attribute {name!r}")
    from specgen import client

    return getattr(client, name)
