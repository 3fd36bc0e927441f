"""Publishing many records to one model, with bounded memory, and awaiting their answers in order where asked to."""

from __future__ import annotations

import asyncio
import uuid
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka.errors import KafkaError

from headrace.client import GivenHeaders, request_headers
from headrace.directory import Directory
from headrace.kafka_clients import Broker, producer_client, refusal
from headrace.publish_sources import Draft, in_pieces
from headrace.records import Result
from headrace.replies import ReplyChannel, open_replies
from schemas import record as contract
from schemas.clock import Deadline
from schemas.errors import Expired, HeadraceError, Unavailable
from schemas.record import now_ms

__all__ = ["Order", "Publisher", "Totals", "publish"]

_IN_FLIGHT: Final = 5_000
_IN_FLIGHT_WAITING: Final = 500
"""Fewer when answers are awaited, so that the requests of a slow model wait in the file and not in Kafka."""
_IN_FLIGHT_BYTES: Final = 32 * 1024 * 1024
_ACK_S: Final = 60.0
_ANSWER_S: Final = 30.0
_LINGER_MS: Final = 5


@dataclass(frozen=True, slots=True)
class Order:
    """What each record is published with. ``deadline_s`` counts from the moment a record is sent."""

    key: bytes | None = None
    headers: GivenHeaders = ()
    deadline_s: float | None = None
    content_type: str | None = None
    wait: bool = False


@dataclass(slots=True)
class Totals:
    """``expired`` of the ``failed`` ones ended at a deadline; ``last_id`` is that of the last record sent."""

    topic: str
    sent: int = 0
    failed: int = 0
    expired: int = 0
    last_id: str = ""


@dataclass(slots=True)
class _Sent:
    source: str
    id: str
    size: int
    acknowledged: asyncio.Future[Any]
    answer: asyncio.Future[Result] | None
    deadline: Deadline


@dataclass(slots=True)
class Publisher:
    """Sends drafts in their order; holds at most a window of them unfinished.

    Attributes:
        on_end: called once a record, in the order of the input, with its answer or what failed it; with None where
            no answer was asked for and the broker has the record.
    """

    broker: Broker
    producer: Any
    replies: ReplyChannel | None
    order: Order
    totals: Totals
    on_end: Callable[[str, Result | HeadraceError | None], None]
    _window: deque[_Sent] = field(default_factory=deque)
    _window_bytes: int = 0

    async def send(self, draft: Draft) -> None:
        limit = _IN_FLIGHT if self.replies is None else _IN_FLIGHT_WAITING
        while self._window and (len(self._window) >= limit or self._window_bytes >= _IN_FLIGHT_BYTES):
            await self._finish_oldest()
        order, request_id = self.order, uuid.uuid4().hex
        headers = request_headers(
            request_id,
            content=((contract.CONTENT_TYPE, (order.content_type or draft.content_type).encode()),),
            given=order.headers,
            reply_to=None if self.replies is None else self.replies.address,
            deadline_ms=None if order.deadline_s is None else now_ms() + int(order.deadline_s * 1000),
        )
        answer = None if self.replies is None else self.replies.expect(request_id)
        try:
            async with asyncio.timeout(_ACK_S):
                acknowledged = await self.producer.send(self.totals.topic, draft.value, key=order.key, headers=headers)
        except TimeoutError:
            raise Unavailable(f"topic {self.totals.topic} on {self.broker.bootstrap} takes no more records") from None
        except KafkaError as error:
            raise refusal(self.broker, f"{self.totals.topic} ({draft.source})", len(draft.value), error) from error
        self.totals.sent += 1
        self.totals.last_id = request_id
        deadline = Deadline(order.deadline_s or _ANSWER_S)
        self._window.append(_Sent(draft.source, request_id, len(draft.value), acknowledged, answer, deadline))
        self._window_bytes += len(draft.value)

    async def finish(self) -> None:
        while self._window:
            await self._finish_oldest()

    async def _finish_oldest(self) -> None:
        sent = self._window.popleft()
        self._window_bytes -= sent.size
        end: Result | HeadraceError | None
        try:
            end = await self._end_of(sent)
        except HeadraceError as error:
            end = error
        failure = end.error if isinstance(end, Result) else end
        if failure is not None:
            self.totals.failed += 1
            self.totals.expired += isinstance(failure, Expired)
        self.on_end(sent.source, end)

    async def _end_of(self, sent: _Sent) -> Result | None:
        try:
            async with asyncio.timeout(_ACK_S):
                await sent.acknowledged
        except TimeoutError:
            raise Unavailable(f"{sent.source}: the broker did not acknowledge it within {_ACK_S:g} s") from None
        except KafkaError as error:
            raise refusal(self.broker, self.totals.topic, sent.size, error) from error
        if sent.answer is None or self.replies is None:
            return None
        try:
            # What is there already counts, however late it is looked at.
            async with asyncio.timeout(None if sent.answer.done() else sent.deadline.remaining_s):
                return await sent.answer
        except TimeoutError:
            raise Expired(
                f"{sent.source}: no answer before the deadline; is a node running? (`headrace status`)"
            ) from None
        finally:
            self.replies.forget(sent.id)


async def publish(
    broker: Broker,
    namespace: str,
    model: str,
    *,
    drafts: Iterator[Draft],
    order: Order,
    on_end: Callable[[str, Result | HeadraceError | None], None],
    on_read: Callable[[int], None] = lambda consumed: None,
) -> Totals:
    """Publishes all of ``drafts``; see `Publisher` for ``on_end``.

    Raises:
        HeadraceError: no such model, no broker, or a draft that cannot be read or sent: those before it have ended.
    """
    entry = await Directory(broker, namespace).find(model)
    totals = Totals(entry.requests)
    async with producer_client(broker, linger_ms=_LINGER_MS) as producer:
        if not order.wait:
            await _send_all(Publisher(broker, producer, None, order, totals, on_end), drafts, on_read)
        else:
            async with open_replies(broker, namespace) as replies:
                await _send_all(Publisher(broker, producer, replies, order, totals, on_end), drafts, on_read)
    return totals


async def _send_all(publisher: Publisher, drafts: Iterator[Draft], on_read: Callable[[int], None]) -> None:
    try:
        async for piece in in_pieces(drafts):
            for draft in piece:
                await publisher.send(draft)
            on_read(piece[-1].consumed)
    except HeadraceError as error:
        # A line was bad: what went before it is on its way, and its answers are still owed.
        await publisher.finish()
        if publisher.totals.sent == 0:
            raise
        before = "1 record" if publisher.totals.sent == 1 else f"{publisher.totals.sent:,} records"
        raise type(error)(
            f"{error}; {before} before it went out, so leave them out when you publish the rest"
        ) from error
    await publisher.finish()
