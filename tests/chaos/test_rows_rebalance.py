"""Rows of the requirements on rebalances, on real Apache Kafka with nodes as processes: who holds what, and when."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import psutil
import pytest

from tests.chaos.scene import Scene, metric, partitions_held, values_of
from tests.support.models import ECHO, write_model
from tests.support.nodes import NodeProcess
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(90)]


async def _rebalances(*nodes: NodeProcess) -> list[float]:
    return [await metric(node, "headrace_rebalances_total") for node in nodes]


async def test_A1_a_record_longer_than_the_poll_interval_is_done_once_and_nobody_leaves(
    kafka: str, tmp_path: Path
) -> None:
    """Polling and heartbeats go on while the model runs: one result, one commit, no leave and no rejoin.

    The model takes 3 s where the group allows 1 s between polls, with two nodes.
    """
    scene = Scene(kafka, tmp_path / "models")
    write_model(scene.models, "slow", ECHO, parameters={"ms": 3000})
    impatient = {"max_poll_interval_ms": 1000}
    async with scene.node(kafka=impatient) as one, scene.node(kafka=impatient) as two:
        await asyncio.gather(one.until_ready(), two.until_ready())

        async def divided() -> bool:
            return sorted([await partitions_held(one, "slow"), await partitions_held(two, "slow")], key=len) == [
                set(),
                {0},
            ]

        await eventually(divided, why="one of two nodes to hold the partition")
        before = await _rebalances(one, two)
        await scene.send_numbers("slow", [7])
        await scene.until_committed("slow", {0: 1})
        assert await scene.numbers("slow", 1, settle_s=2) == [7]
        assert await _rebalances(one, two) == before


async def test_A10_a_paused_partition_flows_again_after_a_rebalance(kafka: str, tmp_path: Path) -> None:
    """Pauses are worked out anew after each assignment, and reading goes on at the committed offset.

    A full queue pauses partition 0; a second node comes and goes; then the model gets on.
    """
    scene = Scene(kafka, tmp_path / "models", partitions=2)
    model = write_model(scene.models, "echo", queue={"max_rows": 4}, max_batch_size=2)
    async with scene.node(revoke_grace_s=0.5) as one:
        await one.until_ready()
        await scene.send_numbers("echo", range(5))
        await scene.until_committed("echo", {0: 5, 1: 0})
        model.shut()
        await scene.send_numbers("echo", range(5, 60))

        async def paused() -> bool:
            return await metric(one, "headrace_paused", model="echo", partition="0") == 1

        await eventually(paused, why="partition 0 to be paused")
        async with scene.node(revoke_grace_s=0.5, shutdown_grace_s=0.5) as two:
            await two.until_ready()

            async def shared() -> bool:
                held = [await partitions_held(node, "echo") for node in (one, two)]
                return len(held[0]) == len(held[1]) == 1

            await eventually(shared, why="the partitions to be shared")
            two.terminate()
            await two.wait()
        assert (await scene.committed("echo"))[0] == 5
        model.open()
        await scene.until_committed("echo", {0: 60, 1: 0}, 10)
        found = values_of(await scene.results("echo", 60))
        assert set(found) == set(range(60))
        assert sorted(found)[:5] == list(range(5))

        async def flowing() -> bool:
            return await metric(one, "headrace_paused", model="echo") == 0

        await eventually(flowing, why="no partition to be paused")


async def test_A12_a_rebalance_does_not_wait_for_a_long_model_call(kafka: str, tmp_path: Path) -> None:
    """A revoke stops intake, commits what is finished and returns within its grace: a second node gets its partitions
    although a batch is running, and nobody is thrown out of the group.

    The grace (2 s) is longer than the poll interval (1 s): polling goes on while the revoke waits.
    """
    scene = Scene(kafka, tmp_path / "models", partitions=2)
    model = write_model(scene.models, "slow", max_batch_size=1)
    impatient = {"max_poll_interval_ms": 1000}
    async with scene.node(revoke_grace_s=2, kafka=impatient) as one:
        await one.until_ready()
        await scene.send_numbers("slow", [1])
        await scene.until_committed("slow", {0: 1, 1: 0})
        model.shut()
        await scene.send_numbers("slow", [2, 3])
        await eventually(lambda: len(model.journal) == 2, why="a batch to run")
        async with scene.node(revoke_grace_s=2, kafka=impatient) as two:
            await two.until_ready(15)

            async def shared() -> bool:
                return len(await partitions_held(two, "slow")) == 1

            await eventually(shared, 10, why="the second node to hold a partition")

            async def settled() -> bool:
                return await _rebalances(one, two) == [2, 1]

            await eventually(settled, 10, why="the first node to take its share back")
            model.open()
            await scene.until_committed("slow", {0: 3, 1: 0})
            await scene.send_numbers("slow", [4, 5], spread=True)
            await scene.until_committed("slow", {0: 4, 1: 1})
            assert set(await scene.numbers("slow", 5)) == {1, 2, 3, 4, 5}
            assert await _rebalances(one, two) == [2, 1]


async def test_H1_a_group_on_empty_topics_has_a_commit_for_every_partition(kafka: str, tmp_path: Path) -> None:
    """A start offset is committed for every partition assigned, so that a scaler can tell lag from ignorance."""
    scene = Scene(kafka, tmp_path / "models", partitions=3)
    write_model(scene.models, "echo")
    async with scene.node() as node:
        await node.until_ready()
        node.terminate()
        assert await node.wait() == 0
    assert await scene.committed("echo") == {0: 0, 1: 0, 2: 0}


async def test_H8_a_node_without_partitions_is_ready_quiet_and_takes_over_fast(kafka: str, tmp_path: Path) -> None:
    """With one partition the second node is ready and idles; when the first is killed it serves within the session
    timeout, 3 s here."""
    scene = Scene(kafka, tmp_path / "models")
    write_model(scene.models, "echo")
    async with scene.node() as first:
        await first.until_ready()
        async with scene.node() as second:
            await second.until_ready()

            async def nothing() -> bool:
                return await _rebalances(first, second) == [2, 1]

            await eventually(nothing, why="the group to settle")
            holders = {node: await partitions_held(node, "echo") for node in (first, second)}
            [idle] = [node for node, held in holders.items() if not held]
            [busy] = [node for node, held in holders.items() if held]
            process = psutil.Process(idle.pid)
            before, start = sum(process.cpu_times()[:2]), time.monotonic()
            await eventually(lambda: time.monotonic() - start > 2, why="two seconds of idling")
            share = (sum(process.cpu_times()[:2]) - before) / (time.monotonic() - start)
            print(f"an idle node takes {share:.1%} of a core")
            assert share < 0.1
            assert (await idle.get("/ready"))[0] == 200
            busy.kill()
            start = time.monotonic()
            await scene.send_numbers("echo", [1])
            assert await scene.numbers("echo", 1, deadline_s=6) == [1]
            print(f"taken over in {time.monotonic() - start:.1f} s")
            assert (await idle.get("/ready"))[0] == 200
