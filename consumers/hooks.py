"""What a node reports; `infra.telemetry` listens. Called on the event loop, must not block or raise.

Calls are per bundle (records of one fetch that share a signature), so that their cost is spread over many records.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

__all__ = ["NO_HOOKS", "End", "NodeHooks", "Traced"]

End = Literal["result", "error_reply", "dead_letter", "expired", "cancelled", "retry", "tombstone"]
"""How a record left this node. ``retry`` means that it was handed to the retry topic and ends there."""


class Traced(Protocol):
    """Spans of one bundle, one for each record; obtained from `NodeHooks.trace`."""

    def traceparent(self, index: int) -> bytes:
        """W3C value for the record's outgoing ``traceparent``: same trace id, this span's id."""
        ...

    def finish(self, queue_s: float, compute_s: float, rows: int, errors: Mapping[int, str]) -> None:
        """Ends the spans; ``errors`` maps a record's index to its code."""
        ...


class NodeHooks(Protocol):
    def records_in(self, model: str, count: int) -> None: ...

    def records_out(self, model: str, end: End, count: int, ages_ms: Sequence[int]) -> None:
        """``count`` records ended; ``ages_ms`` are end-to-end latencies (now - record timestamp), one each."""

    def latency(self, model: str, count: int, queue_s: float, compute_s: float) -> None:
        """``count`` records shared these durations."""

    def error(self, model: str, code: str, count: int) -> None: ...

    def lag(self, model: str, partition: int, records: int, oldest_age_s: float) -> None:
        """``records`` = end offset - committed next offset, never below 0, over request and retry topic together."""

    def partition_gone(self, model: str, partition: int) -> None:
        """No longer assigned here: its gauges must vanish."""

    def paused(self, model: str, partition: int, paused: bool) -> None: ...

    def rebalance(self, assigned: int, revoked: int) -> None: ...

    def trace(self, model: str, headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> Traced | None:
        """Starts a span a record from each one's headers; None when tracing is off. Malformed context: a new root."""
        ...


class _NoHooks:
    def records_in(self, model: str, count: int) -> None: ...
    def records_out(self, model: str, end: End, count: int, ages_ms: Sequence[int]) -> None: ...
    def latency(self, model: str, count: int, queue_s: float, compute_s: float) -> None: ...
    def error(self, model: str, code: str, count: int) -> None: ...
    def lag(self, model: str, partition: int, records: int, oldest_age_s: float) -> None: ...
    def partition_gone(self, model: str, partition: int) -> None: ...
    def paused(self, model: str, partition: int, paused: bool) -> None: ...
    def rebalance(self, assigned: int, revoked: int) -> None: ...
    def trace(self, model: str, headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> Traced | None:
        return None


NO_HOOKS: NodeHooks = _NoHooks()
