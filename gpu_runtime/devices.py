"""Which CUDA devices this process can use. Chooses none."""

from __future__ import annotations

import importlib
from typing import Protocol, cast

__all__ = ["usable_gpus"]


class _CudaRuntime(Protocol):
    def cudaGetDeviceCount(self) -> tuple[int, int]: ...  # noqa: N802 - CUDA's own name


def usable_gpus() -> tuple[int, ...]:
    """Device numbers that cuda-python (extra ``gpu``) finds; none where it, a driver or a device is missing."""
    try:
        runtime = cast(_CudaRuntime, importlib.import_module("cuda.bindings.runtime"))
        error, count = runtime.cudaGetDeviceCount()
    except (ImportError, OSError, RuntimeError):  # not installed, or installed where there is no driver to load
        return ()
    return tuple(range(count)) if int(error) == 0 else ()
