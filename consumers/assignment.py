"""Which partitions this node holds, through rebalances: nothing finished is forgotten, nothing running is waited for
beyond its grace, and what comes straight back goes on where it was.

aiokafka rebalances eagerly: every partition is revoked, then the ones that stay are assigned again. A partition that
comes back in the very next generation, with the commit where we left it, was nobody else's in between; its ledger and
its queued work live on. Any other is dropped and read again from its commit.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import Any

from aiokafka import ConsumerRebalanceListener
from aiokafka.errors import KafkaError

from consumers.hooks import NodeHooks
from consumers.kafka import Record
from consumers.partition import Partition
from consumers.route import Route
from gpu_runtime.request import ScopeState
from schemas.clock import Clock, Deadline, monotonic

__all__ = ["Assignment"]

log = logging.getLogger("headrace.assignment")

_BROKER_DEADLINE_S = 5.0


class Assignment(ConsumerRebalanceListener):  # type: ignore[misc] # aiokafka ships no types
    """The partitions held now, and aiokafka's listener for changes.

    Args:
        routes: by topic.
        quiesce: waits until the running batches of these partitions are done and acknowledged, or the deadline.
        commit: commits what is finished; called while the old generation can still commit.
        scopes_changed: tells the runtime that scopes changed state.
    """

    def __init__(
        self,
        consumer: Any,
        routes: Mapping[str, Route],
        *,
        hooks: NodeHooks,
        grace_s: float,
        quiesce: Callable[[Collection[Partition], Deadline], Awaitable[None]],
        commit: Callable[[Deadline], Awaitable[None]],
        scopes_changed: Callable[[], None],
        clock: Clock = monotonic,
    ) -> None:
        self._consumer = consumer
        self._routes = routes
        self._hooks = hooks
        self._grace_s = grace_s
        self._quiesce = quiesce
        self._commit = commit
        self._scopes_changed = scopes_changed
        self._clock = clock
        self._generation = -1
        self.partitions: dict[Any, Partition] = {}
        self._suspended: dict[Any, Partition] = {}
        self.settled = asyncio.Event()
        """Set while the assignment can be worked on, clear from a revoke to the end of the next assign."""
        self.in_step = False
        """Whether the consumer's own positions mean what the ledgers say: False from a revoke until the poll loop, with
        no fetch under way, has taken the new assignment up. What a fetch brought meanwhile is not delivered yet."""
        self.unsettled_since: float | None = None
        """When the rebalance that is under way began (seconds of the clock); None while there is none."""
        self.joined = False
        """Whether the group has ever given this node an assignment, empty or not."""
        self.epoch = 0
        """Grows with each assignment: what was fetched in an earlier one does not count."""

    async def on_partitions_revoked(self, revoked: Collection[Any]) -> None:
        self.settled.clear()
        self.unsettled_since = self._clock()
        self.in_step = False
        held = list(self.partitions.values())
        for partition in held:
            partition.scope.state = ScopeState.SUSPENDED
        self._scopes_changed()
        deadline = Deadline(self._grace_s, self._clock)
        await self._quiesce(held, deadline)
        await self._commit(Deadline(_BROKER_DEADLINE_S, self._clock))
        self._suspended = self.partitions
        self.partitions = {}
        self._generation = self._consumer_generation()

    async def on_partitions_assigned(self, assigned: Collection[Any]) -> None:
        suspended, self._suspended = self._suspended, {}
        adjacent = self._consumer_generation() == self._generation + 1
        revoked = len(suspended)
        async with asyncio.TaskGroup() as tasks:
            asked = {tp: tasks.create_task(self._committed(tp)) for tp in sorted(assigned)}
        for tp, answer in asked.items():
            committed = answer.result()
            former = suspended.pop(tp, None)
            if former is not None and adjacent and committed == former.ledger.committed:
                self._resume(tp, former)
            else:
                if former is not None:
                    suspended[tp] = former
                self.partitions[tp] = Partition(tp, self._routes[tp.topic], committed)
        for partition in suspended.values():
            self._close(partition)
            if partition.paused:
                self._hooks.paused(*partition.place, False)
        kept = {partition.place for partition in self.partitions.values()}
        for model, number in {partition.place for partition in suspended.values()} - kept:
            self._hooks.partition_gone(model, number)
        self._scopes_changed()
        self._hooks.rebalance(len(assigned), revoked)
        log.info("assigned %d partitions, %d before", len(assigned), revoked)
        self.joined = True
        self.epoch += 1
        self.unsettled_since = None
        self.settled.set()

    @property
    def missing(self) -> list[str]:
        """Topics of ours that do not exist, as far as the client knows. May be asked from any thread."""
        return sorted(topic for topic in self._routes if not self._consumer.partitions_for_topic(topic))

    def rewind(self, fetched: Mapping[Any, Sequence[Record]]) -> None:
        """Has records read again that were fetched while the assignment changed under the fetch."""
        for tp, records in fetched.items():
            partition = self.partitions.get(tp)
            if partition is not None and records:
                expected = partition.ledger.next_offset
                self._consumer.seek(tp, records[0].offset if expected is None else expected)

    def close(self) -> None:
        """Hands everything unfinished back: queued rows are dropped, late results count no more."""
        for partition in (*self.partitions.values(), *self._suspended.values()):
            self._close(partition)
        self._scopes_changed()

    def _resume(self, tp: Any, partition: Partition) -> None:
        partition.scope.state = ScopeState.ACTIVE
        if partition.ledger.next_offset is not None:
            self._consumer.seek(tp, partition.ledger.next_offset)
        self.partitions[tp] = partition

    def _close(self, partition: Partition) -> None:
        partition.scope.state = ScopeState.CLOSED
        partition.drop_held()

    async def _committed(self, tp: Any) -> int | None:
        try:
            async with asyncio.timeout(_BROKER_DEADLINE_S):
                committed: int | None = await self._consumer.committed(tp)
                return committed
        except (TimeoutError, KafkaError) as error:
            # Without the answer nothing can be resumed; the consumer itself will read from the commit.
            log.warning("no committed offset for %s[%d]: %r", tp.topic, tp.partition, error)
            return None

    def _consumer_generation(self) -> int:
        generation: int = self._consumer._coordinator.generation  # aiokafka has no public name for it
        return generation
