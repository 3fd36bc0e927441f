"""How models and nodes fare now: the registry joined with the offsets of requests, groups and dead letters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from aiokafka.errors import KafkaError

from headrace.directory import Registry, read_registry
from headrace.kafka_clients import Broker, consumer_client, group_offsets, layout
from schemas.errors import Unavailable
from schemas.record import DEFAULT_GROUP, now_ms
from schemas.registry import HeldModel, ModelEntry, NodeEntry

__all__ = ["ModelView", "NodeView", "Overview", "is_stale", "read_overview", "summarise"]

_STALE_INTERVALS = 3

Offsets = Mapping[tuple[str, int], int]


@dataclass(frozen=True, slots=True)
class ModelView:
    """One model in one consumer group.

    Attributes:
        state: ``ready`` when a live node has it so, else the worst that nodes say, ``no node`` without any.
        lag: records not yet finished, those that wait for a retry included: ends of the partitions minus what the
            group has committed; None when the topic of the requests is not there.
        batch_fill: rows in an execution as a share of ``max_batch_size``; None before the first, or without batches.
        failed: records that failed since the nodes' start.
        dead: letters retained.
    """

    name: str
    group: str
    version: int
    state: str
    nodes: int
    partitions: int
    lag: int | None
    rate: float
    batch_fill: float | None
    failed: int
    dead: int


@dataclass(frozen=True, slots=True)
class NodeView:
    """``stale``: it has not announced itself for three intervals and is to be taken for dead."""

    id: str
    group: str
    host: str
    ops_port: int
    version: str
    up_s: float
    seen_s: float
    stale: bool
    models: list[str]
    rate: float
    queued_rows: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Overview:
    models: list[ModelView]
    nodes: list[NodeView]

    def as_json(self) -> dict[str, object]:
        return asdict(self)


def is_stale(node: NodeEntry, now: int) -> bool:
    return now - node.written_ms > _STALE_INTERVALS * node.interval_s * 1000


def summarise(
    registry: Registry,
    *,
    starts: Offsets,
    ends: Offsets,
    committed: Mapping[str, Offsets],
    now: int,
    group: str = DEFAULT_GROUP,
) -> Overview:
    """Pure. ``starts`` and ``ends`` are of request, retry and dead-letter partitions, ``now`` is in Unix ms, ``group``
    is whose lag is shown when no node says to which it belongs."""
    nodes = sorted(registry.nodes.values(), key=lambda node: node.id)
    groups = sorted({node.group for node in nodes if not is_stale(node, now)})
    groups = groups or sorted({node.group for node in nodes}) or [group]
    views = []
    for entry in sorted(registry.models.values(), key=lambda one: one.name):
        for group in _groups_of(entry, nodes, groups):
            live = [node for node in nodes if node.group == group and not is_stale(node, now)]
            held = [model for node in live for model in node.models if model.name == entry.name]
            views.append(_model_view(entry, group, held, starts, ends, committed.get(group, {})))
    return Overview(views, [_node_view(node, now) for node in nodes])


def _groups_of(entry: ModelEntry, nodes: Iterable[NodeEntry], groups: list[str]) -> list[str]:
    holding = {node.group for node in nodes if any(model.name == entry.name for model in node.models)}
    return [group for group in groups if group in holding] or groups[:1]


def _model_view(
    entry: ModelEntry, group: str, held: list[HeldModel], starts: Offsets, ends: Offsets, committed: Offsets
) -> ModelView:
    requests = [place for place in ends if place[0] == entry.requests]
    # With the records that wait for their next attempt, as in the node's metric: they are not done.
    open_ = [place for place in ends if place[0] in (entry.requests, entry.retry)]
    lag = sum(max(0, ends[place] - committed.get(place, starts[place])) for place in open_) if requests else None
    slots = sum(model.batches * model.max_batch_size for model in held)
    return ModelView(
        name=entry.name,
        group=group,
        version=entry.version,
        state=_state(held),
        nodes=len(held),
        partitions=len(requests),
        lag=lag,
        rate=sum(model.rate for model in held),
        batch_fill=sum(model.rows for model in held) / slots if slots else None,
        failed=sum(model.records_failed for model in held),
        dead=sum(ends[place] - starts[place] for place in ends if place[0] == entry.dead),
    )


def _state(held: list[HeldModel]) -> str:
    """``differs``: live nodes serve the model with different configurations, so what one takes another may refuse."""
    if len({model.digest for model in held if model.state == "ready"}) > 1:
        return "differs"
    states = {model.state for model in held}
    return next((state for state in ("ready", "failed", "loading") if state in states), "no node")


def _node_view(node: NodeEntry, now: int) -> NodeView:
    return NodeView(
        id=node.id,
        group=node.group,
        host=node.host,
        ops_port=node.ops_port,
        version=node.version,
        up_s=max(0, now - node.started_ms) / 1000,
        seen_s=max(0, now - node.written_ms) / 1000,
        stale=is_stale(node, now),
        models=[model.name for model in node.models],
        rate=sum(model.rate for model in node.models),
        queued_rows=sum(model.queued_rows for model in node.models),
        memory_bytes=sum(model.memory_bytes for model in node.models),
    )


async def read_overview(broker: Broker, namespace: str, group: str = DEFAULT_GROUP) -> Overview:
    """
    Raises:
        Unavailable: the broker does not answer.
    """
    registry = await read_registry(broker, namespace)
    try:
        starts, ends = await _offsets(broker, registry)
        committed = await _committed(broker, {node.group for node in registry.nodes.values()} or {group})
    except KafkaError as error:
        raise Unavailable(f"offsets on {broker.bootstrap} cannot be read: {type(error).__name__}: {error}") from error
    return summarise(registry, starts=starts, ends=ends, committed=committed, now=now_ms(), group=group)


async def _offsets(broker: Broker, registry: Registry) -> tuple[dict[tuple[str, int], int], dict[tuple[str, int], int]]:
    topics = {topic for entry in registry.models.values() for topic in (entry.requests, entry.retry, entry.dead)}
    partitions = (await layout(broker, topics)).partitions
    if not partitions:
        return {}, {}
    async with consumer_client(broker) as consumer:
        starts, ends = await consumer.beginning_offsets(partitions), await consumer.end_offsets(partitions)
    return (
        {(one.topic, one.partition): offset for one, offset in starts.items()},
        {(one.topic, one.partition): offset for one, offset in ends.items()},
    )


async def _committed(broker: Broker, groups: Iterable[str]) -> dict[str, dict[tuple[str, int], int]]:
    found = {}
    for group in groups:
        offsets = await group_offsets(broker, group)
        found[group] = {(one.topic, one.partition): at.offset for one, at in offsets.items()}
    return found
