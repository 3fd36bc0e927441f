"""Event-driven model inference on Kafka. What users import."""

from headrace.version import __version__
from schemas.errors import DeviceError, RowErrors

__all__ = ["DeviceError", "RowErrors", "__version__"]
