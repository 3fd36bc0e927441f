"""Commits: never past an unfinished record, also while partitions change hands; and what is left is measured."""

from __future__ import annotations

from collections.abc import Collection

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import CommitFailedError, KafkaConnectionError

from consumers.assignment import Assignment
from consumers.commits import Commits
from consumers.partition import Partition
from gpu_runtime.fake import ManualClock
from schemas.clock import Deadline
from schemas.record import now_ms
from tests.support.fake_consumer import FakeConsumer
from tests.unit.consumers.parts import FakeRecord, RecordingHooks, partition, route

ROUTE = route()
ZERO, ONE = TopicPartition(ROUTE.requests, 0), TopicPartition(ROUTE.requests, 1)
RETRY = TopicPartition(ROUTE.retry, 0)


class Scene:
    def __init__(self, *held: tuple[TopicPartition, int | None]) -> None:
        self.consumer = FakeConsumer()
        self.hooks = RecordingHooks()
        self.clock = ManualClock()
        self.commits = Commits(self.consumer, hooks=self.hooks)

        async def quiesce(partitions: Collection[Partition], deadline: Deadline) -> None:
            return

        self.assignment = Assignment(
            self.consumer,
            {ROUTE.requests: ROUTE, ROUTE.retry: ROUTE},
            hooks=self.hooks,
            grace_s=0.0,
            quiesce=quiesce,
            commit=self.commit_within,
            scopes_changed=lambda: None,
            clock=self.clock,
        )
        self.assignment.settled.set()
        self.assignment.in_step = True
        for tp, committed in held:
            self.assignment.partitions[tp] = partition(ROUTE, tp.partition, committed=committed, topic=tp.topic)

    async def commit_within(self, deadline: Deadline) -> None:
        await self.commits.commit(self.assignment, deadline)

    async def commit(self, *, ends: bool = False, within_s: float = 5.0) -> None:
        await self.commits.commit(self.assignment, Deadline(within_s, self.clock), ends=ends)

    @property
    def zero(self) -> Partition:
        return self.assignment.partitions[ZERO]


def records(*offsets: int) -> list[FakeRecord]:
    return [FakeRecord(offset=offset) for offset in offsets]


async def test_the_lowest_unfinished_offset_is_committed_and_no_further() -> None:
    scene = Scene((ZERO, 0))
    chunk = scene.zero.deliver(records(0, 1, 2))
    scene.consumer.positions[ZERO] = 3
    chunk.finish([0, 2])
    await scene.commit()
    await scene.commit(ends=True)
    assert scene.consumer.commits == [{ZERO: 1}], "and not again while it does not move"
    chunk.finish([1])
    await scene.commit()
    assert scene.consumer.committed_offsets == {ZERO: 3}
    assert scene.zero.ledger.committed == 3


async def test_an_empty_partition_gets_a_committed_offset() -> None:
    scene = Scene((ZERO, None))
    await scene.commit()
    assert scene.consumer.commits == [{ZERO: 0}]


async def test_markers_at_the_end_of_the_log_are_passed_when_nothing_is_unfinished() -> None:
    scene = Scene((ZERO, 5))
    scene.consumer.positions[ZERO] = 8
    await scene.commit()
    assert scene.consumer.commits == []
    await scene.commit(ends=True)
    assert scene.consumer.commits == [{ZERO: 8}]


@pytest.mark.parametrize("committed", [None, 400])
async def test_what_a_fetch_brought_during_a_rebalance_is_not_committed_before_it_is_delivered(
    committed: int | None,
) -> None:
    scene = Scene((ZERO, committed))
    scene.assignment.in_step = False
    scene.consumer.positions[ZERO] = 900
    await scene.commit(ends=True)
    assert scene.consumer.commits == []


async def test_a_position_told_after_the_partition_was_dropped_counts_for_nothing() -> None:
    scene = Scene((ZERO, None))
    scene.consumer.positions[ZERO] = 900
    ask = scene.consumer.position

    async def position(tp: TopicPartition) -> int:
        at = await ask(tp)
        scene.assignment.partitions[ZERO] = partition(ROUTE, committed=7)
        return at

    scene.consumer.position = position  # type: ignore[method-assign]
    await scene.commit()
    assert scene.consumer.commits == []


async def test_a_position_that_the_consumer_does_not_know_leaves_the_ledgers() -> None:
    scene = Scene((ZERO, 3))
    scene.consumer.fails["position"] = KafkaConnectionError()
    await scene.commit(ends=True)
    assert scene.consumer.commits == []


async def test_a_commit_that_a_rebalance_overtook_is_no_trouble_and_moves_nothing() -> None:
    scene = Scene((ZERO, 0))
    scene.zero.deliver(records(0)).finish([0])
    scene.consumer.fails["commit"] = CommitFailedError()
    await scene.commit()
    assert scene.commits.trouble == ""
    assert scene.zero.ledger.committed == 0


async def test_a_broker_that_refuses_or_does_not_answer_is_trouble_until_it_does() -> None:
    scene = Scene((ZERO, 0))
    scene.zero.deliver(records(0)).finish([0])
    scene.consumer.fails["commit"] = KafkaConnectionError()
    await scene.commit()
    assert "commit failed" in scene.commits.trouble
    del scene.consumer.fails["commit"]
    scene.consumer.silent.add("commit")
    await scene.commit(within_s=0.0)
    assert "did not answer" in scene.commits.trouble
    scene.consumer.silent.clear()
    await scene.commit()
    assert scene.commits.trouble == ""
    assert scene.consumer.committed_offsets == {ZERO: 1}


async def test_a_partition_given_anew_during_a_commit_keeps_its_own_account() -> None:
    scene = Scene((ZERO, 0))
    scene.zero.deliver(records(0)).finish([0])
    put = scene.consumer.commit

    async def commit(offsets: dict[TopicPartition, object]) -> None:
        await put(offsets)
        scene.assignment.partitions[ZERO] = partition(ROUTE, committed=55)

    scene.consumer.commit = commit  # type: ignore[assignment, method-assign]
    await scene.commit()
    assert scene.zero.ledger.committed == 55


async def test_lag_is_the_end_less_the_commit_and_never_below_0() -> None:
    scene = Scene((ZERO, 5), (ONE, 9))
    scene.consumer.ends = {ZERO: 12, ONE: 8}
    scene.zero.ledger.deliver([5], [now_ms() - 4_000])
    await scene.commits.measure(scene.assignment)
    records_behind, age_s = scene.hooks.lags[("m", 0)]
    assert records_behind == 7
    assert 4.0 <= age_s < 60.0
    assert scene.hooks.lags[("m", 1)] == (0, 0.0)


async def test_requests_and_retries_of_a_number_are_measured_together() -> None:
    scene = Scene((ZERO, 5), (RETRY, 1))
    scene.consumer.ends = {ZERO: 12, RETRY: 4}
    await scene.commits.measure(scene.assignment)
    assert scene.hooks.lags == {("m", 0): (10, 0.0)}


async def test_a_partition_dropped_while_it_was_measured_is_not_reported() -> None:
    scene = Scene((ZERO, 5), (ONE, 0))
    ask = scene.consumer.end_offsets

    async def end_offsets(partitions: Collection[TopicPartition]) -> dict[TopicPartition, int]:
        found = await ask(partitions)
        del scene.assignment.partitions[ZERO]
        return found

    scene.consumer.end_offsets = end_offsets  # type: ignore[method-assign]
    await scene.commits.measure(scene.assignment)
    assert list(scene.hooks.lags) == [("m", 1)]


async def test_a_broker_that_tells_no_ends_is_trouble() -> None:
    scene = Scene((ZERO, 5))
    scene.consumer.fails["end_offsets"] = KafkaConnectionError()
    await scene.commits.measure(scene.assignment)
    assert "does not answer" in scene.commits.trouble
    assert scene.hooks.lags == {}


async def test_a_node_without_partitions_notices_that_the_broker_is_gone() -> None:
    scene = Scene()
    await scene.commits.measure(scene.assignment)
    assert scene.commits.trouble == ""
    scene.consumer.fails["topics"] = KafkaConnectionError()
    await scene.commits.measure(scene.assignment)
    assert "does not answer" in scene.commits.trouble
