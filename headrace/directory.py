"""What the registry topic says: which models exist, on which topics, and which nodes hold them.

It only reads. Nodes write the registry.
"""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec
from aiokafka.errors import KafkaError
from pydantic import ValidationError

from headrace.kafka_clients import Broker, consumer_client, layout
from schemas.errors import Unavailable, UnknownModelError
from schemas.model import ModelConfig
from schemas.record import Topics, check_name
from schemas.registry import ModelEntry, NodeEntry, decode_entry

__all__ = ["Directory", "Registry", "config_of", "read_registry"]


_READ_S: Final = 30.0


@dataclass(slots=True)
class Registry:
    """``topics`` are all topics the broker has."""

    models: dict[str, ModelEntry] = field(default_factory=dict)
    nodes: dict[str, NodeEntry] = field(default_factory=dict)
    topics: frozenset[str] = frozenset()


async def read_registry(broker: Broker, namespace: str, *, timeout_s: float | None = None) -> Registry:
    """The registry as it stands now; empty where no node has ever run.

    Raises:
        Unavailable: the broker does not answer within ``timeout_s`` (None: its ``connect_s``), or the registry
            cannot be read.
    """
    topic = Topics(namespace).registry
    entries: dict[bytes, bytes] = {}
    found = await layout(broker, [topic], timeout_s=timeout_s)
    if not found.partitions:
        return Registry(topics=found.topics)
    partitions = found.partitions
    try:
        async with consumer_client(broker, partitions, timeout_s=timeout_s) as consumer, asyncio.timeout(_READ_S):
            starts: Mapping[object, int] = await consumer.beginning_offsets(partitions)
            ends: Mapping[object, int] = await consumer.end_offsets(partitions)
            for partition in partitions:
                consumer.seek(partition, starts[partition])
            while any([await consumer.position(partition) < ends[partition] for partition in partitions]):
                for records in (await consumer.getmany(timeout_ms=200)).values():
                    for record in records:
                        _fold(entries, record.key, record.value)
    except TimeoutError:
        raise Unavailable(f"topic {topic} on {broker.bootstrap} could not be read within {_READ_S:g} s") from None
    except KafkaError as error:
        raise Unavailable(f"topic {topic} on {broker.bootstrap} could not be read: {error}") from None
    return _decoded(entries.values(), found.topics)


def _fold(entries: dict[bytes, bytes], key: bytes | None, value: bytes | None) -> None:
    if key is None:
        return
    if value is None:
        entries.pop(key, None)
    else:
        entries[key] = value


def _decoded(values: Iterable[bytes], topics: frozenset[str]) -> Registry:
    registry = Registry(topics=topics)
    for value in values:
        try:
            entry = decode_entry(value)
        except (msgspec.DecodeError, msgspec.ValidationError):
            continue  # not an entry, or of a later version: not for us
        if isinstance(entry, ModelEntry):
            registry.models[entry.name] = entry
        else:
            registry.nodes[entry.id] = entry
    return registry


class Directory:
    """Models by name, remembered; a model not yet known is looked up afresh.

    Args:
        broker: where to look.
        namespace: whose registry.
    """

    def __init__(self, broker: Broker, namespace: str) -> None:
        self._broker = broker
        self._names = Topics(namespace)
        self._known: dict[str, ModelEntry] = {}
        self._reading = asyncio.Lock()

    async def find(self, model: str, *, timeout_s: float | None = None) -> ModelEntry:
        """The model's entry. A model that no node announces but whose topic exists gets an entry by the naming rule.

        Raises:
            UnknownModelError: neither announced nor a topic there; names what comes close.
            Unavailable: the broker does not answer in time.
            ValidationError: not a legal name.
        """
        check_name("model", model)
        if model in self._known:
            return self._known[model]
        async with self._reading:
            if model not in self._known:
                entry = await self._look_up(model, timeout_s)
                if not entry.config:
                    return entry  # by the naming rule: a node that starts later may name other topics
                self._known[model] = entry
        return self._known[model]

    async def _look_up(self, model: str, timeout_s: float | None) -> ModelEntry:
        names = self._names
        registry = await read_registry(self._broker, names.namespace, timeout_s=timeout_s)
        if model in registry.models:
            return registry.models[model]
        requests, results = names.requests(model), names.results(model)
        if requests in registry.topics:
            return ModelEntry(model, 0, requests, results, names.retry(model), names.dead(model), {})
        close = difflib.get_close_matches(model, registry.models, n=1)
        known = ", ".join(sorted(registry.models)[:20]) or "none; start a node with `headrace node` or `headrace up`"
        hint = f"did you mean {close[0]}?" if close else f"known models: {known}"
        raise UnknownModelError(
            f"no node on {self._broker.bootstrap} announces a model {model!r} and there is no topic {requests}; {hint}"
        )


def config_of(entry: ModelEntry) -> ModelConfig | None:
    """The announced configuration; None for an entry made by the naming rule, or by a version we cannot read."""
    try:
        return ModelConfig.model_validate(entry.config) if entry.config else None
    except ValidationError:
        return None
