"""A GPU's clocks, temperature and power while it is timed, and its driver: NVIDIA's management library, by ctypes.

It comes with every driver, needs no CUDA context and no rights. What it does not answer (a MIG slice has no clocks of
its own) is None. Readings are kept with a profile and decide nothing. Not here: counters of kernels
(:mod:`specgen.evaluation.ncu`).
"""

from __future__ import annotations

import ctypes
import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

LIBRARY = "libnvidia-ml.so.1"
NAMES = ("sm_clock_mhz", "sm_clock_min_mhz", "memory_clock_mhz", "temperature_c", "power_w", "slowed_share")
_SM, _MEMORY = 1, 2  # nvmlClockType_t
_CORE = 0  # nvmlTemperatureSensors_t
_SLOWED = 0x4 | 0x8 | 0x20 | 0x40 | 0x80  # power cap, hardware slowdown, heat (software, hardware), power brake
_TEXT = 96


class Nvml:
    """The library, opened; raises OSError where there is none or no driver answers."""

    def __init__(self, library: str = LIBRARY) -> None:
        self._library = ctypes.CDLL(library)
        if code := self._library.nvmlInit_v2():
            raise OSError(f"NVML does not start: error {code}")

    def driver(self) -> str:
        """The driver's version; empty where it does not say."""
        text = ctypes.create_string_buffer(_TEXT)
        return text.value.decode() if not self._library.nvmlSystemGetDriverVersion(text, _TEXT) else ""

    def gpu(self, uuid: str) -> ctypes.c_void_p:
        """The handle of ``GPU-…``. Raises OSError for one that is not there."""
        handle = ctypes.c_void_p()
        if code := self._library.nvmlDeviceGetHandleByUUID(uuid.encode(), ctypes.byref(handle)):
            raise OSError(f"NVML does not know {uuid}: error {code}")
        return handle

    def clock_mhz(self, gpu: ctypes.c_void_p, kind: int) -> int | None:
        """The present clock of ``kind``."""
        return self._number(lambda out: self._library.nvmlDeviceGetClockInfo(gpu, kind, out), ctypes.c_uint())

    def temperature_c(self, gpu: ctypes.c_void_p) -> int | None:
        """Of the core."""
        return self._number(lambda out: self._library.nvmlDeviceGetTemperature(gpu, _CORE, out), ctypes.c_uint())

    def power_w(self, gpu: ctypes.c_void_p) -> float | None:
        """Of the whole board."""
        found = self._number(lambda out: self._library.nvmlDeviceGetPowerUsage(gpu, out), ctypes.c_uint())
        return found / 1e3 if found is not None else None

    def slowed(self, gpu: ctypes.c_void_p) -> bool | None:
        """Whether power or heat keeps the clocks down now."""
        call = getattr(self._library, "nvmlDeviceGetCurrentClocksThrottleReasons", None)
        found = self._number(lambda out: call(gpu, out), ctypes.c_ulonglong()) if call else None
        return bool(found & _SLOWED) if found is not None else None

    @staticmethod
    def _number(ask: Callable[[object], int], out: ctypes.c_uint | ctypes.c_ulonglong) -> int | None:
        return int(out.value) if ask(ctypes.byref(out)) == 0 else None


class Readings:
    """Samples of one GPU during a window."""

    def __init__(self, uuid: str, library: str = LIBRARY) -> None:
        """No library, no such GPU: no readings, and no error."""
        self._nvml: Nvml | None = None
        self._samples: dict[str, list[float]] = {name: [] for name in NAMES}
        with suppress(OSError, AttributeError):
            nvml = Nvml(library)
            self._gpu = nvml.gpu(uuid)
            self._nvml = nvml

    @contextmanager
    def counting(self) -> Iterator[None]:
        """Around one run: read right after it, while the clocks are still the run's. Some tens of microseconds."""
        yield
        self.sample()

    def sample(self) -> None:
        """Read once."""
        if self._nvml is None:
            return
        nvml, gpu = self._nvml, self._gpu
        sm = nvml.clock_mhz(gpu, _SM)
        found = {
            "sm_clock_mhz": sm, "sm_clock_min_mhz": sm, "memory_clock_mhz": nvml.clock_mhz(gpu, _MEMORY),
            "temperature_c": nvml.temperature_c(gpu), "power_w": nvml.power_w(gpu), "slowed_share": nvml.slowed(gpu),
        }  # fmt: skip
        for name, value in found.items():
            if value is not None:
                self._samples[name].append(float(value))

    def per_run(self, runs: int) -> dict[str, float | None]:
        """Means over the samples; the lowest SM clock, the highest temperature."""
        del runs
        how = {"sm_clock_min_mhz": min, "temperature_c": max}
        return {
            name: float(how.get(name, statistics.fmean)(values)) if values else None
            for name, values in self._samples.items()
        }

    def close(self) -> None:
        """Nothing is held."""


def driver_version(library: str = LIBRARY) -> str:
    """NVIDIA's driver on this machine; empty without one."""
    with suppress(OSError, AttributeError):
        return Nvml(library).driver()
    return ""
