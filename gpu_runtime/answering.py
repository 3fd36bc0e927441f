"""Calls each request's ``on_done`` once, with all its rows. Decides nothing about when or what runs."""

from __future__ import annotations

import logging

from gpu_runtime.answers import Assembly, Piece, failed
from gpu_runtime.batch import DropCode, Dropped, Part
from gpu_runtime.batch_run import BatchResult
from gpu_runtime.hooks import RuntimeHooks
from gpu_runtime.request import Outcome, Request
from schemas.errors import Cancelled, Expired, HeadraceError

__all__ = ["AnswerDesk"]

_log = logging.getLogger("headrace.runtime")


class AnswerDesk:
    """The answers of one model. Holds the parts of split requests until they are complete.

    A split request that was cut short is gone from here; parts of it that come back later are not looked at.
    """

    def __init__(self, model: str, *, hooks: RuntimeHooks) -> None:
        self._model = model
        self._hooks = hooks
        self._assemblies: dict[Request, Assembly] = {}

    def expect_parts(self, request: Request) -> None:
        """A part of ``request`` is handed out; those after it will be too, or it is dropped."""
        if request not in self._assemblies:
            self._assemblies[request] = Assembly(request)

    def answer(self, part: Part, piece: Piece, result: BatchResult | None) -> None:
        """The rows of ``part`` are done; ``result`` is None when they never came back from the instance."""
        request = part.request
        queue_s = compute_s = 0.0
        batch_rows = 0
        if result is not None:
            queue_s = result.started - request.enqueued_at
            compute_s, batch_rows = result.compute_s, result.executed_rows
        if part.whole:
            self._deliver(request, Outcome(piece.outputs, piece.errors, queue_s, compute_s, batch_rows))
            return
        assembly = self._assemblies.get(request)
        if assembly is None:
            return
        assembly.add(part.start, piece, queue_s=queue_s, compute_s=compute_s, batch_rows=batch_rows)
        if assembly.complete:
            del self._assemblies[request]
            self._deliver(request, assembly.outcome())

    def skip(self, part: Part, code: DropCode, now: float) -> None:
        """``part`` was handed out, but not wanted any more when its turn came."""
        dropped = Dropped(part.request, code, part.rows)
        if part.whole or code == "withdrawn":
            self.drop(dropped, now)
        else:
            # The rest of it may be under way, or still waiting.
            self._hooks.dropped(self._model, part.rows, code)
            self.answer(part, failed(part.rows, self._why(dropped, now)), None)

    def drop(self, dropped: Dropped, now: float) -> None:
        """Left the queue without running. What was withdrawn is not answered."""
        self._hooks.dropped(self._model, dropped.rows, dropped.code)
        if dropped.code == "withdrawn":
            self._assemblies.pop(dropped.request, None)
        else:
            self.fail(dropped.request, self._why(dropped, now), now)

    def fail(self, request: Request, error: HeadraceError, now: float) -> None:
        """Every row that has no answer yet gets ``error``."""
        assembly = self._assemblies.pop(request, None)
        if assembly is not None:
            self._deliver(request, assembly.outcome(error))
        else:
            errors = dict.fromkeys(range(request.rows), error)
            self._deliver(request, Outcome(None, errors, now - request.enqueued_at))

    def _why(self, dropped: Dropped, now: float) -> HeadraceError:
        waited = now - dropped.request.enqueued_at
        if dropped.code == "expired":
            return Expired(
                f"the deadline passed after {waited:.3f} s in the queue of model {self._model!r}; "
                "allow more time or add instances"
            )
        return Cancelled(f"taken back by its caller after {waited:.3f} s in the queue of model {self._model!r}")

    def _deliver(self, request: Request, outcome: Outcome) -> None:
        try:
            request.on_done(outcome)
        except Exception:  # noqa: BLE001 - it must not cost others their answers
            _log.exception("a callback of model %s raised; its answer is lost", self._model)
