"""Classifies files through Kafka: broker, node and caller in this process, then the answers against magika's own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from gpu_runtime.request import Request
from headrace.client import Client, InferResult
from headrace.demo.files import Sample
from headrace.node_process import run_node, set_up_logs
from headrace.settings import Settings
from headrace.version import __version__
from infra.broker import EmbeddedBroker
from infra.telemetry.metrics import Metrics
from schemas.errors import ConfigError, Unavailable
from schemas.repository import Repository, load_model

__all__ = ["Answered", "Outcome", "check_against_magika", "classify", "models_folder"]

MODEL: Final = "filetype"
_IN_FLIGHT: Final = 64
"""Two full batches: one on the device, one on its way."""
_READY_S: Final = 60.0
_ANSWER_S: Final = 60.0
_SCORE_TOLERANCE: Final = 0.01


@dataclass(frozen=True, slots=True)
class Answered:
    """``batch_rows``: rows in the execution that it was part of."""

    sample: Sample
    label: str
    score: float
    latency_s: float
    batch_rows: int


@dataclass(slots=True)
class Outcome:
    """``wall_s`` is from the first request to the last answer."""

    answers: list[Answered] = field(default_factory=list)
    wall_s: float = 0.0
    batches: int = 0
    rows: int = 0


class _BatchSizes(Metrics):
    """Remembers the rows of each execution. One instance answers in order: the n-th answer's is found by counting."""

    def __init__(self) -> None:
        super().__init__(version=__version__)
        self.sizes: list[int] = []

    def batch_done(
        self, model: str, requests: Sequence[Request], rows: int, started: float, compute_s: float, failed_rows: int
    ) -> None:
        super().batch_done(model, requests, rows, started, compute_s, failed_rows)
        self.sizes.append(rows)

    def each_row(self) -> Iterator[int]:
        """The size of each row's batch, in the order of execution; follows while batches are added."""
        at = 0
        while at < len(self.sizes):
            yield from [self.sizes[at]] * self.sizes[at]
            at += 1


def models_folder() -> Path:
    """Where the example models are: beside the package in a checkout, inside it when installed.

    Raises:
        ConfigError: they are in neither place.
    """
    package = Path(__file__).resolve().parents[1]
    for folder in (package / "example_models", package.parent / "examples" / "models"):
        if (folder / MODEL).is_dir():
            return folder
    raise ConfigError(f"the example models are missing from {package}; install Headrace again")


async def classify(samples: Sequence[Sample], on_answer: Callable[[Answered], None]) -> Outcome:
    """
    Raises:
        HeadraceError: an extra is missing, or a file got no answer.
    """
    folder = models_folder()
    settings = Settings(models=folder, ops_port=0, ops_host="127.0.0.1", log_level="warning")
    set_up_logs(settings)
    logging.getLogger("headrace").setLevel(logging.ERROR)
    repository = Repository(folder, (await asyncio.to_thread(load_model, folder / MODEL),))
    sizes = _BatchSizes()
    async with (
        EmbeddedBroker() as broker,
        _running_node(settings, broker.bootstrap, repository, sizes),
        Client(broker.bootstrap) as client,
    ):
        outcome = await _ask(client, samples, sizes, on_answer)
    outcome.batches, outcome.rows = len(sizes.sizes), sum(sizes.sizes)
    return outcome


@contextlib.asynccontextmanager
async def _running_node(
    settings: Settings, bootstrap: str, repository: Repository, metrics: Metrics
) -> AsyncIterator[None]:
    stop, ready = asyncio.Event(), asyncio.Event()
    node = asyncio.create_task(
        run_node(
            settings,
            bootstrap,
            repository,
            stop=stop,
            on_ready=lambda started: ready.set(),
            metrics=metrics,
            embedded=True,
        ),
        name="node",
    )
    is_ready = asyncio.create_task(ready.wait(), name="ready")
    try:
        await asyncio.wait({node, is_ready}, timeout=_READY_S, return_when=asyncio.FIRST_COMPLETED)
        if node.done():
            node.result()
        if not ready.is_set():
            raise Unavailable(f"the node was not ready within {_READY_S:g} s")
        yield
        stop.set()
        await node
    finally:
        for task in (node, is_ready):
            task.cancel()
        await asyncio.wait({node, is_ready})


async def _ask(
    client: Client, samples: Sequence[Sample], sizes: _BatchSizes, on_answer: Callable[[Answered], None]
) -> Outcome:
    outcome, waiting, batch_of = Outcome(), iter(samples), sizes.each_row()
    started = time.perf_counter()

    async def ask_on() -> None:
        for sample in waiting:
            result = await client.infer(MODEL, sample.content, deadline_s=_ANSWER_S)
            answered = _answered(sample, result, next(batch_of, 1))
            outcome.answers.append(answered)
            on_answer(answered)

    async with asyncio.TaskGroup() as group:
        for _ in range(_IN_FLIGHT):
            group.create_task(ask_on())
    outcome.wall_s = time.perf_counter() - started
    return outcome


def _answered(sample: Sample, result: InferResult, batch_rows: int) -> Answered:
    label, score = (result.outputs[name].ravel()[0] for name in ("label", "score"))
    text = label.decode() if isinstance(label, bytes) else str(label)
    return Answered(sample, text, float(str(score)), result.latency_s, batch_rows)


def check_against_magika(answers: Sequence[Answered], count: int) -> list[str]:
    """Asks the magika package itself about ``count`` of them, evenly spread. Blocks.

    Returns:
        A line for each that differs; the bytes compared are those that were sent.
    """
    from magika import Magika

    own = Magika()
    differences = []
    step = max(1, len(answers) // count)
    for answered in answers[::step][:count]:
        expected = own.identify_bytes(answered.sample.content)
        label, score = str(expected.output.label), float(expected.score)
        if answered.label != label or abs(answered.score - score) > _SCORE_TOLERANCE:
            differences.append(
                f"{answered.sample.path}: {answered.label} ({answered.score:.3f}), magika says {label} ({score:.3f})"
            )
    return differences
