"""The poll loop takes what there is room for, goes on polling when there is none, and never forgets a fetch."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from typing import Any, cast

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    GroupAuthorizationFailedError,
    InconsistentGroupProtocolError,
    InvalidGroupIdError,
    InvalidSessionTimeoutError,
    KafkaConnectionError,
)

import consumers.fetch
import consumers.poll
from consumers.assignment import Assignment
from consumers.outbox import Outbox
from consumers.partition import Partition
from consumers.poll import PollLoop
from consumers.route import Route, route_for
from gpu_runtime.runtime import Runtime
from schemas.clock import Deadline
from schemas.errors import ConfigError, Unavailable
from schemas.record import Topics, now_ms
from tests.support.fake_consumer import FakeConsumer
from tests.support.loop_turns import turns, until
from tests.unit.consumers.parts import FakeRecord, Scene, config, partition

X = b'{"x": [1, 2]}'
NOWHERE = (TopicPartition("", 0),)


class Polling(Scene):
    """An intake with a poll loop over partitions 0 and 1 of its model, and one of another model."""

    def __init__(self, capacity: int = 1_000) -> None:
        super().__init__(capacity=capacity)
        self.consumer = FakeConsumer()
        self.other = route_for(config().model_copy(update={"name": "other"}), Topics())

        async def quiesce(partitions: Collection[Partition], deadline: Deadline) -> None:
            return

        async def commit(deadline: Deadline) -> None:
            return

        by_topic: dict[str, Route] = {self.route.requests: self.route, self.route.retry: self.route}
        by_topic[self.other.requests] = self.other
        self.assignment = Assignment(
            self.consumer,
            by_topic,
            hooks=self.hooks,
            grace_s=0.0,
            quiesce=quiesce,
            commit=commit,
            scopes_changed=lambda: None,
            clock=self.clock,
        )
        self.zero, self.one = (self.hold(self.route, number) for number in (0, 1))
        self.third = self.hold(self.other, 0)
        self.assignment.settled.set()
        self.poll = PollLoop(
            self.consumer,
            self.assignment,
            self.intake,
            cast(Runtime, self.runtime),
            cast(Outbox, self.outbox),
            hooks=self.hooks,
            clock=self.clock,
        )

    def hold(self, route: Route, number: int, topic: str | None = None) -> TopicPartition:
        one = partition(route, number, topic=topic)
        self.assignment.partitions[one.tp] = one
        return one.tp

    def put(self, tp: TopicPartition, *offsets: int, value: bytes | None = X) -> None:
        self.consumer.ready[tp] = [
            FakeRecord(value, offset=offset, topic=tp.topic, partition=tp.partition) for offset in offsets
        ]

    async def fetches(self, count: int) -> None:
        seen = len(self.consumer.fetches)
        await until(lambda: len(self.consumer.fetches) >= seen + count)


@pytest.fixture(autouse=True)
def quick_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rests end at the next turn of the loop, so that no test waits for them."""
    monkeypatch.setattr(consumers.poll, "_PAUSED_POLL_S", 0.0)


@pytest.fixture
async def scene() -> AsyncIterator[Polling]:
    async with running(Polling()) as each:
        yield each


@asynccontextmanager
async def running(scene: Polling) -> AsyncIterator[Polling]:
    work = asyncio.create_task(scene.poll.run())
    try:
        yield scene
    finally:
        work.cancel()
        await asyncio.wait([work])


async def test_with_room_everywhere_everything_is_fetched(scene: Polling) -> None:
    scene.put(scene.zero, 0, 1)
    scene.put(scene.third, 0)
    await until(lambda: scene.hooks.counts["in"] == 3)
    assert set(scene.consumer.fetches) == {()}
    assert {request.rows for request in scene.runtime.take()} == {1, 2}
    assert scene.assignment.partitions[scene.zero].ledger.next_offset == 2
    assert scene.hooks.pauses == {}


async def test_a_partition_whose_model_has_no_room_is_not_fetched_and_the_others_are(scene: Polling) -> None:
    scene.runtime.full.add("m")
    await scene.fetches(2)
    scene.put(scene.zero, 0, 1)
    scene.put(scene.third, 0)
    await until(lambda: scene.hooks.counts["in"] == 1)
    await scene.fetches(3)
    assert scene.consumer.fetches[-1] == (scene.third,)
    assert list(scene.consumer.ready) == [scene.zero], "its records stay in Kafka"
    assert scene.hooks.pauses == {("m", 0): True, ("m", 1): True}


async def test_a_model_with_a_request_that_found_no_room_is_not_fetched_for() -> None:
    async with running(Polling(capacity=1)) as scene:
        scene.put(scene.zero, 0, 1)
        await until(lambda: scene.hooks.counts["in"] == 2)
        assert len(scene.route.waiting) == 1, "two rows, room for one"
        await scene.fetches(2)
        assert scene.consumer.fetches[-1] == (scene.third,)


async def test_pauses_are_worked_out_anew_from_present_room() -> None:
    async with running(Polling(capacity=0)) as scene:
        scene.put(scene.zero, 0)
        await scene.fetches(3)
        assert set(scene.consumer.fetches) == {NOWHERE}
        assert set(scene.consumer.patience_ms) == {0}, "polling goes on, and waits for nothing"
        assert all(scene.hooks.pauses.values())
        scene.runtime.capacity = 10
        await until(lambda: scene.hooks.counts["in"] == 1)
        await scene.fetches(1)
        assert not any(scene.hooks.pauses.values())
        assert scene.consumer.fetches[-1] == ()


async def test_a_pause_does_not_outlive_a_rebalance() -> None:
    async with running(Polling(capacity=0)) as scene:
        await scene.fetches(2)
        assert scene.hooks.pauses[("m", 0)]
        await scene.assignment.on_partitions_revoked([scene.zero, scene.one, scene.third])
        scene.runtime.capacity = 10
        scene.consumer.generation += 5
        scene.consumer.committed_offsets = {scene.zero: 0}
        await scene.assignment.on_partitions_assigned([scene.zero])
        scene.put(scene.zero, 0)
        await until(lambda: scene.hooks.counts["in"] == 1)
        assert not scene.hooks.pauses[("m", 0)]


@pytest.mark.parametrize("why", ["congested", "pending"])
async def test_with_too_much_unsent_nothing_is_taken_in(scene: Polling, why: str) -> None:
    if why == "congested":
        scene.outbox.congested = True
    else:
        scene.outbox.pending = 50_001
    await scene.fetches(2)
    scene.put(scene.zero, 0)
    await scene.fetches(3)
    assert scene.consumer.fetches[-1] == NOWHERE
    assert scene.hooks.counts["in"] == 0
    scene.outbox.congested, scene.outbox.pending = False, 0
    await until(lambda: scene.hooks.counts["in"] == 1)


async def test_a_partition_that_holds_too_many_retries_is_not_fetched(scene: Polling) -> None:
    full = scene.assignment.partitions[scene.zero]
    chunk = full.deliver([FakeRecord(offset=offset) for offset in range(1_000)])
    for index in range(1_000):
        full.hold(now_ms() + 60_000, chunk, index, FakeRecord())
    await scene.fetches(3)
    assert scene.consumer.fetches[-1] == (scene.one, scene.third)


async def test_room_that_appears_during_a_fetch_is_noticed_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers.poll, "_PAUSED_POLL_S", 60.0)
    async with running(Polling(capacity=0)) as scene:

        async def room() -> None:
            scene.runtime.capacity = 10
            scene.poll.wake()

        scene.consumer.during_fetch = room
        scene.put(scene.zero, 0)
        await until(lambda: scene.hooks.counts["in"] == 1)


async def test_room_ends_the_rest_of_a_loop_that_has_nothing_to_fetch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers.poll, "_PAUSED_POLL_S", 60.0)
    async with running(Polling(capacity=0)) as scene:
        await scene.fetches(1)
        await turns()
        assert len(scene.consumer.fetches) == 1, "it rests"
        scene.poll.wake()
        await turns()
        assert len(scene.consumer.fetches) == 2, "it looks again, and rests again"
        scene.runtime.capacity = 10
        scene.put(scene.zero, 0)
        scene.poll.wake()
        await until(lambda: scene.hooks.counts["in"] == 1)


async def test_once_stopping_nothing_is_taken_in_and_polling_goes_on(scene: Polling) -> None:
    await scene.fetches(1)
    scene.poll.stopping = True
    await scene.fetches(2)
    scene.put(scene.zero, 0)
    await scene.fetches(3)
    assert scene.consumer.fetches[-1] == NOWHERE
    assert scene.hooks.counts["in"] == 0


async def test_a_fetch_that_the_stop_overtook_is_handed_back() -> None:
    scene = Polling()

    async def stop() -> None:
        scene.poll.stopping = True

    scene.consumer.during_fetch = stop
    scene.put(scene.zero, 7, 8)
    async with running(scene):
        await scene.fetches(3)
        assert scene.hooks.counts["in"] == 0
        assert scene.consumer.positions[scene.zero] == 0, "its commit, from which the next owner reads"


async def test_held_retries_are_run_when_due_and_not_once_stopping(scene: Polling) -> None:
    holder = scene.assignment.partitions[scene.zero]
    chunk = holder.deliver([FakeRecord(X, offset=0), FakeRecord(X, offset=1)])
    holder.hold(0, chunk, 0, FakeRecord(X, offset=0))
    await until(scene.runtime.take)
    scene.poll.stopping = True
    await scene.fetches(2)
    holder.hold(0, chunk, 1, FakeRecord(X, offset=1))
    await scene.fetches(3)
    assert scene.runtime.take() == []


async def test_the_loop_waits_for_the_next_held_retry_and_not_longer(scene: Polling) -> None:
    await scene.fetches(1)
    assert scene.consumer.patience_ms[-1] == 200
    holder = scene.assignment.partitions[scene.zero]
    chunk = holder.deliver([FakeRecord(X)])
    holder.hold(now_ms() + 100, chunk, 0, FakeRecord(X))
    await scene.fetches(2)
    assert 1 <= scene.consumer.patience_ms[-1] <= 100


@pytest.mark.parametrize("comes_back", [True, False])
async def test_what_a_rebalance_overtook_is_read_again_and_not_taken_twice(comes_back: bool) -> None:
    scene = Polling()
    every = [scene.zero, scene.one, scene.third]
    scene.consumer.committed_offsets = dict.fromkeys(every, 0)

    async def rebalance() -> None:
        await scene.assignment.on_partitions_revoked(every)
        scene.consumer.generation += 1 if comes_back else 2
        await scene.assignment.on_partitions_assigned(every)

    scene.consumer.during_fetch = rebalance
    scene.put(scene.zero, 0, 1)
    async with running(scene):
        await scene.fetches(2)
        assert scene.hooks.counts["in"] == 0
        assert scene.consumer.positions[scene.zero] == 0
        scene.put(scene.zero, 0, 1)
        await until(lambda: scene.hooks.counts["in"] == 2)
        assert scene.assignment.in_step


async def test_while_partitions_change_it_polls_from_nowhere_and_is_not_in_step(scene: Polling) -> None:
    await scene.fetches(1)
    await scene.assignment.on_partitions_revoked([scene.zero])
    scene.put(scene.one, 0)
    await scene.fetches(4)
    assert scene.consumer.fetches[-1] == NOWHERE
    assert not scene.assignment.in_step
    assert scene.poll.busy_since is None


async def test_a_partition_that_is_not_held_is_not_delivered(scene: Polling) -> None:
    await scene.fetches(1)
    del scene.assignment.partitions[scene.one]
    scene.put(scene.one, 0)
    await scene.fetches(3)
    assert scene.hooks.counts["in"] == 0


@pytest.mark.parametrize(
    ("ends", "backlog"),
    [((513, 0), True), ((512, 0), False), ((300, 300), True), ((200, 200), False)],
)
async def test_a_backlog_is_more_than_one_fetch_over_all_partitions_of_a_model(
    scene: Polling, ends: tuple[int, int], backlog: bool
) -> None:
    scene.consumer.ends = dict(zip((scene.zero, scene.one), ends, strict=True))
    scene.put(scene.zero, 0)
    if ends[1]:
        scene.put(scene.one, 0)
    await until(lambda: scene.hooks.counts["in"])
    assert scene.runtime.backlogs == [backlog]
    assert list(scene.outbox.gathered.values()) == [False]


async def test_results_are_gathered_when_far_more_waits_than_one_fetch_takes(scene: Polling) -> None:
    scene.consumer.ends = {scene.zero: 5_121}
    scene.put(scene.zero, 0)
    await until(lambda: scene.hooks.counts["in"])
    assert list(scene.outbox.gathered.items()) == [("headrace.models.m.results", True)]


async def test_a_broker_that_refuses_the_node_for_good_ends_the_loop() -> None:
    scene = Polling()
    scene.consumer.fails["getmany"] = GroupAuthorizationFailedError("g")
    with pytest.raises(Unavailable, match="check its ACLs"):
        await scene.poll.run()


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (InvalidSessionTimeoutError(), "set kafka.session_timeout_ms between"),
        (InconsistentGroupProtocolError(), "give these nodes another group"),
        (InvalidGroupIdError(), "set group to a name"),
    ],
)
async def test_a_group_that_does_not_take_the_node_as_it_is_set_up_ends_the_loop(error: Exception, remedy: str) -> None:
    scene = Polling()
    scene.consumer.fails["getmany"] = error
    with pytest.raises(ConfigError, match=remedy):
        await scene.poll.run()


async def test_a_fetch_that_fails_is_trouble_and_is_tried_again(
    scene: Polling, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers.fetch, "_FAILED_S", 0.0)
    scene.consumer.fails["getmany"] = KafkaConnectionError()
    await until(lambda: "fetching failed" in scene.poll.trouble)
    assert scene.poll.failing_since is not None
    scene.consumer.fails.clear()
    scene.put(scene.zero, 0)
    await until(lambda: scene.hooks.counts["in"] == 1)
    assert scene.poll.trouble == ""
    assert scene.poll.failing_since is None


async def test_the_loop_says_since_when_it_is_busy() -> None:
    scene = Polling()
    seen: list[float | None] = []
    take = scene.intake.take

    def slow(partition: Partition, records: Any) -> None:
        seen.append(scene.poll.busy_since)
        scene.clock.advance(5)
        take(partition, records)

    scene.intake.take = slow  # type: ignore[method-assign]
    scene.put(scene.zero, 0)
    began = scene.clock.now
    async with running(scene):
        await until(lambda: seen)
        await scene.fetches(1)
        assert seen == [began]
        assert scene.poll.busy_since is None
