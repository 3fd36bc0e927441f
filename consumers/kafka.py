"""The seam to aiokafka: the shape of its records, and which of the user's client settings go to which client.

aiokafka ships no types; what the rest of the node uses of it is named here.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final, Protocol

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition

from consumers.assignor import assignor_class
from schemas.record import Headers

__all__ = ["FIXED", "Record", "TopicPartition", "known_partitions", "make_consumer", "make_producer"]


class Record(Protocol):
    """One fetched record, as aiokafka gives it. ``timestamp`` is Unix ms."""

    topic: str
    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers


FIXED: Final = frozenset(
    {
        "bootstrap_servers",
        "group_id",
        "enable_auto_commit",
        "acks",
        "enable_idempotence",
        "transactional_id",
        "key_deserializer",
        "value_deserializer",
        "key_serializer",
        "value_serializer",
        "partition_assignment_strategy",
        "max_poll_records",
        "loop",
    }
)
"""Client settings that the node's guarantees rest on; a user cannot set them under ``kafka:``."""

_PRODUCE_BATCH_BYTES: Final = 512 * 1024
DEFAULT_MAX_REQUEST_SIZE: Final = 1_048_576


def _accepted(client: type, settings: Mapping[str, object]) -> dict[str, Any]:
    known = inspect.signature(client).parameters
    return {name: value for name, value in settings.items() if name in known and name not in FIXED}


def make_consumer(bootstrap: str, group: str, kafka: Mapping[str, object]) -> Any:
    """A consumer that commits only when told to, and keeps what it holds across rebalances where it can.

    Records of aborted transactions are not read; topics without transactions do not notice.
    """
    settings = {
        "auto_offset_reset": "earliest",
        "fetch_max_wait_ms": 100,
        "isolation_level": "read_committed",
        # How long records in new partitions, or in a topic made anew, wait to be noticed.
        "metadata_max_age_ms": 30_000,
        **_accepted(AIOKafkaConsumer, kafka),
    }
    return AIOKafkaConsumer(
        bootstrap_servers=bootstrap,
        group_id=group,
        enable_auto_commit=False,
        partition_assignment_strategy=(assignor_class(),),
        **settings,
    )


def make_producer(bootstrap: str, kafka: Mapping[str, object]) -> Any:
    """A producer whose acknowledgement means that every in-sync replica has the record, once."""
    settings = {"max_batch_size": _PRODUCE_BATCH_BYTES, **_accepted(AIOKafkaProducer, kafka)}
    return AIOKafkaProducer(bootstrap_servers=bootstrap, acks="all", enable_idempotence=True, **settings)


async def known_partitions(producer: Any, topic: str) -> set[int]:
    """The topic's partitions, which the producer keeps knowing from now on. Ask before each send.

    A producer starts out knowing every topic, but remembers only those it was asked to when it next looks one up. A
    batch for a forgotten topic lies in the producer until its request times out.

    Raises:
        KafkaError: there is no such topic, or it is closed to us.
    """
    await producer.client.add_topic(topic)
    found: set[int] = await producer.partitions_for(topic)
    return found
