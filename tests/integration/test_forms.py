"""Every form of a value through topics, both ways: what comes out is what went in, bit for bit."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pyarrow as pa
import pytest

from schemas.codecs.client import decode_response, encode_request
from schemas.model import Datatype
from schemas.record import Headers
from schemas.tensors import Array
from tests.support.models import ECHO, tensors, write_model
from tests.support.nodes import serving, waiting_records
from tests.support.payloads import FORMS, answer, error_of, request
from tests.support.records import Sent, Stored, make_topic, read_all, unique

ARROW = b"application/vnd.apache.arrow.stream"
OWN: Headers = (("tenant", b"a"), ("null", None), ("bytes", b"\xff\xfe"), ("tenant", b"b"))

SAMPLES: dict[Datatype, Array] = {
    "BOOL": np.array([[True, False], [False, True], [True, True]]),
    "UINT8": np.array([[0, 255], [1, 2], [3, 4]], np.uint8),
    "UINT16": np.array([[0, 65535], [1, 2], [3, 4]], np.uint16),
    "UINT32": np.array([[0, 2**32 - 1], [1, 2], [3, 4]], np.uint32),
    "UINT64": np.array([[0, 2**64 - 1], [1, 2**53 + 1], [3, 4]], np.uint64),
    "INT8": np.array([[-128, 127], [1, 2], [3, 4]], np.int8),
    "INT16": np.array([[-(2**15), 2**15 - 1], [1, 2], [3, 4]], np.int16),
    "INT32": np.array([[-(2**31), 2**31 - 1], [1, 2], [3, 4]], np.int32),
    "INT64": np.array([[-(2**63), 2**63 - 1], [2**53 + 1, 2], [3, 4]], np.int64),
    "FP16": np.array([[1.5, np.nan], [np.inf, -0.0], [65504, 6e-8]], np.float16),
    "BF16": np.array([[1.5, np.nan], [np.inf, -0.0], [3e38, 1e-38]], ml_dtypes.bfloat16),
    "FP32": np.array([[1.5, np.nan], [-np.inf, -0.0], [3e38, 1e-45]], np.float32),
    "FP64": np.array([[0.1, np.nan], [-np.inf, -0.0], [1e308, 5e-324]], np.float64),
    "BYTES": np.array([[b"", b"\xff\x00"], ["é".encode(), b"b" * 300], [b"c", b"\n"]], object),
}


def bits(array: Array) -> object:
    return array.tolist() if array.dtype == object else (str(array.dtype), array.shape, array.tobytes())


def table(**columns: Any) -> bytes:
    """An Arrow IPC stream with these columns."""
    made = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, made.schema) as writer:
        writer.write_table(made)
    value: bytes = sink.getvalue().to_pybytes()
    return value


def pairs(array: Array) -> Any:
    """A column of lists of two."""
    flat = pa.array(array.reshape(-1).tolist(), pa.binary()) if array.dtype == object else pa.array(array.reshape(-1))
    return pa.FixedSizeListArray.from_arrays(flat, 2)


def arrow(value: bytes, *, key: bytes | None = None, headers: Headers = ()) -> Sent:
    return Sent(value, key, (*headers, ("content-type", ARROW)))


def read_column(record: Stored) -> Array:
    """Output ``y`` of an Arrow result, as an array of pairs."""
    assert record.header("headrace-error") is None, record
    assert record.header("content-type") == ARROW
    assert record.header("inference-header-content-length") is None
    column = pa.ipc.open_stream(record.value).read_all()["y"].combine_chunks()
    flat = column.flatten()
    values = (
        np.array(flat.to_pylist(), object) if pa.types.is_binary(flat.type) else flat.to_numpy(zero_copy_only=False)
    )
    return np.asarray(values).reshape(-1, 2)


async def test_binary_tensors_of_every_datatype_come_back_bit_for_bit(noida: str, tmp_path: Path) -> None:
    """The binary tensor extension both ways: NaN, the infinities, negative zero and bytes that are no text included."""
    for datatype in SAMPLES:
        write_model(tmp_path / "models", f"echo-{datatype}", ECHO, **tensors(datatype, [2]))
    async with serving(noida, tmp_path / "models") as node:
        for datatype, array in SAMPLES.items():
            value, content = encode_request({"x": array}, datatypes={"x": datatype})
            await node.send(f"echo-{datatype}", Sent(value, headers=(*OWN, *content)))
        for datatype, array in SAMPLES.items():
            (result,) = await node.results(f"echo-{datatype}", 1)
            assert result.header("content-type") == b"application/octet-stream"
            outputs, fields = decode_response(result.value or b"", result.headers)
            assert bits(outputs["y"]) == bits(array), datatype
            assert fields["model_name"] == f"echo-{datatype}"
            assert result.headers[: len(OWN)] == OWN


async def test_arrow_tables_of_every_datatype_come_back_bit_for_bit(noida: str, tmp_path: Path) -> None:
    """Many rows in one record as an Arrow IPC stream, answered as one with as many rows. BF16 has no Arrow type."""
    known = {datatype: array for datatype, array in SAMPLES.items() if datatype != "BF16"}
    for datatype in known:
        write_model(tmp_path / "models", f"echo-{datatype}", ECHO, **tensors(datatype, [2]))
    async with serving(noida, tmp_path / "models") as node:
        for datatype, array in known.items():
            await node.send(f"echo-{datatype}", arrow(table(x=pairs(array)), key=b"k", headers=OWN))
        for datatype, array in known.items():
            (result,) = await node.results(f"echo-{datatype}", 1)
            assert bits(read_column(result)) == bits(array), datatype
            assert result.key == b"k"
            assert result.headers[: len(OWN)] == OWN


async def test_an_arrow_record_shares_batches_and_is_split_and_joined_in_order(any_broker: str, tmp_path: Path) -> None:
    """A table of 1,000 rows between records of other forms, under a limit of 32 rows an execution: each record is
    answered in its own form with its own rows, in order."""
    model = write_model(tmp_path / "models", "echo", ECHO, **tensors("FP32", [2]), max_batch_size=32)
    many = np.arange(2000, dtype=np.float32).reshape(1000, 2)
    sent = [request(form, [[at, -at]], key=form.encode()) for at, form in enumerate(FORMS)]
    sent.insert(1, arrow(table(x=pairs(many)), key=b"arrow"))
    namespace = await waiting_records(any_broker, "echo", [Sent(s.value, s.key, s.headers, 0) for s in sent])
    async with serving(any_broker, tmp_path / "models", namespace=namespace) as node:
        results = {one.key: one for one in await node.results("echo", 4, settle_s=0.1)}
        await node.until_committed("echo", {0: 4})
    np.testing.assert_array_equal(read_column(results[b"arrow"]), many)
    for at, form in enumerate(FORMS):
        assert answer(results[form.encode()]).reshape(-1).tolist() == [at, -at]
    assert max(model.executions) == 32
    assert sum(model.executions) == 1003


async def test_arrow_records_that_do_not_fit_fail_alone_by_name(noida: str, tmp_path: Path) -> None:
    """Another column, another type, a null, too many rows, a damaged stream: each is buried with the reason or answered
    where the caller said, and the table between them is answered."""
    write_model(tmp_path / "models", "echo", ECHO, **tensors("INT32", [2]))
    replies = await make_topic(noida, unique("replies"))
    to: Headers = (("headrace-reply-to", replies.encode()),)
    good = table(x=pairs(np.array([[1, 2]], np.int32)))
    bad = {
        b"column": table(z=pairs(np.array([[1, 2]], np.int32))),
        b"type": table(x=pairs(np.array([[1.0, 2.0]]))),
        b"null": table(x=pa.FixedSizeListArray.from_arrays(pa.array([1, None], pa.int32()), 2)),
        b"rows": table(x=pairs(np.zeros((65_537, 2), np.int32))),
        b"damaged": good[: len(good) // 2],
    }
    async with serving(noida, tmp_path / "models") as node:
        sent = [arrow(value, key=key) for key, value in bad.items()]
        await node.send("echo", *[Sent(s.value, s.key, s.headers, 0) for s in sent])
        await node.send("echo", arrow(good), arrow(bad[b"type"], headers=to))
        letters = {one.key: error_of(one) for one in await node.dead("echo", len(bad))}
        (result,) = await node.results("echo", 1, settle_s=0.1)
        (reply,) = await read_all(noida, replies, count=1)
        await node.until_committed("echo", {0: len(bad) + 2})
    assert read_column(result).tolist() == [[1, 2]]
    assert {key: code for key, (code, _) in letters.items()} == {
        b"column": "validation",
        b"type": "validation",
        b"null": "validation",
        b"rows": "too_large",
        b"damaged": "decode",
    }
    assert "'x'" in letters[b"type"][1]
    assert "INT32" in letters[b"type"][1]
    assert "65,536" in letters[b"rows"][1] or "65536" in letters[b"rows"][1]
    assert error_of(reply)[0] == "validation"


async def test_raw_bytes_are_the_one_input_and_come_back_as_the_one_output(noida: str, tmp_path: Path) -> None:
    write_model(tmp_path / "models", "echo", ECHO, **tensors("BYTES", [1]))
    values = [b"\x89PNG\r\n\x00\xff", b"{not json", "é".encode()]
    types = [b"image/png", b"application/octet-stream", b"text/plain; charset=utf-8"]
    async with serving(noida, tmp_path / "models") as node:
        sent = [
            Sent(v, b"%d" % at, (("content-type", t),)) for at, (v, t) in enumerate(zip(values, types, strict=True))
        ]
        await node.send("echo", *sent)
        results = {one.key: one for one in await node.results("echo", 3, settle_s=0.1)}
        assert await node.dead("echo", 0) == []
    assert [results[b"%d" % at].value for at in range(3)] == values
    assert {one.header("content-type") for one in results.values()} == {b"application/octet-stream"}


@pytest.mark.parametrize("instances", [2, [{"count": 1, "device": "cpu"}, {"count": 1, "device": "cpu"}]], ids=str)
async def test_two_instances_on_one_device_mix_nothing_up(noida: str, tmp_path: Path, instances: object) -> None:
    """Two instances on the CPU, one given as a number and one as groups: they run at the same time, and each of 600
    records has its own answer, once."""
    model = write_model(tmp_path / "models", "echo", ECHO, max_batch_size=4, instances=instances, parameters={"ms": 3})
    namespace = await waiting_records(
        noida, "echo", [request(FORMS[at % 3], [[at]], key=b"%d" % at) for at in range(600)]
    )
    async with serving(noida, tmp_path / "models", namespace=namespace) as node:
        results = await node.results("echo", 600, settle_s=0.1)
        assert node.node.runtime.models["echo"].instances == 2
    assert {one.key: answer(one).reshape(-1).tolist() for one in results} == {b"%d" % at: [at] for at in range(600)}
    assert len(results) == 600
    assert sum(model.executions) == 600
    starts = [float(str(note["at"])) for note in model.journal]
    assert min(b - a for a, b in itertools.pairwise(starts)) < 0.003, "one at a time they start 3 ms apart"
