"""The record contract: topic names and headers, declared once.

Header values are UTF-8. Every header that is not named here belongs to the producer and travels each hop untouched:
byte for byte, in order, null and non-UTF-8 values included.
"""

from __future__ import annotations

import re
import time
from typing import Final

import msgspec

from schemas.errors import ValidationError

__all__ = [
    "DEFAULT_GROUP",
    "DEFAULT_NAMESPACE",
    "Envelope",
    "Headers",
    "ReplyTo",
    "Topics",
    "check_name",
    "now_ms",
    "parse_headers",
    "salvage_headers",
]

Headers = tuple[tuple[str, bytes | None], ...]
"""Record headers in their order; keys may repeat."""

DEFAULT_NAMESPACE: Final = "headrace"
DEFAULT_GROUP: Final = "headrace"
"""Consumer group of nodes that are given no other."""

ID: Final = "headrace-id"
REPLY_TO: Final = "headrace-reply-to"
DEADLINE: Final = "headrace-deadline"
PRIORITY: Final = "headrace-priority"
ATTEMPT: Final = "headrace-attempt"
SEQUENCE: Final = "headrace-sequence"
CONTENT_TYPE: Final = "content-type"
JSON_LENGTH: Final = "inference-header-content-length"
"""Bytes of JSON before the binary tensors (KServe v2 binary tensor data extension)."""
TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"

# On retries and dead letters.
NOT_BEFORE: Final = "headrace-not-before"
"""Unix ms before which a retry is not run."""
ERROR: Final = "headrace-error"
ERROR_MESSAGE: Final = "headrace-error-message"
STAGE: Final = "headrace-stage"
ORIGIN: Final = "headrace-origin"
"""``topic:partition:offset`` of the record as its producer wrote it."""
TIMESTAMP: Final = "headrace-timestamp"
"""Unix ms of the original record. The letter's own timestamp is when it was written, so that the
retention of the dead-letter topic counts from the death and not from the birth."""

# Headers of ours that describe one hop, so they are consumed by it and not passed on.
_HOP: Final = frozenset(
    {
        ID,
        REPLY_TO,
        DEADLINE,
        PRIORITY,
        ATTEMPT,
        SEQUENCE,
        CONTENT_TYPE,
        JSON_LENGTH,
        NOT_BEFORE,
        ERROR,
        ERROR_MESSAGE,
        STAGE,
        ORIGIN,
        TIMESTAMP,
    }
)

OF_A_DEATH: Final = frozenset({ERROR, ERROR_MESSAGE, STAGE, ATTEMPT, ORIGIN, TIMESTAMP, NOT_BEFORE})
"""What retries and dead letters carry beyond the headers that the record came with."""

_LEGAL_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LEGAL_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def now_ms() -> int:
    """Wall time in Unix milliseconds, for headers."""
    return int(time.time() * 1000)


def check_name(kind: str, name: str) -> str:
    """Returns ``name`` if it is safe as a path component and in a topic name.

    Raises:
        ValidationError: naming the kind, the value and the rule.
    """
    if not _LEGAL_NAME.fullmatch(name) or ".." in name:
        raise ValidationError(
            f"{kind} name {name!r} is not allowed: use letters, digits, '.', '_' and '-', "
            "begin with a letter or digit, at most 128 characters, no '..'"
        )
    return name


class ReplyTo(msgspec.Struct, frozen=True, gc=False):
    """Where an answer goes: ``topic`` (partition by key) or ``topic:partition``."""

    topic: str
    partition: int | None = None


class Envelope(msgspec.Struct, frozen=True, gc=False):
    """The headers of one request record, parsed.

    Attributes:
        id: correlation id; None when the producer set none.
        deadline_ms: Unix milliseconds.
        priority: 0 is the default; 1 is the most urgent, larger numbers yield.
        attempt: attempts already made; 0 on a first delivery.
        content_type: lower-case media type without parameters; "" when absent.
        json_length: bytes of JSON before the binary part; None when absent.
        passthrough: the producer's own headers, to be repeated on every hop.
    """

    id: str | None = None
    reply_to: ReplyTo | None = None
    deadline_ms: int | None = None
    priority: int = 0
    attempt: int = 0
    sequence: str | None = None
    content_type: str = ""
    json_length: int | None = None
    not_before_ms: int | None = None
    origin: str | None = None
    timestamp_ms: int | None = None
    passthrough: Headers = ()


EMPTY: Final = Envelope()


def _text(name: str, value: bytes | None) -> str:
    if value is None:
        raise ValidationError(f"header {name} is null: leave it out or give it a value")
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise ValidationError(f"header {name} is not UTF-8: {value[:40]!r}") from None


def _number(name: str, value: bytes | None) -> int:
    text = _text(name, value)
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise ValidationError(f"header {name} must be a whole number of at most 18 digits, got {text[:40]!r}")
    return int(text)


def _reply_to(text: str) -> ReplyTo:
    topic, colon, partition = text.partition(":")
    if not _LEGAL_TOPIC.fullmatch(topic) or topic.startswith("__"):
        raise ValidationError(f"header {REPLY_TO} must be 'topic' or 'topic:partition', got {text[:80]!r}")
    return ReplyTo(topic, _number(REPLY_TO, partition.encode()) if colon else None)


def parse_headers(headers: Headers) -> Envelope:
    """Splits our headers from the producer's. Where one of ours repeats, the last counts.

    Raises:
        ValidationError: one of ours is malformed. Trace headers never raise: they pass through as they are.
    """
    if not headers:
        return EMPTY
    ours: dict[str, bytes | None] = {}
    passthrough: list[tuple[str, bytes | None]] = []
    for header in headers:
        if header[0] in _HOP:
            ours[header[0]] = header[1]
        else:
            passthrough.append(header)
    if not ours:
        return Envelope(passthrough=headers)
    get = ours.get
    return Envelope(
        id=_text(ID, get(ID)) if ID in ours else None,
        reply_to=_reply_to(_text(REPLY_TO, get(REPLY_TO))) if REPLY_TO in ours else None,
        deadline_ms=_number(DEADLINE, get(DEADLINE)) if DEADLINE in ours else None,
        priority=_number(PRIORITY, get(PRIORITY)) if PRIORITY in ours else 0,
        attempt=_number(ATTEMPT, get(ATTEMPT)) if ATTEMPT in ours else 0,
        sequence=_text(SEQUENCE, get(SEQUENCE)) if SEQUENCE in ours else None,
        content_type=_media_type(_text(CONTENT_TYPE, get(CONTENT_TYPE))) if CONTENT_TYPE in ours else "",
        json_length=_number(JSON_LENGTH, get(JSON_LENGTH)) if JSON_LENGTH in ours else None,
        not_before_ms=_number(NOT_BEFORE, get(NOT_BEFORE)) if NOT_BEFORE in ours else None,
        origin=_text(ORIGIN, get(ORIGIN)) if ORIGIN in ours else None,
        timestamp_ms=_number(TIMESTAMP, get(TIMESTAMP)) if TIMESTAMP in ours else None,
        passthrough=tuple(passthrough),
    )


def salvage_headers(headers: Headers) -> Envelope:
    """What `parse_headers` makes of the headers that are well formed, so that a caller who got another one wrong can
    still be answered."""
    sound = []
    for header in headers:
        try:
            parse_headers((header,))
        except ValidationError:
            continue
        sound.append(header)
    return parse_headers(tuple(sound))


def _media_type(text: str) -> str:
    return text.partition(";")[0].strip().lower()


class Topics(msgspec.Struct, frozen=True):
    """Topic names in one namespace."""

    namespace: str = DEFAULT_NAMESPACE

    def requests(self, model: str) -> str:
        return f"{self.namespace}.models.{model}"

    def results(self, model: str) -> str:
        return f"{self.namespace}.models.{model}.results"

    def retry(self, model: str) -> str:
        return f"{self.namespace}.models.{model}.retry"

    def dead(self, model: str) -> str:
        return f"{self.namespace}.models.{model}.dead"

    @property
    def registry(self) -> str:
        return f"{self.namespace}.registry"

    @property
    def control(self) -> str:
        return f"{self.namespace}.control"
