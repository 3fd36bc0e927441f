"""One model at work: its queue, its instances, and the loop that brings them together. Runs on the event loop.

The loop is `Scheduler._turn`. It runs when something has happened (a request, an answer, a timer, a changed scope),
never by polling, and it does not wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Final

from gpu_runtime.answering import AnswerDesk
from gpu_runtime.answers import Piece, failed
from gpu_runtime.backend import BackendFactory, LoadContext
from gpu_runtime.batch import Batch
from gpu_runtime.batch_run import BatchResult
from gpu_runtime.batching import DynamicBatcher
from gpu_runtime.execution import Executor, Slot
from gpu_runtime.hooks import RuntimeHooks
from gpu_runtime.request import Request, Scope
from schemas.clock import Clock, Deadline
from schemas.errors import HeadraceError, Unavailable
from schemas.model import ModelConfig

__all__ = ["Scheduler"]

_log = logging.getLogger("headrace.runtime")

_PREFETCH_DEPTH: Final = 2
"""Batches an instance may hold under backlog: the one that runs and the next. The second saves the instance the
round trip over the event loop; it is not formed when callers' deadlines or priorities could still change it."""


class Scheduler:
    """
    Args:
        contexts: one for each instance.
        on_fatal: told, once or more, when the runtime must end.
    """

    def __init__(
        self,
        config: ModelConfig,
        *,
        factory: BackendFactory,
        contexts: Sequence[LoadContext],
        hooks: RuntimeHooks,
        clock: Clock,
        on_fatal: Callable[[HeadraceError], None],
    ) -> None:
        self.config = config
        self.contexts = contexts
        self.batches = 0
        self.rows = 0
        self._hooks = hooks
        self._clock = clock
        self._on_fatal = on_fatal
        self._loop = asyncio.get_running_loop()
        self._batcher = DynamicBatcher(config, clock=clock)
        self._executor = Executor(factory, contexts, events=self, clock=clock)
        # A batch formed ahead cannot be refused, reordered or expired any more.
        self._may_prefetch = not config.priority_levels and config.queue.default_deadline_ms is None
        self._desk = AnswerDesk(config.name, hooks=hooks)
        self._running_rows = 0
        self._running_by_scope: dict[Scope, int] = {}
        self._backlog = False
        self._draining = False
        self._idle = asyncio.Event()
        self._idle.set()
        self._turn_is_due = False
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at: float | None = None
        self._reported_rows = 0

    # -- the loop -------------------------------------------------------------------------------------------------

    def _turn(self) -> None:
        self._turn_is_due = False
        now = self._clock()
        self._drop_unwanted(now)
        while (slot := self._try_slot()) and (batch := self._batcher.try_next(now)):
            self._hand_over(slot, batch)
        self._drop_unwanted(now)  # what forming the batches came across
        self._sleep_until(self._batcher.wake_at(now), now)
        self._notice_idle()

    def _drop_unwanted(self, now: float) -> None:
        for dropped in self._batcher.expire(now):
            self._desk.drop(dropped, now)

    def _try_slot(self) -> Slot | None:
        batcher = self._batcher
        if not batcher.waiting_rows:
            return None
        ahead = batcher.backlog and self._may_prefetch and not batcher.has_deadlines
        return self._executor.try_slot(depth=_PREFETCH_DEPTH if ahead else 1)

    def _hand_over(self, slot: Slot, batch: Batch) -> None:
        for part in batch.parts:
            request = part.request
            if request.scope is not None:
                running = self._running_by_scope.get(request.scope, 0)
                self._running_by_scope[request.scope] = running + part.rows
            if not part.whole:
                self._desk.expect_parts(request)
        self._running_rows += batch.rows
        self._executor.run(slot, batch)

    def _sleep_until(self, moment: float | None, now: float) -> None:
        if moment == self._timer_at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None if moment is None else self._loop.call_later(moment - now, self._ring)
        self._timer_at = moment

    def _ring(self) -> None:
        self._timer = self._timer_at = None
        self._guarded_turn()

    def _notice_idle(self) -> None:
        waiting = self._batcher.waiting_rows
        if waiting != self._reported_rows:
            self._reported_rows = waiting
            self._hooks.queue_depth(self.config.name, waiting)
        if not waiting and not self._running_rows:
            self._batcher.check_integrity()
            self._idle.set()

    def _guarded_turn(self) -> None:
        """The outermost level: a loop that dies takes the runtime down instead of leaving callers to wait."""
        try:
            self._turn()
        except Exception as error:  # noqa: BLE001 - ends in the death of the runtime
            _log.exception("scheduling of model %s failed", self.config.name)
            self.fatal(Unavailable(f"scheduling of model {self.config.name!r} failed: {type(error).__name__}: {error}"))

    def wake(self) -> None:
        """Has the loop turn once, soon, however often it is called before."""
        if not self._turn_is_due:
            self._turn_is_due = True
            self._loop.call_soon(self._guarded_turn)

    # -- what comes in --------------------------------------------------------------------------------------------

    def try_submit(self, request: Request) -> bool:
        """False when the queue is full. What one turn of the event loop submits can share a batch."""
        if not self._batcher.try_add(request):
            # What could run already does not count as waiting.
            self._guarded_turn()
            if not self._batcher.try_add(request):
                return False
        self._idle.clear()
        self.wake()
        return True

    def look_again(self) -> None:
        self._batcher.look_again()
        self.wake()

    def set_backlog(self, backlog: bool) -> None:
        self._backlog = backlog
        self._update_backlog()

    def _update_backlog(self) -> None:
        backlog = self._backlog or self._draining
        if backlog != self._batcher.backlog:
            self._batcher.backlog = backlog
            self.wake()

    # -- what comes back (ExecutorEvents) -------------------------------------------------------------------------

    def ran(self, batch: Batch, result: BatchResult) -> None:
        if result.limit < self._batcher.limit:
            self._batcher.lower_limit(result.limit)
            self._hooks.batch_limit(self.config.name, result.limit)
        self._guarded_turn()  # first the device, then the answers
        executed = failed_rows = 0
        requests: list[Request] = []
        for part, piece in zip(batch.parts, result.pieces, strict=True):
            if isinstance(piece, Piece):
                executed += part.rows
                failed_rows += len(piece.errors)
                requests.append(part.request)
                self._desk.answer(part, piece, result)
            else:
                self._desk.skip(part, piece, result.started)
        if executed:
            self.batches += 1
            self.rows += executed
            self._hooks.batch_done(self.config.name, requests, executed, result.started, result.compute_s, failed_rows)
        self._settle(batch)

    def lost(self, batch: Batch, error: HeadraceError) -> None:
        for part in batch.parts:
            self._desk.answer(part, failed(part.rows, error), None)
        self._settle(batch)

    def freed(self) -> None:
        self.wake()

    def fatal(self, error: HeadraceError) -> None:
        self._on_fatal(error)

    def _settle(self, batch: Batch) -> None:
        """The batch has been answered."""
        self._running_rows -= batch.rows
        for part in batch.parts:
            scope = part.request.scope
            if scope is not None:
                left = self._running_by_scope[scope] - part.rows
                if left:
                    self._running_by_scope[scope] = left
                else:
                    del self._running_by_scope[scope]
        self._notice_idle()

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Raises: ModelLoadError, DeviceError."""
        await self._executor.start()

    async def drain(self, deadline: Deadline) -> bool:
        """Waits until all that was accepted is answered, with no waiting for fuller batches; False when out of time."""
        self._draining = True
        self._update_backlog()
        try:
            async with asyncio.timeout(deadline.remaining_s):
                await self._idle.wait()
        except TimeoutError:
            return False
        finally:
            self._draining = False
            self._update_backlog()
        return True

    async def close(self, deadline: Deadline, error: HeadraceError) -> bool:
        """Answers what waits with ``error``, lets what runs finish, closes the backends.

        False when an instance was still running at the deadline; what it ran is answered with ``error`` too.
        """
        self.fail_waiting(error)
        ended = await self._executor.close(deadline)
        self.abandon(error)
        return ended

    def fail_waiting(self, error: HeadraceError) -> None:
        now = self._clock()
        self._drop_unwanted(now)
        for request in self._batcher.take_all():
            self._desk.fail(request, error, now)
        self._sleep_until(None, now)
        self._notice_idle()

    def abandon(self, error: HeadraceError) -> None:
        """Answers everything with ``error``, what runs included; its results are not looked at."""
        for batch in self._executor.abandon(error):
            self.lost(batch, error)
        self.fail_waiting(error)

    # -- figures --------------------------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        return self._executor.memory_bytes

    @property
    def waiting_rows(self) -> int:
        return self._batcher.waiting_rows

    @property
    def running_rows(self) -> int:
        return self._running_rows

    @property
    def room(self) -> int:
        return self._batcher.room

    @property
    def limit(self) -> int:
        return self._batcher.limit

    def running(self, scope: Scope) -> int:
        return self._running_by_scope.get(scope, 0)
