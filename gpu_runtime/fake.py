"""Stand-in models for tests and trials, a gate that holds them where a test wants them, and a clock moved by hand.

They satisfy the `Backend` protocol like any other; nothing in the product uses them unless it is told to.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu_runtime.backend import Backend, BackendFactory, LoadContext
from gpu_runtime.request import Parameters
from schemas.errors import DeviceError, OutOfMemoryError, RowErrors
from schemas.model import ModelConfig
from schemas.tensors import Tensors

__all__ = [
    "Behaviour",
    "Gate",
    "Journal",
    "ManualClock",
    "boom",
    "dead_device",
    "dropping",
    "echo",
    "exiting",
    "fake_backend",
    "oom",
    "pick",
    "pick_rows",
    "slow",
]

Behaviour = Callable[[Tensors, Sequence[Parameters] | None, ModelConfig], Tensors]
"""What a stand-in does with a batch. Output k is made from input k, or from the only input."""

_PATIENCE_S = 30.0
"""How long anything here waits before it says that a test is stuck."""


class ManualClock:
    """Monotonic seconds that pass only when told."""

    def __init__(self, now: float = 1000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        self.now += seconds
        return self.now


class Gate:
    """Stops executions until a test lets them pass. Open unless made with ``shut=True``."""

    def __init__(self, *, shut: bool = False) -> None:
        self._changed = threading.Condition()
        self._open = not shut
        self._permits = 0
        self._entered = 0

    def pass_through(self) -> None:
        """Called by the model's thread; blocks while the gate is shut."""
        with self._changed:
            self._entered += 1
            self._changed.notify_all()
            if not self._changed.wait_for(lambda: self._open or self._permits > 0, _PATIENCE_S):
                raise TimeoutError("a gate was never opened")
            if not self._open:
                self._permits -= 1

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()

    def shut(self) -> None:
        with self._changed:
            self._open = False

    def let(self, executions: int = 1) -> None:
        """Lets so many executions pass a shut gate."""
        with self._changed:
            self._permits += executions
            self._changed.notify_all()

    @property
    def entered(self) -> int:
        """Executions that have begun, whether they have passed or not."""
        return self._entered

    async def until_entered(self, executions: int) -> None:
        """Waits until so many executions have begun since the gate was made."""
        if not await asyncio.to_thread(self._wait_entered, executions):
            raise TimeoutError(f"{self._entered} executions began, {executions} were waited for")

    def _wait_entered(self, executions: int) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._entered >= executions, _PATIENCE_S)


@dataclass(slots=True)
class Journal:
    """What the instances made by one `fake_backend` did. Written by their threads, read by tests.

    Attributes:
        executions: rows of every call of ``infer``, warm-up left out.
        parameters: those of every call.
        threads: names of the threads that loaded, ran or closed an instance, one set an instance.
        loads, closes: how many.
        overlaps: calls that found another call of the same instance running.
        closed_while_running: ``close`` calls that did.
    """

    executions: list[int] = field(default_factory=list)
    parameters: list[Sequence[Parameters] | None] = field(default_factory=list)
    threads: list[set[str]] = field(default_factory=list)
    loads: int = 0
    closes: int = 0
    overlaps: int = 0
    closed_while_running: int = 0


class _FakeBackend:
    def __init__(self, context: LoadContext, behaviour: Behaviour, gate: Gate, journal: Journal) -> None:
        self._config = context.config
        self._behaviour = behaviour
        self._gate = gate
        self._journal = journal
        self._running = False
        self._threads = {threading.current_thread().name}
        journal.threads.append(self._threads)
        journal.loads += 1

    @property
    def memory_bytes(self) -> int:
        return 1000

    def infer(self, batch: Tensors, parameters: Sequence[Parameters] | None) -> Tensors:
        rows = len(next(iter(batch.values()))) if self._config.batched else 1
        self._threads.add(threading.current_thread().name)
        self._journal.overlaps += self._running
        self._running = True
        try:
            self._journal.executions.append(rows)
            self._journal.parameters.append(parameters)
            self._gate.pass_through()
            return self._behaviour(batch, parameters, self._config)
        finally:
            self._running = False

    def close(self) -> None:
        self._threads.add(threading.current_thread().name)
        self._journal.closed_while_running += self._running
        self._journal.closes += 1


def fake_backend(behaviour: Behaviour, *, gate: Gate | None = None, journal: Journal | None = None) -> BackendFactory:
    """A factory whose instances share a behaviour, a gate and a journal.

    Warm-up batches are batches like any other: give the configuration a sample of 0 rows to have none.
    """
    held, book = gate or Gate(), journal or Journal()

    def load(context: LoadContext) -> Backend:
        return _FakeBackend(context, behaviour, held, book)

    return load


def echo(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
    """Identity."""
    sources = [batch[spec.name] for spec in config.inputs if spec.name in batch]
    return {spec.name: sources[min(index, len(sources) - 1)] for index, spec in enumerate(config.outputs)}


def pick(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
    """Raises for the whole batch when a row holds a value below 0."""
    bad = _rows_below_zero(batch)
    if bad:
        raise ValueError(f"{len(bad)} rows are below 0")
    return echo(batch, parameters, config)


def pick_rows(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
    """Fails rows below 0 by name, and answers the rest at once."""
    bad = _rows_below_zero(batch)
    if bad:
        raise RowErrors(dict.fromkeys(bad, "below 0"), dict(echo(batch, parameters, config)))
    return echo(batch, parameters, config)


def _rows_below_zero(batch: Tensors) -> list[int]:
    first = np.asarray(next(iter(batch.values())), dtype=np.float64)
    return [int(row) for row in np.flatnonzero((first.reshape(len(first), -1) < 0).any(axis=1))]


def boom(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
    """Raises whatever it is given."""
    raise RuntimeError("boom")


def dead_device(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
    """The device has gone."""
    raise DeviceError("device fake:0 is dead: replace it and start the node again")


def exiting(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
    """Ends its thread."""
    raise SystemExit("the model called sys.exit")


def dropping(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
    """Returns one row fewer than it was given, except for a single row."""
    return {name: array[: max(1, len(array) - 1)] for name, array in echo(batch, parameters, config).items()}


def slow(milliseconds: float) -> Behaviour:
    """Identity, after a while."""

    def run(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
        time.sleep(milliseconds / 1000)
        return echo(batch, parameters, config)

    return run


def oom(rows: int) -> Behaviour:
    """Identity up to so many rows; out of memory above."""

    def run(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> Tensors:
        given = len(next(iter(batch.values())))
        if given > rows:
            raise OutOfMemoryError(f"{given} rows, room for {rows}")
        return echo(batch, parameters, config)

    return run
