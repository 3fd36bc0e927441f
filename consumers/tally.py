"""Counts for the registry, taken on the way to the telemetry hooks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from consumers.hooks import End, NodeHooks, Traced
from gpu_runtime.hooks import RuntimeHooks
from gpu_runtime.request import Request

__all__ = ["Counts", "Tally"]

_SHORTEST_S: Final = 1.0


@dataclass(slots=True)
class Counts:
    """One model's, since the start."""

    records_in: int = 0
    records_out: int = 0
    records_failed: int = 0
    batches: int = 0
    rows: int = 0
    _last_out: int = 0
    _last_at: float = 0.0
    _rate: float = 0.0

    def rate(self, now: float) -> float:
        """Records ended a second since the last call, or that call's answer when it is less than a second old, as more
        than one reader asks."""
        passed = now - self._last_at
        if self._last_at and passed < _SHORTEST_S:
            return self._rate
        ended = self.records_out + self.records_failed
        self._rate = (ended - self._last_out) / passed if self._last_at else 0.0
        self._last_out, self._last_at = ended, now
        return self._rate


class Tally:
    """Both kinds of hooks in one, counting and passing on."""

    def __init__(self, node: NodeHooks, runtime: RuntimeHooks) -> None:
        self._node = node
        self._runtime = runtime
        self._counts: dict[str, Counts] = {}
        # What is not counted goes straight through.
        self.latency = node.latency
        self.error = node.error
        self.lag = node.lag
        self.partition_gone = node.partition_gone
        self.paused = node.paused
        self.rebalance = node.rebalance
        self.queue_depth = runtime.queue_depth
        self.dropped = runtime.dropped
        self.batch_limit = runtime.batch_limit
        self.instance_threads = runtime.instance_threads

    def counts(self, model: str) -> Counts:
        return self._counts.setdefault(model, Counts())

    def records_in(self, model: str, count: int) -> None:
        self.counts(model).records_in += count
        self._node.records_in(model, count)

    def records_out(self, model: str, end: End, count: int, ages_ms: Sequence[int]) -> None:
        counts = self.counts(model)
        if end in ("result", "tombstone"):
            counts.records_out += count
        else:
            counts.records_failed += count
        self._node.records_out(model, end, count, ages_ms)

    def batch_done(
        self, model: str, requests: Sequence[Request], rows: int, started: float, compute_s: float, failed_rows: int
    ) -> None:
        counts = self.counts(model)
        counts.batches += 1
        counts.rows += rows
        self._runtime.batch_done(model, requests, rows, started, compute_s, failed_rows)

    def trace(self, model: str, headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> Traced | None:
        return self._node.trace(model, headers)
