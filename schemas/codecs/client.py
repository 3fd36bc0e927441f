"""What a producer sends and a caller reads: v2 requests with binary tensors, and answers in any JSON or binary form.

Checks nothing against a model: the node does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from schemas.codecs.binary import array_from_bytes, bytes_array, bytes_from_array
from schemas.codecs.json_data import array_from_json, infer_shape, json_text, read_json
from schemas.codecs.outputs import as_array, bytes_elements
from schemas.codecs.plan import TensorPlan, tensor_plan
from schemas.errors import DecodeError, ModelError, ValidationError
from schemas.model import Datatype, TensorSpec
from schemas.record import CONTENT_TYPE, JSON_LENGTH, Headers
from schemas.tensors import Array, Tensors, datatype_of, dtype_of

__all__ = ["decode_response", "encode_request"]

_ALIGNMENT = 16
"""The JSON is padded to it with spaces, so that the first tensor, and each of a like size, needs no copy there."""


def encode_request(
    inputs: Mapping[str, npt.ArrayLike],
    *,
    id: str | None = None,  # noqa: A002  # the protocol's word
    parameters: Mapping[str, object] | None = None,
    outputs: Sequence[str] | None = None,
    datatypes: Mapping[str, Datatype] | None = None,
) -> tuple[bytes, Headers]:
    """A v2 request with binary tensors, and the headers that describe it.

    Args:
        inputs: arrays, the batch dimension included where the model has one. Text is BYTES.
        outputs: names wanted; None for all.
        datatypes: what to convert an input to; else it is that of the array (FP64 for a list of floats).

    Raises:
        ValidationError: an array has no v2 datatype, or cannot be converted to the one named.
    """
    entries = []
    tail = []
    for name, given in inputs.items():
        array, datatype = _to_send(name, as_array(given), (datatypes or {}).get(name))
        raw = bytes_from_array(array)
        entries.append(
            {
                "name": name,
                "datatype": datatype,
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(raw)},
            }
        )
        tail.append(raw)
    body: dict[str, object] = {"inputs": entries}
    if id is not None:
        body["id"] = id
    if parameters:
        body["parameters"] = dict(parameters)
    if outputs is not None:
        body["outputs"] = [{"name": name, "parameters": {"binary_data": True}} for name in outputs]
    head = json_text(body)
    head += b" " * (-len(head) % _ALIGNMENT)
    headers = ((CONTENT_TYPE, b"application/octet-stream"), (JSON_LENGTH, b"%d" % len(head)))
    return b"".join((head, *tail)), headers


def _to_send(name: str, array: Array, wanted: Datatype | None) -> tuple[Array, Datatype]:
    datatype = wanted or datatype_of(array.dtype)
    if datatype == "BYTES":
        try:
            return bytes_elements(array, f"input {name!r}"), datatype
        except ModelError as error:
            raise ValidationError(str(error)) from None
    try:
        with np.errstate(over="ignore"):
            return array.astype(dtype_of(datatype), copy=False), datatype
    except (TypeError, ValueError, OverflowError) as error:
        raise ValidationError(f"input {name!r}: cannot convert {array.dtype} to {datatype}: {error}") from None


def decode_response(value: bytes, headers: Headers) -> tuple[Tensors, dict[str, object]]:
    """An answer's outputs, and the other fields of a v2 body (``id``, ``model_name``, ``model_version``, ...).

    Plain JSON has no datatypes: its integers are read as INT64, other numbers as FP64, strings as BYTES, and the
    other fields are empty. Raw bytes come back as one BYTES element under the name ``""``.

    Raises:
        DecodeError | ValidationError: the value is not what its headers say, or is an Arrow stream (use pyarrow).
    """
    found = {name: (text or b"").decode("utf-8", "replace") for name, text in headers}
    content_type = found.get(CONTENT_TYPE, "").partition(";")[0].strip().lower()
    length = found.get(JSON_LENGTH)
    if length is not None:
        if not (length.isascii() and length.isdigit() and len(length) <= 18 and 0 < int(length) <= len(value)):
            raise DecodeError(f"header {JSON_LENGTH}: expected 1 to {len(value)}, got {length[:40]!r}")
        return _read_v2(read_json(value[: int(length)]), value, int(length))
    if content_type == "application/octet-stream":
        return {"": bytes_array([value])}, {}
    if content_type and "json" not in content_type:
        raise DecodeError(f"an answer of content-type {content_type!r} is not read here; for Arrow use pyarrow")
    body = read_json(value)
    if type(body) is dict and type(body.get("outputs")) is list and "model_name" in body:
        return _read_v2(body, value, len(value))
    if type(body) is not dict:
        raise DecodeError(f"expected a JSON object, got {type(body).__name__}")
    return {name: _guess(name, data) for name, data in body.items()}, {}


def _read_v2(body: Any, value: bytes, position: int) -> tuple[Tensors, dict[str, object]]:
    tensors: Tensors = {}
    try:
        for entry in body["outputs"]:
            shape = [int(size) for size in entry["shape"]]
            if min(shape, default=0) < 0 or len(shape) > 32:
                raise DecodeError(f"output {entry['name']!r}: expected up to 32 sizes of 0 or more, got {shape[:33]}")
            tensor = _anonymous(entry["name"], entry["datatype"])
            size = entry.get("parameters", {}).get("binary_data_size")
            if size is None:
                tensors[tensor.name] = array_from_json(entry["data"], tensor, shape)
                continue
            if not 0 <= size <= len(value) - position:
                raise DecodeError(f"{tensor.label}: expected {size} bytes, got {len(value) - position}")
            tensors[tensor.name] = array_from_bytes(value, start=position, size=size, tensor=tensor, shape=shape)
            position += size
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise DecodeError(f"not a v2 answer: {type(error).__name__} {str(error)[:80]}") from None
    if position != len(value):
        raise DecodeError(f"expected {position} bytes by binary_data_size, got {len(value)}")
    return tensors, {key: field for key, field in body.items() if key != "outputs"}


def _anonymous(name: str, datatype: Datatype) -> TensorPlan:
    """A tensor of which only name and datatype are known."""
    if not isinstance(name, str):
        raise DecodeError(f"expected an output's name to be a string, got {name!r:.60}")
    dtype_of(datatype)
    spec = TensorSpec(name=name, datatype=datatype, shape=())
    return tensor_plan(spec, kind="output", model="", batched=False)


def _guess(name: str, data: object) -> Array:
    shape = infer_shape(data)
    first = data
    while type(first) is list and first:
        first = first[0]
    datatype: Datatype = "FP64"
    if type(first) is bool:
        datatype = "BOOL"
    elif type(first) is str:
        datatype = "BYTES"
    elif type(first) is int:
        datatype = "INT64"
    tensor = _anonymous(name, datatype)
    listed = data if type(data) is list else [data]
    try:
        return array_from_json(listed, tensor, shape)
    except ValidationError:
        if datatype != "INT64":
            raise
        return array_from_json(listed, _anonymous(name, "FP64"), shape)
