"""Stacked outputs -> the answer of each record, in the form it asked for.

`encode_each` is the reference: one record after the other. `encode_many` gives the same bytes and is what to call.

- v2: ``id``, ``model_name``, ``model_version``, ``outputs`` with flat ``data``, or ``binary_data_size`` and bytes.
- plain: ``{"y": [...]}``, nested, without the batch dimension where the request had none.
- raw: the bytes of the only output, numbers little-endian; plain JSON where a model has several outputs or the
  only one is BYTES of other than one element, which could not be told apart.
- arrow: see `schemas.codecs.arrow`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from schemas.codec import Answer, Encoded, Form
from schemas.codecs.arrow import write_arrow
from schemas.codecs.binary import bytes_from_array
from schemas.codecs.fast_encode import encode_fast
from schemas.codecs.json_data import json_ready, json_text
from schemas.codecs.outputs import declared_outputs, stacked_outputs
from schemas.codecs.plan import Plan, plan_of
from schemas.errors import HeadraceError, ModelError, ValidationError
from schemas.model import ModelConfig
from schemas.record import CONTENT_TYPE, JSON_LENGTH, Headers
from schemas.tensors import Array, Tensors, datatype_of

__all__ = ["encode_each", "encode_many"]

JSON_HEADERS: Final[Headers] = ((CONTENT_TYPE, b"application/json"),)
RAW_HEADERS: Final[Headers] = ((CONTENT_TYPE, b"application/octet-stream"),)
ARROW_HEADERS: Final[Headers] = ((CONTENT_TYPE, b"application/vnd.apache.arrow.stream"),)


def encode_many(
    form: Form,
    answers: Sequence[Answer],
    rows: Sequence[int],
    outputs: Tensors,
    config: ModelConfig,
    ids: Sequence[str],
) -> Encoded:
    """Writes the answers of one group.

    Args:
        outputs: ``{name: [sum(rows), ...]}``; the model's own shapes when it has no batch dimension.
        ids: correlation ids, for v2 answers whose request had none of its own.

    An output that cannot be written is an error in ``values``: in all of them where the model left it out or returned
    other rows than it was given, else in those of the rows that are wrong.
    """
    plan = plan_of(config)
    try:
        arrays = stacked_outputs(plan, outputs, sum(rows) if plan.batched else None)
    except ModelError as error:
        return Encoded([error] * len(rows), [()] * len(rows))
    try:
        fast = encode_fast(form, answers, rows, declared_outputs(plan, arrays), plan, ids)
    except ModelError:
        fast = None  # Perhaps one row's fault only.
    return fast or _each(plan, answers, rows, arrays, ids)


def encode_each(
    answers: Sequence[Answer], rows: Sequence[int], outputs: Tensors, config: ModelConfig, ids: Sequence[str]
) -> Encoded:
    """`encode_many`, record by record."""
    plan = plan_of(config)
    try:
        arrays = stacked_outputs(plan, outputs, sum(rows) if plan.batched else None)
    except ModelError as error:
        return Encoded([error] * len(rows), [()] * len(rows))
    return _each(plan, answers, rows, arrays, ids)


def _each(plan: Plan, answers: Sequence[Answer], rows: Sequence[int], arrays: Tensors, ids: Sequence[str]) -> Encoded:
    encoded = Encoded([], [])
    start = 0
    for answer, count, identity in zip(answers, rows, ids, strict=True):
        names = answer.outputs or plan.output_names
        own = {name: arrays[name][start : start + count] if plan.batched else arrays[name] for name in names}
        start += count
        try:
            value, headers = _write(plan, answer, declared_outputs(plan, own), identity)
        except HeadraceError as error:
            encoded.values.append(error)
            encoded.headers.append(())
        else:
            encoded.values.append(value)
            encoded.headers.append(headers)
    return encoded


def _write(plan: Plan, answer: Answer, outputs: Tensors, identity: str) -> tuple[bytes, Headers]:
    if answer.style == "v2":
        return _write_v2(plan, answer, outputs, identity)
    if answer.style == "arrow":
        return write_arrow(outputs, batched=plan.batched), ARROW_HEADERS
    if answer.style == "raw" and len(outputs) == 1:
        (array,) = outputs.values()
        if array.dtype != np.object_:
            return array.tobytes(), RAW_HEADERS
        if array.size == 1:
            return array.item(), RAW_HEADERS
    squeezed = {name: array[0] if answer.squeeze else array for name, array in outputs.items()}
    return json_text({name: _nested(plan, name, array) for name, array in squeezed.items()}), JSON_HEADERS


def _write_v2(plan: Plan, answer: Answer, outputs: Tensors, identity: str) -> tuple[bytes, Headers]:
    tail: list[bytes] = []
    entries = []
    for name, array in outputs.items():
        entry: dict[str, object] = {"name": name, "datatype": datatype_of(array.dtype), "shape": list(array.shape)}
        if answer.binary and name in answer.binary:
            raw = bytes_from_array(array)
            entry["parameters"] = {"binary_data_size": len(raw)}
            tail.append(raw)
        else:
            entry["data"] = _nested(plan, name, array.reshape(-1))
        entries.append(entry)
    head = json_text(
        {
            "id": identity if answer.id is None else answer.id,
            "model_name": plan.model,
            "model_version": str(plan.config.version),
            "outputs": entries,
        }
    )
    if not answer.binary:
        return head, JSON_HEADERS
    return b"".join((head, *tail)), (*RAW_HEADERS, (JSON_LENGTH, b"%d" % len(head)))


def _nested(plan: Plan, name: str, array: Array) -> object:
    """What `json_text` takes for an array.

    Raises:
        ValidationError: a BYTES element is not UTF-8.
    """
    array = np.asarray(array)
    if array.dtype != np.object_:
        return json_ready(array) if array.ndim else json_ready(array.reshape(1)).tolist()[0]
    return _text(plan, name, array.tolist())


def _text(plan: Plan, name: str, value: object) -> object:
    if isinstance(value, list):
        return [_text(plan, name, item) for item in value]
    try:
        return value.decode()  # type: ignore[attr-defined]  # elements are bytes
    except UnicodeDecodeError:
        raise ValidationError(
            f"{plan.outputs[name].label}: an element is not UTF-8 and JSON cannot hold it; "
            "ask for it in binary (output parameter binary_data: true)"
        ) from None
