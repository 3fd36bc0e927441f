"""Reading a model's results topic as an async iterator. It belongs to no group and commits nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

from aiokafka.errors import KafkaError

from headrace.directory import Directory
from headrace.kafka_clients import Broker, consumer_client, layout
from headrace.records import Result
from schemas.errors import Unavailable

__all__ = ["ResultStream"]


class ResultStream:
    """New -> open (at the first record asked for, or on entering) -> closed.

    What has been fetched and not yet taken is bounded by one fetch a partition. Order is kept within a partition.
    """

    def __init__(self, broker: Broker, directory: Directory, model: str, *, from_beginning: bool) -> None:
        self._broker = broker
        self._directory = directory
        self._model = model
        self._from_beginning = from_beginning
        self._opened = contextlib.AsyncExitStack()
        self._consumer: Any = None
        self._closed = False

    async def __aenter__(self) -> ResultStream:
        await self._open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def __aiter__(self) -> AsyncIterator[Result]:
        return self

    async def __anext__(self) -> Result:
        """
        Raises:
            StopAsyncIteration: the stream is closed.
            Unavailable: the topic cannot be read.
        """
        if self._closed:
            raise StopAsyncIteration
        if self._consumer is None:
            await self._open()
        try:
            return Result.of(await self._consumer.getone())
        except KafkaError as error:
            raise Unavailable(f"results of {self._model!r} cannot be read: {type(error).__name__}: {error}") from error

    async def next(self, *, timeout_s: float) -> Result | None:
        """The next result; None when none came within ``timeout_s``."""
        try:
            async with asyncio.timeout(timeout_s):
                return await anext(self)
        except TimeoutError:
            return None

    async def aclose(self) -> None:
        self._closed = True
        await self._opened.aclose()

    async def _open(self) -> None:
        entry = await self._directory.find(self._model)
        partitions = (await layout(self._broker, [entry.results])).partitions
        if not partitions:
            raise Unavailable(f"topic {entry.results} does not exist yet: a node makes it when it starts")
        consumer = await self._opened.enter_async_context(consumer_client(self._broker, partitions))
        find = consumer.beginning_offsets if self._from_beginning else consumer.end_offsets
        for partition, offset in (await find(partitions)).items():
            consumer.seek(partition, offset)
        self._consumer = consumer
