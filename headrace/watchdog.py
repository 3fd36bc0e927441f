"""Ends a process whose interpreter does not turn any more, so that something outside can start another.

Where a model's native code never gives the interpreter lock back, no probe is answered and no signal is handled: only a
thread without Python can still act, which is what `faulthandler` has.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
from collections.abc import AsyncIterator
from typing import Final

__all__ = ["ended_when_stuck"]

_STDERR: Final = 2


@contextlib.asynccontextmanager
async def ended_when_stuck(after_s: float) -> AsyncIterator[None]:
    """While inside, an event loop that stands still for ``after_s`` ends the process with status 1, the stack of each
    thread on stderr. Nothing is committed or handed back, as after a crash."""

    async def feed() -> None:
        while True:
            faulthandler.dump_traceback_later(after_s, exit=True, file=_STDERR)
            await asyncio.sleep(after_s / 4)

    feeding = asyncio.create_task(feed(), name="watchdog")
    try:
        yield
    finally:
        feeding.cancel()
        await asyncio.wait([feeding])
        faulthandler.cancel_dump_traceback_later()
