"""Time as a parameter: a monotonic clock in seconds, and one deadline to pass down.

Wall time is for headers and logs alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable

__all__ = ["Clock", "Deadline", "monotonic"]

Clock = Callable[[], float]
"""Returns monotonic seconds."""

monotonic: Clock = time.monotonic


class Deadline:
    """A moment by which everything below must have ended."""

    __slots__ = ("_clock", "at")

    def __init__(self, seconds: float, clock: Clock = monotonic) -> None:
        self._clock = clock
        self.at = clock() + seconds

    @property
    def remaining_s(self) -> float:
        """Seconds left, never below 0."""
        return max(0.0, self.at - self._clock())

    @property
    def passed(self) -> bool:
        return self._clock() >= self.at
