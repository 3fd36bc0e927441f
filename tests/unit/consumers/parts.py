"""What the tests of the node's parts are built from: records, a model, partitions, and hooks that remember."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from aiokafka import TopicPartition

from consumers.desk import Desk
from consumers.ends import HeaderList
from consumers.hooks import End, Traced
from consumers.intake import Intake
from consumers.outbox import Outbox
from consumers.parcels import Receipt
from consumers.partition import Partition
from consumers.route import Route, route_for
from gpu_runtime.fake import ManualClock
from gpu_runtime.request import Outcome, Request
from gpu_runtime.runtime import Runtime
from schemas.errors import HeadraceError
from schemas.model import ModelConfig, QueuePolicy, RetryPolicy, TensorSpec
from schemas.record import Headers, Topics

__all__ = [
    "FakeOutbox",
    "FakeRecord",
    "FakeRuntime",
    "RecordingHooks",
    "Scene",
    "Sent",
    "config",
    "echo",
    "partition",
    "route",
]


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


@dataclass(slots=True)
class Sent:
    """One record given to the outbox; `ack` or `refuse` it as the broker would."""

    topic: str
    partition: int | None
    key: bytes | None
    value: bytes | None
    headers: HeaderList
    index: int
    receipt: Receipt
    to_reply: bool

    def ack(self) -> None:
        self.receipt.delivered([self.index])

    def refuse(self, error: HeadraceError) -> None:
        self.receipt.refused(self.index, error)

    def header(self, name: str) -> str | None:
        """The last value under ``name``."""
        value = dict(self.headers).get(name)
        return None if value is None else value.decode()


class FakeOutbox:
    """``calls``: records of each call of `add_many`."""

    def __init__(self) -> None:
        self.sent: list[Sent] = []
        self.calls: list[int] = []
        self.pending = 0
        self.congested = False
        self.gathered: dict[str, bool] = {}

    def gather(self, topic: str, patient: bool) -> None:
        self.gathered[topic] = patient

    def add_many(
        self,
        topic: str,
        *,
        keys: Sequence[bytes | None],
        values: Sequence[bytes | None],
        headers: Sequence[HeaderList],
        indices: Sequence[int],
        receipt: Receipt,
        partition: int | None = None,
        to_reply: bool = False,
    ) -> None:
        self.calls.append(len(indices))
        for key, value, each, index in zip(keys, values, headers, indices, strict=True):
            assert isinstance(each, list), "aiokafka takes lists only"
            self.sent.append(Sent(topic, partition, key, value, each, index, receipt, to_reply))

    def take(self) -> list[Sent]:
        """What was given since the last call."""
        sent, self.sent = self.sent, []
        return sent


class FakeRuntime:
    """Accepts requests while ``capacity`` rows last, none for the models in ``full``; the test answers them."""

    def __init__(self, capacity: int = 1_000) -> None:
        self.capacity = capacity
        self.full: set[str] = set()
        self.requests: list[Request] = []
        self.backlogs: list[bool] = []

    def try_submit(self, model: str, request: Request) -> bool:
        if request.rows > self.room(model):
            return False
        self.capacity -= request.rows
        self.requests.append(request)
        return True

    def room(self, model: str) -> int:
        return 0 if model in self.full else self.capacity

    def set_backlog(self, model: str, backlog: bool) -> None:
        self.backlogs.append(backlog)

    def take(self) -> list[Request]:
        """Accepted since the last call."""
        requests, self.requests = self.requests, []
        return requests


def echo(request: Request, errors: Mapping[int, HeadraceError] | None = None) -> None:
    """Answers ``y = x``; rows in ``errors`` failed."""
    failed = dict(errors or {})
    outputs = None if len(failed) == request.rows else {"y": request.tensors["x"]}
    request.on_done(Outcome(outputs, failed, queue_s=0.1, compute_s=0.2, batch_rows=request.rows))


class Scene:
    """An intake over one partition, with everything around it in the test's hand."""

    def __init__(
        self,
        model: ModelConfig | None = None,
        *,
        tombstones: str = "skip",
        capacity: int = 1_000,
        of_retries: bool = False,
    ) -> None:
        self.route = route(model)
        self.partition = partition(self.route, topic=self.route.retry if of_retries else None)
        self.outbox = FakeOutbox()
        self.runtime = FakeRuntime(capacity)
        self.hooks = RecordingHooks()
        self.clock = ManualClock()
        self.woken = 0
        self.desk = Desk(cast(Outbox, self.outbox), self.hooks, self._wake)
        self.intake = Intake(cast(Runtime, self.runtime), self.desk, tombstones=tombstones, clock=self.clock)
        self._next = 0

    def _wake(self) -> None:
        self.woken += 1

    def take(self, *records: FakeRecord) -> None:
        """Fetches records, which get the next offsets."""
        for record in records:
            record.offset = self._next
            self._next += 1
        self.intake.take(self.partition, records)

    @property
    def position(self) -> int | None:
        return self.partition.ledger.position()
