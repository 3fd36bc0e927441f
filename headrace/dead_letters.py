"""Dead letters of one model: read them, and give them back to the model once each.

What has been replayed is remembered as the offsets of a consumer group, ``<namespace>.dead.<model>``: its committed
offset says "all before this", and the commit's metadata lists the ones replayed beyond it, when only some were chosen.
A crash in the middle may replay the last few again, never skip one.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import AsyncIterator, Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.structs import OffsetAndMetadata

from headrace.directory import Directory
from headrace.kafka_clients import Broker, consumer_client, group_offsets, layout, producer_client, refusal
from headrace.records import Result, header
from headrace.replayed import Replayed
from schemas import record as contract
from schemas.errors import Unavailable
from schemas.record import Headers
from schemas.registry import ModelEntry

__all__ = ["Choice", "DeadLetters", "open_dead_letters", "original_headers"]

_COMMIT_EVERY: Final = 200

_ADDED: Final = contract.OF_A_DEATH | {contract.DEADLINE}
"""What a dead letter does not give back. The deadline goes too: it has passed, and would kill the record again."""


def original_headers(headers: Headers, topics: Collection[str]) -> list[tuple[str, bytes | None]]:
    """The headers of the request as it was, in their order.

    A reply topic that is not among ``topics`` went with its caller; without it the result goes to the results topic.
    """
    reply_topic = (header(headers, contract.REPLY_TO) or "").partition(":")[0]
    left_out = _ADDED if reply_topic in topics else _ADDED | {contract.REPLY_TO}
    return [(name, value) for name, value in headers if name not in left_out]


@dataclass(frozen=True, slots=True)
class Choice:
    """Which letters are meant: all that match every field that is set."""

    id: str | None = None
    error: str | None = None
    partition: int | None = None
    offset: int | None = None

    def takes(self, letter: Result) -> bool:
        return (
            (self.id is None or letter.id == self.id)
            and (self.error is None or letter.error_code == self.error)
            and (self.partition is None or letter.partition == self.partition)
            and (self.offset is None or letter.offset == self.offset)
        )


@dataclass(slots=True)
class DeadLetters:
    """
    Attributes:
        topics: all that exist.
        starts, ends: offsets between which there are letters, at the time of opening.
    """

    broker: Broker
    entry: ModelEntry
    group: str
    consumer: Any
    topics: Collection[str] = ()
    starts: dict[TopicPartition, int] = field(default_factory=dict)
    ends: dict[TopicPartition, int] = field(default_factory=dict)
    replayed: dict[TopicPartition, Replayed] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """Letters retained, at most: offsets may have gaps."""
        return sum(self.ends[partition] - self.starts[partition] for partition in self.ends)

    def was_replayed(self, letter: Result) -> bool:
        return letter.offset in self.replayed[TopicPartition(letter.topic, letter.partition)]

    async def letters(self, choice: Choice | None = None, *, replayed: bool = False) -> AsyncIterator[Result]:
        """Letters in the order of their partitions; with ``replayed`` also those that were given back already.

        Raises:
            Unavailable: the topic cannot be read.
        """
        choice = choice or Choice()
        for partition, end in self.ends.items():
            if self.starts[partition] >= end or choice.partition not in (None, partition.partition):
                continue
            self.consumer.seek(partition, max(self.starts[partition], choice.offset or 0))
            self.consumer.resume(partition)
            async for letter in self._until(partition, end):
                if choice.takes(letter) and (replayed or not self.was_replayed(letter)):
                    yield letter
            self.consumer.pause(partition)

    async def _until(self, partition: TopicPartition, end: int) -> AsyncIterator[Result]:
        expected = await self.consumer.position(partition)
        try:
            while await self.consumer.position(partition) < end:
                # Few at a time: what is fetched and not yet handed on is held in memory.
                fetched = await self.consumer.getmany(partition, timeout_ms=500, max_records=100)
                for record in fetched.get(partition, ()):
                    # Offsets that hold no record (transaction markers) are nobody's to replay.
                    self.replayed[partition].add(expected, record.offset - 1)
                    expected = record.offset + 1
                    if record.offset < end:
                        yield Result.of(record)
        except KafkaError as error:
            raise Unavailable(f"topic {partition.topic} cannot be read: {type(error).__name__}: {error}") from error

    async def replay(self, choice: Choice, *, on_replayed: Callable[[Result], None]) -> int:
        """Publishes the chosen letters, as they were before they died, to the model's request topic.

        Returns:
            How many. Each was acknowledged before it is remembered as replayed.

        Raises:
            HeadraceError: one could not be published; those before it are remembered.
        """
        count = 0
        touched: set[TopicPartition] = set()
        async with producer_client(self.broker) as producer:
            try:
                async for letter in self.letters(choice):
                    partition = TopicPartition(letter.topic, letter.partition)
                    if self.replayed[partition].full:
                        raise Unavailable(
                            f"too many separate letters of {partition.topic} partition {partition.partition} were "
                            "replayed one by one to be remembered; replay all the others once, without a choice"
                        )
                    await self._give_back(producer, letter)
                    self.replayed[partition].add(letter.offset)
                    touched.add(partition)
                    count += 1
                    on_replayed(letter)
                    if count % _COMMIT_EVERY == 0:
                        await self._remember(touched)
            finally:
                await self._remember(touched)
        return count

    async def _give_back(self, producer: Any, letter: Result) -> None:
        headers = original_headers(letter.headers, self.topics)
        if header(letter.headers, contract.ID) is None:
            headers.append((contract.ID, uuid.uuid4().hex.encode()))
        size = len(letter.value or b"") + len(letter.key or b"")
        try:
            if letter.key is None and letter.value is None:
                await _send_nothing(producer, self.entry.requests, letter.partition, headers)
            else:
                await producer.send_and_wait(self.entry.requests, letter.value, key=letter.key, headers=headers)
        except KafkaError as error:
            raise refusal(self.broker, self.entry.requests, size, error) from error

    async def _remember(self, touched: set[TopicPartition]) -> None:
        offsets = {}
        for partition in touched:
            done = self.replayed[partition]
            offsets[partition] = OffsetAndMetadata(done.floor, done.metadata)
        if not offsets:
            return
        try:
            await self.consumer.commit(offsets)
        except KafkaError as error:
            raise Unavailable(f"what was replayed could not be recorded in group {self.group}: {error}") from error
        touched.clear()


async def _send_nothing(producer: Any, topic: str, number: int, headers: list[tuple[str, bytes | None]]) -> None:
    """A record with neither key nor value, which the client's ``send`` refuses and a batch of one does not."""
    partitions = sorted(await producer.partitions_for(topic))
    batch = producer.create_batch()
    batch.append(key=None, value=None, timestamp=None, headers=headers)
    await (await producer.send_batch(batch, topic, partition=partitions[number % len(partitions)]))


@contextlib.asynccontextmanager
async def open_dead_letters(broker: Broker, namespace: str, model: str) -> AsyncIterator[DeadLetters]:
    """
    Raises:
        UnknownModelError | Unavailable: no such model, or no broker.
    """
    entry = await Directory(broker, namespace).find(model)
    group = f"{namespace}.dead.{model}"
    committed = await group_offsets(broker, group)
    there = await layout(broker, [entry.dead])
    partitions = there.partitions
    # Assigned once for all: aiokafka's coordinator does not bear a second assignment by hand. Only the partition that
    # is being read is fetched.
    async with consumer_client(broker, partitions, group=group) as consumer:
        found = DeadLetters(broker, entry, group, consumer, there.topics)
        if partitions:
            consumer.pause(*partitions)
            found.starts = await consumer.beginning_offsets(partitions)
            found.ends = dict(sorted((await consumer.end_offsets(partitions)).items()))
        for partition in partitions:
            at = committed.get(partition)
            offset, metadata = (0, "") if at is None else (at.offset, at.metadata)
            found.replayed[partition] = Replayed.read(offset, metadata, start=found.starts[partition])
        yield found
