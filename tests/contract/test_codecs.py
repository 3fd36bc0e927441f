"""One suite for every form of a value: what the codec promises the node, whichever way a record is written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest

from schemas.codec import Form, Limits
from schemas.codecs import decode_many, decode_response, encode_many, encode_request
from schemas.errors import DecodeError, HeadraceError, TooLargeError, ValidationError
from schemas.model import Datatype, ModelConfig, TensorSpec
from schemas.record import Headers
from schemas.tensors import Array, dtype_of

WHOLE: list[Datatype] = [
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "BF16", "FP32", "FP64",
    "BYTES",
]  # fmt: skip

Written = tuple[bytes, int | None]


def config(datatype: Datatype = "FP32", *, max_batch_size: int = 8, width: int = 2) -> ModelConfig:
    spec = {"datatype": datatype, "shape": (width,)}
    return ModelConfig(
        name="m",
        backend="python",
        max_batch_size=max_batch_size,
        inputs=(TensorSpec(name="x", **spec),),
        outputs=(TensorSpec(name="x", **spec),),
    )


def sample(datatype: Datatype, rows: int, first: int = 0) -> Array:
    numbers = np.arange(first, first + 2 * rows).reshape(rows, 2)
    if datatype == "BYTES":
        return np.array([[b"%d" % number for number in row] for row in numbers], object)
    return (numbers % 2 == 0) if datatype == "BOOL" else (numbers % 100).astype(dtype_of(datatype))


def listed(array: Array) -> Any:
    if array.dtype == object:
        return [[cell.decode() for cell in row] for row in array]
    return array.astype(np.float32).tolist() if array.dtype == ml_dtypes.bfloat16 else array.tolist()


def plain(array: Array, datatype: Datatype) -> Written:
    return json.dumps({"x": listed(array)}).encode(), None


def v2(array: Array, datatype: Datatype) -> Written:
    entry = {"name": "x", "datatype": datatype, "shape": list(array.shape), "data": listed(array)}
    return json.dumps({"inputs": [entry]}).encode(), None


def binary(array: Array, datatype: Datatype) -> Written:
    value, headers = encode_request({"x": array}, datatypes={"x": datatype})
    return value, int(dict(headers)["inference-header-content-length"] or b"")


def raw(array: Array, datatype: Datatype) -> Written:
    return array.tobytes(), None


def arrow(array: Array, datatype: Datatype) -> Written:
    flat = pa.array(array.reshape(-1).tolist(), pa.binary()) if datatype == "BYTES" else pa.array(array.reshape(-1))
    made = pa.table({"x": pa.FixedSizeListArray.from_arrays(flat, 2)})
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_table(made)
    return sink.getvalue().to_pybytes(), None


def from_answer(value: bytes, headers: Headers, datatype: Datatype) -> Array:
    found = decode_response(value, headers)[0]["x"]
    return found if found.dtype == object else found.astype(dtype_of(datatype))


def from_raw(value: bytes, headers: Headers, datatype: Datatype) -> Array:
    return np.frombuffer(value, dtype_of(datatype)).reshape(-1, 2)


def from_arrow(value: bytes, headers: Headers, datatype: Datatype) -> Array:
    flat = pa.ipc.open_stream(value).read_all()["x"].combine_chunks().flatten()
    if datatype == "BYTES":
        return np.array(flat.to_pylist(), object).reshape(-1, 2)
    return np.asarray(flat.to_numpy(zero_copy_only=False)).reshape(-1, 2)


@dataclass(frozen=True)
class Way:
    """One way to write a request and to read its answer."""

    name: str
    form: Form
    write: Callable[[Array, Datatype], Written]
    read: Callable[[bytes, Headers, Datatype], Array] = from_answer
    without: tuple[Datatype, ...] = ()

    def __str__(self) -> str:
        return self.name


WAYS = [
    Way("plain JSON", Form.JSON, plain),
    Way("v2 JSON", Form.JSON, v2),
    Way("v2 binary", Form.V2_BINARY, binary),
    # Raw BYTES are one element, the whole value: they have no rows to tell apart.
    Way("raw", Form.RAW, raw, from_raw, without=("BYTES",)),
    Way("Arrow", Form.ARROW, arrow, from_arrow, without=("BF16",)),
]
every_way = pytest.mark.parametrize("way", WAYS, ids=str)
every_datatype = pytest.mark.parametrize(
    ("way", "datatype"), [(way, name) for way in WAYS for name in WHOLE if name not in way.without], ids=str
)


def decoded(way: Way, written: list[Written], model: ModelConfig, limits: Limits | None = None) -> Any:
    return decode_many(way.form, [value for value, _ in written], [at for _, at in written], model, limits or Limits())


def refusal(way: Way, written: Written, model: ModelConfig, limits: Limits | None = None) -> HeadraceError:
    found = decoded(way, [written], model, limits)
    assert found.groups == []
    error: HeadraceError = found.failures[0]
    return error


@every_datatype
def test_what_goes_in_reaches_the_model_as_declared_and_comes_out_again(way: Way, datatype: Datatype) -> None:
    sent, model = sample(datatype, 3), config(datatype)
    (group,) = decoded(way, [way.write(sent, datatype)], model).groups
    assert group.rows == [3]
    assert group.tensors["x"].dtype == dtype_of(datatype)
    assert group.tensors["x"].tolist() == sent.tolist()
    done = encode_many(way.form, group.answers, group.rows, group.tensors, model, ["id"])
    assert isinstance(done.values[0], bytes)
    back = way.read(done.values[0], done.headers[0], datatype)
    assert back.tolist() == sent.tolist()


@every_way
def test_records_alike_are_one_group_in_their_order_and_each_gets_its_own_rows_back(way: Way) -> None:
    parts, model = [sample("FP32", rows, 10 * rows) for rows in (1, 3, 2)], config()
    (group,) = decoded(way, [way.write(part, "FP32") for part in parts], model).groups
    assert (group.indices, group.rows) == ([0, 1, 2], [1, 3, 2])
    done = encode_many(way.form, group.answers, group.rows, {"x": group.tensors["x"] * 2}, model, ["a", "b", "c"])
    for part, value, headers in zip(parts, done.values, done.headers, strict=True):
        assert isinstance(value, bytes)
        assert way.read(value, headers, "FP32").tolist() == (part * 2).tolist()


@every_way
def test_one_that_cannot_be_read_fails_alone_with_a_typed_error(way: Way) -> None:
    good = way.write(sample("FP32", 1), "FP32")
    bad: Written = (b"\x80\x41\x00", None)
    found = decoded(way, [good, bad, good], config())
    assert [index for group in found.groups for index in group.indices] == [0, 2]
    assert isinstance(found.failures.pop(1), DecodeError | ValidationError)
    assert found.failures == {}


@every_way
def test_rows_and_bytes_above_the_limit_are_refused_with_both_numbers(way: Way) -> None:
    written = way.write(sample("FP32", 7), "FP32")
    for limits, wanted in ((Limits(max_rows=6), ("7", "6")), (Limits(max_bytes=20), ("20",))):
        error = refusal(way, written, config(), limits)
        assert isinstance(error, TooLargeError)
        assert all(number in str(error) for number in wanted), str(error)


@every_way
def test_a_tensor_of_another_width_is_refused_and_never_reshaped(way: Way) -> None:
    error = refusal(way, way.write(sample("FP32", 1), "FP32"), config(width=3))
    assert isinstance(error, ValidationError | DecodeError)
    assert "3" in str(error) or "12 bytes" in str(error)


@every_way
def test_a_model_without_a_batch_dimension_gets_each_record_by_itself(way: Way) -> None:
    sent = sample("FP32", 1)
    written = way.write(sent[0], "FP32") if way.form is Form.JSON else way.write(sent, "FP32")
    if way.name == "v2 binary":
        written = way.write(sent[0], "FP32")
    found = decoded(way, [written, written], config(max_batch_size=0))
    assert found.failures == {}
    assert [group.tensors["x"].tolist() for group in found.groups] == [sent[0].tolist()] * 2
