"""Answers of a run of like records, written at once. Gives the bytes that `encode.encode_each` gives, or None.

All rows of an output are printed in one call, and the text is cut at the row boundaries; what is around it is the same
for every record. None means that something is unusual, and the plain path writes every record.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from schemas.codec import Answer, Encoded, Form
from schemas.codecs.json_data import json_ready, json_text
from schemas.codecs.plan import Plan
from schemas.record import CONTENT_TYPE, JSON_LENGTH, Headers
from schemas.tensors import Array, Tensors, datatype_of

__all__ = ["encode_fast"]

_JSON: Final[Headers] = ((CONTENT_TYPE, b"application/json"),)
_RAW: Final[Headers] = ((CONTENT_TYPE, b"application/octet-stream"),)


def encode_fast(
    form: Form, answers: Sequence[Answer], rows: Sequence[int], arrays: Tensors, plan: Plan, ids: Sequence[str]
) -> Encoded | None:
    """None when the records are not alike, or not one row each."""
    if not plan.batched or not arrays or max(rows, default=0) != 1 or min(rows) != 1:
        return None
    first = answers[0]
    if first.style == "v2" and form is Form.JSON:
        return _v2(arrays, plan, ids, answers)
    if first.outputs is not None or answers.count(first) != len(answers):
        return None
    if first.style == "v2" and first.id is None and first.binary == arrays.keys():
        return _binary(arrays, plan, ids)
    if first.style == "raw":
        return _raw(arrays)
    return _plain(arrays) if first.style == "plain" and first.squeeze else None


def _alike(values: list[bytes], headers: Headers) -> Encoded:
    return Encoded([*values], [headers] * len(values))


def _raw(arrays: Tensors) -> Encoded | None:
    if len(arrays) != 1:
        return None
    (array,) = arrays.values()
    if array.dtype == np.object_:
        return _alike(array.reshape(-1).tolist(), _RAW) if array.size == len(array) else None
    rows = _rows_bytes(array)
    return None if rows is None else _alike(rows, _RAW)


def _rows_bytes(array: Array) -> list[bytes] | None:
    """Each row's little-endian bytes; None for BYTES and for rows of no bytes."""
    if array.dtype == np.object_ or not array.nbytes:
        return None
    # Opaque items of a row's size: numpy cuts five times as fast as slices in a loop.
    rows: list[bytes] = np.frombuffer(array.tobytes(), f"V{array.nbytes // len(array)}").tolist()
    return rows


def _plain(arrays: Tensors) -> Encoded | None:
    if any(array.ndim != 2 for array in arrays.values()):
        return None
    parts: list[Sequence[bytes]] = []
    before = b"{"
    for name, array in arrays.items():
        texts = _rows_text(array)
        if texts is None:
            return None
        parts += [[before + json_text(name) + b":["] * len(array), texts]
        before = b"],"
    return _alike([b"".join(pieces) + b"]}" for pieces in zip(*parts, strict=True)], _JSON)


def _model(plan: Plan) -> bytes:
    return b',"model_name":%b,"model_version":"%d","outputs":[' % (json_text(plan.model), plan.config.version)


def _entry(name: str, array: Array) -> dict[str, object]:
    return {"name": name, "datatype": datatype_of(array.dtype), "shape": [1, *array.shape[1:]]}


def _binary(arrays: Tensors, plan: Plan, ids: Sequence[str]) -> Encoded | None:
    columns: list[list[bytes]] = []
    entries = []
    for name, array in arrays.items():
        rows = _rows_bytes(array)
        if rows is None:
            return None
        columns.append(rows)
        entries.append({**_entry(name, array), "parameters": {"binary_data_size": len(rows[0])}})
    rest = _model(plan) + json_text(entries)[1:] + b"}"
    heads = [b'{"id":%b%b' % (text, rest) for text in map(json_text, ids)]
    lengths = list(map(len, heads))
    headers: dict[int, Headers] = {length: (*_RAW, (JSON_LENGTH, b"%d" % length)) for length in set(lengths)}
    values = [b"".join(pieces) for pieces in zip(heads, *columns, strict=True)]
    return Encoded([*values], [headers[length] for length in lengths])


def _own_ids(answers: Sequence[Answer], ids: Sequence[str]) -> Sequence[str] | None:
    """The ids to write; None unless all answers are v2 JSON of all outputs."""
    first = answers[0]
    if all(answer is first for answer in answers):
        if first.outputs is not None or first.binary is not None:
            return None
        return ids if first.id is None else [first.id] * len(answers)
    if any(answer.style != "v2" or answer.outputs is not None or answer.binary is not None for answer in answers):
        return None
    return [own if answer.id is None else answer.id for answer, own in zip(answers, ids, strict=True)]


def _v2(arrays: Tensors, plan: Plan, given: Sequence[str], answers: Sequence[Answer]) -> Encoded | None:
    ids = _own_ids(answers, given)
    if ids is None:
        return None
    before = _model(plan)
    parts: list[Sequence[bytes]] = []
    for name, array in arrays.items():
        texts = _rows_text(array)
        if texts is None:
            return None
        parts += [[before + json_text(_entry(name, array))[:-1] + b',"data":['] * len(array), texts]
        before = b"]},"
    names = map(json_text, ids)
    if len(parts) == 2:
        (middle, *_), texts = parts
        values = [b'{"id":%b%b%b]}]}' % (own, middle, text) for own, text in zip(names, texts, strict=True)]
    else:
        values = [b'{"id":%b%b]}]}' % (own, b"".join(pieces)) for own, *pieces in zip(names, *parts, strict=True)]
    return _alike(values, _JSON)


def _rows_text(array: Array) -> Sequence[bytes] | None:
    """Each row's elements, row-major, as JSON without the brackets; None where one is not text."""
    flat = array.reshape(len(array), -1)
    if array.dtype != np.object_:
        return json_text(json_ready(flat))[2:-2].split(b"],[")
    try:
        return [json_text([element.decode() for element in row])[1:-1] for row in flat.tolist()]
    except UnicodeDecodeError:
        return None
