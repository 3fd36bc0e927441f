"""A consumer, its group and its log, in memory, as far as the node can tell: a fetch returns what the test put in."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from typing import Any

from consumers.kafka import Record

__all__ = ["FakeConsumer"]


class _Coordinator:
    def __init__(self) -> None:
        self.generation = 1


class FakeConsumer:
    """
    Attributes:
        committed_offsets: the group's.
        positions: where the consumer stands.
        ends: end offsets.
        ready: what the next fetch may return, by partition.
        fetches: the partitions each fetch was asked for; empty for all.
        commits: every commit that succeeded, in order.
        fails: exception for the named call (``commit``, ``committed``, ``position``, ``end_offsets``, ``topics``,
            ``getmany``).
        silent: calls that never answer.
        gone: topics that do not exist.
        during_fetch: called while a fetch is under way, once.
    """

    def __init__(self) -> None:
        self._coordinator = _Coordinator()
        self.assigned: set[Any] = set()
        self.paused: set[Any] = set()
        self.pauses = 0
        self.committed_offsets: dict[Any, int] = {}
        self.positions: dict[Any, int] = {}
        self.ends: dict[Any, int] = {}
        self.ready: dict[Any, list[Record]] = {}
        self.fetches: list[tuple[Any, ...]] = []
        self.patience_ms: list[int] = []
        self.commits: list[dict[Any, int]] = []
        self.seeks: list[tuple[Any, int]] = []
        self.fails: dict[str, Exception] = {}
        self.silent: set[str] = set()
        self.gone: set[str] = set()
        self.during_fetch: Any = None

    @property
    def generation(self) -> int:
        return self._coordinator.generation

    @generation.setter
    def generation(self, value: int) -> None:
        self._coordinator.generation = value

    async def _answer(self, call: str) -> None:
        if call in self.silent:
            await asyncio.Event().wait()
        await asyncio.sleep(0)
        if call in self.fails:
            raise self.fails[call]

    async def commit(self, offsets: Mapping[Any, Any]) -> None:
        await self._answer("commit")
        taken = {tp: at.offset for tp, at in offsets.items()}
        self.commits.append(taken)
        self.committed_offsets.update(taken)

    async def committed(self, tp: Any) -> int | None:
        await self._answer("committed")
        return self.committed_offsets.get(tp)

    async def position(self, tp: Any) -> int:
        await self._answer("position")
        return self.positions.get(tp, self.committed_offsets.get(tp, 0))

    async def end_offsets(self, partitions: Collection[Any]) -> dict[Any, int]:
        await self._answer("end_offsets")
        return {tp: self.ends.get(tp, 0) for tp in partitions}

    async def topics(self) -> set[str]:
        await self._answer("topics")
        return set()

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return None if topic in self.gone else {0}

    def seek(self, tp: Any, offset: int) -> None:
        self.seeks.append((tp, offset))
        self.positions[tp] = offset

    def pause(self, *partitions: Any) -> None:
        self.paused.update(partitions)
        self.pauses += 1

    def resume(self, *partitions: Any) -> None:
        self.paused.difference_update(partitions)

    def assignment(self) -> set[Any]:
        return self.assigned

    def highwater(self, tp: Any) -> int | None:
        return self.ends.get(tp)

    async def getmany(self, *partitions: Any, timeout_ms: int, max_records: int) -> dict[Any, list[Record]]:
        self.fetches.append(partitions)
        self.patience_ms.append(timeout_ms)
        await self._answer("getmany")
        if self.during_fetch is not None:
            during, self.during_fetch = self.during_fetch, None
            await during()
        wanted = [tp for tp in self.ready if not partitions or tp in partitions]
        taken = {tp: self.ready.pop(tp) for tp in wanted}
        for tp, records in taken.items():
            self.positions[tp] = records[-1].offset + 1
        return taken
