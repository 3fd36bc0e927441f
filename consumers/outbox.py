"""Records on their way out: gathered into one batch per output partition, sent until the broker acknowledges them.

Nothing here is dropped: what the broker refuses for good goes back to its `Receipt`, everything else is sent again
until it is acknowledged or the process ends, in which case its inputs were never committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from aiokafka import errors as kafka_errors

from consumers.ends import HeaderList
from consumers.parcels import Entry, Parcel, Receipt, part_of, record_bytes, spread
from schemas.clock import Clock, Deadline, monotonic
from schemas.errors import HeadraceError, TooLargeError, Unavailable
from schemas.record import now_ms

__all__ = ["Outbox"]

log = logging.getLogger("headrace.outbox")

_TOPIC_DEADLINE_S: Final = 10.0
_COUNT_TTL_S: Final = 30.0
_FIRST_BACKOFF_S: Final = 0.1
_MAX_BACKOFF_S: Final = 5.0

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
_PRODUCER_IS_DEAD = (
    kafka_errors.OutOfOrderSequenceNumber,
    kafka_errors.InvalidProducerEpoch,
    kafka_errors.InvalidProducerIdMapping,
    kafka_errors.UnknownProducerId,
    kafka_errors.ProducerFenced,
    kafka_errors.ProducerClosed,
)


class _Lane:
    """One output partition: the parcel being filled, those that are full, and the task that sends them in order."""

    __slots__ = ("filling", "full", "partition", "task", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.filling: Parcel | None = None
        self.full: deque[Parcel] = deque()
        self.task: asyncio.Task[None] | None = None


class Outbox:
    """
    Args:
        make_producer: a fresh, unstarted producer; called again when one has died.
        max_record_bytes: records above it are refused without asking the broker (client setting
            ``max_request_size``).
        max_pending_bytes: above so many unacknowledged bytes `congested` is true and intake must stop.
    """

    def __init__(
        self,
        make_producer: Callable[[], Any],
        *,
        max_record_bytes: int,
        max_pending_bytes: int = 64 * 1024 * 1024,
        clock: Clock = monotonic,
    ) -> None:
        self._make_producer = make_producer
        self._max_record_bytes = max_record_bytes
        self._max_pending_bytes = max_pending_bytes
        self._clock = clock
        self._producer: Any = None
        self._restarting = asyncio.Lock()
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._counts: dict[str, tuple[int, float]] = {}
        self._unresolved: dict[str, list[tuple[int | None, Entry]]] = {}
        self._next_partition = 0
        self._pending = 0
        self._pending_bytes = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._tasks: asyncio.TaskGroup | None = None
        self._stop = asyncio.Event()
        self.trouble = ""
        """Why the last send failed; empty when the last one succeeded."""

    # -- lifecycle ---------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Connects.

        Raises:
            KafkaConnectionError: no broker answers.
        """
        producer = self._make_producer()
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        self._producer = producer

    async def run(self) -> None:
        """Owns the sending tasks until `close`; raises what kills one of them."""
        async with asyncio.TaskGroup() as tasks:
            self._tasks = tasks
            for topic in list(self._unresolved):
                tasks.create_task(self._resolve(topic))
            for lane in self._lanes.values():
                self._wake(lane)
            await self._stop.wait()
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
        if self._producer is not None:
            try:
                async with asyncio.timeout(max(deadline.remaining_s, 0.5)):
                    await self._producer.stop()
            except (TimeoutError, kafka_errors.KafkaError) as error:
                log.warning("the producer did not close cleanly: %r", error)

    @property
    def congested(self) -> bool:
        return self._pending_bytes > self._max_pending_bytes

    @property
    def pending(self) -> int:
        """Records not yet acknowledged."""
        return self._pending

    @property
    def producer(self) -> Any:
        """The live producer, for the few records that are nobody's answer (registry)."""
        return self._producer

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
        count = self._count(topic)
        if count is None:
            waiting = self._unresolved.get(topic)
            if waiting is None:
                self._unresolved[topic] = [(partition, entry)]
                if self._tasks is not None:
                    self._tasks.create_task(self._resolve(topic))
            else:
                waiting.append((partition, entry))
            return
        self._route(topic, entry, partition, count)

    def _route(self, topic: str, entry: Entry, partition: int | None, count: int) -> None:
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
            lane = self._lanes[(topic, partition)] = _Lane(topic, partition)
        self._fill(lane, entry)
        self._wake(lane)

    def _fill(self, lane: _Lane, entry: Entry) -> None:
        timestamp = now_ms()
        start = 0
        position = 0
        parcel = lane.filling
        before = 0 if parcel is None else parcel.builder.size()
        size = len(entry.indices)
        while position < size:
            if parcel is None:
                parcel = lane.filling = Parcel(self._producer.create_batch())
                before = 0
            if len(entry.values[position] or b"") > self._max_record_bytes // 2:
                size_bytes = record_bytes(entry, position)
                if size_bytes > self._max_record_bytes:
                    self._take(parcel, entry, start, position, before)
                    before = parcel.builder.size()
                    self._refuse(part_of(entry, [position]), _too_large(size_bytes, self._max_record_bytes, lane))
                    position += 1
                    start = position
                    continue
            appended = parcel.builder.append(
                timestamp=timestamp,
                key=entry.keys[position],
                value=entry.values[position],
                headers=entry.headers[position],
            )
            if appended is None:
                self._take(parcel, entry, start, position, before)
                lane.full.append(parcel)
                parcel = lane.filling = None
                start = position
            else:
                position += 1
        if parcel is not None:
            self._take(parcel, entry, start, position, before)

    def _take(self, parcel: Parcel, entry: Entry, start: int, end: int, before: int) -> None:
        """Notes that records ``start`` to ``end`` of the entry are in the parcel."""
        if end == start:
            return
        grown = parcel.builder.size() - before
        parcel.size_bytes += grown
        self._pending_bytes += grown
        parcel.count += end - start
        parcel.entries.append(entry if end - start == len(entry.indices) else part_of(entry, range(start, end)))

    # -- sending -----------------------------------------------------------------------------------------------

    def _wake(self, lane: _Lane) -> None:
        if lane.task is None and self._tasks is not None and (lane.filling is not None or lane.full):
            lane.task = self._tasks.create_task(self._drive(lane))

    async def _drive(self, lane: _Lane) -> None:
        """Sends a lane's parcels one after the other; while one is under way the next one fills."""
        try:
            while True:
                if lane.full:
                    parcel = lane.full.popleft()
                elif lane.filling is not None:
                    parcel, lane.filling = lane.filling, None
                else:
                    break
                if parcel.count:
                    await self._deliver(lane, parcel)
        finally:
            lane.task = None
        if self._lanes.get((lane.topic, lane.partition)) is lane:
            del self._lanes[(lane.topic, lane.partition)]

    async def _deliver(self, lane: _Lane, parcel: Parcel) -> None:
        backoff_s = _FIRST_BACKOFF_S
        while True:
            producer = self._producer
            try:
                sent = await producer.send_batch(parcel.builder, lane.topic, partition=lane.partition)
                await sent
            except _TOO_LARGE as error:
                if parcel.count > 1:
                    await self._deliver_singly(lane, parcel)
                else:
                    self._settle_bytes(parcel)
                    entry = parcel.entries[0]
                    size = record_bytes(entry, 0)
                    self._refuse(entry, TooLargeError(f"{_what(size, lane)} was refused by the broker: {error}"))
                return
            except kafka_errors.KafkaError as error:
                if isinstance(error, _NO_SUCH_PLACE) and all(entry.to_reply for entry in parcel.entries):
                    self._settle_bytes(parcel)
                    for entry in parcel.entries:
                        self._refuse(entry, Unavailable(f"reply topic {lane.topic} cannot be written: {error!r}"))
                    return
                self.trouble = f"cannot write to {lane.topic}[{lane.partition}]: {error!r}"
                log.warning("%s; trying again in %.1f s", self.trouble, backoff_s)
                await asyncio.sleep(backoff_s)
                backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)
                if isinstance(error, _PRODUCER_IS_DEAD):
                    await self._restart(producer)
                self._rebuild(parcel)
            else:
                self.trouble = ""
                self._settle_bytes(parcel)
                for entry in parcel.entries:
                    self._settle(len(entry.indices))
                    entry.receipt.delivered(entry.indices)
                return

    async def _deliver_singly(self, lane: _Lane, parcel: Parcel) -> None:
        """The broker refused the batch for its size: only the records that are too large themselves must fail."""
        self._settle_bytes(parcel)
        for entry in parcel.entries:
            for at in range(len(entry.indices)):
                single = Parcel(None, [part_of(entry, [at])], 1)
                self._rebuild(single)
                single.size_bytes = single.builder.size()
                self._pending_bytes += single.size_bytes
                await self._deliver(lane, single)

    def _rebuild(self, parcel: Parcel) -> None:
        """A builder can be sent once, so a second try needs a new one."""
        builder = self._producer.create_batch()
        timestamp = now_ms()
        for entry in parcel.entries:
            for key, value, headers in zip(entry.keys, entry.values, entry.headers, strict=True):
                builder.append(timestamp=timestamp, key=key, value=value, headers=headers)
        parcel.builder = builder

    async def _restart(self, dead: Any) -> None:
        """Replaces a producer that can never send again; lanes that meet it at once replace it once."""
        async with self._restarting:
            if self._producer is not dead:
                return
            log.warning("the producer is dead, starting another")
            try:
                async with asyncio.timeout(5.0):
                    await dead.stop()
            except (TimeoutError, kafka_errors.KafkaError) as error:
                log.warning("the dead producer did not close cleanly: %r", error)
            backoff_s = _FIRST_BACKOFF_S
            while True:
                try:
                    await self.start()
                except kafka_errors.KafkaError as error:
                    self.trouble = f"cannot start a producer: {error!r}"
                    log.warning("%s; trying again in %.1f s", self.trouble, backoff_s)
                    await asyncio.sleep(backoff_s)
                    backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)
                else:
                    return

    # -- places and accounts -----------------------------------------------------------------------------------

    def _count(self, topic: str) -> int | None:
        known = self._counts.get(topic)
        if known is None:
            return None
        count, fresh_until = known
        if self._clock() > fresh_until:
            partitions = self._producer.client.cluster.partitions_for_topic(topic)
            if not partitions:
                del self._counts[topic]
                return None
            count = len(partitions)
            self._counts[topic] = (count, self._clock() + _COUNT_TTL_S)
        return count

    async def _resolve(self, topic: str) -> None:
        """Finds out how many partitions a topic has, then routes what waited for it."""
        backoff_s = _FIRST_BACKOFF_S
        while True:
            problem: HeadraceError | None = None
            try:
                found = await self._lookup(topic)
            except (kafka_errors.KafkaError, TimeoutError) as error:
                found = 0
                problem = Unavailable(f"topic {topic} cannot be written: {error!r}; create it or check its name")
            waiting = self._unresolved.pop(topic, [])
            if found:
                self._counts[topic] = (found, self._clock() + _COUNT_TTL_S)
                for partition, entry in waiting:
                    self._route(topic, entry, partition, found)
                return
            problem = problem or Unavailable(f"topic {topic} does not exist; create it or check its name")
            ours = [(partition, entry) for partition, entry in waiting if not entry.to_reply]
            for _, entry in waiting:
                if entry.to_reply:
                    self._refuse(entry, problem)
            if not ours:
                return
            self._unresolved[topic] = ours
            self.trouble = problem.message
            log.warning("%s; trying again in %.1f s", self.trouble, backoff_s)
            await asyncio.sleep(backoff_s)
            backoff_s = min(backoff_s * 2, _MAX_BACKOFF_S)

    async def _lookup(self, topic: str) -> int:
        async with asyncio.timeout(_TOPIC_DEADLINE_S):
            lookup: Awaitable[set[int]] = self._producer.partitions_for(topic)
            return len(await lookup or ())

    def _refuse(self, entry: Entry, error: HeadraceError) -> None:
        self._settle(len(entry.indices))
        for index in entry.indices:
            entry.receipt.refused(index, error)

    def _settle(self, count: int) -> None:
        self._pending -= count
        if self._pending == 0:
            self._idle.set()

    def _settle_bytes(self, parcel: Parcel) -> None:
        self._pending_bytes -= parcel.size_bytes
        parcel.size_bytes = 0


def _what(size: int, lane: _Lane) -> str:
    return f"a record of {size:,} bytes for {lane.topic}"


def _too_large(size: int, limit: int, lane: _Lane) -> TooLargeError:
    return TooLargeError(
        f"{_what(size, lane)} is above the limit of {limit:,} bytes; "
        "raise kafka.max_request_size and the topic's max.message.bytes, or return less"
    )
