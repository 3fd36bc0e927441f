"""How long to wait before a thing is tried again: twice as long each time, up to a most."""

from __future__ import annotations

import asyncio
from typing import Final

__all__ = ["FIRST_S", "Backoff"]

FIRST_S: Final = 0.1
_MOST_S: Final = 5.0


class Backoff:
    """``next_s`` is how long the next `wait` takes."""

    __slots__ = ("next_s",)

    def __init__(self, first_s: float = FIRST_S) -> None:
        self.next_s = first_s

    async def wait(self) -> None:
        await asyncio.sleep(self.next_s)
        self.next_s = min(self.next_s * 2, _MOST_S)
