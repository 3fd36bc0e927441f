"""How a record ends: the headers and values of results, error replies, retries and dead letters.

Pure functions over one record; who sends them and when is the outbox's and the intake's business.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Final

import orjson

from consumers.kafka import Record
from schemas import record as contract
from schemas.errors import HeadraceError
from schemas.model import QueuePolicy, RetryPolicy
from schemas.record import Envelope, Headers

__all__ = [
    "HeaderList",
    "dead_letter_headers",
    "deadline_ms_of",
    "error_reply",
    "origin_of",
    "record_id",
    "result_headers",
    "retry_delay_ms",
    "retry_headers",
    "traced_result_headers",
]

HeaderList = list[tuple[str, bytes | None]]
"""aiokafka's producer takes lists, and only lists."""

_MAX_MESSAGE: Final = 2_000
"""Characters of an error message that go into a header."""


def origin_of(record: Record, envelope: Envelope) -> str:
    """``topic:partition:offset`` of the record as its producer wrote it, also when this is a retry of it."""
    return envelope.origin or f"{record.topic}:{record.partition}:{record.offset}"


def record_id(record: Record, envelope: Envelope) -> str:
    """The producer's id, or one made from where the record lies: the same again after a redelivery."""
    return envelope.id or f"{record.topic}-{record.partition}-{record.offset}"


def deadline_ms_of(record: Record, envelope: Envelope, policy: QueuePolicy) -> int | None:
    """Unix ms after which nobody wants the answer: the producer's, else the model's default, which counts from when
    the producer wrote the record, also when this is a retry of it."""
    if envelope.deadline_ms is not None or policy.default_deadline_ms is None:
        return envelope.deadline_ms
    return _written_ms(record, envelope) + policy.default_deadline_ms


def _written_ms(record: Record, envelope: Envelope) -> int:
    return record.timestamp if envelope.timestamp_ms is None else envelope.timestamp_ms


def _traced(headers: Headers, traceparent: bytes) -> list[tuple[str, bytes | None]]:
    """``headers`` with the trace context replaced in place, or appended where there was none."""
    found = False
    out: list[tuple[str, bytes | None]] = []
    for header in headers:
        if header[0] == contract.TRACEPARENT:
            if not found:
                out.append((contract.TRACEPARENT, traceparent))
            found = True
        else:
            out.append(header)
    if not found:
        out.append((contract.TRACEPARENT, traceparent))
    return out


def result_headers(envelopes: Sequence[Envelope], ids: Sequence[str], contents: Sequence[Headers]) -> list[HeaderList]:
    """For each record the producer's own headers in their order, then ours."""
    name = contract.ID
    first = envelopes[0]
    if first.sequence is None and not first.passthrough and envelopes.count(first) == len(envelopes):
        return [[(name, id_.encode()), *content] for id_, content in zip(ids, contents, strict=True)]
    return [
        _own_headers(envelope, envelope.passthrough, id_, content)
        for envelope, id_, content in zip(envelopes, ids, contents, strict=True)
    ]


def traced_result_headers(envelope: Envelope, id_: str, content: Headers, traceparent: bytes) -> HeaderList:
    """As `result_headers` for one record, with this hop's trace context in place of the producer's."""
    return _own_headers(envelope, _traced(envelope.passthrough, traceparent), id_, content)


def _own_headers(
    envelope: Envelope, passthrough: Sequence[tuple[str, bytes | None]], id_: str, content: Headers
) -> HeaderList:
    headers = [*passthrough, (contract.ID, id_.encode()), *content]
    if envelope.sequence is not None:
        headers.append((contract.SEQUENCE, envelope.sequence.encode()))
    return headers


def _message(error: HeadraceError) -> bytes:
    """A model may raise with text that has no UTF-8 form."""
    return error.message[:_MAX_MESSAGE].encode("utf-8", "replace")


def error_reply(
    envelope: Envelope, id_: str, error: HeadraceError, *, stage: str, attempts: int, traceparent: bytes | None
) -> tuple[bytes, HeaderList]:
    """Value and headers of the answer to a caller whose request failed."""
    value = orjson.dumps({"id": id_, "error": _message(error).decode(), "code": error.code})
    content: Headers = (
        (contract.CONTENT_TYPE, b"application/json"),
        (contract.ERROR, error.code.encode()),
        (contract.ERROR_MESSAGE, _message(error)),
        (contract.STAGE, stage.encode()),
        (contract.ATTEMPT, str(attempts).encode()),
    )
    passthrough = envelope.passthrough if traceparent is None else _traced(envelope.passthrough, traceparent)
    return value, _own_headers(envelope, passthrough, id_, content)


def _kept(record: Record, id_: str) -> HeaderList:
    kept = [header for header in record.headers if header[0] not in contract.OF_A_DEATH]
    if all(name != contract.ID for name, _ in kept):
        kept.append((contract.ID, id_.encode()))
    return kept


def _provenance(record: Record, envelope: Envelope, attempts: int) -> HeaderList:
    return [
        (contract.ATTEMPT, str(attempts).encode()),
        (contract.ORIGIN, origin_of(record, envelope).encode()),
        (contract.TIMESTAMP, str(_written_ms(record, envelope)).encode()),
    ]


def dead_letter_headers(
    record: Record, envelope: Envelope, id_: str, error: HeadraceError, *, stage: str, attempts: int
) -> HeaderList:
    """Every header the record came with, in order, then why, where and after how many attempts it died."""
    return [
        *_kept(record, id_),
        (contract.ERROR, error.code.encode()),
        (contract.ERROR_MESSAGE, _message(error)),
        (contract.STAGE, stage.encode()),
        *_provenance(record, envelope, attempts),
    ]


def retry_headers(record: Record, envelope: Envelope, id_: str, *, attempts: int, not_before_ms: int) -> HeaderList:
    """The record's headers with the attempts counted in them, so that no rebalance resets the count."""
    return [
        *_kept(record, id_),
        (contract.NOT_BEFORE, str(not_before_ms).encode()),
        *_provenance(record, envelope, attempts),
    ]


def retry_delay_ms(policy: RetryPolicy, attempts: int) -> int:
    """Before attempt ``attempts + 1``: doubles from the initial delay up to the maximum, of which a random half to
    all, so that records that failed together do not come back together."""
    ceiling = min(policy.max_delay_ms, policy.initial_delay_ms * 2 ** min(attempts - 1, 30))
    return int(ceiling * random.uniform(0.5, 1.0))  # noqa: S311 - spreads load, guards nothing
