"""A synthetic reasoning model, always labelled so: writes traces and kernels at the paper's rates (§3.1-§4.2).

It is not a language model. It knows a few problems, holds a design space of real C++ kernels for each, and moves in it.
What it writes is deterministic in (server seed, request seed, conversation, prefix). See docs/model-server.md.
"""

from specgen.llm.synthetic.rates import Rates
from specgen.llm.synthetic.source import MODEL_ID, SyntheticSource

__all__ = ["MODEL_ID", "Rates", "SyntheticSource"]
