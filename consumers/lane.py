"""One output partition: the parcel being filled, those that are full, and the task that sends them in order.

Sends nothing itself; the outbox does.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from consumers.parcels import Entry, Parcel, part_of, record_bytes
from schemas.record import now_ms

__all__ = ["Lane"]


class Lane:
    """Parcels in ``full`` go before the one that is ``filling``."""

    __slots__ = ("filling", "full", "partition", "task", "topic")

    def __init__(self, topic: str, partition: int) -> None:
        self.topic = topic
        self.partition = partition
        self.filling: Parcel | None = None
        self.full: deque[Parcel] = deque()
        self.task: asyncio.Task[None] | None = None

    @property
    def key(self) -> tuple[str, int]:
        return self.topic, self.partition

    def next_parcel(self) -> Parcel | None:
        """Takes out what is to be sent next; None when there is nothing."""
        if self.full:
            return self.full.popleft()
        parcel, self.filling = self.filling, None
        return parcel

    def fill(
        self, entry: Entry, create_batch: Callable[[], Any], max_record_bytes: int
    ) -> tuple[int, list[tuple[int, int]]]:
        """Puts the records in, into as many parcels as they need.

        Returns:
            The bytes that the parcels grew by, and ``(place in the entry, bytes)`` of records above the limit, which
            are left out.
        """
        timestamp = now_ms()
        keys, values, headers = entry.keys, entry.values, entry.headers
        size = len(entry.indices)
        # Most records are small, and a look at the longest value says so.
        look_closer = max(map(len, filter(None, values)), default=0) > max_record_bytes // 2
        grown = start = position = 0
        too_large: list[tuple[int, int]] = []
        while position < size:
            parcel = self.filling
            if parcel is None:
                parcel = self.filling = Parcel(create_batch())
            append = parcel.builder.append
            full = False
            while position < size and not full:
                if look_closer and record_bytes(entry, position) > max_record_bytes:
                    break
                appended = append(
                    timestamp=timestamp, key=keys[position], value=values[position], headers=headers[position]
                )
                if appended is None:
                    full = True
                else:
                    position += 1
            grown += _note(parcel, entry, start, position)
            if full:
                self.full.append(parcel)
                self.filling = None
            elif position < size:
                too_large.append((position, record_bytes(entry, position)))
                position += 1
            start = position
        return grown, too_large


def _note(parcel: Parcel, entry: Entry, start: int, end: int) -> int:
    """Records ``start`` to ``end`` of the entry are in the parcel; returns the bytes it grew by."""
    if end == start:
        return 0
    grown = int(parcel.builder.size()) - parcel.size_bytes
    parcel.size_bytes += grown
    parcel.count += end - start
    parcel.entries.append(entry if end - start == len(entry.indices) else part_of(entry, range(start, end)))
    return grown
