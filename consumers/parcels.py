"""Records on their way to one partition: what is sent together, who is to be told, and how they are spread.

Knows no broker; the outbox fills and sends what is defined here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from consumers.ends import HeaderList
from consumers.partitioning import partitions_of
from schemas.errors import HeadraceError

__all__ = ["Entry", "Parcel", "Receipt", "entry_bytes", "part_of", "record_bytes", "spread"]

_RECORD_OVERHEAD_BYTES: Final = 96
"""Batch header, lengths and deltas that a single record adds to its key, value and headers; rounded up."""


class Receipt(Protocol):
    """Whoever sent records and must know what became of them. Called on the event loop, must not raise."""

    def delivered(self, indices: Sequence[int]) -> None:
        """The broker acknowledged these records."""

    def refused(self, index: int, error: HeadraceError) -> None:
        """This record can never be delivered there; its sender must find it another end."""


@dataclass(slots=True)
class Entry:
    """Records of one receipt for one partition."""

    keys: Sequence[bytes | None]
    values: Sequence[bytes | None]
    headers: Sequence[HeaderList]
    indices: Sequence[int]
    receipt: Receipt
    to_reply: bool


@dataclass(slots=True)
class Parcel:
    """What goes to the broker as one batch."""

    builder: Any
    entries: list[Entry] = field(default_factory=list)
    count: int = 0
    size_bytes: int = 0


def record_bytes(entry: Entry, at: int) -> int:
    key, value = entry.keys[at], entry.values[at]
    size = _RECORD_OVERHEAD_BYTES + len(key or b"") + len(value or b"")
    for name, content in entry.headers[at]:
        size += len(name) + len(content or b"") + 4
    return size


def entry_bytes(entry: Entry) -> int:
    return sum(record_bytes(entry, at) for at in range(len(entry.indices)))


def part_of(entry: Entry, picks: Sequence[int]) -> Entry:
    """The records at ``picks``, which ascend."""
    if isinstance(picks, range) or (len(picks) and picks[-1] - picks[0] + 1 == len(picks)):
        first, end = picks[0], picks[-1] + 1
        return Entry(
            entry.keys[first:end],
            entry.values[first:end],
            entry.headers[first:end],
            entry.indices[first:end],
            entry.receipt,
            entry.to_reply,
        )
    return Entry(
        [entry.keys[at] for at in picks],
        [entry.values[at] for at in picks],
        [entry.headers[at] for at in picks],
        [entry.indices[at] for at in picks],
        entry.receipt,
        entry.to_reply,
    )


def spread(entry: Entry, count: int, first: int) -> tuple[list[tuple[int, Entry]], int]:
    """The entry's records by output partition, by key or, for null keys, evenly.

    Args:
        first: the partition at which null keys begin.

    Returns:
        ``(partition, its records)`` pairs, and where the next null keys are to begin.
    """
    size = len(entry.indices)
    by_partition: dict[int, list[int]] = {}
    if entry.keys.count(None) == size:
        # Runs of neighbours, so that each partition gets few large batches; the start rotates.
        share, extra = divmod(size, count)
        at = 0
        for turn in range(min(count, size)):
            length = share + (turn < extra)
            by_partition[(first + turn) % count] = list(range(at, at + length))
            at += length
        first = (first + extra) % count
    else:
        by_key = iter(partitions_of([key for key in entry.keys if key is not None], count))
        for at, key in enumerate(entry.keys):
            if key is None:
                chosen, first = first, (first + 1) % count
            else:
                chosen = next(by_key)
            by_partition.setdefault(chosen, []).append(at)
    return [(chosen, part_of(entry, picks)) for chosen, picks in by_partition.items()], first
