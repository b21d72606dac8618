"""The problem in the judge's process: its module, its model under KernelBench's seeds, its inputs, its outputs.

Everything that the problem's own code raises becomes ``reference_error``. The candidate's process never sees this
module's objects. Not here: other input distributions (:mod:`specgen.evaluation.trials`).
"""

from __future__ import annotations

import copy
import types
from typing import Any

import torch

from specgen.evaluation.feedback import cap
from specgen.evaluation.stopwatch import Stopwatch
from specgen.evaluation.tensors import mapped
from specgen.evaluation.verdict import Verdict
from specgen.types import ProblemSpec, Status


def _failed(what: str, error: BaseException) -> Verdict:
    return Verdict(Status.REFERENCE_ERROR, cap(f"the problem's {what} raised {type(error).__name__}: {error}", 1500))


class Reference:
    """``Model`` with the weights of KernelBench's protocol: the seed before the init inputs and before the model."""

    def __init__(self, problem: ProblemSpec) -> None:
        self.problem = problem
        self.device = "cuda" if problem.backend == "cuda" else "cpu"
        self._made_on = self.device
        self.module = types.ModuleType("problem")
        try:
            exec(compile(problem.source, "problem.py", "exec"), self.module.__dict__)  # noqa: S102 - the user's own file
            torch.manual_seed(problem.seed)
            self.init_inputs = list(self.module.get_init_inputs())
            torch.manual_seed(problem.seed)
            self.model = self._placed(self.module.Model(*self.init_inputs))
        except Exception as exc:
            raise _failed("module, get_init_inputs() or Model()", exc) from exc

    def inputs(self, seed: int) -> list[Any]:
        """Fresh inputs of the problem's own distribution, on its device.

        Drawn on a GPU where ``get_inputs`` lets itself be moved there: its CPU generator needs seconds for gigabytes.
        """
        torch.manual_seed(seed)
        try:
            try:
                with torch.device(self._made_on):
                    made = list(self.module.get_inputs())
            except Exception:
                if self._made_on == "cpu":
                    raise
                self._made_on = "cpu"
                made = list(self.module.get_inputs())
            return list(mapped(made, lambda leaf: leaf.to(self.device)))
        except Exception as exc:
            raise _failed("get_inputs()", exc) from exc

    def _placed(self, model: Any) -> Any:
        return model.to(self.device) if isinstance(model, torch.nn.Module) else model

    def forward(self, inputs: list[Any], seed: int, model: Any = None) -> Any:
        """Outputs on a private copy of the inputs (a reference may change them)."""
        private = mapped(inputs, lambda leaf: leaf.clone())
        return self.run(private, seed, model)

    def run(self, inputs: list[Any], seed: int, model: Any = None) -> Any:
        """Outputs on the inputs themselves."""
        torch.manual_seed(seed)
        try:
            with torch.no_grad():
                return (model or self.model)(*inputs)
        except Exception as exc:
            raise _failed("forward()", exc) from exc

    def timed(self, inputs: list[Any], seed: int, watch: Stopwatch) -> tuple[Any, int]:
        """As :meth:`run`, and its nanoseconds: of the model alone, as a candidate's are."""
        torch.manual_seed(seed)
        try:
            with torch.no_grad():
                return watch.time(lambda: self.model(*inputs))
        except Exception as exc:
            raise _failed("forward()", exc) from exc

    def double(self, inputs: list[Any], seed: int, model: Any = None) -> Any | None:
        """The same in float64; None where the model cannot (integers stay as they are)."""
        wide = copy.deepcopy(model or self.model)
        try:
            wide = wide.double()
            return self.forward(mapped(inputs, _widen), seed, wide)
        except (Verdict, RuntimeError, TypeError, AttributeError):
            return None

    def state(self) -> dict[str, torch.Tensor]:
        """Parameters and buffers by name; empty for a Model that is no nn.Module."""
        return dict(self.model.state_dict()) if isinstance(self.model, torch.nn.Module) else {}


def _widen(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.double() if leaf.is_floating_point() else leaf
