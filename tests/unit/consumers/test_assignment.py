"""Rebalances: what comes straight back goes on where it was, anything else is read again from its commit."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import KafkaConnectionError

from consumers.assignment import Assignment
from consumers.commits import Commits
from consumers.partition import Partition
from gpu_runtime.fake import ManualClock
from gpu_runtime.request import ScopeState
from schemas.clock import Deadline
from tests.support.fake_consumer import FakeConsumer
from tests.unit.consumers.parts import FakeRecord, RecordingHooks, route

ROUTE = route()
ZERO, ONE = TopicPartition(ROUTE.requests, 0), TopicPartition(ROUTE.requests, 1)
RETRY = TopicPartition(ROUTE.retry, 0)


@dataclass
class Scene:
    consumer: FakeConsumer = field(default_factory=FakeConsumer)
    hooks: RecordingHooks = field(default_factory=RecordingHooks)
    clock: ManualClock = field(default_factory=ManualClock)
    graces: list[float] = field(default_factory=list)
    seen_while_quiescing: list[ScopeState] = field(default_factory=list)
    told: int = 0

    def __post_init__(self) -> None:
        commits = Commits(self.consumer, hooks=self.hooks)

        async def quiesce(partitions: Collection[Partition], deadline: Deadline) -> None:
            self.graces.append(deadline.remaining_s)
            self.seen_while_quiescing.extend(each.scope.state for each in partitions)

        def scopes_changed() -> None:
            self.told += 1

        self.assignment = Assignment(
            self.consumer,
            {ROUTE.requests: ROUTE, ROUTE.retry: ROUTE},
            hooks=self.hooks,
            grace_s=5.0,
            quiesce=quiesce,
            commit=lambda deadline: commits.commit(self.assignment, deadline),
            scopes_changed=scopes_changed,
            clock=self.clock,
        )

    async def rebalance(self, *assigned: TopicPartition, generations: int = 1) -> None:
        await self.assignment.on_partitions_revoked(list(self.assignment.partitions))
        self.consumer.generation += generations
        await self.assignment.on_partitions_assigned(list(assigned))


async def holding(*partitions: TopicPartition, committed: int = 10) -> Scene:
    scene = Scene()
    for tp in partitions:
        scene.consumer.committed_offsets[tp] = committed
    await scene.rebalance(*partitions)
    return scene


def records(*offsets: int) -> list[FakeRecord]:
    return [FakeRecord(offset=offset) for offset in offsets]


async def test_a_partition_starts_at_its_commit() -> None:
    scene = await holding(ZERO)
    partition = scene.assignment.partitions[ZERO]
    assert (partition.ledger.next_offset, partition.ledger.committed) == (10, 10)
    assert scene.assignment.joined
    assert scene.assignment.settled.is_set()
    assert scene.hooks.rebalances == [(1, 0)]


async def test_a_partition_that_comes_straight_back_goes_on_where_it_was() -> None:
    scene = await holding(ZERO)
    before = scene.assignment.partitions[ZERO]
    chunk = before.deliver(records(10, 11, 12))
    chunk.finish([0])
    await scene.rebalance(ZERO)
    assert scene.assignment.partitions[ZERO] is before
    assert before.scope.state is ScopeState.ACTIVE
    assert scene.consumer.seeks == [(ZERO, 13)], "what was delivered is not fetched again"
    assert scene.consumer.commits == [{ZERO: 11}], "what was finished is committed before it goes"
    assert scene.seen_while_quiescing == [ScopeState.SUSPENDED]


async def test_a_rebalance_that_does_not_end_is_told_since_when() -> None:
    scene = await holding(ZERO)
    assert scene.assignment.unsettled_since is None
    began = scene.clock()
    await scene.assignment.on_partitions_revoked([ZERO])
    scene.clock.advance(30.0)
    assert scene.assignment.unsettled_since == began
    await scene.assignment.on_partitions_assigned([ZERO])
    assert scene.assignment.unsettled_since is None


async def test_a_partition_that_another_may_have_had_in_between_is_dropped() -> None:
    scene = await holding(ZERO)
    before = scene.assignment.partitions[ZERO]
    before.deliver(records(10, 11))
    before.hold(0, before.deliver(records(12)), 0, records(12)[0])
    await scene.rebalance(ZERO, generations=2)
    now = scene.assignment.partitions[ZERO]
    assert now is not before
    assert before.scope.state is ScopeState.CLOSED
    assert before.next_due_ms is None
    assert (now.ledger.next_offset, now.ledger.unfinished) == (10, 0)
    assert scene.hooks.gone == []


async def test_a_partition_whose_commit_moved_elsewhere_is_dropped() -> None:
    scene = await holding(ZERO)
    before = scene.assignment.partitions[ZERO]
    await scene.assignment.on_partitions_revoked([ZERO])
    scene.consumer.committed_offsets[ZERO] = 99
    scene.consumer.generation += 1
    await scene.assignment.on_partitions_assigned([ZERO])
    assert before.scope.state is ScopeState.CLOSED
    assert scene.assignment.partitions[ZERO].ledger.next_offset == 99


async def test_a_partition_that_went_away_is_closed_and_its_gauges_vanish() -> None:
    scene = await holding(ZERO, ONE)
    gone = scene.assignment.partitions[ONE]
    await scene.rebalance(ZERO)
    assert gone.scope.state is ScopeState.CLOSED
    assert list(scene.assignment.partitions) == [ZERO]
    assert scene.hooks.gone == [("m", 1)]


async def test_gauges_stay_while_the_other_topic_of_the_same_number_is_held() -> None:
    scene = await holding(ZERO, RETRY)
    await scene.rebalance(RETRY)
    assert scene.hooks.gone == []


async def test_a_pause_does_not_outlive_the_partition_that_was_paused() -> None:
    scene = await holding(ZERO)
    scene.assignment.partitions[ZERO].paused = True
    await scene.rebalance(ZERO, generations=2)
    assert scene.hooks.pauses == {("m", 0): False}
    assert not scene.assignment.partitions[ZERO].paused


async def test_running_batches_get_the_grace_and_no_more() -> None:
    scene = await holding(ZERO)
    assert scene.graces[-1] == 5.0


async def test_while_partitions_change_the_assignment_is_neither_settled_nor_in_step() -> None:
    scene = await holding(ZERO)
    scene.assignment.in_step = True
    await scene.assignment.on_partitions_revoked([ZERO])
    assert not scene.assignment.settled.is_set()
    scene.consumer.generation += 1
    await scene.assignment.on_partitions_assigned([ZERO])
    assert scene.assignment.settled.is_set()
    assert not scene.assignment.in_step, "that is for the poll loop to say"


@pytest.mark.parametrize("generations", [1, 2])
async def test_records_fetched_while_partitions_changed_are_read_again(generations: int) -> None:
    scene = await holding(ZERO)
    if generations == 1:
        scene.assignment.partitions[ZERO].deliver(records(10, 11))
    await scene.rebalance(ZERO, generations=generations)
    scene.consumer.seeks.clear()
    scene.assignment.rewind({ZERO: records(50, 51), ONE: records(3)})
    assert scene.consumer.seeks == [(ZERO, 12 if generations == 1 else 10)]


async def test_with_no_commit_known_records_are_read_again_from_the_first_one_fetched() -> None:
    scene = Scene()
    await scene.rebalance(ZERO)
    scene.assignment.rewind({ZERO: records(4, 5)})
    assert scene.consumer.seeks == [(ZERO, 4)]


async def test_a_broker_that_does_not_tell_the_commit_does_not_stop_the_assignment() -> None:
    scene = Scene()
    scene.consumer.fails["committed"] = KafkaConnectionError()
    await scene.rebalance(ZERO, ONE)
    assert {tp: each.ledger.committed for tp, each in scene.assignment.partitions.items()} == {ZERO: None, ONE: None}


async def test_a_partition_is_not_resumed_on_the_word_of_a_broker_that_gave_none() -> None:
    scene = await holding(ZERO)
    before = scene.assignment.partitions[ZERO]
    before.deliver(records(10))
    scene.consumer.fails["committed"] = KafkaConnectionError()
    await scene.rebalance(ZERO)
    assert scene.assignment.partitions[ZERO] is not before


async def test_closing_hands_back_what_is_held_and_what_is_suspended() -> None:
    scene = await holding(ZERO)
    partition = scene.assignment.partitions[ZERO]
    await scene.assignment.on_partitions_revoked([ZERO])
    scene.assignment.close()
    assert partition.scope.state is ScopeState.CLOSED


async def test_the_runtime_is_told_of_each_change() -> None:
    scene = await holding(ZERO)
    before = scene.told
    await scene.rebalance(ZERO)
    assert scene.told == before + 2
    scene.assignment.close()
    assert scene.told == before + 3


async def test_topics_that_are_gone_are_named() -> None:
    scene = await holding(ZERO)
    assert scene.assignment.missing == []
    scene.consumer.gone = {ROUTE.requests, "somebody-elses"}
    assert scene.assignment.missing == [ROUTE.requests]
