"""Waiting on a condition with a deadline, in place of sleeping."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import TypeVar, cast, overload

__all__ = ["eventually", "eventually_sync"]

T = TypeVar("T")


@overload
async def eventually(
    condition: Callable[[], Coroutine[object, object, T]],
    deadline_s: float = ...,
    *,
    every_s: float = ...,
    why: str = ...,
) -> T: ...


@overload
async def eventually(
    condition: Callable[[], T | Awaitable[T]], deadline_s: float = ..., *, every_s: float = ..., why: str = ...
) -> T: ...


async def eventually(
    condition: Callable[[], T | Awaitable[T]], deadline_s: float = 10.0, *, every_s: float = 0.02, why: str = ""
) -> T:
    """The first truthy answer of ``condition``, plain or async; fails the test with the last answer when none comes."""
    end = time.monotonic() + deadline_s
    while True:
        answer = condition()
        value = await cast(Awaitable[T], answer) if inspect.isawaitable(answer) else answer
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"not within {deadline_s:g} s: {why or condition}; the last answer was {value!r}")
        await asyncio.sleep(every_s)


def eventually_sync(condition: Callable[[], T], deadline_s: float = 10.0, *, every_s: float = 0.02, why: str = "") -> T:
    """As `eventually`, for tests without an event loop."""
    end = time.monotonic() + deadline_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() >= end:
            raise AssertionError(f"not within {deadline_s:g} s: {why or condition}; the last answer was {value!r}")
        time.sleep(every_s)
