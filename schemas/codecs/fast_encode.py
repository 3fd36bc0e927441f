"""Answers of a run of like records, written at once. Gives the bytes that `encode.encode_each` gives, or None.

All rows of an output are printed in one call, and the text is cut at the row boundaries; what is around it is the same
for every record. None means that something is unusual, and the plain path writes every record.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat
from typing import Final

import numpy as np

from schemas.codec import Answer, Form
from schemas.codecs.json_data import json_ready, json_text
from schemas.codecs.plan import Plan
from schemas.record import CONTENT_TYPE, Headers
from schemas.tensors import Array, Tensors, datatype_of

__all__ = ["encode_fast"]

_JSON: Final[Headers] = ((CONTENT_TYPE, b"application/json"),)
_RAW: Final[Headers] = ((CONTENT_TYPE, b"application/octet-stream"),)


def encode_fast(
    form: Form, answers: Sequence[Answer], rows: Sequence[int], arrays: Tensors, plan: Plan, ids: Sequence[str]
) -> tuple[Sequence[bytes], Headers] | None:
    """The values, and the headers that all of them share; None when the records are not alike, one row each."""
    if not plan.batched or not arrays or max(rows, default=0) != 1 or min(rows) != 1:
        return None
    first = answers[0]
    if first.style == "v2":
        return _v2(arrays, plan, ids, answers) if form is Form.JSON else None
    if first.outputs is not None or answers.count(first) != len(answers):
        return None
    if first.style == "raw":
        return _raw(arrays)
    return _plain(arrays) if first.style == "plain" and first.squeeze else None


def _raw(arrays: Tensors) -> tuple[Sequence[bytes], Headers] | None:
    if len(arrays) != 1:
        return None
    (array,) = arrays.values()
    if array.dtype == np.object_:
        return (array.reshape(-1).tolist(), _RAW) if array.size == len(array) else None
    text = array.tobytes()
    size = len(text) // len(array)
    if not size:
        return None
    # Opaque items of a row's size: numpy cuts five times as fast as slices in a loop.
    return np.frombuffer(text, f"V{size}").tolist(), _RAW


def _plain(arrays: Tensors) -> tuple[Sequence[bytes], Headers] | None:
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
    return [b"".join(pieces) for pieces in zip(*parts, repeat(b"]}"))], _JSON


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


def _v2(
    arrays: Tensors, plan: Plan, given: Sequence[str], answers: Sequence[Answer]
) -> tuple[Sequence[bytes], Headers] | None:
    ids = _own_ids(answers, given)
    if ids is None:
        return None
    head = b',"model_name":%b,"model_version":"%d","outputs":[' % (json_text(plan.model), plan.config.version)
    columns: list[Sequence[bytes]] = []
    middles: list[bytes] = []
    for name, array in arrays.items():
        texts = _rows_text(array)
        if texts is None:
            return None
        entry = {"name": name, "datatype": datatype_of(array.dtype), "shape": [1, *array.shape[1:]]}
        middles.append((b"]}," if columns else head) + json_text(entry)[:-1] + b',"data":[')
        columns.append(texts)
    names = map(json_text, ids)
    if len(columns) == 1:
        (middle,) = middles
        return [b'{"id":%b%b%b]}]}' % (each, middle, text) for each, text in zip(names, columns[0], strict=True)], _JSON
    parts: list[Sequence[bytes]] = []
    for middle, column in zip(middles, columns, strict=True):
        parts += [[middle] * len(column), column]
    return [b'{"id":%b%b]}]}' % (each, b"".join(pieces)) for each, *pieces in zip(names, *parts, strict=True)], _JSON


def _rows_text(array: Array) -> Sequence[bytes] | None:
    """Each row's elements, row-major, as JSON without the brackets; None where one is not text."""
    flat = array.reshape(len(array), -1)
    if array.dtype != np.object_:
        return json_text(json_ready(flat))[2:-2].split(b"],[")
    try:
        return [json_text([element.decode() for element in row])[1:-1] for row in flat.tolist()]
    except UnicodeDecodeError:
        return None
