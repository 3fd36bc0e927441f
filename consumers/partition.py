"""One assigned partition: what was delivered from it, what waits for its time, whether the claim still holds."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, Final

from consumers.kafka import Record
from consumers.ledger import Chunk, Ledger
from consumers.route import Route
from gpu_runtime.request import Scope

__all__ = ["Delivery", "Partition"]

_MAX_HELD: Final = 1_000
"""Retries of one partition held in memory until they are due; the rest wait in Kafka."""

Delivery = tuple[Chunk, list[int], list[Record]]
"""Records of one chunk and their indices in it, which ascend."""


class Partition:
    """An assignment is an object that dies: work that ends late asks `scope` whether it still counts."""

    __slots__ = ("_held", "_sequence", "key", "ledger", "paused", "route", "scope", "tp")

    def __init__(self, tp: Any, route: Route, committed: int | None) -> None:
        self.tp = tp
        self.route = route
        self.key = (tp.topic, tp.partition)
        self.scope = Scope()
        self.ledger = Ledger(committed)
        self.paused = False
        self._held: list[tuple[int, int, Chunk, int, Record]] = []
        self._sequence = 0

    def deliver(self, records: Sequence[Record]) -> Chunk:
        """Enters fetched records in the ledger."""
        return self.ledger.deliver([record.offset for record in records], [record.timestamp for record in records])

    def hold(self, due_ms: int, chunk: Chunk, index: int, record: Record) -> None:
        """Keeps a retry until Unix ``due_ms``."""
        self._sequence += 1
        heapq.heappush(self._held, (due_ms, self._sequence, chunk, index, record))

    def due(self, now_ms: int) -> list[Delivery]:
        """Takes out the retries whose time has come."""
        taken: dict[int, tuple[Chunk, dict[int, Record]]] = {}
        while self._held and self._held[0][0] <= now_ms:
            _, _, chunk, index, record = heapq.heappop(self._held)
            taken.setdefault(id(chunk), (chunk, {}))[1][index] = record
        deliveries: list[Delivery] = []
        for chunk, by_index in taken.values():
            # They became due in any order; a chunk is told in its own.
            indices = sorted(by_index)
            deliveries.append((chunk, indices, [by_index[index] for index in indices]))
        return deliveries

    @property
    def place(self) -> tuple[str, int]:
        """Model and number, under which it is reported together with its model's other topic."""
        return self.route.model, self.tp.partition

    @property
    def next_due_ms(self) -> int | None:
        """Unix ms at which the next held retry is due."""
        return self._held[0][0] if self._held else None

    @property
    def holds_too_many(self) -> bool:
        return len(self._held) >= _MAX_HELD

    def drop_held(self) -> None:
        """Hands held retries back: they stay unfinished and are read again after a restart."""
        self._held.clear()
