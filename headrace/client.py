"""The client library: ask a model and await its answer, hand in events, read results. Everything goes through Kafka.

It holds no connection to a node and knows of none.
"""

from __future__ import annotations

import asyncio
import contextlib
import uuid
from collections.abc import Awaitable, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
from aiokafka.errors import KafkaError

from headrace.directory import Directory, config_of
from headrace.kafka_clients import CONNECT_S, Broker, producer_client, refusal
from headrace.kafka_options import KafkaOptions, parse_kafka
from headrace.replies import ReplyChannel, open_replies
from headrace.result_stream import ResultStream
from schemas import record as contract
from schemas.clock import Deadline, monotonic
from schemas.codecs.client import encode_request
from schemas.errors import Expired, HeadraceError, Unavailable, ValidationError
from schemas.record import DEFAULT_NAMESPACE, Headers, check_name, now_ms
from schemas.registry import ModelEntry
from schemas.tensors import Tensors

__all__ = ["Client", "InferResult", "Inputs", "Submitted", "request_headers"]

Inputs: TypeAlias = Mapping[str, npt.ArrayLike] | bytes
"""Arrays (or nested lists) by input name; or the record's value as it is, whose form ``content_type`` says."""

GivenHeaders: TypeAlias = Sequence[tuple[str, str | bytes | None]]

RAW: Final = "application/octet-stream"

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class InferResult:
    """``headers`` are those of the answer; ``latency_s`` is from the call to the answer in hand."""

    outputs: Tensors
    id: str
    headers: Headers
    latency_s: float


@dataclass(frozen=True, slots=True)
class Submitted:
    """The broker has the request. Its result will carry ``id`` in ``headrace-id``."""

    id: str
    topic: str
    partition: int
    offset: int


def request_headers(
    request_id: str,
    *,
    content: Headers,
    given: GivenHeaders = (),
    reply_to: str | None = None,
    deadline_ms: int | None = None,
    priority: int = 0,
) -> list[tuple[str, bytes | None]]:
    """All headers of one request: the caller's own first, in their order, then those of the record contract."""
    headers: list[tuple[str, bytes | None]] = [
        (name, value.encode() if isinstance(value, str) else value) for name, value in given
    ]
    headers += content
    headers.append((contract.ID, request_id.encode()))
    if reply_to is not None:
        headers.append((contract.REPLY_TO, reply_to.encode()))
    if deadline_ms is not None:
        headers.append((contract.DEADLINE, str(deadline_ms).encode()))
    if priority:
        headers.append((contract.PRIORITY, str(priority).encode()))
    return headers


class Client:
    """``async with Client("broker:9092") as client: await client.infer("echo", {"x": [[1.0]]})``

    One producer, and from the first `infer` on one reply topic with one reader. Any number of tasks may use a client
    at once, of one event loop. Closing it fails whoever still waits.

    Args:
        bootstrap: ``host:port[,host:port]``.
        namespace: first part of every topic name.
        kafka: client settings by aiokafka's names, as under ``kafka:`` in a settings file.
        connect_s: how long entering may wait for the broker.
    """

    def __init__(
        self,
        bootstrap: str,
        *,
        namespace: str = DEFAULT_NAMESPACE,
        kafka: Mapping[str, object] | None = None,
        connect_s: float = CONNECT_S,
    ) -> None:
        options = kafka if isinstance(kafka, KafkaOptions) else parse_kafka(kafka or {}, {})
        self.namespace = check_name("namespace", namespace)
        self.broker = Broker(bootstrap, options, connect_s=connect_s)
        self._directory = Directory(self.broker, namespace)
        self._opened = contextlib.AsyncExitStack()
        self._producer: Any = None
        self._replies: ReplyChannel | None = None
        self._opening = asyncio.Lock()

    async def __aenter__(self) -> Client:
        """
        Raises:
            Unavailable: no broker answers within ``connect_s``.
        """
        self._producer = await self._opened.enter_async_context(producer_client(self.broker))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._producer = None
        await self._opened.aclose()

    @property
    def unknown_replies(self) -> int:
        """Answers that came for nobody: late ones, mostly. They are dropped."""
        return 0 if self._replies is None else self._replies.unknown

    @property
    def waiting(self) -> int:
        """Requests whose answers are awaited now."""
        return 0 if self._replies is None else self._replies.waiting

    async def infer(
        self,
        model: str,
        inputs: Inputs,
        *,
        deadline_s: float = 30.0,
        parameters: Mapping[str, object] | None = None,
        outputs: Sequence[str] | None = None,
        key: bytes | str | None = None,
        headers: GivenHeaders = (),
        priority: int = 0,
        content_type: str = RAW,
    ) -> InferResult:
        """Sends one request and waits for its answer.

        Args:
            deadline_s: seconds for all of it; travels with the request, so that a node does not run it too late.
            outputs: names of the outputs wanted; None for all.
            headers: travel through every hop and come back with the answer.
            priority: 1 is the most urgent; 0 takes the model's default.
            content_type: of ``inputs`` given as bytes.

        Raises:
            HeadraceError: what failed the request, typed as the node's own; ``Expired`` at the deadline,
                ``Unavailable`` when the broker did not take it, ``TooLargeError`` with the sizes.
        """
        if deadline_s <= 0:
            raise ValidationError(f"deadline_s must be above 0, got {deadline_s:g}")
        started, deadline, expires_ms = monotonic(), Deadline(deadline_s), now_ms() + int(deadline_s * 1000)
        find = self._directory.find(model, timeout_s=deadline.remaining_s)
        entry = await self._by(deadline, find, "the registry", late=Expired)
        replies = await self._by(deadline, self._open_replies(), "the reply topic", late=Expired)
        request_id = uuid.uuid4().hex
        value, content = _value(entry, inputs, parameters, outputs, content_type)
        sent_headers = request_headers(
            request_id,
            content=content,
            given=headers,
            reply_to=replies.address,
            deadline_ms=expires_ms,
            priority=priority,
        )
        answer = replies.expect(request_id)
        try:
            await self._send(entry.requests, key, value, sent_headers, deadline)
            async with asyncio.timeout(deadline.remaining_s):
                result = await answer
        except TimeoutError:
            raise Expired(
                f"model {model!r} gave no answer to {request_id} within {deadline_s:g} s; "
                "is a node running (`headrace status`)? Otherwise give it longer with deadline_s"
            ) from None
        finally:
            replies.forget(request_id)
        return InferResult(result.outputs(), request_id, result.headers, monotonic() - started)

    async def submit(
        self,
        model: str,
        inputs: Inputs,
        *,
        timeout_s: float = 30.0,
        deadline_s: float | None = None,
        parameters: Mapping[str, object] | None = None,
        key: bytes | str | None = None,
        headers: GivenHeaders = (),
        priority: int = 0,
        content_type: str = RAW,
        id: str | None = None,  # noqa: A002 - the word of the record contract
    ) -> Submitted:
        """Hands one request in and returns once every in-sync replica has it. Its result goes to the results topic.

        Args:
            timeout_s: how long the broker may take to accept it.
            deadline_s: seconds after which the request is answered ``expired`` and not run; None for never.
            id: the correlation id; made when absent.

        Raises:
            HeadraceError: ``UnknownModelError``, ``TooLargeError``, ``ValidationError``, ``Unavailable``.
        """
        deadline = Deadline(timeout_s)
        entry = await self._by(deadline, self._directory.find(model, timeout_s=timeout_s), "the registry")
        request_id = id or uuid.uuid4().hex
        value, content = _value(entry, inputs, parameters, None, content_type)
        expires_ms = None if deadline_s is None else now_ms() + int(deadline_s * 1000)
        sent_headers = request_headers(
            request_id, content=content, given=headers, deadline_ms=expires_ms, priority=priority
        )
        partition, offset = await self._send(entry.requests, key, value, sent_headers, deadline)
        return Submitted(request_id, entry.requests, partition, offset)

    def results(self, model: str, *, from_beginning: bool = False) -> ResultStream:
        """The records of a model's results topic, until closed.

        What failed for good is not among them: without a reply topic it becomes a dead letter.

        Use it as ``async with client.results("echo") as results: async for result in results``: entering fixes the
        place from which it reads, so that what is submitted afterwards cannot be missed.
        """
        return ResultStream(self.broker, self._directory, model, from_beginning=from_beginning)

    async def _by(
        self, deadline: Deadline, work: Awaitable[T], what: str, *, late: type[HeadraceError] = Unavailable
    ) -> T:
        try:
            async with asyncio.timeout(deadline.remaining_s):
                return await work
        except TimeoutError:
            raise late(f"{what} on {self.broker.bootstrap} was not there before the deadline") from None

    async def _open_replies(self) -> ReplyChannel:
        async with self._opening:
            if self._replies is None:
                self._replies = await self._opened.enter_async_context(open_replies(self.broker, self.namespace))
            return self._replies

    async def _send(
        self,
        topic: str,
        key: bytes | str | None,
        value: bytes,
        headers: list[tuple[str, bytes | None]],
        deadline: Deadline,
    ) -> tuple[int, int]:
        if self._producer is None:
            raise Unavailable("the client is not open; use it with 'async with'")
        raw_key = key.encode() if isinstance(key, str) else key
        size = len(value) + len(raw_key or b"") + sum(len(name) + len(text or b"") for name, text in headers)
        try:
            async with asyncio.timeout(deadline.remaining_s):
                # A topic that was not asked for is forgotten at the next look-up, even while a record for it waits.
                await self._producer.client.add_topic(topic)
                metadata = await self._producer.send_and_wait(topic, value, key=raw_key, headers=headers)
        except TimeoutError:
            raise Unavailable(f"topic {topic} on {self.broker.bootstrap} took no record before the deadline") from None
        except KafkaError as error:
            raise refusal(self.broker, topic, size, error) from error
        return metadata.partition, metadata.offset


def _value(
    entry: ModelEntry,
    inputs: Inputs,
    parameters: Mapping[str, object] | None,
    outputs: Sequence[str] | None,
    content_type: str,
) -> tuple[bytes, Headers]:
    if isinstance(inputs, bytes):
        if parameters or outputs:
            raise ValidationError("parameters and outputs go with arrays by name; a value in bytes carries its own")
        return inputs, ((contract.CONTENT_TYPE, content_type.encode()),)
    config = config_of(entry)
    datatypes = None if config is None else {spec.name: spec.datatype for spec in config.inputs}
    arrays = {name: value if isinstance(value, np.ndarray) else np.asarray(value) for name, value in inputs.items()}
    return encode_request(arrays, parameters=parameters, outputs=outputs, datatypes=datatypes)
