"""GPU memory that two processes see: the judge makes it, the candidate gets a file descriptor of it.

What memory files are for a CPU, CUDA's virtual memory management is for a GPU: an allocation exported as a POSIX
descriptor, which crosses namespaces and users as descriptors do (CUDA's older IPC handles do not). Both sides map the
same bytes, so inputs cost no copy and the judge sees what becomes of them. Not here: what lies in it
(:mod:`specgen.evaluation.tensors`). The driver is called through ctypes; no toolkit is needed.
"""

from __future__ import annotations

import ctypes
import os
from functools import lru_cache
from typing import Any

import torch

_POSIX_FD, _DEVICE, _READ_WRITE = 1, 1, 3
_FIRST_CONTEXT_BYTES = 1


class _Location(ctypes.Structure):
    _fields_ = (("type", ctypes.c_int), ("id", ctypes.c_int))


class _Properties(ctypes.Structure):
    """CUmemAllocationProp."""

    _fields_ = (
        ("type", ctypes.c_int),
        ("handles", ctypes.c_int),
        ("location", _Location),
        ("win32", ctypes.c_void_p),
        ("compression", ctypes.c_ubyte),
        ("rdma", ctypes.c_ubyte),
        ("usage", ctypes.c_ushort),
        ("reserved", ctypes.c_ubyte * 4),
    )


class _Access(ctypes.Structure):
    _fields_ = (("location", _Location), ("flags", ctypes.c_int))


@lru_cache(maxsize=1)
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


def _call(name: str, *arguments: Any) -> None:
    code = getattr(_driver(), name)(*arguments)
    if code != 0:
        text = ctypes.c_char_p()
        _driver().cuGetErrorString(code, ctypes.byref(text))
        words = (text.value or b"unknown error").decode()
        if code == 2:
            raise torch.cuda.OutOfMemoryError(f"CUDA out of memory: {name}")
        raise RuntimeError(f"CUDA error: {name}: {words}")


def _properties(device: int) -> _Properties:
    return _Properties(type=1, handles=_POSIX_FD, location=_Location(_DEVICE, device))


def granularity(device: int = 0) -> int:
    """Bytes that an allocation is a multiple of (2 MiB on every GPU so far)."""
    torch.empty(_FIRST_CONTEXT_BYTES, device=f"cuda:{device}")  # the context must be there
    size = ctypes.c_size_t()
    _call("cuMemGetAllocationGranularity", ctypes.byref(size), ctypes.byref(_properties(device)), 0)
    return size.value


def _rounded(size: int, device: int) -> int:
    unit = granularity(device)
    return max(1, -(-size // unit)) * unit


class _Mapping:
    """A mapped allocation; unmapped and released once no tensor looks at it."""

    def __init__(self, handle: ctypes.c_ulonglong, size: int, device: int) -> None:
        self.handle, self.size = handle, size
        self.address = ctypes.c_ulonglong()
        _call("cuMemAddressReserve", ctypes.byref(self.address), ctypes.c_size_t(size), 0, 0, 0)
        _call("cuMemMap", self.address, ctypes.c_size_t(size), ctypes.c_size_t(0), handle, ctypes.c_ulonglong(0))
        access = _Access(_Location(_DEVICE, device), _READ_WRITE)
        _call("cuMemSetAccess", self.address, ctypes.c_size_t(size), ctypes.byref(access), ctypes.c_size_t(1))

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {"shape": (self.size,), "typestr": "|u1", "data": (self.address.value, False), "version": 3}

    def __del__(self) -> None:
        driver = _driver()
        driver.cuCtxSynchronize()
        driver.cuMemUnmap(self.address, ctypes.c_size_t(self.size))
        driver.cuMemAddressFree(self.address, ctypes.c_size_t(self.size))
        driver.cuMemRelease(self.handle)


def _bytes_of(mapping: _Mapping, size: int, device: int) -> torch.Tensor:
    whole: torch.Tensor = torch.as_tensor(mapping, device=f"cuda:{device}")
    return whole[:size]


def create(size: int, device: int = 0) -> tuple[int, torch.Tensor]:
    """A descriptor of new memory and its bytes as a ``uint8`` tensor that keeps it alive. The caller closes the
    descriptor. Raises torch.cuda.OutOfMemoryError, or RuntimeError with the driver's words."""
    total = _rounded(size, device)
    handle, fd = ctypes.c_ulonglong(), ctypes.c_int()
    properties = _properties(device)
    _call("cuMemCreate", ctypes.byref(handle), ctypes.c_size_t(total), ctypes.byref(properties), ctypes.c_ulonglong(0))
    mapping = _Mapping(handle, total, device)
    _call("cuMemExportToShareableHandle", ctypes.byref(fd), handle, _POSIX_FD, ctypes.c_ulonglong(0))
    os.set_inheritable(fd.value, False)
    return fd.value, _bytes_of(mapping, size, device)


def attach(fd: int, size: int, device: int = 0) -> torch.Tensor:
    """The bytes behind another process's descriptor (which may be closed afterwards)."""
    total = _rounded(size, device)
    handle = ctypes.c_ulonglong()
    _call("cuMemImportFromShareableHandle", ctypes.byref(handle), ctypes.c_void_p(fd), _POSIX_FD)
    return _bytes_of(_Mapping(handle, total, device), size, device)
