"""Readings of a GPU, through a library of NVML's signatures that is built here: this machine may have no driver."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from specgen.evaluation.nvml import NAMES, Readings, driver_version

SOURCE = """
#include <string.h>
static unsigned turn = 0;
int nvmlInit_v2(void) { return INIT; }
int nvmlSystemGetDriverVersion(char* out, unsigned length) {
  if (length < 11) return 7;
  strcpy(out, "580.65.06");
  return 0;
}
int nvmlDeviceGetHandleByUUID(const char* uuid, void** gpu) {
  *gpu = (void*)0x1234567890abcdefULL;  /* wider than an int: a handle that is cut is not this one */
  return strcmp(uuid, "GPU-1") ? 6 : 0;
}
static int mine(void* gpu) { return gpu == (void*)0x1234567890abcdefULL ? 0 : 2; }
int nvmlDeviceGetClockInfo(void* gpu, int kind, unsigned* mhz) {
  if (kind == 1) *mhz = turn++ % 2 ? 1980 : 1700;
  else if (kind == 2) *mhz = 3201;
  else return 2;
  return mine(gpu);
}
int nvmlDeviceGetTemperature(void* gpu, int sensor, unsigned* c) { *c = 40 + turn; return sensor ? 2 : mine(gpu); }
int nvmlDeviceGetPowerUsage(void* gpu, unsigned* mw) { (void)gpu; (void)mw; return 3; /* not supported */ }
int nvmlDeviceGetCurrentClocksThrottleReasons(void* gpu, unsigned long long* why) {
  *why = turn % 2 ? 0x4 : 0x1;  /* a power cap; idle, which slows nothing */
  return mine(gpu);
}
"""


def library(place: Path, init: int = 0) -> str:
    (place / "nvml.c").write_text(SOURCE)
    built = place / "libnvml.so"
    subprocess.run(
        ["gcc", "-shared", "-fPIC", f"-DINIT={init}", "-o", str(built), str(place / "nvml.c")], check=True, timeout=60
    )
    return str(built)


def test_readings_are_summed_up(tmp_path: Path) -> None:
    readings = Readings("GPU-1", library(tmp_path))
    for _ in range(4):
        with readings.counting():
            pass
    assert readings.per_run(4) == {
        "sm_clock_mhz": 1840.0,
        "sm_clock_min_mhz": 1700.0,
        "memory_clock_mhz": 3201.0,
        "temperature_c": 44.0,
        "power_w": None,
        "slowed_share": 0.5,
    }
    assert driver_version(library(tmp_path)) == "580.65.06"


@pytest.mark.parametrize("case", ["no library", "no driver", "another GPU"])
def test_what_is_not_there_is_none(tmp_path: Path, case: str) -> None:
    place = "libnot-there.so.1" if case == "no library" else library(tmp_path, init=9 if case == "no driver" else 0)
    readings = Readings("GPU-2", place)
    readings.sample()
    assert readings.per_run(4) == dict.fromkeys(NAMES)
    if case != "another GPU":
        assert driver_version(place) == ""
