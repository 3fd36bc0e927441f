"""One group of nodes, its models and its topics, for tests that kill, rebalance and stop. Starts nothing by itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from infra.topics import committed, end_offsets
from schemas.errors import Unavailable
from schemas.record import Topics
from tests.support.nodes import NodeProcess, node_process
from tests.support.records import Sent, Stored, committed_offsets, make_topic, produce, read_all, unique
from tests.support.waiting import eventually

__all__ = ["SLEEPER", "Scene", "lag", "metric", "partitions_held", "value_of", "values_of"]

SLEEPER: Final = """\
import time


class Model:
    def __init__(self, context):
        pass

    def infer(self, batch):
        time.sleep(float(batch["x"].max(initial=0)) / 1000)
        return {"y": batch["x"]}
"""
"""Identity; a batch takes as many milliseconds as the largest of its rows says."""

_SESSION: Final = {"session_timeout_ms": 3000, "heartbeat_interval_ms": 300}
"""Short, so that the partitions of a killed node are soon free; long enough for two busy cores."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Models are written into ``models``; nodes share group and namespace."""

    bootstrap: str
    models: Path
    partitions: int = 1
    group: str = field(default_factory=lambda: unique("group"))
    namespace: str = field(default_factory=lambda: unique("ns"))

    @property
    def topics(self) -> Topics:
        return Topics(self.namespace)

    def node(
        self, *, kafka: Mapping[str, object] | None = None, **settings: object
    ) -> AbstractAsyncContextManager[NodeProcess]:
        told = {
            "partitions": self.partitions,
            "announce_interval_s": 1,
            **settings,
            "kafka": {**_SESSION, **(kafka or {})},
        }
        return node_process(self.bootstrap, self.models, group=self.group, namespace=self.namespace, settings=told)

    async def make_topics(self, *models: str, **config: str) -> None:
        """Request and result topics, for tests that publish before a node makes them. ``config`` is the results'."""
        for model in models:
            await make_topic(self.bootstrap, self.topics.requests(model), partitions=self.partitions)
            await make_topic(self.bootstrap, self.topics.results(model), partitions=self.partitions, config=config)

    async def send(self, model: str, *records: Sent | bytes) -> None:
        await produce(self.bootstrap, self.topics.requests(model), records, deadline_s=60)

    async def send_numbers(self, model: str, numbers: Iterable[float], *, spread: bool = False) -> None:
        """One record a number, to partition 0 or in turn to all of them."""
        await self.send(
            model,
            *[
                Sent(f'{{"x":[{number}]}}'.encode(), partition=at % self.partitions if spread else 0)
                for at, number in enumerate(numbers)
            ],
        )

    async def results(self, model: str, count: int, **reading: float) -> list[Stored]:
        return await read_all(self.bootstrap, self.topics.results(model), count=count, **reading)

    async def numbers(self, model: str, count: int, **reading: float) -> list[float]:
        """The single numbers that the results carry, sorted."""
        return sorted(values_of(await self.results(model, count, **reading)))

    async def result_count(self, model: str) -> int:
        """Records on the results topic; asks again while a broker that is dying is asked."""

        async def counted() -> list[int]:
            try:
                return [sum((await end_offsets(self.bootstrap, [self.topics.results(model)])).values())]
            except Unavailable:
                return []

        return (await eventually(counted, 30, every_s=0.2, why="the brokers to say where the results end"))[0]

    async def committed(self, model: str) -> dict[int, int]:
        """partition -> next offset to read."""
        return await committed_offsets(self.bootstrap, self.group, self.topics.requests(model))

    async def until_committed(self, model: str, expected: Mapping[int, int], deadline_s: float = 15.0) -> None:
        async def reached() -> bool:
            return await self.committed(model) == dict(expected)

        await eventually(reached, deadline_s, every_s=0.1, why=f"committed offsets of {model} to be {dict(expected)}")

    async def until_all_committed(self, *models: str, deadline_s: float = 20.0) -> None:
        """Waits until nothing is left to be done, retries included."""
        topics = [topic for model in models for topic in (self.topics.requests(model), self.topics.retry(model))]

        async def nothing_left() -> bool:
            try:
                ends = await end_offsets(self.bootstrap, topics)
                done = await committed(self.bootstrap, self.group)
            except Unavailable:
                return False
            return all(done.get(place, 0) == end for place, end in ends.items())

        await eventually(nothing_left, deadline_s, every_s=0.1, why=f"every record of {models} to be committed")


def value_of(result: Stored) -> float:
    """The one number of a plain JSON result."""
    answer = msgspec.json.decode(result.value or b"", type=dict[str, list[float]])
    [number] = answer["y"]
    return number


def values_of(results: Iterable[Stored]) -> list[float]:
    return [value_of(result) for result in results]


async def metric(node: NodeProcess, name: str, **labels: str) -> float:
    """Sum over the samples of that name with these labels."""
    status, text = await node.get("/metrics")
    if status != 200:
        raise AssertionError(f"/metrics answered {status}: {text}; the log:\n{node.log}")
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def lag(node: NodeProcess, model: str) -> float:
    return await metric(node, "headrace_lag_records", model=model)


async def partitions_held(node: NodeProcess, model: str) -> set[int]:
    """Partitions of the model's request topic that the node says it holds."""
    _, text = await node.get("/status")
    models = msgspec.json.decode(text)["models"]
    return {partition for one in models if one["name"] == model for partition in one["partitions"]}
