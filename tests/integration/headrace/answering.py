"""A stand-in for a node: reads requests of one topic and answers each as a test wants."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from schemas.record import Headers, ReplyTo, parse_headers
from tests.support.records import Stored

__all__ = ["Answerer", "Reply", "announce", "answering"]


@dataclass(frozen=True, slots=True)
class Reply:
    """``headers`` beside the id and the caller's own. ``times`` it is sent; 0 for no answer."""

    value: bytes | None
    headers: Headers = ()
    times: int = 1


@dataclass(slots=True)
class Answerer:
    seen: list[Stored] = field(default_factory=list)


@contextlib.asynccontextmanager
async def answering(
    bootstrap: str, requests: str, results: str, answer: Callable[[Stored], Reply]
) -> AsyncIterator[Answerer]:
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, fetch_max_wait_ms=20)
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await consumer.start()
    await producer.start()
    partition = TopicPartition(requests, 0)
    consumer.assign([partition])
    await consumer.seek_to_beginning(partition)
    found = Answerer()

    async def loop() -> None:
        async for one in consumer:
            record = Stored(one.topic, one.partition, one.offset, one.timestamp, one.key, one.value, tuple(one.headers))
            found.seen.append(record)
            envelope, reply = parse_headers(record.headers), answer(record)
            to = envelope.reply_to or ReplyTo(results)
            headers = [*envelope.passthrough, ("headrace-id", (envelope.id or "").encode()), *reply.headers]
            for _ in range(reply.times):
                await producer.send_and_wait(
                    to.topic, reply.value, key=record.key, partition=to.partition, headers=headers
                )

    task = asyncio.create_task(loop())
    try:
        yield found
    finally:
        task.cancel()
        await asyncio.wait([task])
        await consumer.stop()
        await producer.stop()
        if not task.cancelled() and (error := task.exception()) is not None:
            raise error


async def announce(bootstrap: str, registry: str, key: bytes, value: bytes | None) -> None:
    """Writes one entry of the registry."""
    producer = AIOKafkaProducer(bootstrap_servers=bootstrap)
    await producer.start()
    try:
        await producer.send_and_wait(registry, value, key=key)
    finally:
        await producer.stop()
