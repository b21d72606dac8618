"""The synthetic source: from a request to a reasoning trace and a kernel (§3.1-§4.2).

A main generation picks a design (moved from the previous kernel's if the prompt shows one), writes a trace that commits
its decisions one by one, and answers with its kernel. A fork gets the decisions that its prefix commits, guesses the
rest, and works as often as `Rates` says for that share of decisions. Stateless: the request is all there is.
"""

from __future__ import annotations

import hashlib
import random
from dataclasses import dataclass

from specgen.llm.server_types import Chat, Piece
from specgen.llm.synthetic import commitments, flaws, roles, trace, unknown
from specgen.llm.synthetic.design import Design
from specgen.llm.synthetic.feedback import Feedback, read_prompt
from specgen.llm.synthetic.rates import Rates
from specgen.llm.synthetic.tasks import AnyTask

MODEL_ID = "specgen-synthetic"
_SIDE_ROLE_SHARE = 0.1  # assumed: a Judge reasons a tenth as long as a Coder
_CROSSOVER = 0.3  # assumed: how often a decision is taken over from another kernel that the prompt shows

_INTRO = (
    "Here is the optimised kernel:",
    "The final implementation:",
    "This version follows the plan above:",
)
_OUTRO = (
    "The kernel reads each input once and keeps everything else in registers.",
    "I kept the interface of the reference unchanged.",
    "If profiling shows that memory is the limit, the tile is the first thing to change.",
)


@dataclass(frozen=True)
class Told:
    """An answer, and what only its writer knows: the mistake in its kernel (None where it knows no such problem)."""

    pieces: list[Piece]
    design: Design | None = None
    flaw: flaws.Flaw | None = None


class SyntheticSource:
    """A `specgen.llm.server_types.Source`. The same ``seed`` and ``rates`` give the same answers."""

    model_id = MODEL_ID

    def __init__(self, *, seed: int = 0, rates: Rates | None = None) -> None:
        self.rates = rates or Rates()
        self._seed = seed

    def answer(self, chat: Chat) -> list[Piece]:
        """The whole answer. Deterministic in the source's seed and ``chat``."""
        return self.tell(chat).pieces

    def tell(self, chat: Chat) -> Told:
        """The same with its secret."""
        rng = self._rng(chat)
        prompt = chat.prompt
        feedback = read_prompt(prompt)
        if not chat.fork and roles.asks_for_json(chat):
            return Told(self._role(feedback, chat, rng))
        if feedback.task is None:
            return Told(self._unknown(prompt, chat, rng))
        if chat.fork or not chat.thinking:
            return self._fork(feedback.task, feedback, chat, rng)
        return self._main(feedback.task, feedback, rng)

    def _rng(self, chat: Chat) -> random.Random:
        key = f"{self._seed}\0{chat.seed}\0{chat.fork}\0{chat.thinking}\0{chat.rendered}\0{chat.prefix}\0{chat.opening}"
        return random.Random(hashlib.sha256(key.encode()).digest())

    def _main(self, task: AnyTask, feedback: Feedback, rng: random.Random) -> Told:
        written = trace.write(task, self._target(task, feedback, rng), feedback, self.rates, rng)
        valid = self.rates.main_valid(easy=task.easy, repairing=bool(feedback.failed))
        flaw = self._slip(task, feedback, valid, rng)
        content = _answer(task, written.design, flaw, inside=False, rng=rng)
        return Told([Piece("reasoning", written.text), Piece("content", content)], written.design, flaw)

    def _target(self, task: AnyTask, feedback: Feedback, rng: random.Random) -> Design:
        """Where this iteration's reasoning will arrive."""
        if feedback.base is None:
            return task.space.sample(rng, careful=True)
        if feedback.failed and rng.random() < self.rates.keep_on_error:
            return feedback.base
        rates, guided = self.rates, self.rates.guided if feedback.speedup is not None else 0.0
        moved = task.space.move(feedback.base, rng, improve=rates.improve, sidestep=rates.sidestep, guided=guided)
        if feedback.others and rng.random() < _CROSSOVER:
            axis = rng.choice(task.space.axes).name
            moved = moved.with_choice(axis, rng.choice(feedback.others)[axis])
        return moved

    def _slip(self, task: AnyTask, feedback: Feedback, valid: float, rng: random.Random) -> flaws.Flaw:
        """What goes wrong. A mistake that nobody told it of is easily taken over with the rest of the kernel."""
        if feedback.untold is not flaws.Flaw.NONE and rng.random() < self.rates.copied_mistake:
            return feedback.untold
        return flaws.draw(valid, self.rates, rng, layout=task.layout)

    def _fork(self, task: AnyTask, feedback: Feedback, chat: Chat, rng: random.Random) -> Told:
        committed = commitments.read(task.space, chat.prefix)
        design = task.complete(committed, feedback.base, self.rates.keep_undecided, rng)
        share = len(committed) / len(task.space.axes)
        valid = self.rates.fork_valid(easy=task.easy, repairing=bool(feedback.failed), committed_share=share)
        flaw = self._slip(task, feedback, valid, rng)
        content = _answer(task, design, flaw, inside=_inside_block(chat.opening), rng=rng)
        return Told([Piece("content", content)], design, flaw)

    def _unknown(self, prompt: str, chat: Chat, rng: random.Random) -> list[Piece]:
        code = unknown.code(prompt, rng)
        if _inside_block(chat.opening):
            content = f"{code}```\n{unknown.apology()}\n"
        else:
            content = f"{unknown.apology()}\n" + (f"\n```python\n{code}```\n" if code else "")
        if chat.fork or not chat.thinking:
            return [Piece("content", content)]
        text = trace.ramble(trace.length_chars(self.rates, rng), rng, unknown.SUBJECT)
        return [Piece("reasoning", text), Piece("content", content)]

    def _role(self, feedback: Feedback, chat: Chat, rng: random.Random) -> list[Piece]:
        answer = Piece("content", roles.reply(chat, feedback, rng))
        if not chat.thinking:
            return [answer]
        subject = feedback.task.subject if feedback.task else unknown.SUBJECT
        chars = round(trace.length_chars(self.rates, rng) * _SIDE_ROLE_SHARE)
        return [Piece("reasoning", trace.ramble(chars, rng, subject)), answer]


def _inside_block(opening: str) -> bool:
    return opening.count("```") % 2 == 1


def _answer(task: AnyTask, design: Design, flaw: flaws.Flaw, *, inside: bool, rng: random.Random) -> str:
    """Content with the kernel; ``inside`` continues an opened block and does not repeat its fence."""
    outro = f"\n{rng.choice(_OUTRO)}\n" if rng.random() < 0.3 else ""
    if flaw is flaws.Flaw.NO_CODE:
        nothing = "The design is as described above; the implementation follows from it directly.\n"
        return f"# {nothing}```\n" if inside else nothing
    source = flaws.spoil(task.render(design), task, flaw, rng)
    if inside:
        return f"{source}```\n{outro}"
    return f"{rng.choice(_INTRO)}\n\n```python\n{source}```\n{outro}"
