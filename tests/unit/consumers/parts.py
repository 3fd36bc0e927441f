"""What the tests of the node's parts are built from: records, a model, partitions, and hooks that remember."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from aiokafka import TopicPartition

from consumers.hooks import End, Traced
from consumers.partition import Partition
from consumers.route import Route, route_for
from schemas.model import ModelConfig, QueuePolicy, RetryPolicy, TensorSpec
from schemas.record import Headers, Topics

__all__ = ["FakeRecord", "RecordingHooks", "config", "partition", "route"]


@dataclass(slots=True)
class FakeRecord:
    """As aiokafka gives it."""

    value: bytes | None = b""
    offset: int = 0
    key: bytes | None = None
    headers: Headers = ()
    timestamp: int = 1_000_000
    topic: str = "headrace.models.m"
    partition: int = 0


def config(
    *,
    max_batch_size: int = 8,
    max_attempts: int = 3,
    initial_delay_ms: int = 200,
    max_delay_ms: int = 30_000,
    default_deadline_ms: int | None = None,
    max_rows: int = 4096,
) -> ModelConfig:
    """Model ``m``: FP32 ``x [2]`` in, FP32 ``y [2]`` out."""
    return ModelConfig(
        name="m",
        backend="python",
        max_batch_size=max_batch_size,
        inputs=(TensorSpec(name="x", datatype="FP32", shape=(2,)),),
        outputs=(TensorSpec(name="y", datatype="FP32", shape=(2,)),),
        queue=QueuePolicy(max_rows=max_rows, default_deadline_ms=default_deadline_ms),
        retry=RetryPolicy(max_attempts=max_attempts, initial_delay_ms=initial_delay_ms, max_delay_ms=max_delay_ms),
    )


def route(model: ModelConfig | None = None) -> Route:
    return route_for(model or config(), Topics())


def partition(of: Route, number: int = 0, *, committed: int | None = 0, topic: str | None = None) -> Partition:
    return Partition(TopicPartition(topic or of.requests, number), of, committed)


@dataclass
class RecordingHooks:
    """Satisfies `NodeHooks`."""

    counts: Counter[str] = field(default_factory=Counter)
    ages: list[int] = field(default_factory=list)
    lags: dict[tuple[str, int], tuple[int, float]] = field(default_factory=dict)
    pauses: dict[tuple[str, int], bool] = field(default_factory=dict)
    gone: list[tuple[str, int]] = field(default_factory=list)
    rebalances: list[tuple[int, int]] = field(default_factory=list)
    traced: Traced | None = None

    def records_in(self, model: str, count: int) -> None:
        self.counts["in"] += count

    def records_out(self, model: str, end: End, count: int, ages_ms: Sequence[int]) -> None:
        assert len(ages_ms) == count
        self.counts[end] += count
        self.ages.extend(ages_ms)

    def latency(self, model: str, count: int, queue_s: float, compute_s: float) -> None:
        self.counts["latency"] += count

    def error(self, model: str, code: str, count: int) -> None:
        self.counts[f"error {code}"] += count

    def lag(self, model: str, partition: int, records: int, oldest_age_s: float) -> None:
        self.lags[(model, partition)] = (records, oldest_age_s)

    def partition_gone(self, model: str, partition: int) -> None:
        self.gone.append((model, partition))

    def paused(self, model: str, partition: int, paused: bool) -> None:
        self.pauses[(model, partition)] = paused

    def rebalance(self, assigned: int, revoked: int) -> None:
        self.rebalances.append((assigned, revoked))

    def trace(self, model: str, headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> Traced | None:
        return self.traced

    def ended(self) -> Mapping[str, int]:
        """Ends counted so far, by name."""
        ends = ("result", "error_reply", "dead_letter", "expired", "cancelled", "retry", "tombstone")
        return {end: self.counts[end] for end in ends if self.counts[end]}
