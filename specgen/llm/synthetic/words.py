"""The sentences of a trace that decide nothing: analysis, self-talk, doubts, arithmetic, decoys.

Own text in the manner of published reasoning traces (Figure 8). None of it states a commitment in the sense of
`specgen.llm.synthetic.commitments`: values that occur here stand in questions, conditionals or estimates, as they do in
real traces, and a parser that takes every technique word for a decision must be misled by them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from specgen.llm.synthetic.tasks.base import Subject

_OPENERS = (
    "",
    "",
    "",
    "Hmm, ",
    "Wait, ",
    "OK, ",
    "Right, ",
    "Actually, ",
    "So, ",
    "Now, ",
    "Let me think. ",
    "Alright, ",
)

_SELF_TALK = (
    "Let me re-read the problem statement to be sure.",
    "I already said this above, but it bears repeating.",
    "I am going around in circles, let me take this one step at a time.",
    "That was a long detour. Back to the kernel.",
    "Let me double check the indexing, this is where such kernels usually go wrong.",
    "Not sure about that, I need to verify it.",
    "Fine, that is a detail for later.",
    "This is getting complicated; simpler is better as long as it is fast.",
    "Let me not overthink this.",
    "Let me think about what the compiler does with this loop.",
    "I want to be careful with the tail, the sizes might not be multiples of the vector width.",
    "Interesting. That changes less than I expected.",
    "No, wait, that is the other dimension.",
    "Good, that matches what I had in mind before.",
    "I should also remember that inputs may arrive non-contiguous.",
)
_QUESTIONS = (
    "Should this be {phrase} or rather {other}?",
    "What about {phrase}?",
    "Would {phrase} be any better than {other}?",
    "Is {phrase} even worth it at this size?",
    "Could I get away with {phrase} here?",
    "Do I need {phrase}, or is that premature?",
)
_REJECTED = (
    "If the matrix were larger, {phrase} might pay off, but not here.",
    "With {phrase} the loop would be simpler, and I think it would lose too much.",
    "Someone could argue for {phrase}; I doubt it, because {remark}.",
    "In other kernels {phrase} would be the obvious answer, this one is different.",
    "Maybe {phrase} would work too, it depends on the cache more than on anything else.",
    "I considered whether {phrase} fits, and it would mean more code for little.",
)
_ANNOUNCED = (
    "Let me write the inner loop first:",
    "Let me sketch this:",
    "Here is the structure:",
    "Let me implement this part:",
    "Here's how the loop nest looks:",
    "Let me write out the tail as well:",
)
_BARE_PHRASES = (
    "Let me implement it step by step.",
    "OK, let me write this down properly.",
    "Let me rewrite that part of the kernel.",
    "Here is the plan again, in words: one walk over {inputs}, one result.",
)


class Rambling:
    """Paragraphs about a subject, one after another, from one stream of random numbers."""

    def __init__(self, subject: Subject, rng: random.Random) -> None:
        self._subject = subject
        self._rng = rng

    def paragraph(self) -> str:
        """Two to five sentences."""
        rng = self._rng
        kinds: tuple[tuple[Callable[[], str], float], ...] = (
            (lambda: self._fill(rng.choice(self._subject.manner.analysis)), 4.0),
            (lambda: rng.choice(_SELF_TALK), 2.5),
            (lambda: self._fill(rng.choice(_QUESTIONS)), 1.2),
            (lambda: self._fill(rng.choice(_REJECTED)), 1.2),
            *((partial(sums, rng), weight) for sums, weight in self._subject.manner.sums),
        )
        chosen = rng.choices([kind for kind, _ in kinds], [weight for _, weight in kinds], k=rng.randint(2, 5))
        sentences = [kind() for kind in chosen]
        opener = rng.choice(_OPENERS)
        if opener.endswith(", ") and not sentences[0].startswith(("I ", "I'", "L1")):
            sentences[0] = sentences[0][0].lower() + sentences[0][1:]
        return opener + " ".join(sentences)

    def snippet(self) -> str:
        """An announcement and a few lines of code that bind no decision."""
        rng = self._rng
        name, low, dim = (
            rng.choice(("acc", "dst", "part", "tmp", "row", "res")),
            rng.choice((0, 0, 1)),
            rng.choice((1, 2)),
        )
        code = rng.choice(self._subject.manner.snippets).format(name=name, low=low, dim=dim)
        return f"{rng.choice(_ANNOUNCED)}\n\n```{self._subject.manner.tag}\n{code}\n```"

    def phrase(self) -> str:
        """A sentence that announces an implementation and shows none."""
        return self._fill(self._rng.choice(_BARE_PHRASES))

    def _fill(self, template: str) -> str:
        axis = self._rng.choice(self._subject.axes)
        phrase, other = self._rng.sample([option.phrase for option in axis.options], 2)
        inputs, output = self._subject.operands
        remark = self._rng.choice(self._subject.remarks)
        return template.format(
            phrase=phrase, other=other, inputs=inputs, output=output, output_c=output.capitalize(), remark=remark
        )
