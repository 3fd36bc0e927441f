"""How many partitions the topics have that records go to, and the records that wait until that is known.

Chooses no partition and sends nothing; the outbox does.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from aiokafka import errors as kafka_errors

from consumers.backoff import FIRST_S, Backoff
from consumers.kafka import known_partitions
from consumers.parcels import Entry, entry_bytes
from schemas.clock import Clock, monotonic
from schemas.errors import HeadraceError, Unavailable

__all__ = ["Destinations"]

log = logging.getLogger("headrace.outbox")

_LOOKUP_DEADLINE_S: Final = 10.0
_COUNT_TTL_S: Final = 30.0
_IDLE_TTL_S: Final = 600.0
"""After so long unused a topic is forgotten: callers come and go, and so do their reply topics."""


class Destinations:
    """
    Args:
        producer: the live one, asked anew for each question.
        found: called with ``(topic, partition asked for, records, partitions of the topic)``.
        refused: called with records for a reply topic that is not there. Records for a topic of our own wait until
            it is.

    Attributes:
        waiting_bytes: of the records held here.
    """

    def __init__(
        self,
        producer: Callable[[], Any],
        *,
        found: Callable[[str, int | None, Entry, int], None],
        refused: Callable[[Entry, HeadraceError], None],
        first_backoff_s: float = FIRST_S,
        clock: Clock = monotonic,
    ) -> None:
        self._producer = producer
        self._found = found
        self._refused = refused
        self._first_backoff_s = first_backoff_s
        self._clock = clock
        self._counts: dict[str, tuple[int, float]] = {}
        self._used: dict[str, float] = {}
        self._waiting: dict[str, list[tuple[int | None, Entry]]] = {}
        self._problems: dict[str, str] = {}
        self._tasks: asyncio.TaskGroup | None = None
        self._asking: set[asyncio.Task[None]] = set()
        self.waiting_bytes = 0

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Begins to ask; what was held before is asked for now."""
        self._tasks = tasks
        for topic in self._waiting:
            self._ask(topic)

    def stop(self) -> None:
        """Asks no more; what waits is given up."""
        self._tasks = None
        for task in self._asking:
            task.cancel()

    @property
    def trouble(self) -> str:
        """Why records wait for a topic of our own; empty when none do. May be read from any thread."""
        return next(iter(list(self._problems.values())), "")

    def count(self, topic: str) -> int | None:
        """Partitions of the topic, None when that is to be found out."""
        known = self._counts.get(topic)
        if known is None:
            return None
        count, fresh_until = known
        self._used[topic] = now = self._clock()
        if now > fresh_until:
            partitions = self._producer().client.cluster.partitions_for_topic(topic)
            if not partitions:
                del self._counts[topic]
                return None
            count = self._note(topic, len(partitions))
        return count

    def hold(self, topic: str, partition: int | None, entry: Entry) -> None:
        """Keeps records until `count` of their topic is known."""
        self.waiting_bytes += entry_bytes(entry)
        waiting = self._waiting.get(topic)
        if waiting is not None:
            waiting.append((partition, entry))
            return
        self._waiting[topic] = [(partition, entry)]
        self._ask(topic)

    def _note(self, topic: str, count: int) -> int:
        self._counts[topic] = (count, self._clock() + _COUNT_TTL_S)
        return count

    def _forget_idle(self) -> None:
        """Drops topics that nothing was sent to for long, from the producer's metadata too, which would otherwise ask
        for each of them for ever. A batch under way is younger than that, and a later one asks again."""
        now = self._clock()
        idle = [topic for topic, at in self._used.items() if now - at > _IDLE_TTL_S]
        for topic in idle:
            del self._used[topic]
            self._counts.pop(topic, None)
        if idle:
            self._producer().client.set_topics([*self._used, *self._waiting])

    def _ask(self, topic: str) -> None:
        if self._tasks is not None:
            task = self._tasks.create_task(self._resolve(topic))
            self._asking.add(task)
            task.add_done_callback(self._asking.discard)

    async def _resolve(self, topic: str) -> None:
        """Finds out how many partitions a topic has, then lets go of what waited for it."""
        backoff = Backoff(self._first_backoff_s)
        while True:
            problem = Unavailable(f"topic {topic} does not exist; create it or check its name")
            try:
                count = await self._lookup(topic)
            except (kafka_errors.KafkaError, TimeoutError) as error:
                count = 0
                problem = Unavailable(f"topic {topic} cannot be written: {error!r}; create it or check its name")
            waiting = self._waiting.pop(topic, [])
            if count:
                self._problems.pop(topic, None)
                self._used[topic] = self._clock()
                self._note(topic, count)
                self._forget_idle()
                for partition, entry in waiting:
                    self.waiting_bytes -= entry_bytes(entry)
                    self._found(topic, partition, entry, count)
                return
            ours = [held for held in waiting if not held[1].to_reply]
            if ours:
                self._waiting[topic] = ours
            for _, entry in waiting:
                if entry.to_reply:
                    self.waiting_bytes -= entry_bytes(entry)
                    self._refused(entry, problem)
            if not ours:
                return
            self._problems[topic] = problem.message
            log.warning("%s; trying again in %.1f s", problem, backoff.next_s)
            await backoff.wait()

    async def _lookup(self, topic: str) -> int:
        async with asyncio.timeout(_LOOKUP_DEADLINE_S):
            return len(await known_partitions(self._producer(), topic))
