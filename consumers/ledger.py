"""Which delivered offsets of one partition are finished, and how far that allows a commit.

Offsets are tracked as delivered, because topics have gaps (compaction, transaction markers). The ledger knows nothing
of Kafka: it is fed offsets and answers one.
"""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["Chunk", "Ledger"]


class Chunk:
    """Records delivered together. Its owner marks their positions finished, in any order, each once.

    Attributes:
        offsets: of the records, ascending.
        timestamps: Unix ms, parallel to ``offsets``.
    """

    __slots__ = ("_done", "_left", "offsets", "timestamps")

    def __init__(self, offsets: Sequence[int], timestamps: Sequence[int]) -> None:
        self.offsets = offsets
        self.timestamps = timestamps
        self._done = bytearray(len(offsets))
        self._left = len(offsets)

    def finish(self, indices: Sequence[int]) -> None:
        """Marks the records at ``indices`` (ascending) finished. Marking one twice counts once."""
        done = self._done
        first, last = indices[0], indices[-1]
        span = last - first + 1
        if span == len(indices):
            fresh = span - done.count(1, first, last + 1)
            done[first : last + 1] = b"\1" * span
        else:
            fresh = 0
            for index in indices:
                if not done[index]:
                    done[index] = 1
                    fresh += 1
        self._left -= fresh

    @property
    def left(self) -> int:
        """Records not finished."""
        return self._left

    def lowest_unfinished(self) -> int:
        """Index of the first unfinished record, -1 when there is none."""
        return -1 if self._left == 0 else self._done.find(0)


class Ledger:
    """One partition's delivered records.

    Attributes:
        next_offset: the offset after the last delivered record; None before the first.
        committed: the last offset the broker confirmed; None when unknown.
    """

    def __init__(self, committed: int | None = None) -> None:
        self.next_offset: int | None = committed
        self.committed = committed
        self._chunks: list[Chunk] = []

    def deliver(self, offsets: Sequence[int], timestamps: Sequence[int]) -> Chunk:
        """Takes in records in their order. Offsets may start over only if the log itself did."""
        chunk = Chunk(offsets, timestamps)
        self._chunks.append(chunk)
        self.next_offset = offsets[-1] + 1
        return chunk

    def position(self, consumed_to: int | None = None) -> int | None:
        """The next offset to read after a restart: the lowest unfinished one, else the end of what was delivered.

        Args:
            consumed_to: the consumer's own position, which lies beyond ``next_offset`` where the log ends in markers
                or compacted records; it counts when nothing is unfinished.
        """
        # One record that is retried for long must not keep everything behind it in memory.
        chunks = self._chunks = [chunk for chunk in self._chunks if chunk.left]
        if chunks:
            return chunks[0].offsets[chunks[0].lowest_unfinished()]
        if self.next_offset is None:
            return consumed_to
        return self.next_offset if consumed_to is None else max(self.next_offset, consumed_to)

    @property
    def unfinished(self) -> int:
        """Records delivered and not finished."""
        return sum(chunk.left for chunk in self._chunks)

    def oldest_timestamp(self) -> int | None:
        """Unix ms of the lowest unfinished record; None when all are finished."""
        for chunk in self._chunks:
            if chunk.left:
                return chunk.timestamps[chunk.lowest_unfinished()]
        return None
