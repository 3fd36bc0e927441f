"""Real Apache Kafka as children: data survives a crash, properties reach the server, three nodes outlive one."""

from __future__ import annotations

import pytest
from aiokafka import AIOKafkaProducer
from aiokafka.errors import MessageSizeTooLargeError

from infra.apache_kafka import KafkaCluster
from infra.topics import TopicSpec, ensure_topics
from schemas.errors import ConfigError
from tests.support.records import make_topic, produce, read_all, unique

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(180)]


async def test_one_node_keeps_its_records_over_a_kill_and_honours_given_properties() -> None:
    async with KafkaCluster(properties={"message.max.bytes": 2000}) as cluster:
        topic = await make_topic(cluster.bootstrap, unique("topic"))
        await produce(cluster.bootstrap, topic, [b"before"])
        await cluster.kill()
        assert cluster.pid() is None
        await cluster.start()
        await produce(cluster.bootstrap, topic, [b"after"])
        assert [one.value for one in await read_all(cluster.bootstrap, topic, count=2)] == [b"before", b"after"]
        producer = AIOKafkaProducer(bootstrap_servers=cluster.bootstrap)
        await producer.start()
        try:
            with pytest.raises(MessageSizeTooLargeError):
                await producer.send_and_wait(topic, b"x" * 5000)
        finally:
            await producer.stop()
        with pytest.raises(ConfigError, match="no node 2"):
            await cluster.kill(2)


async def test_three_nodes_serve_on_while_one_is_dead() -> None:
    async with KafkaCluster(nodes=3) as cluster:
        topic = unique("topic")
        await ensure_topics(cluster.bootstrap, [TopicSpec(topic, 3, 3)])
        await produce(cluster.bootstrap, topic, [b"one"])
        await cluster.kill(2)
        await produce(cluster.bootstrap, topic, [b"two"], deadline_s=60)
        await cluster.start(2)
        read = await read_all(cluster.bootstrap, topic, count=2)
        assert sorted(one.value or b"" for one in read) == [b"one", b"two"]
