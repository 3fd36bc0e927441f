"""Nodes and brokers that fail under load, on real Apache Kafka: is anything lost, does it still answer?"""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from infra.apache_kafka import KafkaCluster
from tests.chaos.scene import Scene, values_of
from tests.support.models import ECHO, write_model
from tests.support.nodes import NodeProcess
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(120)]

_RATE_PER_S = 200


@pytest.fixture(scope="module")
def own_kafka() -> Iterator[KafkaCluster]:
    """One broker that the tests of this file may stop."""
    with KafkaCluster() as cluster:
        yield cluster


class Stream:
    """Numbers from 0 on, at a steady rate, into every partition in turn."""

    def __init__(self) -> None:
        self.acknowledged: list[int] = []


@asynccontextmanager
async def stream(scene: Scene, model: str) -> AsyncIterator[Stream]:
    """Publishes for the time of the block. Every number it notes was acknowledged by the broker."""
    flowing = Stream()
    stop = asyncio.Event()
    producer = AIOKafkaProducer(bootstrap_servers=scene.bootstrap, acks="all", enable_idempotence=True, linger_ms=5)

    async def publish() -> None:
        number = 0
        while not stop.is_set():
            sending = []
            for _ in range(_RATE_PER_S // 10):
                value = f'{{"x":[{number}]}}'.encode()
                sending.append(
                    await producer.send(scene.topics.requests(model), value, partition=number % scene.partitions)
                )
                number += 1
            await asyncio.gather(*sending)
            flowing.acknowledged += range(number - len(sending), number)
            try:
                async with asyncio.timeout(0.1):
                    await stop.wait()
            except TimeoutError:
                pass

    await producer.start()
    try:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(publish())
            try:
                yield flowing
            finally:
                stop.set()
    finally:
        await producer.stop()


async def _nothing_is_lost(scene: Scene, model: str, sent: list[int]) -> int:
    """Every number sent has a result; how many results there are besides."""
    await scene.until_all_committed(model, deadline_s=30)
    found = Counter(values_of(await scene.results(model, len(sent), settle_s=0.3)))
    missing = [number for number in sent if not found[number]]
    assert not missing, f"{len(missing)} of {len(sent)} have no result: {missing[:10]}"
    return found.total() - len(sent)


async def _answered(scene: Scene, model: str, more: int) -> None:
    """Waits until so many more results are out."""
    before = await scene.result_count(model)

    async def enough() -> bool:
        return await scene.result_count(model) >= before + more

    await eventually(enough, 30, every_s=0.1, why=f"{more} more results")


async def test_a_node_killed_again_and_again_under_a_stream_loses_nothing(kafka: str, tmp_path: Path) -> None:
    """Killed four times at random moments and started again each time, a node answers every record at least once."""
    scene = Scene(kafka, tmp_path / "models", partitions=2)
    write_model(scene.models, "echo", ECHO, max_batch_size=8, parameters={"ms": 10})
    await scene.make_topics("echo")
    moments = random.Random(7)
    async with stream(scene, "echo") as flowing:
        for _ in range(4):
            async with scene.node(kafka={"session_timeout_ms": 1500}) as node:
                await node.until_ready()
                await _answered(scene, "echo", moments.randrange(1, 400))
                node.kill()
    async with scene.node(kafka={"session_timeout_ms": 1500}):
        duplicates = await _nothing_is_lost(scene, "echo", flowing.acknowledged)
    print(f"{len(flowing.acknowledged)} records, 4 kills, {duplicates} duplicates")


async def _until_not_ready(node: NodeProcess, reason: str) -> str:
    async def refused() -> str:
        status, body = await node.get("/ready")
        return body if status == 503 and reason in body else ""

    return await eventually(refused, 20, every_s=0.1, why=f"/ready to say {reason!r}")


async def test_a_broker_that_restarts_under_a_stream_costs_no_record_and_no_node(
    own_kafka: KafkaCluster, tmp_path: Path
) -> None:
    """While the broker is away the node lives on and is not ready; when it is back the node is, by itself."""
    scene = Scene(own_kafka.bootstrap, tmp_path / "models", partitions=2)
    write_model(scene.models, "echo", ECHO, max_batch_size=8, parameters={"ms": 5})
    async with scene.node() as node:
        await node.until_ready()
        pid = node.pid
        async with stream(scene, "echo") as flowing:
            await _answered(scene, "echo", 200)
            await own_kafka.stop()
            await _until_not_ready(node, "broker")
            assert (await node.get("/live"))[0] == 200
            await own_kafka.start()
            back = time.monotonic()
            await _answered(scene, "echo", 200)
            print(f"answers again {time.monotonic() - back:.1f} s after the broker is back")
        duplicates = await _nothing_is_lost(scene, "echo", flowing.acknowledged)
        await node.until_ready()
        assert (node.pid, node.returncode) == (pid, None)
        assert node.log.count(" aiokafka.") < 60, "the log repeats itself while the broker is away"
        print(f"{len(flowing.acknowledged)} records, {duplicates} duplicates")


async def test_a_node_that_starts_before_its_broker_says_so_and_serves_when_it_comes(
    own_kafka: KafkaCluster, tmp_path: Path
) -> None:
    """The reason is in the log and in the body of /ready; nothing has to be restarted, and a stop is heeded."""
    scene = Scene(own_kafka.bootstrap, tmp_path / "models")
    write_model(scene.models, "echo")
    await own_kafka.stop()
    async with scene.node() as node, scene.node() as gives_up:
        reason = f"no Kafka broker answers at {own_kafka.bootstrap}"
        await _until_not_ready(node, reason)
        assert (await node.get("/live"))[0] == 200
        await eventually(lambda: reason in node.log, why="the reason in the log")
        assert "trying again in" in node.log
        assert "Traceback" not in node.log
        await _until_not_ready(gives_up, reason)
        gives_up.terminate()
        assert await gives_up.wait(5) == 0
        await own_kafka.start()
        await node.until_ready()
        await scene.send_numbers("echo", [1])
        assert await scene.numbers("echo", 1) == [1]


async def test_a_node_stops_in_time_while_its_broker_is_away(own_kafka: KafkaCluster, tmp_path: Path) -> None:
    """With nobody to commit to, the node gives up after its grace (1 s) and the deadlines of its last calls; what it
    could not commit is done again."""
    scene = Scene(own_kafka.bootstrap, tmp_path / "models")
    model = write_model(scene.models, "echo")
    async with scene.node(shutdown_grace_s=1) as node:
        await node.until_ready()
        model.shut()
        await scene.send_numbers("echo", [1])
        await eventually(lambda: len(model.journal) == 1, why="the record to run")
        await own_kafka.kill()
        model.open()
        start = time.monotonic()
        node.terminate()
        assert await node.wait(30) == 0
        print(f"stopped in {time.monotonic() - start:.1f} s")
        assert time.monotonic() - start < 20
        assert "Traceback" not in node.log
    await own_kafka.start()
    async with scene.node():
        assert set(await scene.numbers("echo", 1, deadline_s=30)) == {1}
        await scene.until_committed("echo", {0: 1})


async def test_a_broker_killed_in_a_cluster_of_three_costs_no_record(tmp_path: Path) -> None:
    """Three brokers, three replicas, two in sync: one dies by SIGKILL under a stream and the rest carry on."""
    async with KafkaCluster(nodes=3) as cluster:
        scene = Scene(cluster.bootstrap, tmp_path / "models", partitions=3)
        write_model(scene.models, "echo", ECHO, max_batch_size=8, parameters={"ms": 5})
        async with scene.node(replication=3) as node:
            await node.until_ready(60)
            async with stream(scene, "echo") as flowing:
                await _answered(scene, "echo", 200)
                await cluster.kill(1)
                await _answered(scene, "echo", 200)
            duplicates = await _nothing_is_lost(scene, "echo", flowing.acknowledged)
            await node.until_ready()
            assert node.returncode is None
            print(f"{len(flowing.acknowledged)} records, {duplicates} duplicates")
