"""Tells the registry which models this node serves and how they fare."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from aiokafka.errors import KafkaError

from consumers.kafka import known_partitions
from consumers.live_producer import PRODUCER_IS_DEAD
from consumers.route import Route
from consumers.tally import Counts
from gpu_runtime.runtime import ModelStatus
from schemas.clock import Deadline
from schemas.record import Topics
from schemas.registry import HeldModel, ModelEntry, NodeEntry, encode_entry, model_key, node_key

__all__ = ["announce", "held_model", "host_name", "node_id", "withdraw"]

log = logging.getLogger("headrace.announce")

_DEADLINE_S = 5.0


def host_name() -> str:
    return socket.gethostname()


def node_id() -> str:
    """Unique while the process lives, and readable."""
    return f"{host_name()}-{os.getpid()}"


def held_model(
    route: Route,
    status: ModelStatus | None,
    counts: Counts,
    *,
    partitions: Sequence[int],
    load_error: str,
    now: float,
) -> HeldModel:
    """A model's part of the node's entry. ``status`` None: not in the runtime (yet); ``now``: monotonic seconds."""
    return HeldModel(
        name=route.model,
        version=route.config.version,
        state="failed" if load_error else "loading" if status is None else status.state,
        reason=load_error,
        partitions=tuple(sorted(partitions)),
        records_in=counts.records_in,
        records_out=counts.records_out,
        records_failed=counts.records_failed,
        rate=counts.rate(now),
        batches=counts.batches,
        rows=counts.rows,
        max_batch_size=route.config.max_batch_size,
        queued_rows=0 if status is None else status.waiting_rows,
        memory_bytes=0 if status is None else status.memory_bytes,
        digest=route.digest,
    )


def _model_entry(route: Route) -> ModelEntry:
    return ModelEntry(
        name=route.model,
        version=route.config.version,
        requests=route.requests,
        results=route.results,
        retry=route.retry,
        dead=route.dead,
        # Parameters are between the model's author and the backend, keys to other services among them.
        config=route.config.model_dump(mode="json", exclude={"parameters"}),
    )


async def _put(
    producer: Any,
    topic: str,
    key: bytes,
    value: bytes | None,
    *,
    replace: Callable[[Any], Awaitable[None]] | None = None,
) -> bool:
    try:
        async with asyncio.timeout(_DEADLINE_S):
            await known_partitions(producer, topic)
            await producer.send_and_wait(topic, value=value, key=key)
    except (KafkaError, TimeoutError) as error:
        # The registry informs; serving does not hang on it.
        log.warning("registry entry %s was not written: %r", key.decode(), error)
        if replace is not None and isinstance(error, PRODUCER_IS_DEAD):
            await replace(producer)  # a node without traffic sends nothing else that would notice
        return False
    return True


async def announce(
    producer: Callable[[], Any],
    topics: Topics,
    routes: list[Route],
    entry: Callable[[], NodeEntry],
    interval_s: float,
    *,
    replace: Callable[[Any], Awaitable[None]],
) -> None:
    """Writes each model until that has succeeded once, and the node's entry every interval, for ever.

    Args:
        replace: puts another producer in the place of one that can never send again.
    """

    async def put(key: bytes, value: bytes) -> bool:
        return await _put(producer(), topics.registry, key, value, replace=replace)

    unwritten = routes
    while True:
        unwritten = [
            route for route in unwritten if not await put(model_key(route.model), encode_entry(_model_entry(route)))
        ]
        current = entry()
        await put(node_key(current.id), encode_entry(current))
        await asyncio.sleep(interval_s)


async def withdraw(producer: Any, topics: Topics, id_: str, deadline: Deadline) -> None:
    """Deletes the node's entry."""
    try:
        async with asyncio.timeout(max(deadline.remaining_s, 0.5)):
            await _put(producer, topics.registry, node_key(id_), None)
    except TimeoutError:
        log.warning("the registry entry of this node was not deleted in time; it will be seen as stale")
