"""Event-driven model inference on Kafka. What users import."""

from headrace.guard import check_packages
from headrace.version import __version__

# Before the first import from below, so that a stranger's `schemas` is named and not met as an odd ImportError. Only
# what this file needs: a caller's own `pipelines` is no business of the client library. The command checks all.
check_packages(("headrace", "schemas"))

from schemas.errors import DeviceError, RowErrors  # noqa: E402 - the check must come first

__all__ = ["DeviceError", "RowErrors", "__version__"]
