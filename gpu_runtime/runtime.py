"""`Runtime`: every model of this process behind one object. Knows neither Kafka nor HTTP, and makes no decision itself.

All of it belongs to one event loop; nothing here may be called from another thread.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final, Literal, Self

from gpu_runtime.backend import BackendFactory, LoadContext
from gpu_runtime.hooks import NO_HOOKS, RuntimeHooks
from gpu_runtime.request import Outcome, Parameters, Request, Scope
from gpu_runtime.scheduling import Scheduler
from gpu_runtime.signature import measure
from gpu_runtime.threads import threads_for
from schemas.clock import Clock, Deadline, monotonic
from schemas.errors import (
    Expired,
    HeadraceError,
    ModelLoadError,
    Overloaded,
    Unavailable,
    UnknownModelError,
    ValidationError,
)
from schemas.model import ModelConfig
from schemas.tensors import Tensors

__all__ = ["CLOSE_GRACE_S", "ModelStatus", "Runtime"]

_log = logging.getLogger("headrace.runtime")

CLOSE_GRACE_S: Final = 30.0
"""How long `Runtime.unload`, and leaving the context manager, wait for running batches."""

_CANCELLED_GRACE_S: Final = 0.5

State = Literal["loading", "ready", "unloading", "dead"]


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """
    Attributes:
        memory_bytes: of all its instances together.
        waiting_rows: accepted and not yet handed to an instance.
        running_rows: handed to an instance and not yet answered.
        batches, rows: executed since it was loaded.
        limit: rows an execution may have; below ``max_batch_size`` once memory has run out.
    """

    version: int
    state: State
    instances: int
    memory_bytes: int
    waiting_rows: int
    running_rows: int
    batches: int
    rows: int
    limit: int


class _Held:
    __slots__ = ("scheduler", "state")

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler
        self.state: State = "loading"


class Runtime:
    """Use as an async context manager, or `start` and `close`.

    Once the device is dead or an instance cannot be kept alive, every request, waiting or running, is answered with
    the cause, `failure` returns it, and every further submission raises it. There is no way back: end the process.

    Args:
        backends: ``config.backend`` -> factory.
    """

    def __init__(
        self,
        *,
        hooks: RuntimeHooks = NO_HOOKS,
        clock: Clock = monotonic,
        backends: Mapping[str, BackendFactory],
    ) -> None:
        self._hooks = hooks
        self._clock = clock
        self._backends = backends
        self._held: dict[str, _Held] = {}
        self._failure: asyncio.Future[HeadraceError] | None = None
        self._closed = False

    # -- life -----------------------------------------------------------------------------------------------------

    async def start(self) -> None:
        self._failure = asyncio.get_running_loop().create_future()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close(Deadline(CLOSE_GRACE_S, self._clock))

    async def failure(self) -> HeadraceError:
        """Returns only when the runtime is dead, with the cause."""
        return await asyncio.shield(self._life())

    async def drain(self, deadline: Deadline) -> bool:
        """Waits until everything accepted is answered; False when the time is over first. Refuses nothing new."""
        drained = await asyncio.gather(*(held.scheduler.drain(deadline) for held in self._held.values()))
        return all(drained)

    async def close(self, deadline: Deadline) -> None:
        """Refuses new requests, answers waiting ones `Unavailable`, lets running ones finish, frees the models.

        An instance that is still running at the deadline is left behind, and its requests are answered `Unavailable`.
        """
        self._closed = True
        error = Unavailable("the runtime is stopping; send the request to another node or try again later")
        held, self._held = self._held, {}
        await asyncio.gather(*(each.scheduler.close(deadline, error) for each in held.values()))

    # -- models ---------------------------------------------------------------------------------------------------

    async def load(self, config: ModelConfig, path: Path, *, threads: int | None = None) -> None:
        """Loads and warms every instance, off the event loop; requests are taken once it returns.

        Args:
            path: the version folder.
            threads: intra-op threads of each instance; None shares the CPUs over all instances held now, so a caller
                that will load several models gives each its share.

        Raises:
            ModelLoadError: the model cannot be loaded, or one of that name is held already. Nothing stays behind.
            DeviceError: the device cannot be used.

        A load that is cancelled goes on in its thread, left behind, until it ends by itself.
        """
        self._check_open()
        if config.name in self._held:
            raise ModelLoadError(f"model {config.name!r} is held already; unload it first")
        factory = self._backends.get(config.backend)
        if factory is None:
            known = ", ".join(sorted(self._backends))
            raise ModelLoadError(f"model {config.name!r} wants backend {config.backend!r}; there are: {known}")
        devices = [instance.device for instance in config.instances for _ in range(instance.count)]
        if threads is None:
            total = len(devices) + sum(len(held.scheduler.contexts) for held in self._held.values())
            threads = threads_for(total, config.parameters)
        scheduler = Scheduler(
            config,
            factory=factory,
            contexts=[LoadContext(path, config, device, threads) for device in devices],
            hooks=self._hooks,
            clock=self._clock,
            on_fatal=self._die,
        )
        held = self._held[config.name] = _Held(scheduler)
        try:
            await scheduler.start()
        except BaseException as error:
            if self._held.get(config.name) is held:
                del self._held[config.name]
            # Whoever cancels a load is in a hurry, and a load cannot be interrupted.
            grace_s = _CANCELLED_GRACE_S if isinstance(error, asyncio.CancelledError) else CLOSE_GRACE_S
            await scheduler.close(Deadline(grace_s, self._clock), Unavailable("loading failed"))
            raise
        if held.state == "loading":
            held.state = "ready"
        self._hooks.instance_threads(config.name, threads)

    async def unload(self, model: str, deadline: Deadline | None = None) -> None:
        """Takes no more requests, answers those accepted, then closes the backends: never under a running call.

        Raises:
            UnknownModelError: it is not held.
            Unavailable: an instance was still running at the deadline (`CLOSE_GRACE_S` when none is given); it is left
                behind, its memory is not free, and what it had is answered `Unavailable`.
        """
        deadline = deadline or Deadline(CLOSE_GRACE_S, self._clock)
        held = self._find(model)
        held.state = "unloading"
        await held.scheduler.drain(deadline)
        error = Unavailable(f"model {model!r} is being unloaded; try again later")
        ended = await held.scheduler.close(deadline, error)
        if self._held.get(model) is held:
            del self._held[model]
        if not ended:
            raise Unavailable(f"model {model!r} still runs a batch after the time to unload; its memory is not free")

    @property
    def models(self) -> Mapping[str, ModelStatus]:
        """A snapshot."""
        return {name: _status(held) for name, held in self._held.items()}

    # -- requests -------------------------------------------------------------------------------------------------

    def try_submit(self, model: str, request: Request) -> bool:
        """Accepts the request, to be answered once by its ``on_done``; False when the queue is full.

        Raises:
            UnknownModelError: the model is not loaded.
            Unavailable: it is being loaded or unloaded, or the runtime is stopping.
            ValidationError: rows or parameters do not agree with the model.
            HeadraceError: the cause, when the runtime is dead.
        """
        held = self._held.get(model)
        if held is None or held.state != "ready":
            self._refuse(model)
            return False
        config = held.scheduler.config
        rows, parameters = request.rows, request.parameters
        if rows < 1 or (rows > 1 and not config.batched):
            allowed = "at least 1" if config.batched else "1, as the model has no batch dimension"
            raise ValidationError(f"request for model {model!r} has {rows} rows; it must have {allowed}")
        if parameters is not None and len(parameters) != rows:
            raise ValidationError(f"request for model {model!r} has {len(parameters)} parameters for {rows} rows")
        return held.scheduler.try_submit(request)

    def room(self, model: str) -> int:
        """Rows that may still be queued. Raises: UnknownModelError."""
        return self._find(model).scheduler.room

    def set_backlog(self, model: str, backlog: bool) -> None:
        """Whether more rows are known to be coming at once: then no batch waits for company. UnknownModelError."""
        self._find(model).scheduler.set_backlog(backlog)

    def scopes_changed(self) -> None:
        """Scopes changed state, or requests were marked cancelled: what is not wanted leaves the queues now."""
        for held in self._held.values():
            held.scheduler.look_again()

    def running(self, scope: Scope) -> int:
        """Rows of ``scope`` handed to an instance and not yet answered."""
        return sum(held.scheduler.running(scope) for held in self._held.values())

    async def infer(
        self,
        model: str,
        tensors: Tensors,
        *,
        deadline_s: float,
        parameters: Parameters | None = None,
        priority: int = 0,
    ) -> Outcome:
        """Waits for the answer. Single rows may have failed in it; where all did, the first one's error is raised.

        When the caller is cancelled, rows that have not begun to run are dropped.

        Args:
            parameters: for every row of the request.

        Raises:
            Overloaded: the queue is full.
            Expired: no answer within ``deadline_s``, whether it waited or ran.
            HeadraceError: see `try_submit`, and what failed the rows.
        """
        config = self._find(model).scheduler.config
        rows, signature = measure(config, tensors)
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        request = Request(
            tensors=tensors,
            rows=rows,
            signature=signature,
            on_done=lambda outcome: None if answer.done() else answer.set_result(outcome),
            deadline=self._clock() + deadline_s,
            priority=priority,
            parameters=None if parameters is None else [parameters] * rows,
        )
        if not self.try_submit(model, request):
            raise Overloaded(f"the queue of model {model!r} has no room for {rows} more rows; try again later")
        try:
            async with asyncio.timeout(deadline_s):
                outcome = await answer
        except TimeoutError:
            raise Expired(f"model {model!r} gave no answer within {deadline_s} s; allow more time") from None
        finally:
            if not answer.done() or answer.cancelled():
                request.cancelled = True
                self.scopes_changed()
        if len(outcome.errors) == rows:
            raise outcome.errors[0]
        return outcome

    # -- inner ----------------------------------------------------------------------------------------------------

    def _life(self) -> asyncio.Future[HeadraceError]:
        if self._failure is None:
            raise Unavailable("the runtime has not been started; use it as an async context manager")
        return self._failure

    def _check_open(self) -> None:
        life = self._life()
        if life.done():
            raise life.result()
        if self._closed:
            raise Unavailable("the runtime is stopping; send the request to another node or try again later")

    def _find(self, model: str) -> _Held:
        held = self._held.get(model)
        if held is None:
            self._check_open()
            known = ", ".join(sorted(self._held)) or "none"
            raise UnknownModelError(f"no model {model!r} is loaded here; loaded: {known}")
        return held

    def _refuse(self, model: str) -> None:
        self._check_open()
        state = self._find(model).state
        raise Unavailable(f"model {model!r} is {state}; try again later")

    def _die(self, error: HeadraceError) -> None:
        life = self._life()
        if life.done():
            return
        _log.critical("the runtime is dead: %s", error)
        life.set_result(error)
        for held in self._held.values():
            held.state = "dead"
        for held in [*self._held.values()]:
            held.scheduler.abandon(error)


def _status(held: _Held) -> ModelStatus:
    scheduler = held.scheduler
    return ModelStatus(
        version=scheduler.config.version,
        state=held.state,
        instances=len(scheduler.contexts),
        memory_bytes=scheduler.memory_bytes,
        waiting_rows=scheduler.waiting_rows,
        running_rows=scheduler.running_rows,
        batches=scheduler.batches,
        rows=scheduler.rows,
        limit=scheduler.limit,
    )
