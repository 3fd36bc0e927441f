"""Rows of the requirements on stopping, starting and probes, on real Apache Kafka with nodes as processes."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from tests.chaos.scene import Scene, metric, partitions_held, values_of
from tests.support.models import ECHO, write_model
from tests.support.nodes import NodeProcess
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(90)]

BLOCKING = """\
import time


def blocked(seconds):
    # Half of it asleep, half of it busy in the interpreter, which is what keeps other threads waiting.
    time.sleep(seconds / 2)
    end = time.monotonic() + seconds / 2
    while time.monotonic() < end:
        pass


class Model:
    def __init__(self, context):
        blocked(5)

    def infer(self, batch):
        if len(batch["x"]):
            blocked(5)
        return {"y": batch["x"]}
"""


async def test_A8_a_stop_commits_what_is_finished_and_hands_the_rest_back(kafka: str, tmp_path: Path) -> None:
    """A node that runs out of its grace commits no record without a result; all have one after the next start.

    The model holds its second batch until after the stop, which stands for any call longer than the grace (0.5 s).
    """
    scene = Scene(kafka, tmp_path / "models")
    model = write_model(scene.models, "slow", ECHO, max_batch_size=1)
    async with scene.node(shutdown_grace_s=0.5) as node:
        await node.until_ready()
        await scene.send_numbers("slow", [0])
        await scene.until_committed("slow", {0: 1})
        model.shut()
        await scene.send_numbers("slow", [1, 2, 3, 4])
        await eventually(lambda: len(model.journal) == 2, why="the second record to run")
        start = time.monotonic()
        node.terminate()
        assert await node.wait() == 0
        print(f"stopped in {time.monotonic() - start:.1f} s")
        assert time.monotonic() - start < 4
        assert "4 records were not finished" in node.log
    assert (await scene.committed("slow"), await scene.result_count("slow")) == ({0: 1}, 1)
    model.open()
    async with scene.node():
        await scene.until_committed("slow", {0: 5}, 30)
    assert await scene.numbers("slow", 5, settle_s=0.5) == [0, 1, 2, 3, 4]


async def test_H5_a_node_that_is_scaled_in_finishes_or_hands_back_and_nothing_is_done_twice(
    kafka: str, tmp_path: Path
) -> None:
    """Of three nodes one is stopped under load: every record has exactly one result, and the others take over at once,
    long before the session timeout (30 s). Batches of 4 take 100 ms."""
    scene = Scene(kafka, tmp_path / "models", partitions=6)
    write_model(scene.models, "slow", ECHO, max_batch_size=4, parameters={"ms": 100})
    patient = {"session_timeout_ms": 30_000}
    async with scene.node(kafka=patient) as one, scene.node(kafka=patient) as two, scene.node(kafka=patient) as three:
        nodes = (one, two, three)
        await asyncio.gather(*(node.until_ready() for node in nodes))

        async def held_by(*those: NodeProcess) -> list[int]:
            return [len(await partitions_held(node, "slow")) for node in those]

        async def shared() -> bool:
            return await held_by(*nodes) == [2, 2, 2]

        await eventually(shared, why="two partitions a node")
        await scene.send_numbers("slow", range(300), spread=True)

        async def under_way() -> bool:
            return await metric(two, "headrace_records_out_total", model="slow") > 4

        await eventually(under_way, why="the second node to be at work")
        start = time.monotonic()
        two.terminate()
        assert await two.wait() == 0

        async def taken_over() -> bool:
            return await held_by(one, three) == [3, 3]

        await eventually(taken_over, 5, why="the two others to hold three partitions each")
        print(f"left and taken over in {time.monotonic() - start:.1f} s")
        await scene.until_all_committed("slow", deadline_s=40)
        assert await scene.numbers("slow", 300, settle_s=0.5) == list(range(300))


async def test_I9_liveness_answers_at_once_while_a_model_blocks(kafka: str, tmp_path: Path) -> None:
    """/live answers in under 200 ms (p99) through a blocking load and a blocking call.

    Each blocks for 5 s here, half of it in the interpreter; 20 s would show the same.
    """
    scene = Scene(kafka, tmp_path / "models")
    write_model(scene.models, "blocking", BLOCKING)
    await scene.make_topics("blocking")
    await scene.send_numbers("blocking", [1])
    async with scene.node() as node:
        await eventually(lambda: "ops port" in node.log, why="the ops port to be open")
        took: list[float] = []
        answer = asyncio.create_task(scene.results("blocking", 1, deadline_s=40))

        async def answered() -> bool:
            start = time.monotonic()
            status, body = await node.get("/live")
            took.append(time.monotonic() - start)
            assert status == 200, body
            return answer.done()

        await eventually(answered, 45, why="the record to be answered")
        assert len(await answer) == 1
        ordered = sorted(took)
        p99 = ordered[int(len(ordered) * 0.99)]
        print(
            f"/live: {len(took)} answers, p50 {ordered[len(took) // 2]:.3f} s, p99 {p99:.3f} s, max {ordered[-1]:.3f} s"
        )
        assert len(took) > 100
        assert p99 < 0.2


async def test_a_second_sigterm_ends_the_node_at_once(kafka: str, tmp_path: Path) -> None:
    """The first signal drains within the grace (30 s); the second does not wait for it. Nothing is lost by that."""
    scene = Scene(kafka, tmp_path / "models")
    model = write_model(scene.models, "slow")
    async with scene.node() as node:
        await node.until_ready()
        model.shut()
        await scene.send_numbers("slow", [1])
        await eventually(lambda: len(model.journal) == 1, why="the record to run")
        node.terminate()
        await eventually(lambda: "SIGTERM: finishing" in node.log, why="the node to drain")
        start = time.monotonic()
        node.terminate()
        assert await node.wait() == 143
        assert time.monotonic() - start < 1
    model.open()
    async with scene.node():
        assert await scene.numbers("slow", 1, deadline_s=30) == [1]


async def test_a_node_stops_while_it_waits_for_its_group(kafka: str, tmp_path: Path) -> None:
    """A group that has to wait for a dead member holds up the first assignment, not the stop."""
    scene = Scene(kafka, tmp_path / "models")
    write_model(scene.models, "echo")
    async with scene.node(kafka={"session_timeout_ms": 30_000}) as dead:
        await dead.until_ready()
        dead.kill()
    async with scene.node() as node:

        async def waiting() -> bool:
            status, body = await node.get("/ready")
            return status == 503 and "waiting for the consumer group" in body

        await eventually(waiting, 20, why="the node to wait for its group")
        start = time.monotonic()
        node.terminate()
        assert await node.wait() == 0
        print(f"stopped in {time.monotonic() - start:.1f} s")
    assert values_of(await scene.results("echo", 0)) == []
