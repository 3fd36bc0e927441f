"""A partition that cannot be read costs the others nothing, is named, and is read again once it can be."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.errors import (
    CorruptRecordException,
    KafkaConnectionError,
    TopicAuthorizationFailedError,
    UnsupportedCodecError,
)

import consumers.fetch
from consumers.kafka import Record
from schemas.errors import Unavailable
from tests.support.fake_consumer import FakeConsumer
from tests.support.loop_turns import until
from tests.unit.consumers.parts import FakeRecord
from tests.unit.consumers.test_poll import Polling, running


class Damaged(FakeConsumer):
    """As aiokafka: the error of a batch is raised when its turn comes, and what the call had taken by then is gone."""

    def __init__(self) -> None:
        super().__init__()
        self.unreadable: dict[Any, Exception] = {}
        self.log: dict[Any, list[Record]] = {}

    async def getmany(self, *partitions: Any, timeout_ms: int, max_records: int) -> dict[Any, list[Record]]:
        self.fetches.append(partitions)
        if timeout_ms:  # else it does not let go of the loop
            await asyncio.sleep(0)
        if "getmany" in self.fails:
            raise self.fails["getmany"]
        taken: dict[Any, list[Record]] = {}
        for tp in partitions or [*self.log, *self.unreadable]:
            if tp in self.unreadable:
                raise self.unreadable[tp]
            at = self.positions.get(tp, 0)
            if found := [record for record in self.log.get(tp, []) if record.offset >= at][:max_records]:
                taken[tp] = found
                self.positions[tp] = found[-1].offset + 1
        return taken


class Damage(Polling):
    def __init__(self) -> None:
        super().__init__()
        self.broken = Damaged()
        self.poll._consumer = self.assignment._consumer = self.broken
        self.poll._fetch._consumer = self.broken

    def write(self, tp: TopicPartition, count: int) -> None:
        self.broken.log[tp] = [
            FakeRecord(b'{"x": [1, 2]}', offset=offset, topic=tp.topic, partition=tp.partition)
            for offset in range(count)
        ]

    async def more_fetches(self, count: int) -> None:
        seen = len(self.broken.fetches)
        await until(lambda: len(self.broken.fetches) >= seen + count)

    def delivered(self) -> Mapping[TopicPartition, int | None]:
        return {tp: partition.ledger.next_offset for tp, partition in self.assignment.partitions.items()}


@pytest.fixture(autouse=True)
def quick_rests(monkeypatch: pytest.MonkeyPatch) -> None:
    for rest in ("_FAILED_S", "_REST_S"):
        monkeypatch.setattr(consumers.fetch, rest, 0.0)


@pytest.fixture
async def scene() -> AsyncIterator[Damage]:
    scene = Damage()
    scene.write(scene.zero, 3)
    scene.write(scene.third, 2)
    scene.broken.unreadable[scene.one] = UnsupportedCodecError("Libraries for lz4 compression codec not found")
    async with running(scene):
        yield scene


async def test_what_a_failed_fetch_had_taken_from_others_is_read_again(scene: Damage) -> None:
    await until(lambda: scene.hooks.counts["in"] == 5)
    assert scene.delivered() == {scene.zero: 3, scene.one: 0, scene.third: 2}
    scene.write(scene.zero, 10)
    await until(lambda: scene.hooks.counts["in"] == 12)


async def test_no_position_is_ever_beyond_what_was_delivered_when_others_look(scene: Damage) -> None:
    for _ in range(50):
        await scene.more_fetches(1)
        for tp, at in scene.delivered().items():
            assert scene.broken.positions.get(tp, 0) <= (at or 0)


async def test_the_partition_is_named_with_its_remedy_and_the_node_is_not_held_to_be_dead(scene: Damage) -> None:
    await until(lambda: "cannot be read" in scene.poll.trouble)
    assert f"{scene.one.topic}[1] cannot be read from offset 0 on" in scene.poll.trouble
    assert "install the package cramjam" in scene.poll.trouble
    assert scene.poll.failing_since is None


async def test_a_partition_that_can_be_read_again_is_read_and_no_trouble_is_left(scene: Damage) -> None:
    await until(lambda: "cannot be read" in scene.poll.trouble)
    del scene.broken.unreadable[scene.one]
    scene.write(scene.one, 4)
    await scene.more_fetches(3)
    assert scene.delivered()[scene.one] == 0, "it is left alone for a while"
    scene.clock.advance(6)
    await until(lambda: scene.delivered()[scene.one] == 4)
    assert scene.poll.trouble == ""


async def test_a_partition_that_was_emptied_is_no_trouble_for_ever(scene: Damage) -> None:
    await until(lambda: "cannot be read" in scene.poll.trouble)
    del scene.broken.unreadable[scene.one]
    scene.clock.advance(6)
    await scene.more_fetches(8)
    assert scene.poll.trouble, "aiokafka may only have dropped what it cannot read"
    scene.clock.advance(2)
    await until(lambda: scene.poll.trouble == "")


async def test_after_a_while_without_a_failure_all_are_fetched_together_again(scene: Damage) -> None:
    await until(lambda: "cannot be read" in scene.poll.trouble)
    del scene.broken.unreadable[scene.one]
    for _ in range(3):
        scene.clock.advance(6)
        await scene.more_fetches(8)
    assert scene.broken.fetches[-1] == ()


@pytest.mark.parametrize("error", [CorruptRecordException("crc"), EOFError(), OSError("not a gzipped file")])
async def test_a_damaged_batch_is_waited_for_and_kills_no_node(scene: Damage, error: Exception) -> None:
    scene.broken.unreadable[scene.one] = error
    await until(lambda: scene.hooks.counts["in"] == 5)
    await until(lambda: repr(error) in scene.poll.trouble or "lz4" in scene.poll.trouble)


async def test_a_group_in_trouble_is_no_partitions_fault(scene: Damage) -> None:
    await until(lambda: "cannot be read" in scene.poll.trouble)
    failing = KafkaConnectionError()
    scene.broken.fails["getmany"] = failing
    await until(lambda: scene.poll.failing_since is not None)
    assert scene.poll.trouble == f"fetching failed: {failing!r}"
    scene.broken.fails.clear()
    await until(lambda: scene.poll.failing_since is None)


async def test_a_broker_that_refuses_a_partition_for_good_still_ends_the_loop() -> None:
    scene = Damage()
    scene.broken.unreadable[scene.one] = TopicAuthorizationFailedError("t")
    with pytest.raises(Unavailable, match="check its ACLs"):
        await scene.poll.run()


async def test_a_broker_that_holds_no_empty_fetch_is_left_alone_between_fetches() -> None:
    zero = TopicPartition("t", 0)
    consumer, scene = FakeConsumer(), Polling()
    scene.assignment.partitions = {zero: scene.assignment.partitions.popitem()[1]}
    consumer.assigned = {zero}
    fetch = consumers.fetch.Fetch(consumer, scene.assignment, idle_pause_s=0.001)
    assert await fetch.take([], 0.2) == {}
    assert (consumer.pauses, consumer.paused) == (1, set())
    consumer.assigned = set()  # revoked while it rested
    assert await fetch.take([], 0.2) == {}
    assert consumer.paused == {zero}, "what is held no more is not touched"


async def test_a_broker_that_holds_an_empty_fetch_is_never_paused() -> None:
    consumer = FakeConsumer()
    fetch = consumers.fetch.Fetch(consumer, Polling().assignment)
    assert await fetch.take([], 0.0) == {}
    assert consumer.pauses == 0
