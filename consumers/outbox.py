"""Records on their way out: gathered into one batch per output partition, sent until the broker acknowledges them.

Nothing here is dropped: what the broker refuses for good goes back to its `Receipt`, everything else is sent again
until it is acknowledged or the process ends, in which case its inputs were never committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiokafka import errors as kafka_errors

from consumers.backoff import FIRST_S, Backoff
from consumers.destinations import Destinations
from consumers.ends import HeaderList
from consumers.kafka import known_partitions
from consumers.lane import Lane
from consumers.live_producer import PRODUCER_IS_DEAD, LiveProducer
from consumers.parcels import Entry, Parcel, Receipt, part_of, record_bytes, spread
from schemas.clock import Clock, Deadline, monotonic
from schemas.errors import HeadraceError, TooLargeError, Unavailable
from schemas.record import now_ms

__all__ = ["Outbox"]

log = logging.getLogger("headrace.outbox")

_LOOKUP_DEADLINE_S: Final = 10.0
_GATHER_S: Final = 0.01
_SLOW_S: Final = 5.0
"""A parcel on its way for longer is trouble: the producer itself goes on for its whole ``request_timeout_ms``."""
_TOO_LARGE = (
    kafka_errors.MessageSizeTooLargeError,
    kafka_errors.RecordListTooLargeError,
    kafka_errors.RecordTooLargeError,
)
_NO_SUCH_PLACE = (
    kafka_errors.UnknownTopicOrPartitionError,
    kafka_errors.InvalidTopicError,
    kafka_errors.TopicAuthorizationFailedError,
)


class Outbox:
    """
    Args:
        make_producer: a fresh, unstarted producer; called again when one has died.
        max_record_bytes: records above it are refused without asking the broker (client setting
            ``max_request_size``).
        max_pending_bytes: above so many unacknowledged bytes `congested` is true and intake must stop.
        first_backoff_s: from a failed send to the next; doubles.
    """

    def __init__(
        self,
        make_producer: Callable[[], Any],
        *,
        max_record_bytes: int,
        max_pending_bytes: int = 64 * 1024 * 1024,
        first_backoff_s: float = FIRST_S,
        clock: Clock = monotonic,
    ) -> None:
        self._live = LiveProducer(make_producer, first_backoff_s=first_backoff_s)
        self._destinations = Destinations(
            lambda: self._live.current,
            found=self._route,
            refused=self._refuse,
            first_backoff_s=first_backoff_s,
            clock=clock,
        )
        self._max_record_bytes = max_record_bytes
        self._max_pending_bytes = max_pending_bytes
        self._first_backoff_s = first_backoff_s
        self._clock = clock
        self._lanes: dict[tuple[str, int], Lane] = {}
        self._troubles: dict[tuple[str, int], str] = {}
        self._sent_at: dict[tuple[str, int], float] = {}
        self._patient: set[str] = set()
        self._next_partition = 0
        self._pending = 0
        self._sending_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: asyncio.TaskGroup | None = None
        self._stop = asyncio.Event()

    # -- lifecycle ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects.

        Raises:
            KafkaConnectionError: no broker answers.
        """
        await self._live.start()

    async def run(self) -> None:
        """Owns the sending tasks until `close`; raises what kills one of them."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            self._destinations.start(tasks)
            for lane in self._lanes.values():
                self._wake(lane)
            try:
                await self._stop.wait()
            finally:
                self._tasks = None
                self._destinations.stop()
                for lane in self._lanes.values():
                    if lane.task is not None:
                        lane.task.cancel()

    async def flush(self, deadline: Deadline) -> bool:
        """Waits until everything added so far is acknowledged; False when the deadline passed first."""
        try:
            async with asyncio.timeout(deadline.remaining_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def close(self, deadline: Deadline) -> None:
        """Ends `run`. What is not acknowledged by now is given up: its inputs are not committed."""
        self._stop.set()
        await self._live.stop(deadline)

    @property
    def congested(self) -> bool:
        return self.pending_bytes > self._max_pending_bytes

    @property
    def pending(self) -> int:
        """Records not yet acknowledged."""
        return self._pending

    @property
    def pending_bytes(self) -> int:
        """Their bytes, also of those whose topic is still looked for."""
        return self._sending_bytes + self._destinations.waiting_bytes

    @property
    def producer(self) -> Any:
        """The live producer, for the few records that are nobody's answer (registry)."""
        return self._live.current

    async def replace(self, producer: Any) -> None:
        """Puts another in the place of a producer that can never send again, however long that takes."""
        await self._live.replace(producer)

    @property
    def trouble(self) -> str:
        """Why something is not sent now; empty when all is well. May be read from any thread."""
        return (
            self._live.trouble
            or next(iter(list(self._troubles.values())), "")
            or self._destinations.trouble
            or next(filter(None, map(self._slow, list(self._sent_at.items()))), "")
        )

    def _slow(self, sent: tuple[tuple[str, int], float]) -> str:
        (topic, partition), at = sent
        waited_s = self._clock() - at
        return f"no answer for {waited_s:.0f} s to what was sent to {topic}[{partition}]" if waited_s > _SLOW_S else ""

    # -- adding ------------------------------------------------------------------------------------------------

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
        """Takes records to be sent; returns at once.

        Args:
            indices: the receipt's own numbers for these records.
            partition: None partitions by key as the Java client does; null keys are spread evenly.
            to_reply: the topic was named by a caller, so that its absence is the caller's error. A record for a
                topic of our own is sent until it is there.
        """
        entry = Entry(keys, values, headers, indices, receipt, to_reply)
        self._pending += len(indices)
        self._idle.clear()
        count = self._destinations.count(topic)
        if count is None:
            self._destinations.hold(topic, partition, entry)
        else:
            self._route(topic, partition, entry, count)

    def _route(self, topic: str, partition: int | None, entry: Entry, count: int) -> None:
        if partition is not None:
            if partition >= count:
                self._refuse(entry, Unavailable(f"topic {topic} has no partition {partition}, only {count}"))
                return
            self._append(topic, partition, entry)
        elif count == 1:
            self._append(topic, 0, entry)
        else:
            parts, self._next_partition = spread(entry, count, self._next_partition)
            for chosen, part in parts:
                self._append(topic, chosen, part)

    def _append(self, topic: str, partition: int, entry: Entry) -> None:
        lane = self._lanes.get((topic, partition))
        if lane is None:
            lane = self._lanes[(topic, partition)] = Lane(topic, partition)
        grown, too_large = lane.fill(entry, self._live.current.create_batch, self._max_record_bytes)
        self._sending_bytes += grown
        for at, size_bytes in too_large:
            self._refuse(part_of(entry, [at]), _too_large(size_bytes, self._max_record_bytes, lane))
        self._wake(lane)

    def gather(self, topic: str, patient: bool) -> None:
        """With a backlog of inputs, records for ``topic`` are sent in larger batches, each up to `_GATHER_S` later: a
        batch of 64 costs the client twice as much a record as one of 500."""
        if patient:
            self._patient.add(topic)
        else:
            self._patient.discard(topic)

    # -- sending -----------------------------------------------------------------------------------------------

    def _wake(self, lane: Lane) -> None:
        if lane.task is None and self._tasks is not None and (lane.filling is not None or lane.full):
            lane.task = self._tasks.create_task(self._drive(lane))

    async def _drive(self, lane: Lane) -> None:
        """Sends a lane's parcels one after the other; while one is under way the next one fills."""
        try:
            while True:
                if lane.topic in self._patient and not lane.full:
                    await asyncio.sleep(_GATHER_S)
                parcel = lane.next_parcel()
                if parcel is None:
                    break
                if parcel.count:
                    await self._deliver(lane, parcel)
        finally:
            lane.task = None
        if self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    async def _deliver(self, lane: Lane, parcel: Parcel) -> None:
        backoff = Backoff(self._first_backoff_s)
        while True:
            producer = self._live.current
            try:
                self._sent_at[lane.key] = self._clock()
                try:
                    await _send(producer, lane, parcel)
                finally:
                    del self._sent_at[lane.key]
            except kafka_errors.KafkaError as error:
                if _is_final(error, parcel):
                    self._troubles.pop(lane.key, None)
                    if parcel.count > 1 and not isinstance(error, _NO_SUCH_PLACE):
                        await self._deliver_singly(lane, parcel)
                    else:
                        self._give_back(lane, parcel, error)
                    return
                self._troubles[lane.key] = trouble = f"cannot write to {lane.topic}[{lane.partition}]: {error!r}"
                log.warning("%s; trying again in %.1f s", trouble, backoff.next_s)
                await backoff.wait()
                if isinstance(error, PRODUCER_IS_DEAD):
                    await self._live.replace(producer)
                self._rebuild(parcel)
            else:
                self._troubles.pop(lane.key, None)
                self._settle_bytes(parcel)
                for entry in parcel.entries:
                    self._settle(len(entry.indices))
                    entry.receipt.delivered(entry.indices)
                return

    async def _deliver_singly(self, lane: Lane, parcel: Parcel) -> None:
        """The broker refused the batch for what is in it: only the records at fault must fail."""
        self._settle_bytes(parcel)
        for entry in parcel.entries:
            for at in range(len(entry.indices)):
                single = Parcel(None, [part_of(entry, [at])], 1)
                self._rebuild(single)
                single.size_bytes = single.builder.size()
                self._sending_bytes += single.size_bytes
                await self._deliver(lane, single)

    def _rebuild(self, parcel: Parcel) -> None:
        """A builder can be sent once, so a second try needs a new one. All fits again: the records are the same and
        their timestamps no further apart."""
        builder = self._live.current.create_batch()
        timestamp = now_ms()
        for entry in parcel.entries:
            for key, value, headers in zip(entry.keys, entry.values, entry.headers, strict=True):
                builder.append(timestamp=timestamp, key=key, value=value, headers=headers)
        parcel.builder = builder

    # -- accounts ----------------------------------------------------------------------------------------------

    def _give_back(self, lane: Lane, parcel: Parcel, error: kafka_errors.KafkaError) -> None:
        self._settle_bytes(parcel)
        for entry in parcel.entries:
            if isinstance(error, _TOO_LARGE):
                size = record_bytes(entry, 0)
                self._refuse(entry, TooLargeError(f"{_what(size, lane)} was refused by the broker: {error}"))
            else:
                self._refuse(entry, Unavailable(f"reply topic {lane.topic} cannot be written: {error!r}"))

    def _refuse(self, entry: Entry, error: HeadraceError) -> None:
        self._settle(len(entry.indices))
        for index in entry.indices:
            entry.receipt.refused(index, error)

    def _settle(self, count: int) -> None:
        self._pending -= count
        if self._pending == 0:
            self._idle.set()

    def _settle_bytes(self, parcel: Parcel) -> None:
        self._sending_bytes -= parcel.size_bytes
        parcel.size_bytes = 0


async def _send(producer: Any, lane: Lane, parcel: Parcel) -> None:
    """Returns when the broker has acknowledged the parcel. Raises: KafkaError."""
    try:
        async with asyncio.timeout(_LOOKUP_DEADLINE_S):
            known = await known_partitions(producer, lane.topic)
    except TimeoutError:  # also of a producer that another lane has just replaced
        raise kafka_errors.KafkaTimeoutError(f"the broker does not tell the partitions of {lane.topic}") from None
    if lane.partition not in known:
        # The producer itself would fail an assertion. A topic made anew may have fewer partitions than before.
        raise kafka_errors.UnknownTopicOrPartitionError(f"{lane.topic} has no partition {lane.partition}")
    sent = await producer.send_batch(parcel.builder, lane.topic, partition=lane.partition)
    await sent


def _is_final(error: kafka_errors.KafkaError, parcel: Parcel) -> bool:
    """Whether to give up. A topic of our own is tried for ever, unless a record is too large for it; what a caller
    named may be missing, closed to us, or of a kind that takes no such records."""
    if isinstance(error, _TOO_LARGE):
        return True
    if isinstance(error, PRODUCER_IS_DEAD) or not all(entry.to_reply for entry in parcel.entries):
        return False
    refused = isinstance(error, kafka_errors.BrokerResponseError) and not error.retriable
    return refused or isinstance(error, _NO_SUCH_PLACE)


def _what(size: int, lane: Lane) -> str:
    return f"a record of {size:,} bytes for {lane.topic}"


def _too_large(size: int, limit: int, lane: Lane) -> TooLargeError:
    return TooLargeError(
        f"{_what(size, lane)} is above the limit of {limit:,} bytes; "
        "raise kafka.max_request_size and the topic's max.message.bytes, or return less"
    )
