"""A node before it has met a broker: loading, stopping, and what its probes say. Served records are in tests/chaos."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest

from consumers.node import Node
from consumers.route import TopicNeed
from consumers.settings import NodeSettings
from gpu_runtime.backend import Backend, BackendFactory, LoadContext
from gpu_runtime.fake import Gate, ManualClock, echo, fake_backend
from schemas.clock import Clock, monotonic
from schemas.errors import ConfigError, ModelLoadError, Unavailable
from schemas.model import ModelConfig, TensorSpec
from schemas.repository import ModelFolder, Repository

PATIENCE_S = 20.0


def folder(name: str) -> ModelFolder:
    spec = TensorSpec(name="x", datatype="FP32", shape=(1,))
    out = TensorSpec(name="y", datatype="FP32", shape=(1,))
    config = ModelConfig(name=name, backend="fake", max_batch_size=4, inputs=(spec,), outputs=(out,))
    return ModelFolder(name, Path("nowhere"), config, ())


def broken(context: LoadContext) -> Backend:
    raise ModelLoadError(f"{context.config.name}: the file is not a model")


async def no_broker(needs: Sequence[TopicNeed]) -> None:
    raise Unavailable("nobody answers")


def node(backend: BackendFactory, *names: str, clock: Clock = monotonic) -> Node:
    settings = NodeSettings(models=Path("nowhere"), bootstrap="127.0.0.1:1", stuck_after_s=60.0)
    repository = Repository(Path("nowhere"), tuple(folder(name) for name in names))
    return Node(settings, repository, backends={"fake": backend}, ensure_topics=no_broker, clock=clock)


async def until_reason(one: Node, words: str) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while words not in one.ready().reason:
            await asyncio.sleep(0.01)


async def test_a_stop_while_a_model_loads_ends_the_node_though_the_load_goes_on() -> None:
    gate, stop = Gate(shut=True), asyncio.Event()
    one = node(fake_backend(echo, gate=gate), "a", "b")
    running = asyncio.create_task(one.run(stop))
    try:
        await until_reason(one, "loading models")
        await gate.until_entered(1)
        stop.set()
        async with asyncio.timeout(5.0):
            await running
        assert one.ready().reason == "stopped"
    finally:
        gate.open()


async def test_a_node_with_no_broker_says_so_stays_live_and_stops_when_told() -> None:
    stop = asyncio.Event()
    one = node(fake_backend(echo), "a")
    running = asyncio.create_task(one.run(stop))
    await until_reason(one, "no Kafka broker answers at 127.0.0.1:1: nobody answers")
    assert one.live().ok
    assert one.ready().detail["models"] == {"a": "ready"}
    stop.set()
    async with asyncio.timeout(PATIENCE_S):
        await running


async def test_a_model_that_does_not_load_is_named_and_the_others_go_on() -> None:
    whole = fake_backend(echo)

    def load(context: LoadContext) -> Backend:
        return broken(context) if context.config.name == "bad" else whole(context)

    stop = asyncio.Event()
    one = node(load, "bad", "good")
    running = asyncio.create_task(one.run(stop))
    await until_reason(one, "nobody answers")
    assert one.ready().detail["failed"] == {"bad": "bad: the file is not a model"}
    states = {held.name: held.state for held in one.entry().models}
    assert states == {"bad": "failed", "good": "ready"}
    stop.set()
    async with asyncio.timeout(PATIENCE_S):
        await running


async def test_a_node_with_nothing_to_serve_ends_saying_why() -> None:
    with pytest.raises(ConfigError, match="no model could be loaded: a: the file is not a model"):
        await node(broken, "a").run(asyncio.Event())


def test_an_event_loop_that_stands_still_is_not_live() -> None:
    clock = ManualClock()
    one = node(fake_backend(echo), "a", clock=clock)
    assert one.live().ok
    clock.advance(61.0)
    health = one.live()
    assert not health.ok
    assert health.reason == "the event loop has not turned for 61 s (stuck_after_s=60)"
