"""A producer and the broker behind it, in memory: what is sent lands, fails or waits as the test says."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from aiokafka import errors as kafka_errors
from aiokafka.producer.message_accumulator import BatchBuilder

from schemas.record import Headers

__all__ = ["Attempt", "FakeBroker", "FakeProducer", "Landed"]


class Landed(NamedTuple):
    """A record that the broker has."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> bytes | None:
        """The last value under ``name``; None when it is absent or null."""
        return dict(self.headers).get(name)


class FakeBatch:
    """aiokafka's own builder, which also remembers what went into it."""

    def __init__(self, size_bytes: int) -> None:
        self._real = BatchBuilder(size_bytes, 0, is_transactional=False)
        self.rows: list[tuple[bytes | None, bytes | None, Headers]] = []
        self.sent = False

    def append(
        self, *, timestamp: int, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
    ) -> object:
        taken: object = self._real.append(timestamp=timestamp, key=key, value=value, headers=headers)
        if taken is not None:
            self.rows.append((key, value, tuple(headers)))
        return taken

    def size(self) -> int:
        size: int = self._real.size()
        return size


@dataclass(slots=True, eq=False)
class Attempt:
    """A batch on its way."""

    topic: str
    partition: int
    batch: FakeBatch
    answer: asyncio.Future[None]


class FakeBroker:
    """
    Attributes:
        topics: name -> partitions.
        failures: what the next sends fail with, in order; None lets one pass.
        start_failures: the same for producers that start.
        held: while True, batches wait in ``waiting`` until `release`.
        max_record_bytes: a batch with a larger value is refused for its size.
        refuses: topics that take no records, and what they say.
        attempts: all batches ever sent.
    """

    def __init__(self, batch_bytes: int = 512 * 1024, **topics: int) -> None:
        self.topics = dict(topics)
        self.batch_bytes = batch_bytes
        self.failures: deque[Exception | None] = deque()
        self.start_failures: deque[Exception] = deque()
        self.held = False
        self.max_record_bytes = 1 << 30
        self.refuses: dict[str, Exception] = {}
        self.waiting: deque[Attempt] = deque()
        self.attempts: list[Attempt] = []
        self.landed: list[Landed] = []
        self.producers: list[FakeProducer] = []
        self.lookups: list[str] = []

    def make(self) -> FakeProducer:
        producer = FakeProducer(self)
        self.producers.append(producer)
        return producer

    def release(self) -> None:
        """Answers what waits, and holds nothing more."""
        self.held = False
        while self.waiting:
            self._answer(self.waiting.popleft())

    def on(self, topic: str) -> list[Landed]:
        return [record for record in self.landed if record.topic == topic]

    def values(self, topic: str) -> list[bytes | None]:
        return [record.value for record in self.on(topic)]

    def _take(self, attempt: Attempt) -> None:
        self.attempts.append(attempt)
        if self.held:
            self.waiting.append(attempt)
        else:
            self._answer(attempt)

    def _answer(self, attempt: Attempt) -> None:
        if attempt.answer.done():
            return
        error = self.failures.popleft() if self.failures else None
        error = error or self.refuses.get(attempt.topic)
        if error is None and any(len(value or b"") > self.max_record_bytes for _, value, _ in attempt.batch.rows):
            error = kafka_errors.MessageSizeTooLargeError()
        if error is not None:
            attempt.answer.set_exception(error)
            return
        self.landed.extend(Landed(attempt.topic, attempt.partition, *row) for row in attempt.batch.rows)
        attempt.answer.set_result(None)


class _Cluster:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self._broker.topics.get(topic)
        return None if count is None else set(range(count))


class _Client:
    def __init__(self, broker: FakeBroker) -> None:
        self.cluster = _Cluster(broker)
        self.tracked: set[str] = set()
        self.closed = False

    async def add_topic(self, topic: str) -> bool:
        if topic not in self.tracked and self.closed:
            await asyncio.Event().wait()  # as with aiokafka: nobody is left to ask the broker
        self.tracked.add(topic)
        return True

    def set_topics(self, topics: Sequence[str]) -> None:
        self.tracked = set(topics)


class FakeProducer:
    """Behaves as aiokafka's where the node can tell; ``die`` has every further send fail."""

    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker
        self.client = _Client(broker)
        self.started = False
        self.stopped = False
        self.death: Exception | None = None

    async def start(self) -> None:
        await asyncio.sleep(0)
        if self._broker.start_failures:
            raise self._broker.start_failures.popleft()
        self.started = True

    async def stop(self) -> None:
        await asyncio.sleep(0)
        self.stopped = self.client.closed = True

    def die(self, error: Exception) -> None:
        self.death = error

    def create_batch(self) -> FakeBatch:
        return FakeBatch(self._broker.batch_bytes)

    async def partitions_for(self, topic: str) -> set[int]:
        self._broker.lookups.append(topic)
        found = self.client.cluster.partitions_for_topic(topic)
        if found is None:
            await asyncio.sleep(0)
            raise kafka_errors.UnknownTopicOrPartitionError(topic)
        return found

    async def send_batch(self, batch: FakeBatch, topic: str, *, partition: int) -> asyncio.Future[None]:
        if self.stopped:
            raise kafka_errors.ProducerClosed
        if self.death is not None:
            raise self.death
        if batch.sent:
            raise AssertionError("a batch can be sent once only")
        if partition not in await self.partitions_for(topic):
            raise AssertionError("Unrecognized partition")  # as aiokafka does
        if topic not in self.client.tracked:
            raise AssertionError(f"{topic} may be forgotten while its batch lies in the producer")
        batch.sent = True
        attempt = Attempt(topic, partition, batch, asyncio.get_running_loop().create_future())
        self._broker._take(attempt)
        return attempt.answer

    async def send_and_wait(self, topic: str, value: bytes | None = None, key: bytes | None = None) -> None:
        batch = self.create_batch()
        batch.rows.append((key, value, ()))
        partition = 0
        await (await self.send_batch(batch, topic, partition=partition))
