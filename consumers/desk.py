"""What those who end records need of the node, and the receipt for records that leave in one way.

A record is finished in its partition's ledger only when the broker has acknowledged its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from consumers.hooks import End, NodeHooks
from consumers.ledger import Chunk
from consumers.outbox import Outbox
from consumers.partition import Partition
from schemas.errors import HeadraceError
from schemas.record import now_ms

__all__ = ["Desk", "Ending"]


@dataclass(slots=True)
class Desk:
    """Where ends go, who counts them, whom to wake when room appears."""

    outbox: Outbox
    hooks: NodeHooks
    wake: Callable[[], None]


class Ending:
    """Receipt for records that leave in one way."""

    __slots__ = ("chunk", "desk", "end", "failed", "partition")

    def __init__(
        self,
        desk: Desk,
        partition: Partition,
        chunk: Chunk,
        end: End,
        failed: Callable[[int, HeadraceError, End], None],
    ) -> None:
        self.desk = desk
        self.partition = partition
        self.chunk = chunk
        self.end = end
        self.failed = failed

    def delivered(self, indices: Sequence[int]) -> None:
        self.chunk.finish(indices)
        now = now_ms()
        timestamps = self.chunk.timestamps
        self.desk.hooks.records_out(
            self.partition.route.model, self.end, len(indices), [now - timestamps[index] for index in indices]
        )

    def refused(self, index: int, error: HeadraceError) -> None:
        self.failed(index, error, self.end)
