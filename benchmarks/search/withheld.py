"""`refine` with its feedback withheld, as a user's algorithm: what the loop is worth to the search."""

from __future__ import annotations

from specgen.search import Context, Step
from specgen.search.refine import Refine
from specgen.types import Prompt


class KernelOnly(Refine):
    """The latest kernel without what became of it: no status, no log, no numbers, no time, no profile."""

    async def compose(self, step: Step, context: Context) -> Prompt:
        """The problem and the latest kernel."""
        text = context.render("refine/seed.md.j2", note=step.args.get("note", ""))
        for parent in step.parents:
            source = context.history.get(parent).source
            text += f"\n## Your latest kernel\n\n```python\n{source}```\n\nWrite the whole file again.\n"
        return Prompt(context.render("shared/system.md.j2"), text)
