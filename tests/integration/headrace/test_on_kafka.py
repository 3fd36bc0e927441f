"""What the client library and the replay ask of a broker, on Apache Kafka."""

from __future__ import annotations

import numpy as np
import pytest

from headrace import Client, TooLargeError
from headrace.dead_letters import Choice, open_dead_letters
from headrace.kafka_clients import Broker
from headrace.overview import read_overview
from infra.topics import TopicSpec, ensure_topics, topic_names
from schemas.record import Topics
from schemas.registry import HeldModel, ModelEntry, NodeEntry, encode_entry, model_key, node_key
from tests.integration.headrace.answering import Reply, announce, answering
from tests.support.records import Sent, produce, read_all, unique
from tests.support.waiting import eventually

pytestmark = pytest.mark.kafka

MODEL = "echo"


@pytest.fixture
async def topics(kafka: str) -> Topics:
    topics = Topics(unique("on-kafka"))
    names = (topics.requests(MODEL), topics.results(MODEL), topics.dead(MODEL))
    await ensure_topics(kafka, [TopicSpec(name, 1) for name in names])
    await ensure_topics(kafka, [TopicSpec(topics.registry, 1, config={"cleanup.policy": "compact"})])
    return topics


async def test_an_answer_comes_back_and_the_reply_topic_goes(kafka: str, topics: Topics) -> None:
    reply = Reply(b'{"y": [4]}', (("content-type", b"application/json"),))
    async with (
        Client(kafka, namespace=topics.namespace) as client,
        answering(kafka, topics.requests(MODEL), topics.results(MODEL), lambda _: reply),
    ):
        assert (await client.infer(MODEL, {"x": [[2.0]]})).outputs["y"].tolist() == [4]
        with pytest.raises(TooLargeError, match="does not fit"):
            await client.submit(MODEL, {"x": np.zeros((1, 500_000), np.float32)})

    async def gone() -> bool:
        return not [name for name in await topic_names(kafka) if name.startswith(f"{topics.namespace}.replies.")]

    await eventually(gone)


async def test_a_chosen_letter_is_replayed_once_and_remembered_by_the_broker(kafka: str, topics: Topics) -> None:
    letters = [Sent(name, headers=(("headrace-id", name), ("headrace-error", b"model"))) for name in (b"a", b"b", b"c")]
    await produce(kafka, topics.dead(MODEL), letters)

    async def replay(choice: Choice) -> int:
        async with open_dead_letters(Broker(kafka), topics.namespace, MODEL) as dead:
            return await dead.replay(choice, on_replayed=lambda letter: None)

    assert [await replay(choice) for choice in (Choice(id="b"), Choice(id="b"), Choice(), Choice())] == [1, 0, 2, 0]
    records = await read_all(kafka, topics.requests(MODEL), count=3, settle_s=0.2)
    assert [record.value for record in records] == [b"b", b"a", b"c"]


async def test_the_overview_folds_a_compacted_registry(kafka: str, topics: Topics) -> None:
    entry = ModelEntry(MODEL, 1, topics.requests(MODEL), topics.results(MODEL), "r", topics.dead(MODEL), {})
    await announce(kafka, topics.registry, model_key(MODEL), encode_entry(entry))
    for id_ in ("a", "b"):
        node = NodeEntry(id_, topics.namespace, "h", 1, 0, 0, 2**52, 5.0, "1", (HeldModel(MODEL, 1, "ready"),))
        await announce(kafka, topics.registry, node_key(id_), encode_entry(node))
    await announce(kafka, topics.registry, node_key("a"), None)
    await produce(kafka, topics.requests(MODEL), [b"1", b"2"])
    overview = await read_overview(Broker(kafka), topics.namespace)
    assert [node.id for node in overview.nodes] == ["b"]
    assert [(model.state, model.lag, model.nodes) for model in overview.models] == [("ready", 2, 1)]
