"""The one error tree. Every refusal a user can meet is one of these.

::

    HeadraceError
    ├── ConfigError          config             a file or a setting is wrong: stops the start
    ├── RequestError                            the caller got something wrong; a retry does not help
    │   ├── DecodeError      decode             the value cannot be parsed in the form its headers name
    │   ├── ValidationError  validation         parsed, but does not fit the model's declaration
    │   ├── TooLargeError    too_large          a request or a result exceeds a limit
    │   └── UnknownModelError unknown_model     no such model here
    ├── ModelError           model              the model raised, or broke the batch law
    │   ├── OutOfMemoryError oom                a single row does not fit on the device
    │   └── ModelLoadError   model_load         the model could not be loaded
    ├── DeviceError          device             the device is dead: intake stops, the process ends
    ├── Overloaded           overloaded         a queue is full: try again later
    ├── Unavailable          unavailable        broker or runtime is away, stopping or starting
    ├── Expired              expired            the deadline passed before the work was done
    └── Cancelled            cancelled          the caller took the request back

Each carries ``code`` (stable, in the ``headrace-error`` header and in metrics), ``http_status`` and
``retriable`` (whether the same request may succeed if it is tried again).
"""

from __future__ import annotations

from typing import ClassVar

__all__ = [
    "Cancelled",
    "ConfigError",
    "DecodeError",
    "DeviceError",
    "Expired",
    "HeadraceError",
    "ModelError",
    "ModelLoadError",
    "OutOfMemoryError",
    "Overloaded",
    "RequestError",
    "RowErrors",
    "TooLargeError",
    "Unavailable",
    "UnknownModelError",
    "ValidationError",
    "error_from_code",
]


class HeadraceError(Exception):
    """Root of the tree. ``str(error)`` names the thing, the value and the remedy."""

    code: ClassVar[str] = "internal"
    http_status: ClassVar[int] = 500
    retriable: ClassVar[bool] = False

    @property
    def message(self) -> str:
        return str(self)


class ConfigError(HeadraceError):
    code = "config"


class RequestError(HeadraceError):
    code = "bad_request"
    http_status = 400


class DecodeError(RequestError):
    code = "decode"


class ValidationError(RequestError):
    code = "validation"


class TooLargeError(RequestError):
    code = "too_large"
    http_status = 413


class UnknownModelError(RequestError):
    code = "unknown_model"
    http_status = 404


class ModelError(HeadraceError):
    code = "model"
    http_status = 502
    retriable = True


class OutOfMemoryError(ModelError):
    code = "oom"
    http_status = 503


class ModelLoadError(ModelError):
    code = "model_load"
    http_status = 503


class DeviceError(HeadraceError):
    """Raised by a model or backend when its device cannot be used any more."""

    code = "device"
    http_status = 503
    retriable = True


class Overloaded(HeadraceError):
    code = "overloaded"
    http_status = 429
    retriable = True


class Unavailable(HeadraceError):
    code = "unavailable"
    http_status = 503
    retriable = True


class Expired(HeadraceError):
    code = "expired"
    http_status = 504


class Cancelled(HeadraceError):
    code = "cancelled"
    http_status = 499


class RowErrors(Exception):
    """Raised by a model to fail single rows of a batch and answer the rest.

    Args:
        rows: row index within the batch -> reason.
        outputs: ``{name: array of shape [rows, ...]}`` for the whole batch; the failed rows' values are ignored.
    """

    def __init__(self, rows: dict[int, str], outputs: dict[str, object]) -> None:
        super().__init__(f"{len(rows)} rows failed")
        self.rows = rows
        self.outputs = outputs


def _tree(root: type[HeadraceError]) -> dict[str, type[HeadraceError]]:
    found = {root.code: root}
    for child in root.__subclasses__():
        found.update(_tree(child))
    return found


def error_from_code(code: str, message: str) -> HeadraceError:
    """The typed error for a ``headrace-error`` header; an unknown code gives the root class."""
    return _tree(HeadraceError).get(code, HeadraceError)(message)
