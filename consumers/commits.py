"""Commits what is finished, and measures what is left: offsets, lag, age of the oldest unfinished record."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final

from aiokafka import OffsetAndMetadata
from aiokafka.errors import CommitFailedError, KafkaError

from consumers.assignment import Assignment
from consumers.hooks import NodeHooks
from consumers.partition import Partition
from schemas.clock import Deadline
from schemas.record import now_ms

__all__ = ["Commits"]

log = logging.getLogger("headrace.commits")

INTERVAL_S: Final = 0.25
MEASURE_INTERVAL_S: Final = 2.0
_BROKER_DEADLINE_S: Final = 5.0
"""A revoke may have to wait for a commit under way, and readiness is not told of a broker's absence before."""


class Commits:
    """``trouble`` says why the broker did not take the last commit or answer the last question; empty when it did."""

    def __init__(self, consumer: Any, *, hooks: NodeHooks) -> None:
        self._consumer = consumer
        self._hooks = hooks
        self._lock = asyncio.Lock()
        self.trouble = ""

    async def commit(self, assignment: Assignment, deadline: Deadline, *, ends: bool = False) -> None:
        """Commits, for each partition held, the lowest unfinished offset if it moved.

        Args:
            ends: also ask the consumer where it stands, which matters where nothing was delivered yet (an empty
                topic gets a committed offset) or the log ends in markers.
        """
        async with self._lock:
            offsets: dict[Any, int] = {}
            held = dict(assignment.partitions)
            for tp, partition in held.items():
                position = partition.ledger.position()
                if ends or position is None:
                    position = await self._settled_position(assignment, tp, partition)
                if position is not None and position != partition.ledger.committed:
                    offsets[tp] = position
            if not offsets:
                return
            try:
                async with asyncio.timeout(max(deadline.remaining_s, 0.1)):
                    await self._consumer.commit({tp: OffsetAndMetadata(at, "") for tp, at in offsets.items()})
            except CommitFailedError:
                log.info("the group rebalanced before a commit; the partitions' next owner starts from the last one")
            except TimeoutError:
                self.trouble = "the broker did not answer a commit"
                log.warning(self.trouble)
            except KafkaError as error:
                self.trouble = f"commit failed: {error!r}"
                log.warning(self.trouble)
            else:
                self.trouble = ""
                for tp, at in offsets.items():
                    held[tp].ledger.committed = at

    async def run(self, assignment: Assignment) -> None:
        """Commits every `INTERVAL_S` and measures every `MEASURE_INTERVAL_S`, for ever."""
        turn = 0
        turns = round(MEASURE_INTERVAL_S / INTERVAL_S)
        while True:
            await assignment.settled.wait()
            await self.commit(assignment, Deadline(_BROKER_DEADLINE_S), ends=turn % turns == 0)
            if turn % turns == 0:
                await self.measure(assignment)
            turn += 1
            await asyncio.sleep(INTERVAL_S)

    async def measure(self, assignment: Assignment) -> None:
        """Reports lag = end offset - committed next offset, never below 0, and how old the oldest record is.

        A model's partition and the retry partition of the same number are reported as one.
        """
        held = dict(assignment.partitions)
        try:
            async with asyncio.timeout(_BROKER_DEADLINE_S):
                # A node without partitions asks too, so that it notices when its broker is gone.
                ends = await (self._consumer.end_offsets(list(held)) if held else self._consumer.topics())
        except (TimeoutError, KafkaError) as error:
            self.trouble = f"the broker does not answer: {error!r}"
            log.warning(self.trouble)
            return
        self.trouble = ""
        now = now_ms()
        found: dict[tuple[str, int], tuple[int, float]] = {}
        for tp, before in held.items():
            measured = assignment.partitions.get(tp)
            if measured is None or measured is not before:
                continue
            committed = measured.ledger.committed
            lag = max(0, ends[tp] - committed) if committed is not None else 0
            oldest = measured.ledger.oldest_timestamp()
            age_s = 0.0 if oldest is None else max(0.0, (now - oldest) / 1000)
            key = (measured.route.model, tp.partition)
            other_lag, other_age_s = found.get(key, (0, 0.0))
            found[key] = (other_lag + lag, max(other_age_s, age_s))
        for (model, partition), (lag, age_s) in found.items():
            self._hooks.lag(model, partition, lag, age_s)

    async def _settled_position(self, assignment: Assignment, tp: Any, partition: Partition) -> int | None:
        """The ledger's position, beyond which the consumer may stand if nothing is unfinished."""
        if partition.ledger.unfinished or not assignment.in_step:
            return partition.ledger.position()
        try:
            async with asyncio.timeout(1.0):
                consumed_to: int = await self._consumer.position(tp)
        except (TimeoutError, KafkaError):
            return partition.ledger.position()
        if not assignment.in_step or assignment.partitions.get(tp) is not partition:
            return None
        return partition.ledger.position(consumed_to)
