"""Replies to side roles of search algorithms (a Judge, a Reflector): JSON of the shape that the prompt asks for.

The model knows nothing of any algorithm: it reads the keys from the prompt's example and fills them with remarks about
the task, naming a decision of the previous kernel that could be better. Text for humans and models, not instructions
that its own kernels depend on.
"""

from __future__ import annotations

import json
import random
import re

from specgen.llm.server_types import Chat
from specgen.llm.synthetic.feedback import Feedback
from specgen.types import Json

_ASKS = re.compile(r"\b(?:answer|reply|respond|return|output|produce)\b[^.\n]{0,80}\bJSON\b", re.IGNORECASE)
_KEY = re.compile(r'"(\w{1,40})"\s*:\s*(\[?)')
_TAIL_CHARS = 3000


def asks_for_json(chat: Chat) -> bool:
    """Whether the request's format, or the end of one of its messages, asks for JSON."""
    return chat.json_reply or any(_ASKS.search(text[-_TAIL_CHARS:]) for _, text in chat.conversation)


def reply(chat: Chat, feedback: Feedback, rng: random.Random) -> str:
    """A JSON object (or a list of objects, where the example starts with a bracket)."""
    tail = chat.conversation[-1][1][-_TAIL_CHARS:]
    asked = _ASKS.search(tail)
    example = tail[asked.end() :] if asked else tail
    listed = re.search(r"^\s*\[\s*\{", example, re.MULTILINE) is not None
    wanted = re.search(r"\b(\d)\b", tail[asked.start() : asked.end() + 200]) if asked and listed else None
    keys = dict.fromkeys([(key, "") for key in chat.json_keys] or _KEY.findall(example)) or {("answer", ""): None}
    entry: list[dict[str, Json]] = [
        {key: [_remark(feedback, rng)] if bracket else _remark(feedback, rng) for key, bracket in keys}
        for _ in range(int(wanted[1]) if wanted else 1)
    ]
    return json.dumps(entry if listed else entry[0], indent=2)


def _remark(feedback: Feedback, rng: random.Random) -> str:
    if feedback.task is None:
        return "the reference moves more data than the result needs"
    if feedback.base is None or rng.random() < 0.3:
        return rng.choice(feedback.task.remarks)
    if feedback.failed and rng.random() < 0.5:
        return f"the kernel ended with {feedback.failed}; the smallest change that removes this comes first"
    axis = rng.choice(feedback.task.space.axes)
    now = feedback.base[axis.name]
    return f"the {axis.label} is now {axis[now].phrase}; {axis[axis.better(now, rng)].phrase} deserves a trial"
