"""One thread that owns one backend: it loads it, warms it, runs its batches one after the other, and closes it.

Decides nothing about what to do when it dies; `gpu_runtime.execution` does. Everything it reports arrives on the event
loop, in the order in which it happened.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Protocol, TypeVarTuple, Unpack

from gpu_runtime.backend import Backend, BackendFactory, LoadContext
from gpu_runtime.batch import Batch
from gpu_runtime.batch_run import BatchResult, BatchRunner, is_out_of_memory
from gpu_runtime.warmup import warmup_batches
from schemas.clock import Clock, Deadline
from schemas.errors import DeviceError, HeadraceError, ModelLoadError, RowErrors

__all__ = ["InstanceEvents", "InstanceThread"]

Args = TypeVarTuple("Args")

_log = logging.getLogger("headrace.runtime")


class InstanceEvents(Protocol):
    """What an instance thread reports, on the event loop. After ``died`` nothing more comes."""

    def ready(self, thread: InstanceThread, memory_bytes: int) -> None: ...
    def done(self, thread: InstanceThread, batch: Batch, result: BatchResult) -> None: ...
    def died(self, thread: InstanceThread, cause: BaseException) -> None:
        """Loading failed, the device is dead, or something ended the thread. Its batches are not answered."""


class InstanceThread:
    """Starts at once. All methods are for the event loop.

    The thread is a daemon: a model that never returns must not keep the process from ending. In every other case
    `stop` and `join` end it first.
    """

    def __init__(
        self, factory: BackendFactory, context: LoadContext, *, name: str, events: InstanceEvents, clock: Clock
    ) -> None:
        self._factory = factory
        self._context = context
        self._events = events
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        # Bounded by its user: at most the batch that runs and one more.
        self._inbox: SimpleQueue[Batch | None] = SimpleQueue()
        self._ended = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        self._thread.start()

    @property
    def name(self) -> str:
        return self._thread.name

    @property
    def alive(self) -> bool:
        return not self._ended.is_set()

    def put(self, batch: Batch) -> None:
        self._inbox.put(batch)

    def stop(self) -> None:
        """After the batches already put, close the backend and end."""
        self._inbox.put(None)

    async def join(self, deadline: Deadline) -> bool:
        """Waits until the backend is closed and the thread has nothing more to do; False when it takes longer."""
        try:
            async with asyncio.timeout(deadline.remaining_s):
                await self._ended.wait()
        except TimeoutError:
            return False
        return True

    # -- in the thread --------------------------------------------------------------------------------------------

    def _main(self) -> None:
        backend: Backend | None = None
        try:
            backend = self._load()
            self._tell(self._events.ready, self, backend.memory_bytes)
            self._serve(backend)
        except BaseException as error:  # noqa: BLE001 - the thread's outermost level: its end is reported
            self._tell(self._events.died, self, error)
        if backend is not None:
            self._close(backend)
        self._tell(self._ended.set)

    def _serve(self, backend: Backend) -> None:
        runner = BatchRunner(backend, self._context.config, clock=self._clock)
        while (batch := self._inbox.get()) is not None:
            result = runner.run(batch)
            self._tell(self._events.done, self, batch, result)
            del batch, result  # an idle instance keeps no request alive

    def _tell(self, what: Callable[[Unpack[Args]], object], *args: *Args) -> None:
        try:
            self._loop.call_soon_threadsafe(what, *args)
        except RuntimeError:  # the loop is closed: the runtime gave up waiting for this thread
            _log.warning("%s ended after its runtime had", self.name)

    def _load(self) -> Backend:
        what = f"model {self._context.config.name!r}"
        try:
            backend = self._factory(self._context)
        except HeadraceError:
            raise
        except Exception as error:
            raise ModelLoadError(f"{what} could not be loaded: {type(error).__name__}: {error}") from error
        try:
            self._warm_up(backend)
        except BaseException:
            self._close(backend)
            raise
        return backend

    def _warm_up(self, backend: Backend) -> None:
        """A configured sample must run. One that was made up may be refused: the model can be right to."""
        config = self._context.config
        for tensors, rows in warmup_batches(config, self._context.path):
            try:
                backend.infer(tensors, None)
            except DeviceError:
                raise
            except Exception as error:
                text = f"warm-up of model {config.name!r} with {rows} rows failed: {type(error).__name__}: {error}"
                if config.warmup:
                    raise ModelLoadError(f"{text}; correct the sample or the model") from error
                # A model that refuses single rows has run: nothing for an operator to look into.
                level = logging.DEBUG if isinstance(error, RowErrors) else logging.INFO
                _log.log(level, "%s (a made-up sample%s)", text, ", too large" * is_out_of_memory(error))

    def _close(self, backend: Backend) -> None:
        try:
            backend.close()
        except Exception:  # noqa: BLE001 - user code; there is nobody left to tell but the log
            _log.exception("%s: closing the backend failed; its memory may not be free", self.name)
