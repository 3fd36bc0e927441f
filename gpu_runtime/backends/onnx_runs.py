"""Two ways of running a session: plainly, and over I/O binding through page-locked staging buffers.

`PlainRun` hands numpy arrays over and lets ONNX Runtime copy. `BoundRun` binds memory: on a GPU the copies then
start from page-locked buffers, and BF16, which numpy does not know, goes through as bits. Strings cannot be bound.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import numpy as np
import numpy.typing as npt

from gpu_runtime.backends.onnx_session import ELEMENT_TYPES, OrtValue, RunOptions, Session
from schemas.model import Datatype
from schemas.tensors import Array, Tensors, dtype_of

__all__ = ["BoundRun", "HostMemory", "PlainRun", "Run", "Staging", "Target"]

Bytes = npt.NDArray[np.uint8]
_STAGING_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""Page-locked memory is taken from the whole machine: a tensor above this goes through ordinary memory."""


class Target:
    """One output: its name, datatype, and the sizes after the batch dimension where all of them are fixed."""

    __slots__ = ("datatype", "fixed", "name")

    def __init__(self, name: str, datatype: Datatype, fixed: tuple[int, ...] | None) -> None:
        self.name = name
        self.datatype = datatype
        self.fixed = fixed


class Run(Protocol):
    def __call__(self, feeds: Tensors, lead: tuple[int, ...], options: RunOptions) -> list[Array]:
        """Runs the session; outputs in the order of the targets, in memory that the caller may keep.

        Args:
            lead: ``(rows,)``, or ``()`` for a model with no batch dimension.
        """
        ...

    def close(self) -> None: ...


class PlainRun:
    def __init__(self, session: Session, targets: Sequence[Target]) -> None:
        self._session = session
        self._names = [target.name for target in targets]

    def __call__(self, feeds: Tensors, lead: tuple[int, ...], options: RunOptions) -> list[Array]:
        return self._session.run(self._names, feeds, options)

    def close(self) -> None:
        del self._session


class HostMemory(Protocol):
    """Where staging buffers come from. ``try_allocate`` gives None when there is no page-locked memory left."""

    def try_allocate(self, size_bytes: int) -> Bytes | None: ...
    def free(self, buffer: Bytes) -> None: ...


class Staging:
    """One reusable buffer a tensor, grown to a power of two and never beyond ``limit_bytes``."""

    def __init__(self, memory: HostMemory, *, limit_bytes: int = _STAGING_LIMIT_BYTES) -> None:
        self._memory = memory
        self._limit_bytes = limit_bytes
        self._buffers: dict[str, Bytes] = {}

    def try_take(self, key: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> Array | None:
        """An array in page-locked memory, valid until the next call with this key; None when it does not fit."""
        size = math.prod(shape) * dtype.itemsize
        if not 0 < size <= self._limit_bytes:
            return None
        buffer = self._buffers.get(key)
        if buffer is None or buffer.nbytes < size:
            if buffer is not None:
                self._memory.free(self._buffers.pop(key))
            buffer = self._memory.try_allocate(min(1 << (size - 1).bit_length(), self._limit_bytes))
            if buffer is None:
                return None
            self._buffers[key] = buffer
        return buffer[:size].view(dtype).reshape(shape)

    @property
    def held_bytes(self) -> int:
        return sum(buffer.nbytes for buffer in self._buffers.values())

    def close(self) -> None:
        while self._buffers:
            self._memory.free(self._buffers.popitem()[1])


class BoundRun:
    """``staging`` None binds the caller's own arrays: right on a CPU, where nothing needs page-locking."""

    def __init__(
        self, session: Session, *, inputs: dict[str, Datatype], targets: Sequence[Target], staging: Staging | None
    ) -> None:
        self._session = session
        self._inputs = inputs
        self._targets = targets
        self._staging = staging
        self._binding = session.io_binding()

    def __call__(self, feeds: Tensors, lead: tuple[int, ...], options: RunOptions) -> list[Array]:
        binding = self._binding
        held = []  # a binding keeps addresses only, so the arrays must outlive the run
        try:
            for name, array in feeds.items():
                staged = self._stage(name, array)
                held.append(staged)
                element = ELEMENT_TYPES[self._inputs[name]]
                binding.bind_input(name, "cpu", 0, element, staged.shape, staged.ctypes.data)
            readers = [self._bind_output(target, lead) for target in self._targets]
            binding.synchronize_inputs()
            self._session.run_with_iobinding(binding, options)
            binding.synchronize_outputs()
            values = binding.get_outputs()
            return [read(value) for read, value in zip(readers, values, strict=True)]
        finally:
            # Device memory of the last batch goes back to the arena now, not when the next batch comes.
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()

    def close(self) -> None:
        del self._binding, self._session
        if self._staging is not None:
            self._staging.close()

    def _stage(self, name: str, array: Array) -> Array:
        if self._staging is not None:
            staged = self._staging.try_take(f"in:{name}", array.shape, array.dtype)
            if staged is not None:
                np.copyto(staged, array)
                return staged
        return np.ascontiguousarray(array)

    def _bind_output(self, target: Target, lead: tuple[int, ...]) -> Callable[[OrtValue], Array]:
        """Binds one output and says how to read it after the run."""
        if target.fixed is None:
            self._binding.bind_output(target.name, "cpu")
            return lambda value: _copy_out(value, target.datatype)
        shape, dtype = (*lead, *target.fixed), dtype_of(target.datatype)
        staged = None if self._staging is None else self._staging.try_take(f"out:{target.name}", shape, dtype)
        array: Array = np.empty(shape, dtype) if staged is None else staged
        element = ELEMENT_TYPES[target.datatype]
        self._binding.bind_output(target.name, "cpu", 0, element, shape, array.ctypes.data)
        return lambda _: array if staged is None else array.copy()


def _copy_out(value: OrtValue, datatype: Datatype) -> Array:
    if datatype != "BF16":
        return value.numpy()
    shape = tuple(value.shape())
    if math.prod(shape) == 0:
        return np.empty(shape, dtype_of("BF16"))
    bits = (ctypes.c_uint16 * math.prod(shape)).from_address(value.data_ptr())
    return np.ctypeslib.as_array(bits).copy().view(dtype_of("BF16")).reshape(shape)
