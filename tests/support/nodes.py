"""Nodes for tests: one inside the test's event loop, and one as a process of its own that can be killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from consumers.node import Node
from consumers.route import TopicNeed
from consumers.settings import NodeSettings
from gpu_runtime.backends.registry import BACKENDS
from infra.child import bound_to_parent, free_port
from infra.telemetry.metrics import BatchTracer, Metrics
from infra.topics import TopicSpec, committed, end_offsets, ensure_topics
from schemas.record import Topics
from schemas.repository import scan
from tests.support.records import Sent, Stored, committed_offsets, make_topic, produce, read_all, unique
from tests.support.waiting import eventually

__all__ = ["NodeProcess", "Serving", "in_partition_0", "node_process", "serving", "waiting_records"]

ROOT: Final = Path(__file__).resolve().parents[2]
READY_S: Final = 30.0
_END_S: Final = 15.0


class Serving:
    """A running node and its topics, by model name."""

    def __init__(self, node: Node, settings: NodeSettings, metrics: Metrics) -> None:
        self.node = node
        self.bootstrap = settings.bootstrap
        self.group = settings.group
        self.namespace = settings.namespace
        self.topics = Topics(settings.namespace)
        self._metrics = metrics

    async def send(self, model: str, *records: Sent | bytes) -> list[tuple[int, int]]:
        """To the model's topic, into partition 0 where neither a key nor a partition says otherwise."""
        placed = [in_partition_0(Sent(one) if isinstance(one, bytes) else one) for one in records]
        return await produce(self.bootstrap, self.topics.requests(model), placed)

    async def results(self, model: str, count: int, **reading: float) -> list[Stored]:
        return await read_all(self.bootstrap, self.topics.results(model), count=count, **reading)

    async def dead(self, model: str, count: int, **reading: float) -> list[Stored]:
        return await read_all(self.bootstrap, self.topics.dead(model), count=count, **reading)

    async def committed(self, model: str) -> dict[int, int]:
        """partition -> next offset to read."""
        return await committed_offsets(self.bootstrap, self.group, self.topics.requests(model))

    async def until_committed(self, model: str, expected: Mapping[int, int], deadline_s: float = 10.0) -> None:
        """Waits for exactly these offsets, partitions at 0 left out."""

        async def reached() -> bool:
            at = await self.committed(model)
            return {partition: offset for partition, offset in at.items() if offset} == dict(expected)

        await eventually(reached, deadline_s, why=f"committed offsets of {model} to be {dict(expected)}")

    async def until_all_committed(self, model: str, deadline_s: float = 10.0) -> None:
        """Waits until nothing of the request and the retry topic is left to be done."""
        topics = [self.topics.requests(model), self.topics.retry(model)]

        async def nothing_left() -> bool:
            ends = await end_offsets(self.bootstrap, topics)
            done = await committed(self.bootstrap, self.group)
            return all(done.get(place, 0) == end for place, end in ends.items())

        await eventually(nothing_left, deadline_s, why=f"every record of {model} to be committed")

    def metric(self, name: str, **labels: str) -> float:
        """Sum over the samples of that name (``_total``, ``_count`` and the like included) with these labels."""
        return sum(
            sample.value
            for family in text_string_to_metric_families(self._metrics.render().decode())
            for sample in family.samples
            if sample.name == name and labels.items() <= sample.labels.items()
        )


@asynccontextmanager
async def serving(
    bootstrap: str,
    models: Path,
    *,
    namespace: str | None = None,
    group: str | None = None,
    partitions: int = 1,
    kafka: Mapping[str, object] | None = None,
    tombstones: str = "skip",
    tracer: BatchTracer | None = None,
) -> AsyncIterator[Serving]:
    """A node in this event loop, ready; drained at the end. Namespace and group are its own unless given."""
    settings = NodeSettings(
        models=models,
        bootstrap=bootstrap,
        group=group or unique("group"),
        namespace=namespace or unique("ns"),
        partitions=partitions,
        replication=1,
        shutdown_grace_s=5.0,
        announce_interval_s=1.0,
        tombstones=tombstones,
        kafka=kafka or {},
    )
    repository = scan(models, namespace=settings.namespace)
    if repository.errors:
        raise AssertionError(f"the test's own models are wrong: {repository.errors}")
    metrics = Metrics(version="0", tracer=tracer)

    async def make_topics(needs: Sequence[TopicNeed]) -> None:
        await ensure_topics(bootstrap, [TopicSpec(need.name, need.partitions, 1, need.config) for need in needs])

    node = Node(
        settings,
        repository,
        backends=BACKENDS,
        ensure_topics=make_topics,
        hooks=metrics,
        runtime_hooks=metrics,
        version="0",
    )
    stop = asyncio.Event()
    running = asyncio.create_task(node.run(stop), name="node of a test")
    try:
        await eventually(
            lambda: running.done() or node.ready().ok, READY_S, why=f"a node to become ready: {node.ready().reason}"
        )
        if running.done():
            await running
        yield Serving(node, settings, metrics)
    finally:
        stop.set()
        async with asyncio.timeout(_END_S):
            await running


async def waiting_records(bootstrap: str, model: str, records: Sequence[Sent], *, partitions: int = 1) -> str:
    """A namespace with ``records`` in the model's topic, so that a node started in it finds them in one fetch."""
    namespace = unique("ns")
    topic = await make_topic(bootstrap, Topics(namespace).requests(model), partitions=partitions)
    await produce(bootstrap, topic, [in_partition_0(one) for one in records])
    return namespace


def in_partition_0(record: Sent) -> Sent:
    """The record, placed where neither a key nor a partition says otherwise."""
    return record if record.key is not None or record.partition is not None else replace(record, partition=0)


class NodeProcess:
    """``headrace node`` in a process of its own. The process may be killed at any time."""

    def __init__(self, process: subprocess.Popen[bytes], ops_port: int, log_path: Path) -> None:
        self._process = process
        self.ops_port = ops_port
        self.log_path = log_path

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def log(self) -> str:
        """All it has written so far, to both of its outputs."""
        return self.log_path.read_text(errors="replace")

    def terminate(self) -> None:
        """SIGTERM: drain and leave."""
        self._process.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL; returns when it is dead."""
        self._process.kill()
        self._process.wait(_END_S)

    async def wait(self, deadline_s: float = _END_S) -> int:
        """Its exit status; fails the test when it does not end in time."""
        try:
            return await asyncio.to_thread(self._process.wait, deadline_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"the node did not end within {deadline_s:g} s; its log:\n{self.log}") from None

    async def get(self, path: str, *, timeout_s: float = 5.0) -> tuple[int, str]:
        """Status and body of a page of the ops port; status 0 while nobody answers there."""
        return await asyncio.to_thread(_get, f"http://127.0.0.1:{self.ops_port}{path}", timeout_s)

    async def until_ready(self, deadline_s: float = READY_S) -> None:
        """Waits for ``/ready``; fails at once when the process ends, with its log."""
        end = time.monotonic() + deadline_s
        status, body = 0, ""
        while self.returncode is None and time.monotonic() < end:
            status, body = await self.get("/ready")
            if status == 200:
                return
            await asyncio.sleep(0.05)
        raise AssertionError(f"the node is not ready ({status} {body}, exit {self.returncode}); its log:\n{self.log}")


def _get(url: str, timeout_s: float) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()
    except OSError:
        return 0, ""


def _environment(settings: Mapping[str, object], env: Mapping[str, str]) -> dict[str, str]:
    """This process's own, without settings of Headrace's, then the given ones."""
    found = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    for name, value in settings.items():
        if isinstance(value, Mapping):
            found.update({f"HEADRACE_{name}_{key}".upper(): str(inner) for key, inner in value.items()})
        else:
            found[f"HEADRACE_{name}".upper()] = str(value)
    return {**found, **env}


@asynccontextmanager
async def node_process(
    bootstrap: str,
    models: Path,
    *,
    group: str,
    namespace: str,
    env: Mapping[str, str] | None = None,
    settings: Mapping[str, object] | None = None,
) -> AsyncIterator[NodeProcess]:
    """``headrace node``, started and not awaited (`NodeProcess.until_ready`). What is still running ends at the end.

    Args:
        env: variables as they are, over this process's own.
        settings: by name, as in a settings file: ``{"shutdown_grace_s": 1, "kafka": {"session_timeout_ms": 6000}}``.
    """
    ops_port = free_port()
    told = {
        "models": models,
        "bootstrap": bootstrap,
        "group": group,
        "namespace": namespace,
        "ops_host": "127.0.0.1",
        "ops_port": ops_port,
        "replication": 1,
        **(settings or {}),
    }
    log_path = models.parent / f"{unique('node')}.log"
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            bound_to_parent([sys.executable, "-m", "headrace", "node"]),
            cwd=ROOT,
            env=_environment(told, env or {}),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    node = NodeProcess(process, int(str(told["ops_port"])), log_path)
    try:
        yield node
    finally:
        if node.returncode is None:
            node.terminate()
            try:
                await asyncio.to_thread(process.wait, _END_S)
            except subprocess.TimeoutExpired:
                node.kill()
        # pytest shows it when the test fails.
        print(f"--- {log_path.name}, exit {node.returncode}\n{node.log}")
