"""Fetches, so that a partition that cannot be read costs the others neither a record nor much time.

aiokafka takes the records of many partitions in one call. When one of them cannot be unpacked (a codec that is not
installed, a batch damaged on disk) the call fails, and what it had taken from the others by then is gone: its positions
stand beyond records that nobody has seen. So they are set back, and for a while each partition is asked by itself.
"""

from __future__ import annotations

import asyncio
import logging
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from aiokafka import TopicPartition
from aiokafka.errors import (
    ConsumerStoppedError,
    GroupAuthorizationFailedError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    KafkaError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
)

from consumers.assignment import Assignment
from schemas.clock import Clock, monotonic
from schemas.errors import ConfigError, Unavailable

__all__ = ["MAX_RECORDS", "NOWHERE", "Fetch"]

log = logging.getLogger("headrace.poll")

MAX_RECORDS: Final = 512
"""Records taken in one turn: their decoding is the longest the event loop is busy without a pause."""
NOWHERE: Final = TopicPartition("", 0)
"""Fetching from it fetches nothing, and tells the group that this member is alive."""

_SINGLY_S: Final = 5.0
"""So long after a failed fetch each partition is asked by itself: time enough for the one at fault to show."""
_AGAIN_S: Final = 5.0
"""From one attempt at an unreadable partition to the next."""
_PROBE_S: Final = 1.0
"""From an attempt without an error to the next."""
_PROBES: Final = 2
"""Attempts without an error after which a partition counts as readable, though it gave nothing: aiokafka raises the
error of a batch once, then drops the batch and fetches it anew."""
_GLANCE_S: Final = 0.004
"""How long a fetch waits for a first record where the time between fetches is spent resting."""
_REST_S: Final = 0.02
_FAILED_S: Final = 0.5
"""Rest after a fetch that failed for no single partition's sake."""

_FATAL = (GroupAuthorizationFailedError, TopicAuthorizationFailedError, ConsumerStoppedError)
_REMEDIES: Final[dict[type[KafkaError], str]] = {
    InvalidSessionTimeoutError: (
        "set kafka.session_timeout_ms between the broker's group.min.session.timeout.ms and its "
        "group.max.session.timeout.ms"
    ),
    InconsistentGroupProtocolError: (
        "other consumers are in this group, with another way to share partitions; give these nodes another group"
    ),
    InvalidGroupIdError: "set group to a name that is not empty",
}
"""What a group says to a member that no second try lets in, and the remedy."""
_MISFITS = tuple(_REMEDIES)
_UNREADABLE = (KafkaError, OSError, EOFError, ValueError, zlib.error)
"""The broker's and the client's errors, and what unpacking a damaged batch raises."""


@dataclass(slots=True)
class _Unreadable:
    why: str
    again_at: float
    probes: int = 0


class Fetch:
    """
    Args:
        idle_pause_s: see `NodeSettings`.

    Attributes:
        failing_since: when fetches began to fail altogether (seconds of the clock), None while they succeed. A
            partition that cannot be read does not count.
    """

    def __init__(
        self, consumer: Any, assignment: Assignment, *, idle_pause_s: float = 0.0, clock: Clock = monotonic
    ) -> None:
        self._consumer = consumer
        self._assignment = assignment
        self._idle_pause_s = idle_pause_s
        self._clock = clock
        self._failed = ""
        self.failing_since: float | None = None
        self._singly_until = float("-inf")
        self._unreadable: dict[Any, _Unreadable] = {}

    @property
    def trouble(self) -> str:
        """Why something is not read now; empty when all is well. May be asked from any thread."""
        return self._failed or next((each.why for each in list(self._unreadable.values())), "")

    async def take(self, wanted: Sequence[Any], patience_s: float) -> dict[Any, list[Any]]:
        """Records by partition, each non-empty; the consumer's positions stand after them.

        Args:
            wanted: partitions; empty for all.
            patience_s: how long to wait for a first record.

        Raises:
            ConfigError: the group does not take this node as it is set up; names the remedy.
            Unavailable: the broker refuses this client for good.
        """
        held = self._assignment.partitions
        if self._unreadable:
            self._unreadable = {tp: each for tp, each in self._unreadable.items() if tp in held}
        asked = NOWHERE not in wanted
        if asked and (self._unreadable or self._clock() < self._singly_until):
            return await self._singly(wanted or list(held))
        resting = self._idle_pause_s > 0 and not wanted
        try:
            fetched = await self._getmany(wanted, min(patience_s, _GLANCE_S) if resting else patience_s, MAX_RECORDS)
            if resting and not fetched:
                await self._rest(list(held), min(patience_s, self._idle_pause_s))
        except _UNREADABLE as error:
            self._rewind(held)
            self._singly_until = self._clock() + _SINGLY_S
            await self._fail(error)
            return {}
        self._succeed()
        return fetched

    async def _rest(self, partitions: Sequence[Any], pause_s: float) -> None:
        """Asks the broker nothing for a while."""
        self._consumer.pause(*partitions)
        await asyncio.sleep(pause_s)
        # A rebalance meanwhile has made the partitions anew, and the new ones are not paused.
        still_held = self._consumer.assignment()
        self._consumer.resume(*[tp for tp in partitions if tp in still_held])

    async def _singly(self, wanted: Sequence[Any]) -> dict[Any, list[Any]]:
        fetched: dict[Any, list[Any]] = {}
        share = max(1, MAX_RECORDS // max(1, len(wanted)))
        try:
            await self._getmany([NOWHERE], 0.0, share)
        except _UNREADABLE as error:  # no partition's fault
            await self._fail(error)
            return {}
        self._succeed()
        for tp in wanted:
            known = self._unreadable.get(tp)
            if known is not None and self._clock() < known.again_at:
                continue
            try:
                found = await self._getmany([tp], 0.0, share)
            except _UNREADABLE as error:
                self._rewind([tp])
                self._unreadable[tp] = found_out = _Unreadable(self._why(tp, error), self._clock() + _AGAIN_S)
                log.warning("%s", found_out.why)
                continue
            fetched.update(found)
            if known is not None:
                known.probes += 1
                known.again_at = self._clock() + _PROBE_S
                if found or known.probes >= _PROBES:
                    del self._unreadable[tp]
                    log.info("%s[%d] can be read again", tp.topic, tp.partition)
        if not fetched:
            await asyncio.sleep(_REST_S)
        return fetched

    def _succeed(self) -> None:
        self._failed = ""
        self.failing_since = None

    async def _fail(self, error: Exception) -> None:
        self._failed = f"fetching failed: {error!r}"
        log.warning("%s", self._failed)
        if self.failing_since is None:
            self.failing_since = self._clock()
        await asyncio.sleep(_FAILED_S)

    async def _getmany(self, wanted: Iterable[Any], patience_s: float, most: int) -> dict[Any, list[Any]]:
        try:
            fetched: dict[Any, list[Any]] = await self._consumer.getmany(
                *wanted, timeout_ms=int(patience_s * 1000), max_records=most
            )
        except _FATAL as error:
            raise Unavailable(
                f"the broker refuses this node: {error!r}; check its ACLs for topics and group"
            ) from error
        except _MISFITS as error:
            raise ConfigError(f"the group does not take this node: {error!r}; {_REMEDIES[type(error)]}") from error
        return fetched

    def _rewind(self, partitions: Iterable[Any]) -> None:
        """To where the ledgers are. Waits for nothing, so that no commit sees the positions as they are now."""
        for tp in partitions:
            partition = self._assignment.partitions.get(tp)
            if partition is not None:
                # Nothing known: nothing was ever delivered or committed. A log that begins later is read from there.
                self._consumer.seek(tp, partition.ledger.next_offset or 0)

    def _why(self, tp: Any, error: Exception) -> str:
        partition = self._assignment.partitions.get(tp)
        at = None if partition is None else partition.ledger.next_offset
        remedy = "it and what follows wait in Kafka"
        if isinstance(error, UnsupportedCodecError):
            remedy += "; install the package cramjam, which unpacks it"
        return f"{tp.topic}[{tp.partition}] cannot be read from offset {at or 0} on: {error!r}; {remedy}"
