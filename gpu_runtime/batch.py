"""A batch, its parts, and rows that leave the queue without running: plain data between batcher and executor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpu_runtime.request import Request, ScopeState

__all__ = ["Batch", "DropCode", "Dropped", "Part", "why_unwanted"]

DropCode = Literal["expired", "cancelled", "withdrawn"]
"""Why rows leave without running; ``withdrawn``: their scope closed."""


@dataclass(slots=True)
class Part:
    """Rows ``start`` to ``stop`` of a request; all of them unless the request had to be split."""

    request: Request
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start

    @property
    def whole(self) -> bool:
        return self.stop - self.start == self.request.rows


@dataclass(slots=True)
class Batch:
    """One execution: parts of one signature, ``rows`` in all, in the order in which they are stacked."""

    parts: list[Part]
    rows: int


@dataclass(slots=True)
class Dropped:
    """``request`` left the queue; ``rows`` of it had not been handed out."""

    request: Request
    code: DropCode
    rows: int


def why_unwanted(request: Request) -> DropCode | Literal["suspended"] | None:
    """Why the request may not run now, apart from its deadline; None when it may."""
    scope = request.scope
    if scope is not None and scope.state is not ScopeState.ACTIVE:
        return "withdrawn" if scope.state is ScopeState.CLOSED else "suspended"
    return "cancelled" if request.cancelled else None
