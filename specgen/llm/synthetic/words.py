"""The sentences of a trace that decide nothing: analysis, self-talk, doubts, arithmetic, decoys.

Own text in the manner of published reasoning traces (Figure 8). None of it states a commitment in the sense of
`specgen.llm.synthetic.commitments`: values that occur here stand in questions, conditionals or estimates, as they do in
real traces, and a parser that takes every technique word for a decision must be misled by them.
"""

from __future__ import annotations

import random
from collections.abc import Callable

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

_ANALYSIS = (
    "The reference reads {inputs} and produces {output}, and {remark}.",
    "What matters here is traffic: {remark}.",
    "Looking at the forward pass again, {remark}.",
    "The eager version launches several operators one after another, each with its own trip through memory.",
    "One core, so there is nothing to gain from threads; the gain has to come from the loop itself.",
    "The framework's own kernels are good, beating them needs fewer passes over {inputs} and not better instructions.",
    "I keep coming back to the same point: {remark}.",
    "Alignment is not guaranteed by the allocator beyond 64 bytes, unaligned loads are as fast on aligned addresses.",
    "The call overhead of the extension is a few microseconds, small against the run but not nothing.",
    "{output_c} must have the same shape and type as the reference gives, including dimensions of size one.",
    "Numerically this is benign as long as partial sums stay short, and {remark}.",
    "The hardware prefetcher follows forward streams well and strided ones badly.",
    "The inner loop must be free of branches, otherwise the vectoriser gives up on it.",
    "Register pressure is the limit for deeper unrolling: there are only so many named registers.",
    "A page is four kilobytes, and walking down a column touches a new one nearly every row.",
    "Stores are the expensive half: each line is first read for ownership unless the store bypasses the cache.",
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
_CHECKS = (
    "Check with small sizes: n = {a}, m = {b}: the last full vector ends at {c}, and the rest has {d} elements.",
    "Index of the last element is {a} * {b} - 1 = {e}, which is inside the allocation.",
    "Dry run for the second row: offset {b}, first element {b}, last one {f}.",
    "For lo = {c} and hi = {b} the loop body runs {g} times, fine.",
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
_SNIPPETS = (
    "for (int64_t i = {low}; i < n; ++i) {{\n  const float* row = src + i * m;\n  dst[i] = f(row[{low}]);\n}}",
    "// the rest after the last full vector\nfor (int64_t k = j; k < hi; ++k) {{\n  {name}[k] = g(x[k]);\n}}",
    "const int64_t hi = lo + TILE < m ? lo + TILE : m;\nbody({name}, lo, hi);",
    "float {name} = 0.0f;\nfor (int64_t k = lo; k < hi; ++k) {name} += x[k] * y[k + {low}];",
    'TORCH_CHECK({name}.dim() == {dim}, "unexpected rank");\nauto {name}_c = {name}.contiguous();',
    "float* {name} = out.data_ptr<float>() + i * m + {low};  // start of the row",
)


def _bytes(rng: random.Random) -> str:
    width = rng.choice((16, 32, 48, 64, 96, 128, 192, 256, 512, 1024))
    rows = rng.choice((1, 2, 3, 4, 8, 12, 16))
    total = width * rows * 4
    room = "fits easily" if total < 16_384 else "is about what L1 holds" if total < 49_152 else "spills out of L1"
    return f"{width} floats times {rows} rows at four bytes are {total} bytes, that {room}."


def _bandwidth(rng: random.Random) -> str:
    megabytes, rate = rng.choice((4, 8, 12, 16, 24, 32)), rng.choice((8, 10, 12, 14, 18, 20))
    return f"Moving {megabytes} MB at {rate} GB/s takes {megabytes / rate:.2f} ms, that is the floor for any version."


def _latency(rng: random.Random) -> str:
    chains, latency = rng.choice((1, 2, 3, 4, 6, 8)), rng.choice((4, 4, 5))
    return (
        f"An addition takes {latency} cycles and two can start per cycle, so {2 * latency} independent chains are"
        f" needed to be busy; {chains} of them give {min(1.0, chains / (2 * latency)):.0%} of the peak."
    )


def _check(rng: random.Random) -> str:
    rows, columns = rng.randint(2, 9), rng.choice((17, 33, 50, 65, 100, 129, 130))
    full = columns // 16 * 16
    numbers = {"a": rows, "b": columns, "c": full, "d": columns - full, "e": rows * columns - 1}
    return rng.choice(_CHECKS).format(**numbers, f=2 * columns - 1, g=columns - full)


class Rambling:
    """Paragraphs about a subject, one after another, from one stream of random numbers."""

    def __init__(self, subject: Subject, rng: random.Random) -> None:
        self._subject = subject
        self._rng = rng

    def paragraph(self) -> str:
        """Two to five sentences."""
        rng = self._rng
        kinds: tuple[tuple[Callable[[], str], float], ...] = (
            (lambda: self._fill(rng.choice(_ANALYSIS)), 4.0),
            (lambda: rng.choice(_SELF_TALK), 2.5),
            (lambda: self._fill(rng.choice(_QUESTIONS)), 1.2),
            (lambda: self._fill(rng.choice(_REJECTED)), 1.2),
            (lambda: _bytes(rng), 0.8),
            (lambda: _bandwidth(rng), 0.5),
            (lambda: _latency(rng), 0.4),
            (lambda: _check(rng), 0.8),
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
        code = rng.choice(_SNIPPETS).format(name=name, low=low, dim=dim)
        return f"{rng.choice(_ANNOUNCED)}\n\n```cpp\n{code}\n```"

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
