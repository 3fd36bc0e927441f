"""Topics filled in bulk, and a view from outside of how far a consumer has come."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from infra.topics import TopicSpec, ensure_topics

__all__ = ["Progress", "Usage", "fill", "make_topics", "read_some", "usage", "watch"]

Headers = list[tuple[str, bytes | None]]


async def make_topics(bootstrap: str, *names: str, partitions: int = 4) -> None:
    await ensure_topics(bootstrap, [TopicSpec(name, partitions, 1, {}) for name in names])


async def fill(bootstrap: str, topic: str, values: Callable[[int], bytes], *, count: int, headers: Headers) -> None:
    """Writes ``values(0)`` to ``values(count - 1)``, record ``i`` to partition ``i % partitions``."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", max_batch_size=512 * 1024)
    await producer.start()
    try:
        partitions = len(await producer.partitions_for(topic))
        for partition in range(partitions):
            for builder in _builders(producer, values, range(partition, count, partitions), headers):
                await (await producer.send_batch(builder, topic, partition=partition))
    finally:
        await producer.stop()


def _builders(producer: Any, values: Callable[[int], bytes], numbers: range, headers: Headers) -> Iterator[Any]:
    builder = producer.create_batch()
    for number in numbers:
        value = values(number)
        if builder.append(timestamp=None, key=None, value=value, headers=headers) is None:
            yield builder
            builder = producer.create_batch()
            builder.append(timestamp=None, key=None, value=value, headers=headers)
    yield builder


@dataclass(frozen=True, slots=True)
class Usage:
    """CPU seconds used and resident bytes held by one process."""

    cpu_s: float
    resident_bytes: int


def usage(pid: int) -> Usage:
    """Source of the fields: proc(5), /proc/pid/stat 14 and 15 (clock ticks of 10 ms) and statm 2 (pages of 4 KiB)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return Usage((int(fields[11]) + int(fields[12])) / 100, pages * 4096)


@dataclass(frozen=True, slots=True)
class Progress:
    """``records`` results were there ``seconds`` after the first of them was seen."""

    records: int
    seconds: float
    usage: Usage


async def watch(bootstrap: str, topic: str, pid: int, *, count: int, deadline_s: float) -> list[Progress]:
    """Follows the end offsets of ``topic`` from its first new record until ``count`` are there.

    Raises:
        TimeoutError: they were not there in time.
        ProcessLookupError: the process that should write them has ended.
    """
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap)
    await consumer.start()
    try:
        partitions = [TopicPartition(topic, each) for each in sorted(await _partitions(consumer, topic))]
        begin = sum((await consumer.end_offsets(partitions)).values())
        seen: list[Progress] = []
        started = time.monotonic()
        first = 0.0
        while True:
            if not _alive(pid):
                raise ProcessLookupError(f"process {pid} ended before {count} records were in {topic}")
            records = sum((await consumer.end_offsets(partitions)).values()) - begin
            now = time.monotonic()
            if records and not first:
                first = now
            if records:
                seen.append(Progress(records, now - first, usage(pid)))
            if records >= count:
                return seen
            if now - started > deadline_s:
                raise TimeoutError(f"{records} of {count} records in {topic} within {deadline_s:g} s")
            await asyncio.sleep(0.05)
    finally:
        await consumer.stop()


def _alive(pid: int) -> bool:
    """False also for one that has ended and was not waited for."""
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


async def _partitions(consumer: Any, topic: str) -> set[int]:
    await consumer._client.force_metadata_update()
    found: set[int] = consumer.partitions_for_topic(topic)
    return found


async def read_some(bootstrap: str, topic: str, *, count: int) -> list[Any]:
    """The first ``count`` records, from all partitions."""
    consumer = AIOKafkaConsumer(topic, bootstrap_servers=bootstrap, auto_offset_reset="earliest")
    await consumer.start()
    found: list[Any] = []
    try:
        async with asyncio.timeout(60):
            while len(found) < count:
                for records in (await consumer.getmany(timeout_ms=500)).values():
                    found.extend(records)
    finally:
        await consumer.stop()
    return found[:count]
