"""Replaying dead letters: once each, and as the records they were."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from aiokafka import AIOKafkaProducer

from headrace.dead_letters import Choice, open_dead_letters
from headrace.kafka_clients import Broker
from headrace.records import Result
from infra.topics import TopicSpec, ensure_topics
from schemas.errors import UnknownModelError
from schemas.record import Headers, Topics
from tests.support.records import Sent, committed_offsets, produce, read_all, unique

MODEL = "echo"


@dataclass(frozen=True)
class Place:
    broker: Broker
    topics: Topics

    @property
    def namespace(self) -> str:
        return self.topics.namespace

    async def bury(self, *letters: Sent) -> None:
        await produce(self.broker.bootstrap, self.topics.dead(MODEL), letters)

    async def pending(self, choice: Choice | None = None, *, replayed: bool = False) -> list[Result]:
        async with open_dead_letters(self.broker, self.namespace, MODEL) as dead:
            return [letter async for letter in dead.letters(choice, replayed=replayed)]

    async def replay(self, choice: Choice | None = None) -> int:
        async with open_dead_letters(self.broker, self.namespace, MODEL) as dead:
            return await dead.replay(choice or Choice(), on_replayed=lambda letter: None)


@pytest.fixture
async def place(noida: str) -> Place:
    topics = Topics(unique("dead"))
    await ensure_topics(noida, [TopicSpec(topics.requests(MODEL), 1), TopicSpec(topics.dead(MODEL), 2)])
    return Place(Broker(noida), topics)


def letter(name: str, *, error: str = "model", partition: int = 0, headers: Headers = ()) -> Sent:
    ours: Headers = (("headrace-id", name.encode()), ("headrace-error", error.encode()), ("headrace-attempt", b"3"))
    return Sent(name.encode(), key=b"key", partition=partition, headers=(*headers, *ours))


async def test_a_replayed_letter_is_the_record_that_died(place: Place) -> None:
    mine: Headers = (("mine", b"\xff\x00"), ("mine", None), ("content-type", b"application/json"))
    added: Headers = tuple(
        (f"headrace-{name}", b"1")
        for name in ("error-message", "stage", "origin", "timestamp", "not-before", "deadline")
    )
    await place.bury(letter("a", headers=(*mine, *added, ("headrace-priority", b"2"))))
    assert await place.replay() == 1
    (record,) = await read_all(place.broker.bootstrap, place.topics.requests(MODEL), count=1)
    assert (record.key, record.value) == (b"key", b"a")
    assert record.headers == (*mine, ("headrace-priority", b"2"), ("headrace-id", b"a"))


async def test_a_second_replay_passes_over_what_the_first_gave_back(place: Place) -> None:
    await place.bury(letter("a"), letter("b", partition=1))
    assert await place.replay() == 2
    assert await place.replay() == 0
    await place.bury(letter("c", partition=1))
    assert [one.id for one in await place.pending()] == ["c"]
    assert [one.id for one in await place.pending(replayed=True)] == ["a", "b", "c"]
    assert await place.replay() == 1
    records = await read_all(place.broker.bootstrap, place.topics.requests(MODEL), count=3, settle_s=0.2)
    assert [record.value for record in records] == [b"a", b"b", b"c"]
    group = f"{place.namespace}.dead.{MODEL}"
    assert await committed_offsets(place.broker.bootstrap, group, place.topics.dead(MODEL)) == {0: 1, 1: 2}


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        (Choice(id="b"), ["b"]),
        (Choice(error="oom"), ["c", "e"]),
        (Choice(partition=1), ["d", "e"]),
        (Choice(partition=0, offset=2), ["c"]),
        (Choice(error="oom", partition=1), ["e"]),
        (Choice(id="nobody"), []),
    ],
)
async def test_only_the_chosen_ones_are_replayed_and_the_others_stay(
    place: Place, choice: Choice, expected: list[str]
) -> None:
    await place.bury(
        letter("a"),
        letter("b"),
        letter("c", error="oom"),
        letter("d", partition=1),
        letter("e", error="oom", partition=1),
    )
    assert await place.replay(choice) == len(expected)
    assert [one.id for one in await place.pending()] == [name for name in "abcde" if name not in expected]
    assert await place.replay(choice) == 0
    assert await place.replay() == 5 - len(expected)
    assert await place.pending() == []


async def test_a_reply_topic_that_is_gone_is_left_out_and_one_that_is_there_is_kept(place: Place) -> None:
    there = place.topics.dead(MODEL)
    await place.bury(
        letter("a", headers=(("headrace-reply-to", f"{place.namespace}.replies.gone:0".encode()),)),
        letter("b", headers=(("headrace-reply-to", there.encode()),)),
    )
    await place.replay()
    first, second = await read_all(place.broker.bootstrap, place.topics.requests(MODEL), count=2)
    assert first.header("headrace-reply-to") is None
    assert second.header("headrace-reply-to") == there.encode()


@pytest.mark.parametrize("key", [b"k", None])
async def test_a_letter_with_no_value_is_replayed_with_none(place: Place, key: bytes | None) -> None:
    producer = AIOKafkaProducer(bootstrap_servers=place.broker.bootstrap)
    async with producer:
        batch = producer.create_batch()
        batch.append(key=key, value=None, timestamp=None, headers=[("headrace-error", b"decode")])
        await (await producer.send_batch(batch, place.topics.dead(MODEL), partition=1))
    assert await place.replay() == 1
    (record,) = await read_all(place.broker.bootstrap, place.topics.requests(MODEL), count=1)
    assert (record.key, record.value) == (key, None)
    assert record.header("headrace-id")


async def test_an_unknown_model_is_refused(place: Place) -> None:
    with pytest.raises(UnknownModelError):
        async with open_dead_letters(place.broker, place.namespace, "nobody"):
            pass
