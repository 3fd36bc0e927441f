"""The poll loop: fetches what there is room for, and never waits for a model.

A partition whose model has no room is left out of the fetch; its records stay in Kafka (and one fetch of them in the
client), while polling, heartbeats and the other partitions go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from consumers.assignment import Assignment
from consumers.fetch import MAX_RECORDS, NOWHERE, Fetch
from consumers.hooks import NodeHooks
from consumers.intake import Intake
from consumers.kafka import Record
from consumers.outbox import Outbox
from consumers.route import Route
from gpu_runtime.runtime import Runtime
from schemas.clock import Clock, monotonic
from schemas.record import now_ms

__all__ = ["PollLoop"]

_IDLE_POLL_S: Final = 0.2
_PAUSED_POLL_S: Final = 0.02
"""The longest that a partition with room waits while another one has none."""
_MAX_UNSENT_RECORDS: Final = 50_000
_MUCH: Final = 10
"""Fetches' worth of backlog from which throughput counts for more than the milliseconds of a result."""


class PollLoop:
    """
    Attributes:
        stopping: once True, nothing more is taken in, while polling goes on.
        busy_since: when the loop last left a fetch (seconds of the clock), None while it is in one. A loop that is
            busy for long is stuck.
    """

    def __init__(
        self,
        consumer: Any,
        assignment: Assignment,
        intake: Intake,
        runtime: Runtime,
        outbox: Outbox,
        *,
        hooks: NodeHooks,
        idle_pause_s: float = 0.0,
        clock: Clock = monotonic,
    ) -> None:
        self._consumer = consumer
        self._fetch = Fetch(consumer, assignment, idle_pause_s=idle_pause_s, clock=clock)
        self._assignment = assignment
        self._intake = intake
        self._runtime = runtime
        self._outbox = outbox
        self._hooks = hooks
        self._clock = clock
        self._wake = asyncio.Event()
        self.stopping = False
        self.busy_since: float | None = None

    @property
    def trouble(self) -> str:
        """Why something is not read now; empty when all is well. May be asked from any thread."""
        return self._fetch.trouble

    @property
    def failing_since(self) -> float | None:
        """When fetches began to fail, None while they succeed. A client that fails for long may be one whose group task
        is dead, and only a new process gets another."""
        return self._fetch.failing_since

    def wake(self) -> None:
        """Room may have appeared."""
        self._wake.set()

    async def run(self) -> None:
        """Polls for ever.

        Raises:
            Unavailable: the broker refuses this client for good.
        """
        while True:
            await self._settle()
            self._assignment.in_step = True
            epoch = self._assignment.epoch
            self._wake.clear()  # before looking: room that appears during the fetch must end the rest after it
            self._take_due()
            wanted, paused = self._wanted()
            fetched = await self._fetch.take(wanted, self._patience_s(paused))
            self.busy_since = self._clock()
            if not self._assignment.settled.is_set() or self._assignment.epoch != epoch:
                self.busy_since = None
                await self._settle()
                self._assignment.rewind(fetched)
                continue
            if self.stopping and fetched:  # told to stop while the fetch was under way
                self._assignment.rewind(fetched)
                fetched = {}
            self._note_backlog(fetched)
            for tp, records in fetched.items():
                partition = self._assignment.partitions.get(tp)
                if partition is not None and records:
                    self._intake.take(partition, records)
            self.busy_since = None
            if paused and not fetched:
                await self._rest()
            else:
                # One turn for whoever waits for the loop: results, heartbeats, acknowledgements.
                await asyncio.sleep(0)

    async def _settle(self) -> None:
        """Until the assignment can be worked on. Polls meanwhile: the group gives up on a member that does not, and a
        revoke may wait for a batch longer than ``max_poll_interval_ms``."""
        while not self._assignment.settled.is_set():
            self._wake.clear()
            await self._fetch.take([NOWHERE], 0.0)
            await self._rest()

    def _wanted(self) -> tuple[list[Any], bool]:
        """Partitions to fetch from (an empty list means all), and whether any is left out.

        Worked out anew each time from present load, so that no pause outlives its cause or a rebalance.
        """
        partitions = self._assignment.partitions
        full = self.stopping or self._outbox.congested or self._outbox.pending > _MAX_UNSENT_RECORDS
        routes_without_room = set()
        for route in {partition.route for partition in partitions.values()}:
            self._intake.admit_waiting(route)
            if full or route.waiting or self._runtime.room(route.model) <= 0:
                routes_without_room.add(route)
        wanted = []
        changed = set()
        for tp, partition in partitions.items():
            paused = partition.route in routes_without_room or partition.holds_too_many
            if paused is not partition.paused:
                partition.paused = paused
                changed.add(partition.place)
            if not paused:
                wanted.append(tp)
        for place in changed:
            self._hooks.paused(*place, any(each.paused for each in partitions.values() if each.place == place))
        if len(wanted) == len(partitions) and not self.stopping:
            return [], False
        return wanted or [NOWHERE], True

    def _patience_s(self, paused: bool) -> float:
        if paused:
            return 0.0
        due = [each.next_due_ms for each in self._assignment.partitions.values() if each.next_due_ms is not None]
        if not due:
            return _IDLE_POLL_S
        return min(_IDLE_POLL_S, max(0.001, (min(due) - now_ms()) / 1000))

    def _take_due(self) -> None:
        if self.stopping:
            return
        for partition in self._assignment.partitions.values():
            if partition.next_due_ms is not None:
                self._intake.take_due(partition)

    def _note_backlog(self, fetched: Mapping[Any, Sequence[Record]]) -> None:
        """With more to fetch than one fetch takes, over all its partitions, a model's batch has nothing to wait for.

        With much more than that its results are gathered, as their requests have waited for longer in Kafka.
        """
        behind: dict[Route, int] = {}
        for tp, records in fetched.items():
            partition = self._assignment.partitions.get(tp)
            if partition is not None and records:
                end = self._consumer.highwater(tp)
                route = partition.route
                behind[route] = behind.get(route, 0) + max(0, (end or 0) - records[0].offset)
        for route, records_left in behind.items():
            self._runtime.set_backlog(route.model, records_left > MAX_RECORDS)
            self._outbox.gather(route.results, records_left > _MUCH * MAX_RECORDS)

    async def _rest(self) -> None:
        """Until room appears, but not so long that partitions with room would notice."""
        try:
            async with asyncio.timeout(_PAUSED_POLL_S):
                await self._wake.wait()
        except TimeoutError:
            pass
