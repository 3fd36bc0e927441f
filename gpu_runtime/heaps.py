"""Two heaps whose items may go stale, for the batcher: groups by a key, and entries by deadline. Know no time.

A stale item is passed over when it comes up, and all of them are thrown out when they are most of the heap.
"""

from __future__ import annotations

import heapq
from typing import Final

from gpu_runtime.groups import Entry, Group

__all__ = ["Deadlines", "GroupHeap"]

_SLACK: Final = 64
"""Items beyond two for each live one that are kept before the heap is rebuilt."""


class GroupHeap:
    """Groups by key. An item counts while its ticket is its group's, that is until the group is filed anew."""

    __slots__ = ("_items",)

    def __init__(self) -> None:
        self._items: list[tuple[float, int, Group]] = []

    def push(self, key: float, group: Group, *, live: int) -> None:
        """``live``: how many groups there are."""
        heapq.heappush(self._items, (key, group.ticket, group))
        if len(self._items) > 2 * live + _SLACK:
            self._items = [item for item in self._items if item[1] == item[2].ticket]
            heapq.heapify(self._items)

    def first_key(self) -> float | None:
        items = self._items
        while items and items[0][1] != items[0][2].ticket:
            heapq.heappop(items)
        return items[0][0] if items else None

    def try_pop(self, up_to: float | None = None) -> tuple[float, Group] | None:
        """The group with the smallest key; None when there is none, or its key is above ``up_to``."""
        key = self.first_key()
        if key is None or (up_to is not None and key > up_to):
            return None
        return key, heapq.heappop(self._items)[2]


class Deadlines:
    """Entries that have a deadline. The heap names them by ticket, so that it keeps no finished request in memory."""

    __slots__ = ("_heap", "_waiting")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._waiting: dict[int, Entry] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, deadline: float, entry: Entry) -> None:
        """``entry.ticket`` is set and new."""
        self._waiting[entry.ticket] = entry
        heapq.heappush(self._heap, (deadline, entry.ticket))

    def discard(self, entry: Entry) -> None:
        """The entry has left; one without a deadline is none of ours."""
        if entry.ticket:
            del self._waiting[entry.ticket]
            if len(self._heap) > 2 * len(self._waiting) + _SLACK:
                self._heap = [item for item in self._heap if item[1] in self._waiting]
                heapq.heapify(self._heap)

    def nearest(self) -> float | None:
        heap = self._heap
        while heap and heap[0][1] not in self._waiting:
            heapq.heappop(heap)
        return heap[0][0] if heap else None

    def first_due(self, now: float) -> Entry | None:
        """An entry whose deadline has passed; it stays until it is discarded."""
        nearest = self.nearest()
        return self._waiting[self._heap[0][1]] if nearest is not None and nearest <= now else None
