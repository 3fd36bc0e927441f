"""Event-driven model inference on Kafka. What users import.

``Client`` and the errors are loaded when first asked for: a model's own file imports this package for its two errors,
and must not wait for a Kafka client.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from headrace.guard import check_packages
from headrace.version import __version__

# Before the first import from below, so that a stranger's `schemas` is named and not met as an odd ImportError. Only
# what this file needs: a caller's own `pipelines` is no business of the client library. The command checks all.
check_packages(("headrace", "schemas"))

if TYPE_CHECKING:
    from headrace.client import Client, InferResult, Submitted
    from headrace.records import Result
    from schemas.errors import (
        Cancelled,
        ConfigError,
        DecodeError,
        DeviceError,
        Expired,
        HeadraceError,
        ModelError,
        ModelLoadError,
        OutOfMemoryError,
        Overloaded,
        RequestError,
        RowErrors,
        TooLargeError,
        Unavailable,
        UnknownModelError,
        ValidationError,
    )

__all__ = [
    "Cancelled",
    "Client",
    "ConfigError",
    "DecodeError",
    "DeviceError",
    "Expired",
    "HeadraceError",
    "InferResult",
    "ModelError",
    "ModelLoadError",
    "OutOfMemoryError",
    "Overloaded",
    "RequestError",
    "Result",
    "RowErrors",
    "Submitted",
    "TooLargeError",
    "Unavailable",
    "UnknownModelError",
    "ValidationError",
    "__version__",
]

_HOMES = {
    "Client": "headrace.client",
    "InferResult": "headrace.client",
    "Submitted": "headrace.client",
    "Result": "headrace.records",
}


def __getattr__(name: str) -> object:
    if name not in __all__:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "schemas.errors")), name)
