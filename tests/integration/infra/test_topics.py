"""Topic administration against both brokers."""

from __future__ import annotations

import asyncio

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

from infra.child import free_port
from infra.topics import TopicSpec, committed, end_offsets, ensure_topics, topic_names
from schemas.errors import ConfigError, Unavailable
from tests.support.records import Sent, committed_offsets, produce, read_all, unique


async def test_missing_topics_are_created_and_existing_ones_left_as_they_are(any_broker: str) -> None:
    first, second = unique("topic"), unique("topic")
    assert await ensure_topics(any_broker, [TopicSpec(first, 3, 1)]) == (first,)
    created = await ensure_topics(
        any_broker, [TopicSpec(first, 7, 1), TopicSpec(second, 2, -1, {"cleanup.policy": "compact"})]
    )
    assert created == (second,)
    ends = await end_offsets(any_broker, [first, second, unique("absent")])
    assert ends == {(first, 0): 0, (first, 1): 0, (first, 2): 0, (second, 0): 0, (second, 1): 0}
    admin = AIOKafkaAdminClient(bootstrap_servers=any_broker)
    await admin.start()
    try:
        (answer,) = await admin.describe_configs([ConfigResource(ConfigResourceType.TOPIC, second)])
    finally:
        await admin.close()
    assert {entry[0]: entry[1] for entry in answer.resources[0][4]}["cleanup.policy"] == "compact"


async def test_many_may_create_the_same_topics_at_once(any_broker: str) -> None:
    specs = [TopicSpec(unique("topic"), 2, 1) for _ in range(5)]
    created = await asyncio.gather(*(ensure_topics(any_broker, specs) for _ in range(4)))
    assert sorted(name for one in created for name in one) == sorted(spec.name for spec in specs)
    assert {spec.name for spec in specs} <= await topic_names(any_broker)


@pytest.mark.parametrize(
    ("spec", "remedy"),
    [
        (TopicSpec("too-many-replicas", 1, 3), "at most the number of brokers"),
        (TopicSpec("bad config", 1, 1), "use another name"),
        (TopicSpec("unknown-config", 1, 1, {"no.such": "1"}), "correct the topic's configuration"),
    ],
)
async def test_a_refusal_names_the_topic_and_the_remedy(any_broker: str, spec: TopicSpec, remedy: str) -> None:
    with pytest.raises(ConfigError, match=remedy) as caught:
        await ensure_topics(any_broker, [spec])
    assert repr(spec.name) in str(caught.value)


async def test_asking_for_an_absent_topic_does_not_create_it(any_broker: str) -> None:
    absent = unique("absent")
    assert await end_offsets(any_broker, [absent]) == {}
    assert absent not in await topic_names(any_broker)


async def test_committed_offsets_are_read_also_on_empty_partitions(any_broker: str) -> None:
    topic, group = unique("topic"), unique("group")
    await ensure_topics(any_broker, [TopicSpec(topic, 2, 1)])
    assert await committed(any_broker, group) == {}
    await produce(any_broker, topic, [Sent(b"x", partition=0), Sent(b"y", partition=0)])
    consumer = AIOKafkaConsumer(bootstrap_servers=any_broker, group_id=group, enable_auto_commit=False)
    await consumer.start()
    try:
        consumer.assign([TopicPartition(topic, 0), TopicPartition(topic, 1)])
        await consumer.commit({TopicPartition(topic, 0): 2, TopicPartition(topic, 1): 0})
    finally:
        await consumer.stop()
    assert await committed_offsets(any_broker, group, topic) == {0: 2, 1: 0}


async def test_null_and_non_utf8_headers_keys_and_times_come_back_as_sent(any_broker: str) -> None:
    topic = unique("topic")
    await ensure_topics(any_broker, [TopicSpec(topic, 1, 1)])
    headers = (("k", None), ("n", b"\xff\xfe"), ("k", b""), ("z", b"v"))
    await produce(any_broker, topic, [Sent(b"", key=b"\xff\x00", headers=headers), Sent(None, key=b"k")])
    first, second = await read_all(any_broker, topic, count=2)
    assert (first.key, first.value, first.headers) == (b"\xff\x00", b"", headers)
    assert (second.key, second.value) == (b"k", None)


async def test_a_broker_that_is_away_is_unavailable_by_name() -> None:
    bootstrap = f"127.0.0.1:{free_port()}"
    with pytest.raises(Unavailable, match=bootstrap):
        await ensure_topics(bootstrap, [TopicSpec("any")], timeout_s=2)
