"""Which offsets of one partition have been dealt with: all below a floor, and some ranges above it. Pure arithmetic."""

from __future__ import annotations

from typing import Final

__all__ = ["Replayed"]

LIMIT_BYTES: Final = 4096
"""Kafka's default for ``offset.metadata.max.bytes``."""
_LONGEST_RANGE_BYTES: Final = 40


class Replayed:
    """A set of offsets: everything below ``floor``, and sorted ranges above it that neither meet nor overlap."""

    __slots__ = ("_ranges", "floor")

    def __init__(self, floor: int = 0) -> None:
        self.floor = floor
        self._ranges: list[tuple[int, int]] = []

    @classmethod
    def read(cls, offset: int, metadata: str | None, *, start: int = 0) -> Replayed:
        """From a commit; ``start`` is the first offset still retained.

        Metadata that is not ours counts as none: a letter is rather replayed twice than lost.
        """
        found = cls(max(0, offset, start))
        for part in (metadata or "").split(","):
            first, dash, last = part.partition("-")
            if first.isdigit() and (last.isdigit() or not dash):
                found.add(int(first), int(last or first))
        return found

    def __contains__(self, offset: int) -> bool:
        return offset < self.floor or any(first <= offset <= last for first, last in self._ranges)

    def add(self, first: int, last: int | None = None) -> None:
        """Marks ``first`` to ``last``, both included."""
        end = first if last is None else last
        if end < max(first, self.floor):
            return
        apart, low, high = [], first, end
        for one in self._ranges:
            if one[1] < low - 1 or one[0] > high + 1:
                apart.append(one)
            else:
                low, high = min(low, one[0]), max(high, one[1])
        if low <= self.floor:
            self.floor = high + 1
        else:
            apart.append((low, high))
        self._ranges = sorted(apart)

    @property
    def metadata(self) -> str:
        """The ranges, to be committed with ``floor`` as the offset."""
        return ",".join(f"{first}-{last}" if last > first else f"{first}" for first, last in self._ranges)

    @property
    def full(self) -> bool:
        """Whether one more range may not fit into a commit."""
        return len(self.metadata) > LIMIT_BYTES - _LONGEST_RANGE_BYTES
