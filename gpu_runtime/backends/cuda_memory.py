"""Page-locked host memory and the free memory of a CUDA device, through cuda-python. The only CUDA calls we make."""

from __future__ import annotations

import ctypes
import importlib
import logging
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from schemas.errors import DeviceError

__all__ = ["CudaHostMemory", "CudaRuntime", "free_device_bytes", "try_cuda_runtime"]

_log = logging.getLogger("headrace.gpu_runtime.cuda")

Bytes = npt.NDArray[np.uint8]


class CudaRuntime(Protocol):
    """The functions of ``cuda.bindings.runtime`` used here. Each gives (error code, values...); 0 is success."""

    def cudaSetDevice(self, device: int, /) -> tuple[int]: ...  # noqa: N802 - CUDA's own name
    def cudaMemGetInfo(self) -> tuple[int, int, int]: ...  # noqa: N802 - CUDA's own name
    def cudaHostAlloc(self, size: int, flags: int, /) -> tuple[int, int]: ...  # noqa: N802 - CUDA's own name
    def cudaFreeHost(self, pointer: int, /) -> tuple[int]: ...  # noqa: N802 - CUDA's own name


def try_cuda_runtime(device: str) -> CudaRuntime | None:
    """cuda-python set to ``device`` for this thread, or None where it is not installed.

    Raises:
        DeviceError: there is no such device, or it cannot be used.
    """
    try:
        runtime = cast(CudaRuntime, importlib.import_module("cuda.bindings.runtime"))
    except ImportError:
        _log.warning("cuda-python is not installed: batches are copied from ordinary memory; install headrace[gpu]")
        return None
    (error,) = runtime.cudaSetDevice(int(device.partition(":")[2]))
    if int(error) != 0:
        raise DeviceError(f"device {device} cannot be used: cudaSetDevice gave {error!r}; see nvidia-smi")
    return runtime


def free_device_bytes(runtime: CudaRuntime) -> int | None:
    """Free bytes on this thread's device, or None when it does not say."""
    error, free, _ = runtime.cudaMemGetInfo()
    return int(free) if int(error) == 0 else None


class CudaHostMemory:
    """Allocates with ``cudaHostAlloc``; refuses (None) when the machine has no more to page-lock."""

    def __init__(self, runtime: CudaRuntime) -> None:
        self._runtime = runtime

    def try_allocate(self, size_bytes: int) -> Bytes | None:
        error, pointer = self._runtime.cudaHostAlloc(size_bytes, 0)
        if int(error) != 0:
            return None
        return np.ctypeslib.as_array((ctypes.c_uint8 * size_bytes).from_address(int(pointer)))

    def free(self, buffer: Bytes) -> None:
        self._runtime.cudaFreeHost(buffer.ctypes.data)
