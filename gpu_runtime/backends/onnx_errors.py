"""What ONNX Runtime's error messages mean. It has no error classes for these, so the text is all there is."""

from __future__ import annotations

import re
from typing import Final

from schemas.errors import DeviceError, HeadraceError, ModelError, OutOfMemoryError

__all__ = ["device_is_dead", "is_out_of_memory", "run_error"]

_OUT_OF_MEMORY: Final = re.compile(
    r"failed to allocate memory|out of memory|bad_alloc|CUDA failure 2\b|_ALLOC_FAILED"
    r"|is smaller than requested bytes|not enough space: expected|OutOfMemory",
    re.IGNORECASE,
)
# Numbers of cudaError_t after which the process' context is lost or the device is gone: 3 initialisation, 4 unloading,
# 46 unavailable, 77 and 700 illegal address (old and new), 100/101 no or invalid device, 214 ECC, 220 NVLink,
# 226 contained, 702 to 721 faults of a launch, 802 not ready, 999 unknown.
_DEAD: Final = re.compile(
    r"CUDA (?:failure|error) (?:3|4|46|77|100|101|214|220|226|70[029]|71[0456789]|72[01]|802|999)\b"
    r"|illegal memory access|unspecified launch failure|device-side assert|uncorrectable|misaligned address"
    r"|no CUDA-capable device|invalid device ordinal|device (?:is )?lost|fallen off the bus",
    re.IGNORECASE,
)


def is_out_of_memory(message: str) -> bool:
    return _OUT_OF_MEMORY.search(message) is not None


def device_is_dead(message: str) -> bool:
    """Whether the CUDA context can do no more work in this process."""
    return _DEAD.search(message) is not None


def run_error(error: Exception, *, model: str, device: str) -> HeadraceError:
    """The typed error for an exception that ``InferenceSession.run`` raised."""
    message = str(error)
    # A fault that is not about memory can name memory ("illegal memory access"), so the device comes first.
    if device != "cpu" and device_is_dead(message):
        return DeviceError(f"device {device} failed while model {model!r} ran: {message}; the process must restart")
    if isinstance(error, MemoryError) or is_out_of_memory(message):
        return OutOfMemoryError(f"model {model!r} ran out of memory on {device}: {message}")
    return ModelError(f"model {model!r} failed on {device}: {message}")
