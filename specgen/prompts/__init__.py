"""Prompt templates: Jinja2 files, the user's directory first, then those that ship here.

``specgen/prompts/<algorithm>/<kind>.md.j2`` and partials in ``shared/``. Sections go from stable to volatile, so that
prompts of later iterations share a prefix with earlier ones (§6.2.3). A template is named with its hash wherever it is
used: the sha256 over it and every partial it includes. Not here: which template when (specgen.search).
"""

from specgen.prompts.device import CpuFacts, GpuFacts, cpu_facts
from specgen.prompts.gpus import described
from specgen.prompts.renderer import TRIMS, Rendered, Renderer

__all__ = ["TRIMS", "CpuFacts", "GpuFacts", "Rendered", "Renderer", "cpu_facts", "described"]
