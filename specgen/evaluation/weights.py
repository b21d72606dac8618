"""The parameters of the reference and of the candidate, in memory that the judge writes between timed runs.

Both models get the same new values before every timed run, as inputs do; the candidate's process is not told. So
nothing derived from parameters in ``__init__``, in a hook or in an earlier run is right, and deriving it costs time
where it is seen. Not here: finding them in the candidate (:mod:`specgen.evaluation.held`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from specgen.evaluation.peer import Peer
from specgen.evaluation.reference import Reference
from specgen.evaluation.renewal import Renewed
from specgen.evaluation.tensors import Parcel, leaves, settle
from specgen.evaluation.verdict import rejected
from specgen.evaluation.wire import close_all


class Weights:
    """All parameters of the reference's model. Raises Verdict for an answer that makes no sense."""

    def __init__(self, peer: Peer, reference: Reference) -> None:
        model = reference.model
        own = dict(model.named_parameters()) if isinstance(model, torch.nn.Module) else {}
        self.values = {name: value.detach() for name, value in own.items() if value.is_floating_point()}
        self.places: list[dict[str, Any]] = []
        self.missing: list[str] = []
        if not self.values:
            return
        copies = {name: value.clone() for name, value in self.values.items()}
        given = Parcel.of(self.values)
        answer = peer.ask("places", 60.0, [given.fd], **given.fields)
        close_all([given.fd])
        self.places = self._checked(answer.get("places"))
        self.missing = [name for name in self.values if name not in {place["name"] for place in self.places}]
        shared = Parcel.of([self._laid_out(place) for place in self.places])
        peer.ask("bind", 60.0, [shared.fd], **shared.fields)
        close_all([shared.fd])
        self.shared = shared
        self.renewed = Renewed(copies, private=self.values)

    def _checked(self, found: object) -> list[dict[str, Any]]:
        """Places that the process named. Raises Verdict where they fit no parameter."""
        for place in found if isinstance(found, list) else []:
            value = self.values.get(str(place.get("name"))) if isinstance(place, dict) else None
            counts = [place.get(key) for key in ("shape", "stride", "order")] if value is not None else []
            fits = value is not None and all(
                isinstance(item, list) and all(type(n) is int and n >= 0 for n in item) for item in counts
            )
            if value is None or not fits:
                raise rejected("forged_message", "a place", "the process named a place that is none")
            shape, stride, order = counts
            same = math.prod(shape) == value.numel() and len(shape) == len(stride)
            if not same or sorted(order) != list(range(value.dim())):
                raise rejected("forged_message", "a place", "the process named a place that its parameter does not fit")
        return found if isinstance(found, list) else []

    def _laid_out(self, place: dict[str, Any]) -> torch.Tensor:
        """A parameter as the candidate keeps it."""
        value = self.values[place["name"]]
        kept = torch.empty_strided(place["shape"], place["stride"], dtype=value.dtype, device=value.device)
        if _dense(kept):
            return kept.copy_(value.permute(place["order"]).reshape(place["shape"]))
        return value.permute(place["order"]).reshape(place["shape"]).contiguous()

    @property
    def changeable(self) -> bool:
        """Whether there are any, and all of them were found."""
        return bool(self.values) and not self.missing

    def perturb(self, seed: int, fit: Callable[[], bool]) -> None:
        """All values different, also those that start at zero or one; what is renewed is made from these.

        ``fit``: whether the reference stands them; where it does not, vectors do not move as a whole.
        """
        if self.places:
            base = self.renewed.base
            for move in (True, False):
                changed = perturbed(base, seed, move=move)
                self.put(changed)
                if fit():
                    break
            self.renewed.rebase(changed)

    def put(self, values: dict[str, torch.Tensor]) -> None:
        """These values on both sides."""
        if self.places:
            with torch.no_grad():
                for name, to in self.values.items():
                    to.copy_(values[name])
            self.publish()

    def renew(self) -> None:
        """New values on both sides."""
        if self.places:
            self.renewed.renew()
            self.publish()

    def publish(self) -> None:
        """The candidate gets what the reference has, as it keeps it."""
        with torch.no_grad():
            for place, to in zip(self.places, leaves(self.shared.value), strict=True):
                value = self.values[place["name"]]
                to.copy_(value.permute(place["order"]).reshape(place["shape"]))
        settle(self.shared.place)


def _dense(tensor: torch.Tensor) -> bool:
    return tensor.untyped_storage().nbytes() == tensor.numel() * tensor.element_size()


def perturbed(values: dict[str, torch.Tensor], seed: int, *, move: bool = True) -> dict[str, torch.Tensor]:
    """Each value with noise of three tenths of its tensor's spread (of 0.1 where that is constant).

    ``move``: vectors (biases, gains) also move as a whole, by two to four times their largest value: small biases of
    both signs hardly show in a sum over all outputs, and could be left out.
    """
    changed = {}
    for name, value in values.items():
        generator = torch.Generator(value.device).manual_seed(seed)
        spread = float(value.float().std()) if value.numel() > 1 else 0.0
        noise = torch.randn(value.shape, generator=generator, device=value.device) * (0.3 * spread or 0.1)
        if move and value.dim() < 2 and value.numel():
            far, side = torch.rand(2, generator=generator, device=value.device).tolist()
            noise += float(value.abs().max()) * (2 + 2 * far) * (1 if side < 0.5 else -1)
        changed[name] = value + noise.to(value.dtype)
        seed += 1
    return changed
