"""Coroutines that run beside a block of code and end with it."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Any

__all__ = ["Background"]


class Background:
    """Runs coroutines beside a block: one that raises ends the block, and the end of the block cancels them all.

    Of several errors the first is raised, alone.
    """

    def __init__(self, *work: Coroutine[Any, Any, None]) -> None:
        self._work = work
        self._group = asyncio.TaskGroup()
        self._tasks: list[asyncio.Task[None]] = []

    async def __aenter__(self) -> None:
        await self._group.__aenter__()
        self._tasks = [self._group.create_task(each) for each in self._work]

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks:
            task.cancel()
        try:
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            raise _first(group) from None


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error = group.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
