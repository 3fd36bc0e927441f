"""Arrow IPC streams, in and out."""

from __future__ import annotations

import builtins
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest

from schemas.codec import Form, Limits
from schemas.codecs import decode_many, encode_many
from schemas.codecs.arrow import ARROW
from schemas.model import Datatype
from schemas.tensors import Array
from tests.unit.schemas.codec_models import decode_one, model, only, refusal


def stream(columns: dict[str, Any], *, compression: str | None = None, batches: int = 1) -> bytes:
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_stream(sink, table.schema, options=options) as writer:
        writer.write_table(table, max_chunksize=-(-table.num_rows // batches) or None)
    value: bytes = sink.getvalue().to_pybytes()
    return value


def tensor_column(array: Array) -> Any:
    return pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(array))


@pytest.mark.parametrize(
    ("datatype", "dims", "column", "rows"),
    [
        ("FP32", (1,), pa.array([1.5, 2], pa.float32()), [[1.5], [2]]),
        ("INT64", (), pa.array([2**62, -1]), [2**62, -1]),
        ("FP32", (2,), pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2)), [[1, 2], [3, 4]]),
        ("UINT8", (-1,), pa.array([[1, 2], [3, 4]], pa.list_(pa.uint8())), [[1, 2], [3, 4]]),
        ("UINT8", (-1,), pa.array([[1, 2], [3, 4]], pa.large_list(pa.uint8())), [[1, 2], [3, 4]]),
        ("INT8", (1, 2), pa.array([[[1, 2]], [[3, 4]]], pa.list_(pa.list_(pa.int8(), 2))), [[[1, 2]], [[3, 4]]]),
        ("FP64", (1, 2), tensor_column(np.arange(4.0).reshape(2, 1, 2)), [[[0, 1]], [[2, 3]]]),
        ("FP16", (1,), pa.array(np.array([0.5, 2], np.float16)), [[0.5], [2]]),
        ("BOOL", (1,), pa.array([True, False]), [[True], [False]]),
        ("BYTES", (1,), pa.array(["é", ""]), [["é".encode()], [b""]]),
        ("BYTES", (2,), pa.array([[b"a\0", b""], [b"c", b"d"]]), [[b"a\0", b""], [b"c", b"d"]]),
    ],
)
def test_a_column_is_a_tensor_and_a_table_row_is_a_batch_row(
    datatype: Datatype, dims: tuple[int, ...], column: Any, rows: object
) -> None:
    for batches in (1, 2):
        group = decode_one(model(("x", datatype, dims)), stream({"x": column}, batches=batches), form=Form.ARROW)
        assert group.rows == [2]
        assert group.tensors["x"].tolist() == rows


@pytest.mark.parametrize(
    ("datatype", "dims", "array"),
    [
        ("FP32", (1,), np.array([[1.5], [2]], np.float32)),
        ("INT64", (2,), np.array([[1, 2], [3, 2**62]])),
        ("FP64", (2, 3), np.arange(12.0).reshape(2, 2, 3)),
        ("FP16", (2, 1), np.arange(4).astype(np.float16).reshape(2, 2, 1)),
        ("BOOL", (2, 2), np.arange(8).reshape(2, 2, 2) % 3 == 0),
        ("BYTES", (1,), np.array([[b"a\0"], [b"\xff"]], object)),
        ("BYTES", (2, 1), np.array([[[b"a"], [b"b"]], [[b"c"], [b"d"]]], object)),
        ("INT8", (-1,), np.zeros((2, 0), np.int8)),
    ],
)
def test_an_answer_can_be_sent_in_again(datatype: Datatype, dims: tuple[int, ...], array: Array) -> None:
    config = model(("x", datatype, dims), outputs=[("x", datatype, dims)])
    encoded = encode_many(Form.ARROW, [ARROW, ARROW], [1, 1], {"x": array}, config, ["i", "j"])
    assert encoded.headers == [(("content-type", b"application/vnd.apache.arrow.stream"),)] * 2
    values = [value for value in encoded.values if isinstance(value, bytes)]
    group = only(decode_many(Form.ARROW, values, None, config, Limits()))
    assert group.rows == [1, 1]
    assert group.tensors["x"].tolist() == array.tolist()
    assert group.tensors["x"].dtype == array.dtype


def test_bf16_outputs_are_written_as_fp32_and_inputs_refused() -> None:
    config = model(("x", "BF16", (1,)), outputs=[("y", "BF16", (1,))])
    output = np.array([[1.5]], ml_dtypes.bfloat16)
    (value,) = encode_many(Form.ARROW, [ARROW], [1], {"y": output}, config, ["i"]).values
    assert pa.ipc.open_stream(value).read_all().to_pydict() == {"y": [1.5]}
    error = refusal(config, stream({"x": pa.array([1.5], pa.float32())}), form=Form.ARROW)
    assert "BF16 has no Arrow type; send v2 with binary tensors" in str(error)


def test_numbers_are_not_copied() -> None:
    value = stream({"x": pa.array([[1, 2], [3, 4]], pa.list_(pa.float32(), 2))})
    array = decode_one(model(("x", "FP32", (2,))), value, form=Form.ARROW).tensors["x"]
    assert np.shares_memory(array, np.frombuffer(value, np.uint8))


def test_a_null_is_nan_in_a_floating_column() -> None:
    array = decode_one(model(("x", "FP32", (1,))), stream({"x": pa.array([1, None], pa.float32())}), form=Form.ARROW)
    assert np.isnan(array.tensors["x"][1, 0])


def test_a_model_without_batch_dimension_takes_one_table_row_and_answers_one() -> None:
    config = model(("x", "FP32", (2,)), outputs=[("y", "FP32", (2,))], max_batch_size=0)
    value = stream({"x": pa.array([[1, 2]], pa.list_(pa.float32(), 2))})
    group = decode_one(config, value, form=Form.ARROW)
    assert group.tensors["x"].tolist() == [1, 2]
    (back,) = encode_many(Form.ARROW, group.answers, group.rows, {"y": group.tensors["x"]}, config, ["i"]).values
    assert pa.ipc.open_stream(back).read_all().to_pydict() == {"y": [[1, 2]]}
    two = stream({"x": pa.array([[1, 2]] * 2, pa.list_(pa.float32(), 2))})
    assert "expected a table of 1 row, as the model has no batch dimension, got 2" in str(
        refusal(config, two, form=Form.ARROW)
    )


@pytest.mark.parametrize(
    ("columns", "code", "says"),
    [
        ({"x": pa.array([1.0])}, "validation", "expected FP32 (Arrow float), got Arrow double"),
        ({"x": pa.array([[1.0, 2, 3]], pa.list_(pa.float32()))}, "validation", "expected shape [-1,2], got [1,3]"),
        ({"x": pa.array([[1.0], [1, 2]], pa.list_(pa.float32()))}, "validation", "got lengths from 1 to 2"),
        ({"x": pa.array([None, [1, 2]], pa.list_(pa.float32(), 2))}, "validation", "expected no null lists, got 1"),
        ({"x": pa.array([], pa.list_(pa.float32(), 2))}, "validation", "expected a table of at least 1 row, got 0"),
        ({"z": pa.array([1.0])}, "validation", "no input 'z'; its inputs are 'x'"),
        ({"x": pa.nulls(3)}, "validation", "got Arrow null"),
        ({"x": pa.nulls(100_000)}, "too_large", "expected at most 65536 rows in a record, got 100000"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_refused_by_name(columns: dict[str, Any], code: str, says: str) -> None:
    error = refusal(model(("x", "FP32", (2,))), stream(columns), form=Form.ARROW)
    assert error.code == code
    assert says in str(error)


def test_compressed_streams_are_refused_before_they_are_unpacked() -> None:
    value = stream({"x": pa.array(np.zeros(60_000, np.float32))}, compression="zstd")
    assert "compressed Arrow streams are not accepted" in str(
        refusal(model(("x", "FP32", (1,))), value, form=Form.ARROW)
    )


def test_damaged_streams_are_decode_errors() -> None:
    value = stream({"x": pa.array([1.0, 2.0], pa.float32())})
    config = model(("x", "FP32", (1,)))
    for damaged in (b"", b"\xff" * 64, value[:100], value[: len(value) // 2]):
        assert refusal(config, damaged, form=Form.ARROW).code == "decode"


def test_without_pyarrow_the_refusal_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def fake(name: str, *rest: Any, **named: Any) -> Any:
        if name.startswith("pyarrow"):
            raise ImportError(name)
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", fake)
    assert "headrace[arrow]" in str(refusal(model(("x", "FP32", (1,))), b"", form=Form.ARROW))


def test_a_table_of_no_rows_is_refused_whatever_its_column_is() -> None:
    permuted = pa.fixed_shape_tensor(pa.float32(), [2, 1], permutation=[1, 0])
    for kind in (permuted, pa.float32(), pa.list_(pa.float32())):
        schema = pa.schema({"x": kind})
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, schema):
            pass
        error = refusal(model(("x", "FP32", (2, 1))), sink.getvalue().to_pybytes(), form=Form.ARROW)
        assert "expected a table of at least 1 row, got 0" in str(error)


def test_a_permuted_tensor_column_is_refused() -> None:
    permuted = pa.fixed_shape_tensor(pa.float32(), [2, 1], permutation=[1, 0])
    storage = pa.array([[1, 2]], pa.list_(pa.float32(), 2))
    value = stream({"x": pa.ExtensionArray.from_storage(permuted, storage)})
    assert "without permutation" in str(refusal(model(("x", "FP32", (2, 1))), value, form=Form.ARROW))
