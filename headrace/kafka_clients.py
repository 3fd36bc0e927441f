"""Kafka connections of the command line and the client library, opened within a deadline and always closed.

A node makes its own; see `consumers.kafka`. This module stands on `schemas` alone, so that a producer's own package
called ``infra`` or ``consumers`` never stands in the way of the client library.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import AsyncIterator, Awaitable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol, TypeVar

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, MessageSizeTooLargeError
from aiokafka.structs import OffsetAndMetadata

from schemas.errors import HeadraceError, TooLargeError, Unavailable

__all__ = [
    "CONNECT_S",
    "Broker",
    "Layout",
    "admin_client",
    "consumer_client",
    "group_offsets",
    "layout",
    "producer_client",
    "refusal",
]

CONNECT_S: Final = 10.0

_CLOSE_S: Final = 5.0
_DEFAULT_MAX_REQUEST_BYTES: Final = 1_048_576
_PRODUCE_BATCH_BYTES: Final = 256 * 1024

T = TypeVar("T")


class Broker:
    """Where the brokers are, how to talk to them, and how long to try before saying that nobody answers."""

    __slots__ = ("bootstrap", "connect_s", "kafka")

    def __init__(
        self, bootstrap: str, kafka: Mapping[str, object] | None = None, *, connect_s: float | None = None
    ) -> None:
        self.bootstrap = bootstrap
        self.connect_s = CONNECT_S if connect_s is None else connect_s
        self.kafka: Mapping[str, object] = kafka if kafka is not None else {}

    @property
    def max_request_bytes(self) -> int:
        return int(str(self.kafka.get("max_request_size", _DEFAULT_MAX_REQUEST_BYTES)))


class _Client(Protocol):
    async def start(self) -> None: ...


def _accepted(client: type, kafka: Mapping[str, object]) -> dict[str, Any]:
    known = inspect.signature(client).parameters
    return {name: value for name, value in kafka.items() if name in known}


async def _start(broker: Broker, client: _Client, timeout_s: float | None) -> None:
    """
    Raises:
        Unavailable: nobody answered in time, or the broker refused (wrong password, no TLS).
    """
    last: Exception | None = None
    allowed_s = broker.connect_s if timeout_s is None else timeout_s
    try:
        async with asyncio.timeout(allowed_s):
            while True:
                try:
                    await client.start()
                    return
                except (KafkaError, OSError) as error:
                    last = error
                await asyncio.sleep(min(0.2, allowed_s / 10))
    except TimeoutError:
        cause = f" ({last})" if last is not None else ""
        raise Unavailable(
            f"no Kafka broker answers at {broker.bootstrap} within {allowed_s:g} s{cause}; "
            "start one (`headrace up`, `headrace broker`) or name another with --bootstrap"
        ) from None


async def _close(closing: Awaitable[object]) -> None:
    """A broker that has gone must not keep the process: what cannot be closed in time is left."""
    with contextlib.suppress(TimeoutError, KafkaError, OSError):
        await asyncio.wait_for(closing, _CLOSE_S)


@contextlib.asynccontextmanager
async def producer_client(broker: Broker, *, timeout_s: float | None = None, linger_ms: int = 0) -> AsyncIterator[Any]:
    """An idempotent producer that waits for all replicas in sync."""
    settings = {"max_batch_size": _PRODUCE_BATCH_BYTES, "linger_ms": linger_ms, **broker.kafka}
    producer = AIOKafkaProducer(
        bootstrap_servers=broker.bootstrap,
        acks="all",
        enable_idempotence=True,
        **_accepted(AIOKafkaProducer, settings),
    )
    try:
        await _start(broker, producer, timeout_s)
        yield producer
    finally:
        await _close(producer.stop())


@contextlib.asynccontextmanager
async def consumer_client(
    broker: Broker,
    partitions: Sequence[TopicPartition] = (),
    *,
    timeout_s: float | None = None,
    group: str | None = None,
) -> AsyncIterator[Any]:
    """A consumer outside any group's balancing, with ``partitions`` assigned by hand; ``group`` only names offsets."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker.bootstrap,
        group_id=group,
        enable_auto_commit=False,
        **{"fetch_max_wait_ms": 100, **_accepted(AIOKafkaConsumer, broker.kafka), "auto_offset_reset": "earliest"},
    )
    try:
        await _start(broker, consumer, timeout_s)
        if partitions:
            consumer.assign(list(partitions))
        yield consumer
    finally:
        await _close(consumer.stop())


@contextlib.asynccontextmanager
async def admin_client(broker: Broker, *, timeout_s: float | None = None) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=broker.bootstrap, **_accepted(AIOKafkaAdminClient, broker.kafka))
    try:
        await _start(broker, admin, timeout_s)
        yield admin
    finally:
        await _close(admin.close())


@dataclass(frozen=True, slots=True)
class Layout:
    """``topics`` are all that this user may see; ``partitions`` those of the topics asked for, in order."""

    topics: frozenset[str]
    partitions: tuple[TopicPartition, ...]


async def layout(broker: Broker, wanted: Iterable[str], *, timeout_s: float | None = None) -> Layout:
    """What there is now. A topic that does not exist has no partitions, and is not made by asking for it.

    Raises:
        Unavailable: the broker does not answer.
    """
    async with admin_client(broker, timeout_s=timeout_s) as admin:
        try:
            topics = frozenset(await admin.list_topics())
            known = sorted(topics.intersection(wanted))
            described = await admin.describe_topics(known) if known else []
        except KafkaError as error:
            raise Unavailable(
                f"topics on {broker.bootstrap} cannot be read: {type(error).__name__}: {error}"
            ) from error
    found = [TopicPartition(one["topic"], part["partition"]) for one in described for part in one["partitions"]]
    return Layout(topics, tuple(sorted(found)))


async def group_offsets(broker: Broker, group: str) -> dict[TopicPartition, OffsetAndMetadata]:
    """What ``group`` has committed. A cluster's first group makes its coordinator start: that is waited for.

    Raises:
        Unavailable: the broker does not answer, or not within its ``connect_s``.
    """
    last: KafkaError | None = None
    try:
        async with admin_client(broker) as admin, asyncio.timeout(broker.connect_s):
            while True:
                try:
                    offsets = await admin.list_consumer_group_offsets(group)
                    return {partition: at for partition, at in offsets.items() if at.offset >= 0}
                except KafkaError as error:
                    if not error.retriable:
                        raise
                    last = error
                await asyncio.sleep(0.1)
    except TimeoutError:
        raise Unavailable(f"group {group} on {broker.bootstrap} cannot be read: {last}") from None
    except KafkaError as error:
        raise Unavailable(f"group {group} on {broker.bootstrap} cannot be read: {error}") from error


def refusal(broker: Broker, topic: str, size: int, error: Exception) -> HeadraceError:
    """What a failed send means to the one who sent ``size`` bytes of key, value and headers."""
    if isinstance(error, MessageSizeTooLargeError):
        return TooLargeError(
            f"a record of {size} bytes does not fit: the client sends at most {broker.max_request_bytes} bytes "
            f"(kafka option max_request_size) and topic {topic} may allow less (max.message.bytes)"
        )
    return Unavailable(f"topic {topic} took no record: {type(error).__name__}: {error}")
