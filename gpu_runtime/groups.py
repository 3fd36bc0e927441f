"""What the batcher's queue is made of: entries, groups of one signature, the rule of sizes. Knows no time."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence

from gpu_runtime.request import Request

__all__ = ["Entry", "Group", "Lane", "Sizes", "rank_of"]


class Entry:
    """A request in the queue.

    Attributes:
        rank: orders requests; see `DynamicBatcher` on ageing.
        rows, start: rows still to be handed out, and those that have been.
        ticket: its name among those with a deadline; 0 when it has none.
        lane: where it waits; None once it has left.
    """

    __slots__ = ("group", "lane", "level", "rank", "request", "rows", "start", "ticket")

    def __init__(self, request: Request, *, level: int, rank: float, group: Group) -> None:
        self.request = request
        self.level = level
        self.rank = rank
        self.rows = request.rows
        self.start = 0
        self.ticket = 0
        self.group = group
        self.lane: Lane | None = None


Lane = OrderedDict[Entry, None]
"""Entries by rank; removal anywhere costs the same."""


def rank_of(entry: Entry) -> float:
    return entry.rank


class Group:
    """Requests of one signature: a lane for each priority level in use.

    ``ready``, ``rank`` and ``ticket`` say where the batcher has filed it.
    """

    __slots__ = ("lanes", "rank", "ready", "rows", "signature", "ticket")

    def __init__(self, signature: Hashable) -> None:
        self.signature = signature
        self.lanes: dict[int, Lane] = {}
        self.rows = 0
        self.ready = False
        self.rank = 0.0
        self.ticket = -1

    def heads(self) -> Iterator[Entry]:
        return (next(iter(lane)) for lane in self.lanes.values())

    def oldest(self) -> float:
        """When the request that has waited longest came in."""
        return min(head.request.enqueued_at for head in self.heads())

    def first(self) -> Entry:
        if len(self.lanes) == 1:
            return next(iter(next(iter(self.lanes.values()))))
        return min(self.heads(), key=rank_of)

    def in_order(self) -> Iterable[Entry]:
        if len(self.lanes) == 1:
            return next(iter(self.lanes.values()))
        return heapq.merge(*self.lanes.values(), key=rank_of)

    def append(self, entry: Entry) -> None:
        """Last in its lane, which is its place by rank when it is the newest."""
        entry.group = self
        entry.lane = self.lanes.setdefault(entry.level, OrderedDict())
        entry.lane[entry] = None
        self.rows += entry.rows

    def restore_order(self) -> None:
        """After older entries were appended."""
        for level, lane in self.lanes.items():
            ordered: Lane = OrderedDict.fromkeys(sorted(lane, key=rank_of))
            self.lanes[level] = ordered
            for entry in ordered:
                entry.lane = ordered


class Sizes:
    """How many rows a batch may, and should, have.

    Args:
        preferred: sizes that go at once; those above the limit do not count, and none means the limit.
        limit: no batch is larger.
    """

    __slots__ = ("largest", "limit", "preferred", "smallest")

    def __init__(self, preferred: Sequence[int], limit: int) -> None:
        self.limit = limit
        self.preferred = frozenset(size for size in preferred if size <= limit) or frozenset((limit,))
        self.smallest = min(self.preferred)
        self.largest = max(self.preferred)

    def prefix(self, rows_in_order: Iterable[int], *, due: bool, hurry: bool) -> int:
        """How many requests, from the first, go now; 0 to wait for more.

        Args:
            due: the oldest has waited the delay; what there is goes, whatever the preferred sizes.
            hurry: there is nothing to wait for, but preferred sizes are still preferred.
        """
        rows = count = best = 0
        full = False
        for more in rows_in_order:
            if rows + more > self.largest and not best:
                best = count
            if rows + more > self.limit:
                full = True
                break
            rows += more
            count += 1
            if rows in self.preferred:
                best = count
                if rows == self.largest and not due:
                    break
        if best and not due:
            return best
        return count if full or rows >= self.largest or due or hurry else 0
