"""The backends by name. Nothing heavy is imported before a model that needs it loads."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from gpu_runtime.backend import Backend, BackendFactory, LoadContext
from schemas.errors import ModelLoadError

__all__ = ["BACKENDS", "backend_named"]


def _onnx(context: LoadContext) -> Backend:
    from gpu_runtime.backends.onnx import load_onnx

    return load_onnx(context)


def _python(context: LoadContext) -> Backend:
    from gpu_runtime.backends.python import load_python

    return load_python(context)


BACKENDS: Final[Mapping[str, BackendFactory]] = {
    "onnx": _onnx,
    "onnxruntime": _onnx,  # Triton's name
    "python": _python,
}


def backend_named(name: str) -> BackendFactory:
    """
    Raises:
        ModelLoadError: there is no such backend; lists those there are.
    """
    found = BACKENDS.get(name)
    if found is None:
        raise ModelLoadError(f"there is no backend {name!r}; set backend to one of {', '.join(sorted(BACKENDS))}")
    return found
