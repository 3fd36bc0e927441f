"""The seam between the runtime and a way of running models.

To add a backend: one file in ``gpu_runtime/backends/`` with a class that satisfies `Backend`, one line in
``gpu_runtime/backends/registry.py``, and one parameter in ``tests/contract/test_backends.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gpu_runtime.request import Parameters
from schemas.model import ModelConfig
from schemas.tensors import Tensors

__all__ = ["Backend", "BackendFactory", "LoadContext"]


@dataclass(frozen=True, slots=True)
class LoadContext:
    """What a backend is given to load one instance.

    Attributes:
        path: the version folder (``<repository>/<model>/<version>``).
        config: complete configuration.
        device: ``cpu`` or ``cuda:N``.
        threads: intra-op threads this instance may use.
    """

    path: Path
    config: ModelConfig
    device: str
    threads: int

    @property
    def parameters(self) -> dict[str, object]:
        return self.config.parameters


class Backend(Protocol):
    """One loaded instance. All calls come from the one thread that owns it, never two at once."""

    def infer(self, batch: Tensors, parameters: Sequence[Parameters] | None) -> Tensors:
        """Runs one batch. May block; must not touch the event loop.

        Args:
            batch: ``{input: [rows, ...]}`` (the model's own shapes when it has no batch dimension).
            parameters: one mapping a row, or None.

        Returns:
            Every declared output, ``[rows, ...]``, in the order of the rows.

        Raises:
            RowErrors: some rows failed, the rest are answered.
            OutOfMemoryError: the batch does not fit; a smaller one may.
            DeviceError: the device is dead.
            Exception: the batch failed; it is tried again row by row.
        """
        ...

    @property
    def memory_bytes(self) -> int:
        """Bytes this instance holds on its device; an estimate from file sizes where nothing can be measured."""
        ...

    def close(self) -> None:
        """Frees everything. Called once, after the last ``infer`` returned."""
        ...


class BackendFactory(Protocol):
    """Loads one instance; may block for long. Called in the thread that will own it."""

    def __call__(self, context: LoadContext) -> Backend:
        """
        Raises:
            ModelLoadError: naming the file and the cause.
            DeviceError: the device cannot be used.
        """
        ...
