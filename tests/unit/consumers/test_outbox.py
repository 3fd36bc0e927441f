"""Nothing given to the outbox is lost or counted twice, whatever the broker does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
from aiokafka import errors as kafka_errors

import consumers.outbox
from consumers.ends import HeaderList
from consumers.outbox import Outbox
from consumers.partitioning import partition_of
from gpu_runtime.fake import ManualClock
from schemas.clock import Deadline
from schemas.errors import HeadraceError, TooLargeError, Unavailable
from tests.support.fake_producer import FakeBroker
from tests.support.loop_turns import turns, until


class Receipt:
    def __init__(self) -> None:
        self.delivered_: list[int] = []
        self.refused_: dict[int, HeadraceError] = {}

    def delivered(self, indices: Sequence[int]) -> None:
        self.delivered_.extend(indices)

    def refused(self, index: int, error: HeadraceError) -> None:
        assert index not in self.refused_
        self.refused_[index] = error


class Scene:
    def __init__(self, broker: FakeBroker, *, max_record_bytes: int = 10_000, max_pending_bytes: int = 5_000) -> None:
        self.broker = broker
        self.clock = ManualClock()
        self.receipt = Receipt()
        self.outbox = Outbox(
            broker.make,
            max_record_bytes=max_record_bytes,
            max_pending_bytes=max_pending_bytes,
            first_backoff_s=0.0,
            clock=self.clock,
        )

    def add(
        self,
        topic: str,
        *values: bytes | None,
        keys: Sequence[bytes | None] | None = None,
        headers: Sequence[HeaderList] | None = None,
        first: int = 0,
        partition: int | None = None,
        to_reply: bool = False,
    ) -> None:
        self.outbox.add_many(
            topic,
            keys=keys or [None] * len(values),
            values=values,
            headers=headers or [[] for _ in values],
            indices=range(first, first + len(values)),
            receipt=self.receipt,
            partition=partition,
            to_reply=to_reply,
        )

    async def idle(self) -> None:
        await until(lambda: self.outbox.pending == 0)
        await turns()
        assert self.outbox.pending_bytes == 0
        assert self.outbox.trouble == ""
        assert not self.outbox.congested

    @property
    def known(self) -> list[int]:
        return sorted([*self.receipt.delivered_, *self.receipt.refused_])


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with running(Scene(FakeBroker(out=1, other=3))) as each:
        yield each


@asynccontextmanager
async def running(scene: Scene) -> AsyncIterator[Scene]:
    await scene.outbox.start()
    work = asyncio.create_task(scene.outbox.run())
    try:
        yield scene
    finally:
        await scene.outbox.close(Deadline(0.0, scene.clock))
        await work


async def test_a_record_is_finished_when_the_broker_has_acknowledged_it_and_not_before(scene: Scene) -> None:
    scene.broker.held = True
    scene.add("out", b"a", b"b", headers=[[("h", None), ("h", b"\xff")], []])
    await until(lambda: scene.broker.waiting)
    await turns()
    assert scene.receipt.delivered_ == []
    assert scene.outbox.pending == 2
    scene.broker.release()
    await scene.idle()
    assert scene.receipt.delivered_ == [0, 1]
    assert scene.broker.values("out") == [b"a", b"b"]
    assert scene.broker.landed[0].headers == (("h", None), ("h", b"\xff"))


async def test_while_one_batch_is_under_way_the_next_one_fills(scene: Scene) -> None:
    scene.broker.held = True
    scene.add("out", b"0")
    await until(lambda: scene.broker.waiting)
    for number in range(1, 50):
        scene.add("out", str(number).encode(), first=number)
    await turns()
    assert len(scene.broker.attempts) == 1
    scene.broker.release()
    await scene.idle()
    assert [len(attempt.batch.rows) for attempt in scene.broker.attempts] == [1, 49]
    assert scene.receipt.delivered_ == list(range(50)), "in order"


async def test_a_full_batch_goes_and_another_is_begun() -> None:
    async with running(Scene(FakeBroker(1_000, out=1))) as scene:
        values = [bytes([number]) * 300 for number in range(10)]
        scene.add("out", *values)
        await scene.idle()
        assert scene.broker.values("out") == values
        assert scene.receipt.delivered_ == list(range(10))
        assert len(scene.broker.attempts) > 3


async def test_keys_choose_the_partition_and_a_named_partition_wins(scene: Scene) -> None:
    scene.add("other", b"1", b"2", keys=[b"k", b"l"])
    scene.add("other", b"3", keys=[b"k"], partition=2, first=2)
    await scene.idle()
    where = {record.value: record.partition for record in scene.broker.landed}
    assert where == {b"1": partition_of(b"k", 3), b"2": partition_of(b"l", 3), b"3": 2}


async def test_what_fails_is_sent_again_until_it_is_acknowledged(scene: Scene) -> None:
    scene.broker.held = True
    scene.add("out", b"a", b"b")
    await until(lambda: scene.broker.waiting)
    scene.broker.failures.extend([kafka_errors.RequestTimedOutError(), kafka_errors.NotLeaderForPartitionError()])
    scene.broker.release()
    await scene.idle()
    assert scene.broker.values("out") == [b"a", b"b"]
    assert scene.receipt.delivered_ == [0, 1]
    assert len(scene.broker.attempts) == 3


async def test_trouble_is_told_while_it_lasts(scene: Scene) -> None:
    scene.broker.refuses["out"] = kafka_errors.NotEnoughReplicasError()
    scene.add("out", b"a")
    await until(lambda: "cannot write to out[0]" in scene.outbox.trouble)
    scene.add("other", b"b", partition=0, first=1)
    await until(lambda: scene.receipt.delivered_ == [1])
    assert "cannot write to out[0]" in scene.outbox.trouble, "another partition's success does not hide it"
    del scene.broker.refuses["out"]
    await scene.idle()


async def test_what_the_producer_sends_again_in_silence_is_trouble(scene: Scene) -> None:
    scene.broker.held = True
    scene.add("out", b"a")
    await until(lambda: scene.broker.waiting)
    scene.clock.advance(5.0)
    assert scene.outbox.trouble == ""
    scene.clock.advance(1.0)
    assert scene.outbox.trouble == "no answer for 6 s to what was sent to out[0]"
    scene.broker.release()
    await scene.idle()


async def test_a_record_above_the_limit_is_refused_alone_and_without_asking_the_broker() -> None:
    async with running(Scene(FakeBroker(out=1), max_record_bytes=1_000)) as scene:
        scene.add("out", b"a", b"b" * 2_000, b"c", b"d" * 2_000)
        await scene.idle()
        assert scene.broker.values("out") == [b"a", b"c"]
        assert scene.receipt.delivered_ == [0, 2]
        assert list(scene.receipt.refused_) == [1, 3]
        error = scene.receipt.refused_[1]
        assert isinstance(error, TooLargeError)
        assert "above the limit of 1,000 bytes" in error.message
        assert len(scene.broker.attempts) == 1


async def test_headers_count_towards_the_limit_of_a_record() -> None:
    async with running(Scene(FakeBroker(out=1), max_record_bytes=1_000)) as scene:
        scene.add("out", b"v" * 600, headers=[[("h", b"x" * 500)]])
        await scene.idle()
        assert list(scene.receipt.refused_) == [0]


async def test_a_batch_the_broker_finds_too_large_costs_only_the_record_that_is(scene: Scene) -> None:
    scene.broker.max_record_bytes = 100
    scene.add("out", b"a", b"b" * 200, b"c")
    scene.add("out", b"d", first=3)
    await scene.idle()
    assert scene.broker.values("out") == [b"a", b"c", b"d"]
    assert scene.receipt.delivered_ == [0, 2, 3]
    assert list(scene.receipt.refused_) == [1]
    assert "refused by the broker" in scene.receipt.refused_[1].message


async def test_a_reply_topic_that_is_missing_is_refused_at_once(scene: Scene) -> None:
    scene.add("nowhere", b"a", to_reply=True)
    scene.add("nowhere", b"b", to_reply=True, first=1)
    await scene.idle()
    assert [type(error) for error in scene.receipt.refused_.values()] == [Unavailable, Unavailable]
    assert "nowhere" in scene.receipt.refused_[0].message
    assert scene.broker.lookups == ["nowhere"], "one question for all that wait"


async def test_a_missing_topic_of_our_own_is_waited_for(scene: Scene) -> None:
    scene.add("later", b"a")
    await until(lambda: len(scene.broker.lookups) > 3)
    assert "later" in scene.outbox.trouble
    scene.add("later", b"b", to_reply=True, first=1)
    await until(lambda: 1 in scene.receipt.refused_)
    assert scene.outbox.pending == 1
    scene.broker.topics["later"] = 2
    await scene.idle()
    assert scene.receipt.delivered_ == [0]
    assert scene.broker.values("later") == [b"a"]


async def test_a_partition_that_the_reply_topic_does_not_have_is_refused(scene: Scene) -> None:
    scene.add("other", b"a", partition=3, to_reply=True)
    await scene.idle()
    assert "no partition 3, only 3" in scene.receipt.refused_[0].message


async def test_a_reply_topic_made_anew_with_fewer_partitions_is_the_callers_error(scene: Scene) -> None:
    scene.add("other", b"a", partition=2, to_reply=True)
    await scene.idle()
    scene.broker.topics["other"] = 1
    scene.add("other", b"b", partition=2, to_reply=True, first=1)
    await scene.idle()
    assert list(scene.receipt.refused_) == [1]


async def test_a_reply_topic_that_vanishes_between_lookup_and_send_is_refused(scene: Scene) -> None:
    scene.broker.refuses["other"] = kafka_errors.UnknownTopicOrPartitionError()
    scene.add("other", b"a", b"b", partition=1, to_reply=True)
    await scene.idle()
    assert sorted(scene.receipt.refused_) == [0, 1]


async def test_a_reply_topic_that_takes_no_such_records_does_not_hold_up_the_node(scene: Scene) -> None:
    scene.broker.refuses["other"] = kafka_errors.PolicyViolationError()
    scene.add("other", b"a", b"b", partition=1, to_reply=True)
    await scene.idle()
    assert sorted(scene.receipt.refused_) == [0, 1]
    assert len(scene.broker.attempts) == 3, "together, then each alone, so that only those at fault fail"


async def test_our_own_topic_is_tried_for_ever_whatever_the_broker_says(scene: Scene) -> None:
    scene.broker.refuses["out"] = kafka_errors.TopicAuthorizationFailedError()
    scene.add("out", b"a")
    await until(lambda: len(scene.broker.attempts) > 5)
    assert scene.known == []
    del scene.broker.refuses["out"]
    await scene.idle()
    assert scene.receipt.delivered_ == [0]


@pytest.mark.parametrize(
    "death", [kafka_errors.ProducerFenced("x"), kafka_errors.OutOfOrderSequenceNumber(), kafka_errors.ProducerClosed()]
)
async def test_when_the_producer_dies_another_sends_what_it_owed_once(scene: Scene, death: Exception) -> None:
    scene.add("out", b"before")
    await scene.idle()
    scene.broker.producers[0].die(death)
    scene.broker.start_failures.append(kafka_errors.KafkaConnectionError())
    scene.add("out", b"a", b"b", first=1)
    scene.add("other", b"c", b"d", b"e", first=3)
    await scene.idle()
    assert [producer.stopped for producer in scene.broker.producers] == [True, True, False]
    assert scene.outbox.producer is scene.broker.producers[2]
    assert sorted(scene.receipt.delivered_) == [0, 1, 2, 3, 4, 5], "each once"
    assert sorted(value or b"" for value in scene.broker.values("other")) == [b"c", b"d", b"e"]
    assert scene.broker.values("out") == [b"before", b"a", b"b"]


async def test_a_producer_that_cannot_be_replaced_yet_is_trouble(scene: Scene) -> None:
    scene.broker.producers[0].die(kafka_errors.ProducerClosed())
    scene.broker.start_failures.extend([kafka_errors.KafkaConnectionError()] * 100)
    scene.add("out", b"a")
    await until(lambda: "cannot start a producer" in scene.outbox.trouble)
    await scene.idle()


async def test_a_producer_that_does_not_start_is_closed_again() -> None:
    scene = Scene(FakeBroker())
    scene.broker.start_failures.append(kafka_errors.KafkaConnectionError())
    with pytest.raises(kafka_errors.KafkaConnectionError):
        await scene.outbox.start()
    assert scene.broker.producers[0].stopped
    assert scene.outbox.producer is None


async def test_bytes_that_wait_congest_and_are_given_back_when_they_are_acknowledged(scene: Scene) -> None:
    scene.broker.held = True
    scene.add("out", b"x" * 4_000)
    await until(lambda: scene.broker.waiting)
    assert not scene.outbox.congested
    scene.add("out", b"y" * 4_000, first=1)
    assert scene.outbox.congested
    scene.broker.release()
    await scene.idle()


async def test_bytes_that_wait_for_their_topic_congest_too(scene: Scene) -> None:
    scene.add("later", b"x" * 6_000)
    scene.add("later", b"y" * 10, first=1)
    assert scene.outbox.congested
    await until(lambda: len(scene.broker.lookups) > 2)
    assert scene.outbox.congested
    scene.broker.topics["later"] = 1
    await scene.idle()


async def test_bytes_of_refused_replies_are_given_back(scene: Scene) -> None:
    scene.add("nowhere", b"x" * 6_000, to_reply=True)
    assert scene.outbox.congested
    await scene.idle()


async def test_flush_waits_for_acknowledgements_until_its_deadline(scene: Scene) -> None:
    assert await scene.outbox.flush(Deadline(0.0, scene.clock))
    scene.broker.held = True
    scene.add("out", b"a")
    await until(lambda: scene.broker.waiting)
    assert not await scene.outbox.flush(Deadline(0.0, scene.clock))
    flushed = asyncio.create_task(scene.outbox.flush(Deadline(60.0, scene.clock)))
    await turns()
    assert not flushed.done()
    scene.broker.release()
    assert await flushed


async def test_what_is_added_before_it_runs_goes_when_it_does() -> None:
    scene = Scene(FakeBroker(out=1))
    await scene.outbox.start()
    scene.add("out", b"a")
    scene.add("nowhere", b"b", to_reply=True, first=1)
    await turns()
    assert scene.broker.lookups == []
    async with running(scene) as each:
        await each.idle()
    assert (scene.receipt.delivered_, list(scene.receipt.refused_)) == ([0], [1])


async def test_closing_ends_it_though_a_topic_is_missing_and_a_batch_unanswered() -> None:
    scene = Scene(FakeBroker(out=1))
    await scene.outbox.start()
    work = asyncio.create_task(scene.outbox.run())
    scene.add("later", b"a")
    await until(lambda: scene.outbox.trouble)
    scene.broker.held = True
    scene.add("out", b"b", first=1)
    await until(lambda: scene.broker.waiting)
    await scene.outbox.close(Deadline(0.0, scene.clock))
    await until(work.done)
    assert work.exception() is None
    scene.add("out", b"c", first=2)
    await turns()
    assert scene.known == [], "what comes too late is given up like the rest: nothing says that it was delivered"


async def test_the_number_of_partitions_is_asked_again_after_a_while(scene: Scene) -> None:
    scene.add("out", b"a", keys=[b"k"])
    await scene.idle()
    scene.broker.topics["out"] = 50
    scene.add("out", b"b", keys=[b"k"], first=1)
    await scene.idle()
    assert scene.broker.landed[-1].partition == 0
    scene.clock.advance(31.0)
    scene.add("out", b"c", keys=[b"k"], first=2)
    await scene.idle()
    assert scene.broker.landed[-1].partition == partition_of(b"k", 50) != 0


async def test_a_topic_of_our_own_that_was_deleted_is_looked_for_again(scene: Scene) -> None:
    scene.add("out", b"a")
    await scene.idle()
    del scene.broker.topics["out"]
    scene.clock.advance(31.0)
    scene.add("out", b"b", first=1)
    await until(lambda: scene.outbox.trouble)
    scene.broker.topics["out"] = 1
    await scene.idle()
    assert scene.receipt.delivered_ == [0, 1]


async def test_a_producer_that_was_replaced_meanwhile_and_answers_nothing_is_not_waited_for(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(consumers.outbox, "_LOOKUP_DEADLINE_S", 0.0)
    scene.add("out", b"a")
    await scene.idle()
    stale = scene.broker.producers[0]
    await stale.stop()
    stale.client.tracked.clear()
    scene.add("out", b"b", first=1)
    await until(lambda: "does not tell the partitions" in scene.outbox.trouble)
    stale.client.tracked.add("out")
    await scene.idle()
    assert scene.receipt.delivered_ == [0, 1]
    assert len(scene.broker.producers) == 2


async def test_reply_topics_that_are_used_no_more_are_forgotten(scene: Scene) -> None:
    for caller in range(5):
        scene.broker.topics[f"reply-{caller}"] = 1
        scene.add(f"reply-{caller}", b"a", first=caller, to_reply=True)
    scene.add("out", b"b", first=5)
    await scene.idle()
    client = scene.outbox.producer.client
    assert {f"reply-{caller}" for caller in range(5)} <= client.tracked
    scene.clock.advance(400.0)
    scene.add("out", b"c", first=6)
    await scene.idle()
    scene.clock.advance(400.0)
    scene.broker.topics["reply-5"] = 1
    scene.add("reply-5", b"d", first=7, to_reply=True)
    await scene.idle()
    assert client.tracked == {"out", "reply-5"}
    scene.add("reply-0", b"e", first=8, to_reply=True)
    await scene.idle()
    assert scene.receipt.delivered_ == list(range(9))


async def test_with_a_backlog_results_are_gathered_and_all_of_them_arrive(scene: Scene) -> None:
    scene.outbox.gather("out", True)
    for number in range(20):
        scene.add("out", b"a", first=number)
        await turns()
    assert scene.broker.landed == [], "they wait for each other"
    assert await scene.outbox.flush(Deadline(5.0))
    await scene.idle()
    assert sorted(scene.receipt.delivered_) == list(range(20))
    attempts = len(scene.broker.attempts)
    assert attempts <= 3, "one batch a partition"
    scene.outbox.gather("out", False)
    scene.add("out", b"b", first=20)
    await scene.idle()
    assert scene.receipt.delivered_[-1] == 20
