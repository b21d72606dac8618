"""One trial on the candidate: inputs there, outputs back, inputs unchanged, outputs plain, values right."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from typing import Any

import torch

from specgen.evaluation.compare import Difference, agree, compare, max_abs_error, scale_error
from specgen.evaluation.peer import Peer
from specgen.evaluation.tensors import Parcel, build, describe, leaves, new_memory, place_of
from specgen.evaluation.trials import Trial, like
from specgen.evaluation.verdict import Verdict, rejected
from specgen.evaluation.wire import Message, ProtocolError, close_all, read_memory_file
from specgen.types import Status

_NUMBERS = itertools.count(1)


@dataclass
class Outcome:
    """What a trial showed."""

    outputs: Any
    calls: Message = field(default_factory=dict)
    max_abs_error: float = 0.0
    scale_error: float | None = None  # against float64, where the trial has it


class Receiver:
    """The shared memory that outputs come back in; its size is the reference's outputs'."""

    def __init__(self, expected: Any) -> None:
        _, self.size = describe(expected)
        self.place = place_of(expected)
        self.fd, self.memory = new_memory(self.size, self.place)
        self.number = next(_NUMBERS)
        self._given = False

    @property
    def fields(self) -> Message:
        """What a message about it says."""
        return {"size": self.size, "place": self.place, "buffer": self.number}

    def descriptor(self) -> list[int]:
        """What is handed over with the first question about it; the other side keeps its mapping."""
        given, self._given = self._given, True
        return [] if given else [self.fd]

    def close(self) -> None:
        """Give the memory back."""
        close_all([self.fd])

    def take(self, answer: Message, expected: Any) -> Any:
        """A private copy of the outputs. Raises Verdict: too large, or a description that does not hold."""
        size, node = answer.get("bytes"), answer.get("outputs")
        if not isinstance(node, dict) or type(size) is not int:
            raise rejected("forged_message", "no outputs", "the process answered without outputs")
        if size > self.size:
            raise Verdict(Status.WRONG_SHAPE, _larger(node, expected))
        try:
            return build(node, self._private())
        except (ProtocolError, ValueError, RecursionError) as exc:
            raise rejected("forged_message", str(exc)[:100], "the outputs' description does not hold") from exc

    def _private(self) -> Any:
        """What lies there now; the candidate can change the shared memory at any time."""
        if isinstance(self.memory, torch.Tensor):
            return self.memory.clone()
        return bytearray(read_memory_file(self.fd)) if self.size else None


def _larger(node: Message, expected: Any) -> str:
    def shape(value: Message) -> Any:
        items = value.get("v")
        nested = [shape(item) for item in items if isinstance(item, dict)] if isinstance(items, list) else None
        return value.get("shape", nested)

    want = [list(leaf.shape) for leaf in leaves(expected)]
    return f"the outputs are larger than the reference's: got {str(shape(node))[:300]}, expected {want}"


def check_facts(answer: Message, reference_aliases: bool) -> None:
    """Refuse outputs that are no plain tensors of their own. Raises Verdict."""
    facts = answer.get("facts")
    found = (
        {str(word) for item in facts if isinstance(item, list) for word in item} if isinstance(facts, list) else set()
    )
    if "subclass" in found:
        raise rejected("tensor_subclass", "1 output", "an output must be a plain dense torch.Tensor")
    if "expanded" in found:
        raise rejected("expanded_output", "1 output", "an output has fewer stored elements than it shows")
    if found & {"aliases_input", "aliases_output"} and not reference_aliases:
        raise rejected("aliased_output", "1 output", "an output shares its memory with an input or another output")


def aliases(inputs: list[Any], outputs: Any) -> bool:
    """Whether the reference itself returns views of its inputs, or one storage twice, or expanded outputs."""
    seen = {leaf.untyped_storage().data_ptr() for leaf in leaves(inputs)}
    for leaf in leaves(outputs):
        pointer = leaf.untyped_storage().data_ptr()
        if pointer in seen or leaf.untyped_storage().nbytes() < leaf.numel() * leaf.element_size():
            return True
        seen.add(pointer)
    return False


def check_unchanged(shared: Any, private: Any) -> None:
    """The candidate worked on memory the judge can see: refuse changed inputs."""
    for number, (now, before) in enumerate(zip(leaves(shared), leaves(private), strict=True)):
        if not torch.equal(now, before):
            same = (now == before) | ((now != now) & (before != before))
            count = int((~same).sum())
            if count:
                raise rejected("inputs_changed", f"{count} elements of tensor {number}", "forward changed its inputs")


def run_once(peer: Peer, trial: Trial, timeout_s: float, *, audit: bool = False) -> tuple[Any, Message, Parcel]:
    """Run the candidate on one trial: its outputs, its answer, and the inputs it had. Raises Verdict."""
    parcel = Parcel.of(trial.inputs)
    receiver = Receiver(trial.expected)
    try:
        peer.ask("inputs", 60.0, [parcel.fd], slot=0, **parcel.fields)
        fds, fields = receiver.descriptor(), receiver.fields
        answer = peer.ask("run", timeout_s, fds, slot=0, seed=trial.seed, audit=audit, **fields)
        return receiver.take(answer, trial.expected), answer, parcel
    finally:
        receiver.close()
        close_all([parcel.fd])


def try_once(
    peer: Peer, trial: Trial, tolerance: float, timeout_s: float, *, audit: bool = False, aliased: bool = False
) -> Outcome:
    """Run the candidate on one trial and judge the outputs. Raises Verdict."""
    outputs, answer, parcel = run_once(peer, trial, timeout_s, audit=audit)
    difference = judge_values(outputs, trial, tolerance)
    if difference is not None:
        raise Verdict(difference.status, f"on {trial.name}:\n{difference.text}")
    check_unchanged(parcel.value, trial.inputs)
    check_facts(answer, aliased)
    calls = answer.get("calls")
    return Outcome(
        outputs=outputs,
        calls=calls if isinstance(calls, dict) else {},
        max_abs_error=max_abs_error(outputs, trial.expected),
        scale_error=scale_error(outputs, trial.exact) if trial.exact is not None else None,
    )


def judge_values(outputs: Any, trial: Trial, tolerance: float) -> Difference | None:
    """Agreement with the reference in fp32, or in float64 where the trial has it."""
    difference = compare(outputs, trial.expected, tolerance, scaled=trial.scaled)
    if difference is None or trial.exact is None or difference.status is not Status.WRONG_VALUE:
        return difference
    return None if agree(outputs, like(trial.exact, trial.expected), tolerance, scaled=trial.scaled) else difference
