"""The codec's shape: values of many records <-> stacked tensors. The forms live in ``schemas/codecs/``.

A *bundle* is what decoding a run of records gives: those with the same signature, stacked along the batch axis so
that the runtime and numpy see one array. One record that cannot be decoded or does not fit fails alone.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum

import msgspec

from schemas.errors import HeadraceError
from schemas.record import Headers
from schemas.tensors import Tensors

__all__ = ["Answer", "Decoded", "DecodedGroup", "Encoded", "Form", "Limits"]


class Form(Enum):
    """How a value is written. Answers are written in the form of the request."""

    JSON = "json"
    """v2 JSON or a plain JSON object; told apart record by record."""
    V2_BINARY = "v2-binary"
    """v2 JSON followed by raw tensors."""
    RAW = "raw"
    """The bytes of the only input, nothing else."""
    ARROW = "arrow"
    """Arrow IPC stream: one row of the table is one row of the batch."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Refusals before batching. ``max_rows`` and ``max_bytes`` are per record."""

    max_rows: int = 65_536
    max_bytes: int = 64 * 1024 * 1024


class Answer(msgspec.Struct, frozen=True, gc=False):
    """How one record wants its answer written.

    Attributes:
        style: ``v2`` (JSON object with outputs), ``plain`` ({"y": [...]}), ``raw`` (bytes of the only output;
            plain JSON when there are several) or ``arrow``.
        outputs: names asked for, None for all.
        binary: names to be written in the binary part; None for none, () never occurs.
        squeeze: the request came without the batch dimension, so the answer goes without it.
        id: the ``id`` field of a v2 body.
    """

    style: str
    outputs: tuple[str, ...] | None = None
    binary: frozenset[str] | None = None
    squeeze: bool = False
    id: str | None = None


@dataclass(slots=True)
class DecodedGroup:
    """Records of one signature.

    Attributes:
        indices: position of each record in the decoded sequence.
        rows: rows of each record, in the same order; ``sum(rows)`` rows in ``tensors``.
        tensors: ``{input: [sum(rows), ...]}``; for a model with no batch dimension each group holds one record
            and the arrays have the model's own shapes (``rows == [1]``).
        answers: one a record; a single shared object where all are equal.
        parameters: request parameters, one mapping a record; None when none has any.
        priorities / timeouts_ms: the v2 ``priority`` and ``timeout`` (µs there, ms here) parameters; None when none.
    """

    indices: list[int]
    rows: list[int]
    tensors: Tensors
    signature: Hashable
    answers: list[Answer]
    parameters: list[Mapping[str, object]] | None = None
    priorities: list[int] | None = None
    timeouts_ms: list[float | None] | None = None


@dataclass(slots=True)
class Decoded:
    """``failures`` maps the position of a record to what is wrong with it; every record is in exactly one place."""

    groups: list[DecodedGroup] = field(default_factory=list)
    failures: dict[int, HeadraceError] = field(default_factory=dict)


@dataclass(slots=True)
class Encoded:
    """One entry a record: its value and the headers that describe it, or the error that stopped it."""

    values: list[bytes | HeadraceError]
    headers: list[Headers]
