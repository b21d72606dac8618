"""LLMs: the client for OpenAI-compatible servers (docs/llm.md), and the project's own model server.

`connect` asks the server what it can do and returns a `Model` (controller/ports). Not imported here: the server.
"""

from specgen.llm.base import Capabilities
from specgen.llm.detection import connect, detect
from specgen.llm.openai_compatible import Completion, OpenAICompatible

__all__ = ["Capabilities", "Completion", "OpenAICompatible", "connect", "detect"]
