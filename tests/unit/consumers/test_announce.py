"""The registry is told of every model once and of the node again and again, and nobody waits for it."""

from __future__ import annotations

import asyncio

from aiokafka import errors as kafka_errors

from consumers.announce import announce, node_id, withdraw
from consumers.live_producer import LiveProducer
from gpu_runtime.fake import ManualClock
from schemas.clock import Deadline
from schemas.model import ModelConfig
from schemas.record import Topics
from schemas.registry import ModelEntry, NodeEntry, decode_entry, model_key, node_key
from tests.support.fake_producer import FakeBroker, FakeProducer
from tests.support.loop_turns import until
from tests.unit.consumers.parts import config, route

REGISTRY = Topics().registry


def node_entry() -> NodeEntry:
    return NodeEntry(
        id="n", group="g", host="h", pid=1, ops_port=0, started_ms=1, written_ms=2, interval_s=0.0, version="1"
    )


async def announcing(broker: FakeBroker, producer: FakeProducer, *, entries: int) -> None:
    """Announces one model and the node until so many entries of the node are there."""
    live = LiveProducer(lambda: producer if not broker.attempts else broker.make(), first_backoff_s=0.0)
    await live.start()
    work = asyncio.create_task(
        announce(lambda: live.current, Topics(), [route()], node_entry, 0.0, replace=live.replace)
    )
    await until(lambda: [record.key for record in broker.landed].count(node_key("n")) >= entries)
    work.cancel()
    await asyncio.wait([work])


async def test_models_are_written_once_and_the_node_every_interval() -> None:
    broker = FakeBroker(**{REGISTRY: 1})
    await announcing(broker, broker.make(), entries=3)
    keys = [record.key for record in broker.on(REGISTRY)]
    assert keys[:4] == [model_key("m"), node_key("n"), node_key("n"), node_key("n")]
    entry = decode_entry(broker.landed[0].value or b"")
    assert isinstance(entry, ModelEntry)
    assert (entry.name, entry.requests, entry.dead) == ("m", "headrace.models.m", "headrace.models.m.dead")


async def test_what_is_announced_says_what_a_caller_needs_and_no_parameter_of_the_backend() -> None:
    broker = FakeBroker(**{REGISTRY: 1})
    await announcing(broker, broker.make(), entries=1)
    entry = decode_entry(broker.landed[0].value or b"")
    assert isinstance(entry, ModelEntry)
    assert "inputs" in entry.config
    assert "parameters" not in entry.config
    assert ModelConfig.model_validate(entry.config) == route().config


async def test_a_model_that_could_not_be_written_is_written_later() -> None:
    broker = FakeBroker(**{REGISTRY: 1})
    broker.failures.extend([kafka_errors.RequestTimedOutError(), None, kafka_errors.RequestTimedOutError()])
    await announcing(broker, broker.make(), entries=3)
    assert [record.key for record in broker.landed].count(model_key("m")) == 1


async def test_a_producer_that_is_dead_is_replaced_though_nothing_else_is_sent() -> None:
    broker = FakeBroker(**{REGISTRY: 1})
    broker.failures.append(kafka_errors.OutOfOrderSequenceNumber())
    await announcing(broker, broker.make(), entries=2)
    assert len(broker.producers) == 2
    assert [record.key for record in broker.landed].count(model_key("m")) == 1


async def test_leaving_deletes_the_nodes_entry() -> None:
    broker = FakeBroker(**{REGISTRY: 1})
    await withdraw(broker.make(), Topics(), node_id(), Deadline(5.0, ManualClock()))
    assert [(record.key, record.value) for record in broker.landed] == [(node_key(node_id()), None)]


async def test_leaving_does_not_hang_on_a_broker_that_refuses() -> None:
    broker = FakeBroker(**{REGISTRY: 1})
    broker.failures.append(kafka_errors.NotLeaderForPartitionError())
    await withdraw(broker.make(), Topics(), "n", Deadline(5.0, ManualClock()))
    assert broker.landed == []


def test_configurations_have_the_same_digest_when_they_are_the_same_and_parameters_do_not_count() -> None:
    base = config()
    assert route(base).digest == route(config()).digest
    assert route(base.model_copy(update={"parameters": {"key": "secret"}})).digest == route(base).digest
    assert route(base.model_copy(update={"max_batch_size": 7})).digest != route(base).digest
