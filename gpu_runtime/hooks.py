"""What the runtime reports; `infra.telemetry` listens. Called on the event loop, must not block or raise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gpu_runtime.request import Request

__all__ = ["NO_HOOKS", "RuntimeHooks"]


class RuntimeHooks(Protocol):
    def batch_done(
        self, model: str, requests: Sequence[Request], rows: int, started: float, compute_s: float, failed_rows: int
    ) -> None:
        """One execution of ``rows`` rows ended. ``started`` is on the runtime's clock (monotonic seconds)."""

    def queue_depth(self, model: str, rows: int) -> None:
        """Rows waiting now."""

    def dropped(self, model: str, rows: int, code: str) -> None:
        """Rows left the queue without running: ``expired``, ``cancelled``, or ``withdrawn`` when their scope closed."""

    def batch_limit(self, model: str, rows: int) -> None:
        """Out of memory lowered the rows of an execution to ``rows``."""

    def instance_threads(self, model: str, threads: int) -> None:
        """Intra-op threads of each of the model's instances."""


class _NoHooks:
    def batch_done(
        self, model: str, requests: Sequence[Request], rows: int, started: float, compute_s: float, failed_rows: int
    ) -> None: ...
    def queue_depth(self, model: str, rows: int) -> None: ...
    def dropped(self, model: str, rows: int, code: str) -> None: ...
    def batch_limit(self, model: str, rows: int) -> None: ...
    def instance_threads(self, model: str, threads: int) -> None: ...


NO_HOOKS: RuntimeHooks = _NoHooks()
