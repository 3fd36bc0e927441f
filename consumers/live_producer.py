"""The one producer of a node: started, and replaced by another when it can never send again. Decides nothing else."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, Final

from aiokafka import errors as kafka_errors

from consumers.backoff import FIRST_S, Backoff
from schemas.clock import Deadline

__all__ = ["PRODUCER_IS_DEAD", "LiveProducer"]

log = logging.getLogger("headrace.outbox")

_STOP_DEADLINE_S: Final = 5.0

PRODUCER_IS_DEAD = (
    kafka_errors.OutOfOrderSequenceNumber,
    kafka_errors.InvalidProducerEpoch,
    kafka_errors.InvalidProducerIdMapping,
    kafka_errors.UnknownProducerId,
    kafka_errors.ProducerFenced,
    kafka_errors.ProducerClosed,
)
"""After one of these every further send of the same producer fails as well."""


class LiveProducer:
    """
    Attributes:
        current: the producer to use now; None before `start`. Ask anew after every wait.
        trouble: why no producer can be started; empty when one could.
    """

    def __init__(self, make: Callable[[], Any], *, first_backoff_s: float = FIRST_S) -> None:
        self._make = make
        self._first_backoff_s = first_backoff_s
        self._replacing = asyncio.Lock()
        self.current: Any = None
        self.trouble = ""

    async def start(self) -> None:
        """Connects.

        Raises:
            KafkaConnectionError: no broker answers.
        """
        producer = self._make()
        try:
            await producer.start()
        except BaseException:
            await producer.stop()
            raise
        self.current = producer

    async def replace(self, dead: Any) -> None:
        """Puts another in the place of a dead one, however long that takes; who meets the same death at once replaces
        it once."""
        async with self._replacing:
            if self.current is not dead:
                return
            log.warning("the producer is dead, starting another")
            await self._stop(dead, _STOP_DEADLINE_S)
            backoff = Backoff(self._first_backoff_s)
            while True:
                try:
                    await self.start()
                except kafka_errors.KafkaError as error:
                    self.trouble = f"cannot start a producer: {error!r}"
                    log.warning("%s; trying again in %.1f s", self.trouble, backoff.next_s)
                    await backoff.wait()
                else:
                    self.trouble = ""
                    return

    async def stop(self, deadline: Deadline) -> None:
        if self.current is not None:
            await self._stop(self.current, max(deadline.remaining_s, 0.5))

    async def _stop(self, producer: Any, within_s: float) -> None:
        try:
            async with asyncio.timeout(within_s):
                await producer.stop()
        except (TimeoutError, kafka_errors.KafkaError) as error:
            log.warning("the producer did not close cleanly: %r", error)
