"""What goes into the runtime and what comes out: rows, their deadline, and one answer for all of them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from schemas.errors import HeadraceError
from schemas.tensors import Tensors

__all__ = ["Outcome", "Parameters", "Request", "Scope", "ScopeState"]

Parameters = Mapping[str, object]


class ScopeState(Enum):
    """``ACTIVE`` -> ``SUSPENDED`` -> ``ACTIVE`` | ``CLOSED``; ``ACTIVE`` -> ``CLOSED``. Closed is for ever."""

    ACTIVE = "active"
    SUSPENDED = "suspended"
    CLOSED = "closed"


class Scope:
    """A claim that requests share and that may lapse, such as a partition's assignment.

    While suspended, its queued requests are left in the queue and others go past them. Once closed, its queued
    requests are dropped with no answer: whoever closed it does not want one. Call ``Runtime.scopes_changed`` after
    a transition so that the batcher looks again.
    """

    __slots__ = ("state",)

    def __init__(self) -> None:
        self.state = ScopeState.ACTIVE


@dataclass(slots=True, frozen=True)
class Outcome:
    """The answer to one request.

    Attributes:
        outputs: ``{name: array of shape [rows, ...]}``, or the model's own shapes when it has no batch dimension;
            None when every row failed. Values of failed rows mean nothing.
        errors: row -> what failed it. A request that failed as a whole has an entry for every row.
        queue_s: seconds from submission until the last of its batches started.
        compute_s: seconds the model took, summed over its batches.
        batch_rows: rows in the largest execution it was part of; 0 when it never ran.
    """

    outputs: Tensors | None
    errors: Mapping[int, HeadraceError] = field(default_factory=dict)
    queue_s: float = 0.0
    compute_s: float = 0.0
    batch_rows: int = 0


@dataclass(slots=True, eq=False)
class Request:
    """Rows of one signature for one model.

    Attributes:
        tensors: inputs, stacked along axis 0 to ``[rows, ...]`` when the model is batched; the model's own shapes,
            and ``rows == 1``, when it is not. Must not be changed after submission.
        signature: requests are batched together only when theirs are equal.
        on_done: called once on the event loop with the outcome; must not raise and must not block. Not called
            when the scope closed before the rows ran.
        deadline: monotonic seconds of the runtime's clock; None for none.
        priority: 1 is the most urgent; 0 takes the model's default level.
        parameters: one mapping a row, or None when no row has any.
        scope: see `Scope`; None for always active.
        cancelled: set by the caller to have the rows dropped before they run (counted, answered ``cancelled``).
        tag: the caller's own, for hooks to find again, such as the spans of a batch's records; never looked at here.
    """

    tensors: Tensors
    rows: int
    signature: Hashable
    on_done: Callable[[Outcome], None]
    deadline: float | None = None
    priority: int = 0
    parameters: Sequence[Parameters] | None = None
    scope: Scope | None = None
    cancelled: bool = False
    enqueued_at: float = 0.0
    tag: object = None
