"""Waiting for what the event loop will do by itself: no time passes, turns do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["turns", "until"]


async def turns(count: int = 20) -> None:
    """Lets everything run that can run now, so that a test may say what did *not* happen."""
    for _ in range(count):
        await asyncio.sleep(0)


async def until(condition: Callable[[], object], *, within: int = 5_000) -> None:
    """Turns the loop until the condition holds; fails the test when it does not."""
    for _ in range(within):
        if condition():
            return
        await asyncio.sleep(0)
    raise AssertionError(f"not within {within} turns of the event loop: {condition}")
