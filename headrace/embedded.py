"""The embedded broker on the port where users expect it, or on a free one when that is taken, and what may be lost."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TypeVar

from headrace.running_broker import DEFAULT_PORT
from infra.broker import EmbeddedBroker

__all__ = ["embedded_broker", "while_broker_lives"]

T = TypeVar("T")


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


@contextlib.asynccontextmanager
async def embedded_broker(port: int | None, data_dir: Path | None) -> AsyncIterator[EmbeddedBroker]:
    """``port`` None: Kafka's usual port where it is free, else any.

    Raises:
        ConfigError | Unavailable: see `infra.broker.EmbeddedBroker`.
    """
    chosen = port if port is not None else DEFAULT_PORT if _is_free(DEFAULT_PORT) else 0
    async with EmbeddedBroker(port=chosen, data_dir=data_dir) as broker:
        yield broker


async def while_broker_lives(broker: EmbeddedBroker, work: asyncio.Task[T]) -> T:
    """The outcome of ``work``; when the broker is given up first, ``work`` is cancelled.

    Raises:
        Unavailable: the broker was given up. And whatever ``work`` raises.
    """
    watch = asyncio.create_task(broker.wait(), name="broker watch")
    try:
        await asyncio.wait({watch, work}, return_when=asyncio.FIRST_COMPLETED)
        if work.done():
            return work.result()
        watch.result()
        raise AssertionError("EmbeddedBroker.wait never returns")
    finally:
        for task in (watch, work):
            task.cancel()
        await asyncio.wait({watch, work})
        if not watch.cancelled():
            watch.exception()
