"""Topic administration: create what is missing, and read where logs end and where groups stand.

It never changes or deletes a topic that exists.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic
from aiokafka.errors import (
    ClusterAuthorizationFailedError,
    GroupAuthorizationFailedError,
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationFactorError,
    InvalidTopicError,
    KafkaError,
    PolicyViolationError,
    TopicAlreadyExistsError,
    TopicAuthorizationFailedError,
    for_code,
)

from schemas.clock import Deadline
from schemas.errors import ConfigError, Unavailable

__all__ = ["TopicSpec", "committed", "end_offsets", "ensure_topics", "topic_names"]

_GLANCE_S: Final = 0.01
_PAUSE_S: Final = 0.2

_REMEDIES: Final[Mapping[type[KafkaError], str]] = {
    TopicAuthorizationFailedError: "allow this user to create it, or create it beforehand with {partitions} partitions",
    ClusterAuthorizationFailedError: "allow this user to create it, or create it beforehand "
    "with {partitions} partitions",
    InvalidReplicationFactorError: "set replication to at most the number of brokers, or -1 for the broker's default",
    InvalidPartitionsError: "set partitions to a number above 0",
    InvalidConfigurationError: "correct the topic's configuration {config}",
    InvalidTopicError: "use another name",
    PolicyViolationError: "the cluster's policy forbids it: create the topic by hand as the policy wants it",
}
"""What no second try can mend."""


@dataclass(frozen=True, slots=True)
class TopicSpec:
    """A topic as it is to be if it has to be created. ``replication`` -1 takes the broker's default."""

    name: str
    partitions: int = 4
    replication: int = -1
    config: Mapping[str, str] = field(default_factory=dict)


async def ensure_topics(
    bootstrap: str, specs: Sequence[TopicSpec], *, kafka: Mapping[str, object] | None = None, timeout_s: float = 30.0
) -> tuple[str, ...]:
    """Creates the missing topics and waits until the broker shows them; others may be creating the same ones.

    Returns:
        Names of those it created. Existing ones are left as they are, whatever their partitions.

    Raises:
        ConfigError: the broker refuses for good; the message names the topic and the remedy.
        Unavailable: the broker is away, or did not get it done in ``timeout_s``.
    """
    deadline = Deadline(timeout_s)
    created: list[str] = []
    async with _admin(bootstrap, kafka, deadline) as admin:
        while True:
            existing = set(await admin.list_topics())
            missing = [spec for spec in specs if spec.name not in existing and spec.name not in created]
            fresh = await _create(admin, missing) if missing else []
            created += fresh
            if all(spec.name in existing for spec in specs):
                return tuple(created)
            if deadline.passed:
                waiting = [spec.name for spec in specs if spec.name not in existing]
                raise Unavailable(f"topics {waiting} were not there within {timeout_s:g} s; is the cluster healthy?")
            # A fresh topic takes a moment to reach every broker; one that could not be made yet wants more patience.
            await asyncio.sleep(_GLANCE_S if len(fresh) == len(missing) else _PAUSE_S)


async def topic_names(
    bootstrap: str, *, kafka: Mapping[str, object] | None = None, timeout_s: float = 30.0
) -> frozenset[str]:
    """Every topic that this user may see."""
    async with _admin(bootstrap, kafka, Deadline(timeout_s)) as admin:
        return frozenset(await admin.list_topics())


async def end_offsets(
    bootstrap: str, topics: Iterable[str], *, kafka: Mapping[str, object] | None = None, timeout_s: float = 30.0
) -> dict[tuple[str, int], int]:
    """``(topic, partition)`` -> offset of the next record to be written. Topics that do not exist are left out."""
    wanted, deadline = set(topics), Deadline(timeout_s)
    async with _admin(bootstrap, kafka, deadline) as admin:
        # Asking for the details of a missing topic may create it.
        known = sorted(wanted & set(await admin.list_topics()))
        described = await admin.describe_topics(known) if known else []
    partitions = [TopicPartition(one["topic"], part["partition"]) for one in described for part in one["partitions"]]
    if not partitions:
        return {}
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, **_accepted(AIOKafkaConsumer, kafka))
    async with _started(consumer, consumer.stop, bootstrap, deadline):
        found = await consumer.end_offsets(partitions)
    return {(one.topic, one.partition): offset for one, offset in found.items()}


async def committed(
    bootstrap: str, group: str, *, kafka: Mapping[str, object] | None = None, timeout_s: float = 30.0
) -> dict[tuple[str, int], int]:
    """``(topic, partition)`` -> next offset the group will read. Partitions without a commit are left out."""
    deadline = Deadline(timeout_s)
    async with _admin(bootstrap, kafka, deadline) as admin:
        while True:
            try:
                found = await admin.list_consumer_group_offsets(group)
                break
            except KafkaError as error:
                # A cluster makes the topic of the offsets when first asked, and says "not available" meanwhile.
                if not error.retriable or deadline.remaining_s < _PAUSE_S:
                    raise
            await asyncio.sleep(_PAUSE_S)
    return {(one.topic, one.partition): at.offset for one, at in found.items() if at.offset >= 0}


async def _create(admin: Any, specs: Sequence[TopicSpec]) -> list[str]:
    """Names created; those that others created meanwhile, or that want another try, are left out."""
    # With no assignment given, -1 is refused by the client; with an empty one it reaches the broker.
    topics = [
        NewTopic(
            spec.name, spec.partitions, spec.replication, {} if spec.replication == -1 else None, dict(spec.config)
        )
        for spec in specs
    ]
    answer = await admin.create_topics(topics)
    by_name = {spec.name: spec for spec in specs}
    created = []
    for name, code, message in answer.topic_errors:
        error = for_code(code)
        if code == 0:
            created.append(name)
        elif error in _REMEDIES:
            spec = by_name[name]
            remedy = _REMEDIES[error].format(partitions=spec.partitions, config=dict(spec.config))
            raise ConfigError(
                f"cannot create topic {name!r} with {spec.partitions} partitions and replication {spec.replication}: "
                f"{message or error.__name__}; {remedy}"
            )
        elif error is not TopicAlreadyExistsError and not error.retriable:
            raise Unavailable(f"cannot create topic {name!r}: {message or error.__name__}")
    return created


def _accepted(client: type, kafka: Mapping[str, object] | None) -> dict[str, Any]:
    known = inspect.signature(client).parameters
    return {name: value for name, value in (kafka or {}).items() if name in known}


@asynccontextmanager
async def _admin(bootstrap: str, kafka: Mapping[str, object] | None, deadline: Deadline) -> AsyncIterator[Any]:
    admin = AIOKafkaAdminClient(bootstrap_servers=bootstrap, **_accepted(AIOKafkaAdminClient, kafka))
    async with _started(admin, admin.close, bootstrap, deadline):
        yield admin


@asynccontextmanager
async def _started(client: Any, close: Any, bootstrap: str, deadline: Deadline) -> AsyncIterator[None]:
    """Starts, always closes, bounds the whole by the deadline and gives errors their types."""
    try:
        async with asyncio.timeout(deadline.remaining_s):
            try:
                await client.start()
                yield
            finally:
                await close()
    except TimeoutError:
        raise Unavailable(f"Kafka at {bootstrap} did not answer in time; check bootstrap and the network") from None
    except (TopicAuthorizationFailedError, ClusterAuthorizationFailedError, GroupAuthorizationFailedError) as error:
        raise ConfigError(f"Kafka at {bootstrap} refuses: {error}; allow this user to describe it") from None
    except KafkaError as error:
        raise Unavailable(f"Kafka at {bootstrap} cannot be used: {error}; check bootstrap and security") from None
