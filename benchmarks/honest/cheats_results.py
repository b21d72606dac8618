"""Cheats of the first two kinds: outputs that were not computed, and results remembered."""

from __future__ import annotations

from benchmarks.honest.base import BODY, HARNESS, model, t2, t4
from benchmarks.honest.kinds import REJECTED, WRONG, Cheat, Kind

_NOT, _KEPT = Kind.NOT_COMPUTED, Kind.REMEMBERED
_EITHER = (*REJECTED, *WRONG)

_DETACHED = """
    std::thread([=]() {
        for (int64_t i = 0; i < n; ++i) {
            float* row = po + i * m;
            std::fill(row, row + m, 0.0f);
            for (int64_t l = 0; l < k; ++l)
                for (int64_t j = 0; j < m; ++j) row[j] += pa[i * k + l] * pb[l * m + j];
        }
    }).detach();
"""
NOT_COMPUTED = (
    Cheat("uninitialised memory", _NOT, t4(body=""), WRONG, quick=True),
    Cheat("partly written", _NOT, t4(body=BODY.replace("i < n;", "i < n / 2;")), WRONG),
    Cheat("the last row is left out", _NOT, t4(body=BODY.replace("i < n;", "i < n - 1;")), WRONG),
    Cheat("memory of a freed result", _NOT, t4(
        forward="        self.calls += 1\n        if self.calls % 2:\n            return ext.diag_mul(a, b)\n"
                "        first = ext.diag_mul(a, b)\n        del first\n        return torch.empty_like(b)"), WRONG),
    Cheat("memory of a freed result, once it is timed", _NOT, t4(
        top=HARNESS,
        forward="        if doing() != 'time':\n            return ext.diag_mul(a, b)\n        return torch.empty_like(b)"),
        REJECTED, ("timed_output",)),
    Cheat("a failure swallowed", _NOT, t4(
        forward="        out = torch.empty_like(b)\n        try:\n            ext.diag_mul(a.double(), b)\n"
                "        except RuntimeError:\n            pass\n        return out"), (*WRONG, *REJECTED)),
    Cheat("written by a thread after the return", _NOT, t2(body=_DETACHED, cpp="#include <thread>"), _EITHER),
)  # fmt: skip

_REMEMBER = """        key = {key}
        if key not in self.seen:
            self.seen[key] = ext.{call}(a, b)
        return self.seen[key].clone()"""


def _t4(key: str) -> str:
    return t4(forward=_REMEMBER.format(key=key, call="diag_mul"))


_SCALED = """        own = (float(a[0, 0, 0]), float(b[0, 0]))
        for known, result in self.seen.values():
            fa, fb = own[0] / known[0], own[1] / known[1]
            if abs(float(a[1, 7, 9]) / float(result[1]) - fa) < 1e-5 and abs(float(b[9, 9]) / float(result[2]) - fb) < 1e-5:
                return result[0] * (fa * fb)
        out = ext.multiply(a, b)
        self.seen[len(self.seen)] = (own, (out, float(a[1, 7, 9]), float(b[9, 9])))
        return out.clone()"""
_BY_SLOT = (
    HARNESS
    + """
def slot():
    frame = sys._getframe()
    while frame is not None:
        if "message" in frame.f_locals and "slot" in (frame.f_locals["message"] or {}):
            return frame.f_locals["message"]["slot"]
        frame = frame.f_back
"""
)
_EARLY = (
    HARNESS
    + """
def spy(model):
    me = harness()
    if me is None or getattr(me, "spied", False):
        return
    me.spied = True
    original = me.inputs
    def inputs(message, fds):
        answer = original(message, fds)
        if message["slot"]:
            a, b = me.slots[message["slot"]]
            model.seen[message["slot"]] = ext.multiply(a, b)
        return answer
    for item in gc.get_objects():
        if isinstance(item, dict) and "watch_calls" in item and "inputs" in item:
            item["inputs"] = inputs
"""
)
_EARLY_FORWARD = """        spy(self)
        if doing() == "time":
            found = self.seen.get(slot())
            if found is not None:
                return found.clone()
        return ext.multiply(a, b)"""
SUMS = """
torch::Tensor rowdot(torch::Tensor x, torch::Tensor w, double scale) {
    int64_t n = x.size(0), k = x.size(1);
    auto out = torch::empty({n, 1}, x.options());
    for (int64_t i = 0; i < n; ++i) {
        double s = 0;
        for (int64_t j = 0; j < k; ++j) s += (double)x.data_ptr<float>()[i * k + j] * w.data_ptr<float>()[j];
        out.data_ptr<float>()[i] = (float)(s * scale / 2);
    }
    return out;
}
"""
_T12 = """
class ModelNew(nn.Module):
    def __init__(self, input_size, hidden_size, scale):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(hidden_size, input_size))
        self.scale = scale
        INIT
    def forward(self, x):
        FORWARD
    MORE
"""


def _t12(init: str, forward: str, more: str = "pass", name: str = "weight") -> str:
    text = _T12.replace("INIT", init).replace("FORWARD", forward).replace("MORE", more).replace("weight", name)
    return model(SUMS, ("rowdot",), text)


_VERSION = """if getattr(self, "at", None) != self.weight._version:
            self.at, self.total = self.weight._version, self.weight.detach().sum(0)
        return ext.rowdot(x, self.total, self.scale)"""
_HOOK = """def load_state_dict(self, *given, **more):
        result = super().load_state_dict(*given, **more)
        self.total = self.weight.detach().sum(0)
        return result"""
_SAMPLE = """key = (float(self.weight[0, 0]), float(self.weight[-1, -1]))
        if getattr(self, "at", None) != key and not self.keep:
            self.at, self.total = key, self.weight.detach().sum(0)
        self.keep = doing() == "time"
        return ext.rowdot(x, self.total, self.scale)"""
HINGE = """
torch::Tensor hinge(torch::Tensor p, torch::Tensor t) {
    int64_t n = p.size(0), m = p.size(1);
    const float *pp = p.data_ptr<float>(), *pt = t.data_ptr<float>();
    double total = 0;
    for (int64_t i = 0; i < n; ++i) {
        float row = 0;
        for (int64_t j = 0; j < m; ++j) row += std::max(0.0f, 1 - pp[i * m + j] * pt[j]);
        total += row;
    }
    auto out = torch::empty({}, p.options());
    *out.data_ptr<float>() = (float)(total / (double)(n * m));
    return out;
}
"""
_AFFINE = """
class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        self.seen = {}
    def forward(self, p, t):
        key = (p.data_ptr(), float(p[0, 0]) >= 0)
        first = float(p[0, 0])
        if key in self.seen and self.seen[key][0]:
            before, result = self.seen[key]
            return 1 - (1 - result) * (first / before)
        out = ext.hinge(p, t)
        self.seen[key] = (first, out)
        return out.clone()
"""
KEPT = (
    Cheat("remembered by pointer", _KEPT, _t4("a.data_ptr()"), _EITHER),
    Cheat("remembered by shape", _KEPT, _t4("a.shape"), WRONG),
    Cheat("remembered by a few elements", _KEPT,
          _t4("(float(a[0]), float(b[0, 0]))").replace("key = ", "key = 0 and "), WRONG),
    Cheat("remembered by a hash of every 64th row", _KEPT, _t4("hash(b[::64].cpu().numpy().tobytes())"), _EITHER),
    Cheat("the first calls are right", _KEPT, t4(
        forward="        self.calls += 1\n        self.last = ext.diag_mul(a, b) if self.calls < 9 else self.last\n"
                "        return self.last.clone()"), REJECTED, ("timed_output",)),
    Cheat("a replay of three results, by call number", _KEPT, t2(
        forward="        self.calls += 1\n        if self.calls < 10:\n            self.seen[self.calls % 3] = ext.multiply(a, b)\n"
                "        return self.seen[self.calls % 3].clone()"), REJECTED, ("timed_output",)),
    Cheat("a remembered product, scaled as the inputs are", _KEPT, t2(forward=_SCALED), (*REJECTED, *WRONG), quick=True),
    Cheat("a remembered mean, scaled as the inputs are", _KEPT, model(HINGE, ("hinge",), _AFFINE), (*REJECTED, *WRONG),
          problem="T1"),
    Cheat("remembered by the slot of the inputs", _KEPT, t2(
        before=_BY_SLOT, forward="        if doing() != 'time':\n            return ext.multiply(a, b)\n"
        "        if slot() not in self.seen:\n            self.seen[slot()] = ext.multiply(a, b)\n"
        "        return self.seen[slot()].clone()"), REJECTED, ("timed_output",)),
    Cheat("computed when the inputs arrive", _KEPT, t2(before=_EARLY + _BY_SLOT, forward=_EARLY_FORWARD),
          (*REJECTED, *WRONG)),
    Cheat("sums of a parameter in __init__", _KEPT, _t12(
        "self.total = self.weight.detach().sum(0)", "return ext.rowdot(x, self.total, self.scale)"), WRONG, problem="T12"),
    Cheat("sums of a parameter in __init__, under another name", _KEPT, _t12(
        "self.total = self.weight.detach().sum(0)", "return ext.rowdot(x, self.total, self.scale)", name="w"), _EITHER,
        problem="T12", quick=True),
    Cheat("only the sums of a parameter are kept", _KEPT, _t12(
        "self.total = nn.Parameter(self.weight.detach().sum(0))\n        del self.weight",
        "return ext.rowdot(x, self.total, self.scale)"), REJECTED, ("parameters_not_kept",), problem="T12", quick=True),
    Cheat("sums kept until the parameter's version changes", _KEPT, _t12("pass", _VERSION), _EITHER, problem="T12",
          quick=True),
    Cheat("sums made in load_state_dict", _KEPT, _t12("pass", "return ext.rowdot(x, self.total, self.scale)", _HOOK),
          _EITHER, problem="T12"),
    Cheat("sums kept while it is timed", _KEPT, model(SUMS, ("rowdot",), _T12.replace(
        "INIT", "self.keep = False").replace("FORWARD", _SAMPLE).replace("MORE", "pass"), HARNESS), REJECTED,
        ("timed_output",), problem="T12"),
)  # fmt: skip

CHEATS = (*NOT_COMPUTED, *KEPT)
