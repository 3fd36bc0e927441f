"""Records in and out of any Kafka-compatible broker, with deadlines."""

from __future__ import annotations

import asyncio
import itertools
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from infra.topics import TopicSpec, committed, end_offsets, ensure_topics
from schemas.record import Headers

__all__ = ["Sent", "Stored", "committed_offsets", "make_topic", "produce", "read_all", "unique"]

_counter = itertools.count(1)


def unique(stem: str) -> str:
    """A name for a model, topic or group that no other test uses, also not one in another process."""
    return f"{re.sub(r'[^A-Za-z0-9-]+', '-', stem)}-{os.getpid()}-{next(_counter)}"


@dataclass(frozen=True, slots=True)
class Sent:
    """A record to produce. A partition of None leaves the choice to the key, or to chance."""

    value: bytes | None
    key: bytes | None = None
    headers: Headers = ()
    partition: int | None = None
    timestamp_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Stored:
    """A record as it was read."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    def header(self, name: str) -> bytes | None:
        """The last value under ``name``; None when it is absent or null."""
        return dict(self.headers).get(name)


async def make_topic(bootstrap: str, name: str, *, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
    """Creates the topic and returns its name."""
    await ensure_topics(bootstrap, [TopicSpec(name, partitions, 1, config or {})])
    return name


async def produce(
    bootstrap: str, topic: str, records: Iterable[Sent | bytes], *, deadline_s: float = 30.0
) -> list[tuple[int, int]]:
    """Sends in order, waits for every acknowledgement; (partition, offset) of each."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True)
    async with asyncio.timeout(deadline_s):
        try:
            await producer.start()
            waiting = []
            for record in records:
                one = Sent(record) if isinstance(record, bytes) else record
                waiting.append(
                    await producer.send(
                        topic,
                        one.value,
                        key=one.key,
                        partition=one.partition,
                        timestamp_ms=one.timestamp_ms,
                        headers=list(one.headers),
                    )
                )
            done = await asyncio.gather(*waiting)
        finally:
            await producer.stop()
    return [(one.partition, one.offset) for one in done]


async def read_all(
    bootstrap: str, *topics: str, count: int, deadline_s: float = 20.0, settle_s: float = 0.0
) -> list[Stored]:
    """Reads from the beginning until ``count`` records are in; fails the test, saying what came, when they are not.

    Args:
        settle_s: goes on reading for so long after the last of them, to catch what should not be there.
    """
    loop = asyncio.get_running_loop()
    found: list[Stored] = []
    # Without a group, and over partitions fixed at the start, so that nothing is left behind on the broker.
    partitions = [TopicPartition(*one) for one in await end_offsets(bootstrap, topics)]
    if not partitions:
        raise AssertionError(f"there is no topic {topics}")
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed", fetch_max_wait_ms=50)
    end, settled = loop.time() + deadline_s, False
    try:
        await consumer.start()
        consumer.assign(partitions)
        await consumer.seek_to_beginning(*partitions)
        while True:
            for records in (await consumer.getmany(timeout_ms=50)).values():
                found += [
                    Stored(one.topic, one.partition, one.offset, one.timestamp, one.key, one.value, tuple(one.headers))
                    for one in records
                ]
            if len(found) >= count and not settled:
                settled, end = True, loop.time() + settle_s
            if loop.time() >= end:
                break
    finally:
        await consumer.stop()
    if len(found) < count:
        raise AssertionError(f"{len(found)} of {count} records in {topics} within {deadline_s:g} s: {found[-3:]}")
    return found


async def committed_offsets(bootstrap: str, group: str, topic: str) -> dict[int, int]:
    """partition -> next offset to read; partitions without a commit are absent."""
    return {one: at for (name, one), at in (await committed(bootstrap, group)).items() if name == topic}
