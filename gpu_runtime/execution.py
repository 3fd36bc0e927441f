"""The instances of one model: who is free, what runs where, and what happens when one dies. Forms no batches."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from typing import Final, Protocol

from gpu_runtime.backend import BackendFactory, LoadContext
from gpu_runtime.batch import Batch
from gpu_runtime.batch_run import BatchResult
from gpu_runtime.instance import InstanceThread
from schemas.clock import Clock, Deadline
from schemas.errors import DeviceError, HeadraceError, ModelError, Unavailable

__all__ = ["MAX_REBUILDS", "Executor", "ExecutorEvents", "Slot"]

_log = logging.getLogger("headrace.runtime")

MAX_REBUILDS: Final = 3
"""Deaths of an instance in a row, with no batch between them, that are answered by building it again."""


class ExecutorEvents(Protocol):
    """What comes of the batches. Called on the event loop."""

    def ran(self, batch: Batch, result: BatchResult) -> None: ...
    def lost(self, batch: Batch, error: HeadraceError) -> None:
        """The instance died over it; nothing of it is answered."""

    def freed(self) -> None:
        """An instance can take a batch, where none could before."""

    def fatal(self, error: HeadraceError) -> None:
        """The device is dead, or an instance cannot be kept alive: the runtime must end."""


class Slot:
    """One place for an instance: a thread that may be replaced, and the batches it has been handed."""

    __slots__ = ("context", "deaths", "in_flight", "memory_bytes", "ready", "thread")

    def __init__(self, context: LoadContext) -> None:
        self.context = context
        self.thread: InstanceThread | None = None
        self.ready = False
        self.in_flight: deque[Batch] = deque()
        self.deaths = 0
        self.memory_bytes = 0


class Executor:
    """
    Args:
        contexts: one for each instance.
        events: told what comes of the batches.
    """

    def __init__(
        self,
        factory: BackendFactory,
        contexts: Sequence[LoadContext],
        *,
        events: ExecutorEvents,
        clock: Clock,
    ) -> None:
        self._factory = factory
        self._events = events
        self._clock = clock
        self._slots = [Slot(context) for context in contexts]
        self._loading: asyncio.Future[None] | None = None
        self._closing = False
        self._threads: list[InstanceThread] = []

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Loads and warms every instance, each in its thread; returns when all are ready.

        Raises:
            ModelLoadError, DeviceError: the first instance's that failed; the others are told to close.
        """
        self._loading = asyncio.get_running_loop().create_future()
        for slot in self._slots:
            self._build(slot)
        try:
            await self._loading
        except BaseException:
            self._stop_all(Unavailable("loading failed"))
            raise
        finally:
            self._loading = None

    async def close(self, deadline: Deadline) -> bool:
        """Closes each backend after what it runs; False when one did not come to an end in time (it is abandoned)."""
        self._stop_all(Unavailable("closed while it was being loaded"))
        ended = await asyncio.gather(*(thread.join(deadline) for thread in self._threads))
        for thread, ok in zip(self._threads, ended, strict=True):
            if not ok:
                _log.error("%s is still running after the time to close; it is left behind", thread.name)
        return all(ended)

    def abandon(self, error: HeadraceError) -> list[Batch]:
        """No more is heard of what runs; returns it. ``error`` ends a `start` that is under way."""
        batches = [batch for slot in self._slots for batch in slot.in_flight]
        for slot in self._slots:
            slot.in_flight.clear()
        self._stop_all(error)
        for slot in self._slots:
            slot.thread = None
        return batches

    def _stop_all(self, error: HeadraceError) -> None:
        if self._loading is not None and not self._loading.done():
            self._loading.set_exception(error)
        if not self._closing:
            self._closing = True
            for slot in self._slots:
                slot.ready = False
                if slot.thread is not None:
                    slot.thread.stop()

    # -- work -----------------------------------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        return sum(slot.memory_bytes for slot in self._slots)

    def try_slot(self, *, depth: int) -> Slot | None:
        """The least busy instance that holds fewer than ``depth`` batches; None when there is none."""
        best: Slot | None = None
        for slot in self._slots:
            if slot.ready and len(slot.in_flight) < depth:
                if not slot.in_flight:
                    return slot
                best = best or slot
        return best

    def run(self, slot: Slot, batch: Batch) -> None:
        """Hands ``batch`` to an instance that `try_slot` gave."""
        if slot.thread is None:
            raise RuntimeError("a slot without a thread was given out")
        slot.in_flight.append(batch)
        slot.thread.put(batch)

    # -- InstanceEvents -------------------------------------------------------------------------------------------

    def ready(self, thread: InstanceThread, memory_bytes: int) -> None:
        slot = self._slot_of(thread)
        if slot is None or self._closing:
            return
        slot.memory_bytes = memory_bytes
        slot.ready = True
        if self._loading is None:
            _log.warning("%s was built again", thread.name)
            self._events.freed()
        elif all(each.ready for each in self._slots) and not self._loading.done():
            self._loading.set_result(None)

    def done(self, thread: InstanceThread, batch: Batch, result: BatchResult) -> None:
        slot = self._slot_of(thread)
        if slot is None:
            return
        slot.in_flight.popleft()
        slot.deaths = 0
        self._events.ran(batch, result)

    def died(self, thread: InstanceThread, cause: BaseException) -> None:
        slot = self._slot_of(thread)
        if slot is None:
            return
        slot.ready = False
        slot.thread = None
        if self._loading is not None:
            if not self._loading.done():
                self._loading.set_exception(_as_error(thread.name, cause))
            return
        lost = [*slot.in_flight]
        slot.in_flight.clear()
        slot.deaths += 1
        fatal = isinstance(cause, DeviceError) or slot.deaths > MAX_REBUILDS
        error = self._verdict(thread.name, cause, deaths=slot.deaths)
        _log.error("%s", error, exc_info=cause)
        if fatal and not self._closing:
            # First, so that whoever is told of a lost batch can see why.
            self._events.fatal(error)
        elif not self._closing:
            self._build(slot)
        for batch in lost:
            self._events.lost(batch, error)

    # -- inner ----------------------------------------------------------------------------------------------------

    def _build(self, slot: Slot) -> None:
        name = f"headrace-{slot.context.config.name}-{self._slots.index(slot)}"
        slot.thread = InstanceThread(self._factory, slot.context, name=name, events=self, clock=self._clock)
        self._threads = [thread for thread in self._threads if thread.alive] + [slot.thread]

    def _slot_of(self, thread: InstanceThread) -> Slot | None:
        return next((slot for slot in self._slots if slot.thread is thread), None)

    def _verdict(self, name: str, cause: BaseException, *, deaths: int) -> HeadraceError:
        if isinstance(cause, DeviceError):
            return cause
        text = f"instance {name} died: {type(cause).__name__}: {cause}"
        if deaths > MAX_REBUILDS:
            return Unavailable(f"{text}, {deaths} times with no batch between; see the log for where")
        return ModelError(f"{text}; it is being built again")


def _as_error(name: str, cause: BaseException) -> HeadraceError:
    if isinstance(cause, HeadraceError):
        return cause
    return ModelError(f"instance {name} died while loading: {type(cause).__name__}: {cause}")
