"""One reply topic of one caller: made when opened, deleted when closed, and each answer handed to who waits for it.

It sends nothing; whoever sends a request names `ReplyChannel.address` in ``headrace-reply-to``.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.admin import NewTopic
from aiokafka.errors import KafkaError, for_code

from headrace.kafka_clients import Broker, admin_client, consumer_client
from headrace.records import Result
from schemas.errors import Unavailable

__all__ = ["ReplyChannel", "open_replies"]

_RETENTION_MS: Final = 3_600_000
"""A caller that is killed leaves its topic behind; its answers then go after an hour."""
_CREATE_S: Final = 10.0
_DELETE_S: Final = 5.0

log = logging.getLogger("headrace.client")


class ReplyChannel:
    """Open -> closed, or open -> broken when the reading task dies; then every waiter gets its error.

    Attributes:
        topic: the reply topic, of one partition.
        unknown: answers nobody waited for (any more); they are dropped.
    """

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.unknown = 0
        self._waiting: dict[str, asyncio.Future[Result]] = {}
        self._broken: Unavailable | None = None

    @property
    def address(self) -> str:
        """The value for ``headrace-reply-to``."""
        return f"{self.topic}:0"

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    def expect(self, request_id: str) -> asyncio.Future[Result]:
        """Call before sending. Whoever stops waiting calls `forget`.

        Raises:
            Unavailable: the channel is broken or closed.
        """
        if self._broken is not None:
            raise self._broken
        future: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        return future

    def forget(self, request_id: str) -> None:
        self._waiting.pop(request_id, None)

    def take(self, result: Result) -> None:
        future = self._waiting.pop(result.id or "", None)
        if future is None or future.done():
            self.unknown += 1
        else:
            future.set_result(result)

    def end(self, reason: Unavailable) -> None:
        """Fails all who wait; none can wait any more."""
        self._broken = self._broken or reason
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(reason)
                future.exception()  # Seen: a waiter that has gone must not be reported as a lost error.
        self._waiting.clear()


async def _read(channel: ReplyChannel, consumer: Any) -> None:
    try:
        while True:
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    channel.take(Result.of(record))
    except KafkaError as error:
        channel.end(
            Unavailable(f"reply topic {channel.topic} cannot be read any more: {type(error).__name__}: {error}")
        )
    finally:
        channel.end(Unavailable(f"reply topic {channel.topic} is not read any more: its client is closed"))


@asynccontextmanager
async def open_replies(broker: Broker, namespace: str) -> AsyncIterator[ReplyChannel]:
    """A channel whose topic exists and whose reader stands at its beginning, so that no answer can be missed.

    Raises:
        Unavailable: the broker does not answer or does not let us make the topic.
    """
    channel = ReplyChannel(f"{namespace}.replies.{uuid.uuid4().hex}")
    partition = TopicPartition(channel.topic, 0)
    await _create(broker, channel.topic)
    try:
        async with consumer_client(broker, [partition]) as consumer:
            consumer.seek(partition, 0)
            reader = asyncio.create_task(_read(channel, consumer), name=f"replies {channel.topic}")
            try:
                yield channel
            finally:
                reader.cancel()
                await asyncio.wait([reader])
    finally:
        await _delete(broker, channel.topic)


async def _create(broker: Broker, topic: str) -> None:
    # The empty assignment lets -1, the broker's default replication, through the client to the broker.
    new = NewTopic(topic, 1, -1, replica_assignments={}, topic_configs={"retention.ms": str(_RETENTION_MS)})
    try:
        async with admin_client(broker) as admin, asyncio.timeout(_CREATE_S):
            ((_, code, message),) = (await admin.create_topics([new])).topic_errors
            if code != 0:
                why = message or for_code(code).__name__
                raise Unavailable(
                    f"no reply topic, and so no answers: {topic} cannot be made ({why}); "
                    f"allow this user to create and delete topics that begin with '{topic.rpartition('.')[0]}.'"
                )
            while topic not in await admin.list_topics():  # noqa: ASYNC110 - another machine's state: ask again
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise Unavailable(f"reply topic {topic} was not made within {_CREATE_S:g} s") from None
    except KafkaError as error:
        raise Unavailable(f"reply topic {topic} cannot be made: {type(error).__name__}: {error}") from None


async def _delete(broker: Broker, topic: str) -> None:
    with suppress(Unavailable, KafkaError, OSError, TimeoutError):
        async with asyncio.timeout(_DELETE_S), admin_client(broker, timeout_s=_DELETE_S) as admin:
            await admin.delete_topics([topic])
            return
    log.warning("reply topic %s was left behind; its records go after an hour", topic)
