"""Tensors in and out, row by row of the requirements, through topics and the client library."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import get_args

import ml_dtypes
import numpy as np
import orjson
import pytest

from headrace import Client, ValidationError
from schemas.model import Datatype
from schemas.record import Headers
from schemas.tensors import Array, dtype_of
from tests.support.models import ECHO, TELLING, tensors, write_model
from tests.support.nodes import Serving, serving, waiting_records
from tests.support.payloads import FORMS, Form, answer, error_of, request
from tests.support.records import Sent, make_topic, read_all, unique
from tests.support.waiting import eventually

BINARY = b"application/octet-stream"


def v2(shape: list[int], data: list[object], **more: object) -> bytes:
    return orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "data": data}], **more})


def v2_binary(shape: list[int], raw: bytes, *, size: int | None = None, key: bytes | None = None) -> Sent:
    """A binary tensor of ``raw``, whatever its shape says, announced as ``size`` bytes."""
    parameters = {"binary_data_size": len(raw) if size is None else size}
    head = orjson.dumps({"inputs": [{"name": "x", "datatype": "FP32", "shape": shape, "parameters": parameters}]})
    headers: Headers = (("content-type", BINARY), ("inference-header-content-length", b"%d" % len(head)))
    return Sent(head + raw, key, headers)


FIVE = [100.0, 101.0, 102.0, 103.0, 104.0]
SEVEN: list[object] = [1, 2, 3, 4, 5, 6, 7]
MISFITS = {
    b"7 values for 5": Sent(v2([1, 5], SEVEN), b"7 values for 5"),
    b"3 values for 5": Sent(v2([1, 5], SEVEN[:3]), b"3 values for 5"),
    b"rows that are not there": Sent(v2([2, 5], SEVEN[:5]), b"rows that are not there"),
    b"nested otherwise": Sent(v2([1, 5], [[[1, 2, 3], [4, 5, 6, 7]]]), b"nested otherwise"),
    b"negative": Sent(v2([-1, 5], SEVEN[:5]), b"negative"),
    b"rank": Sent(v2([5], SEVEN[:5]), b"rank"),
    b"other width": Sent(v2([1, 7], SEVEN), b"other width"),
    b"plain": Sent(b'{"x":[[1,2,3,4,5,6,7]]}', b"plain"),
    b"ragged": Sent(b'{"x":[[1,2,3,4,5],[1,2]]}', b"ragged"),
    b"bytes over": v2_binary([1, 5], bytes(28), key=b"bytes over"),
    b"bytes short": v2_binary([1, 5], bytes(12), key=b"bytes short"),
    b"bytes of a neighbour": v2_binary([1, 5], bytes(20), size=40, key=b"bytes of a neighbour"),
    b"raw": Sent(bytes(28), b"raw", (("content-type", BINARY),)),
}


async def test_B6_data_that_does_not_fit_its_shape_is_refused_and_leaks_into_no_neighbour(
    noida: str, tmp_path: Path
) -> None:
    """In one window: A says [1,5] and sends 7 values, B sends 100 to 104. A is refused before batching, with what was
    expected and what came; B has exactly its own values. So for every way of not fitting, in every form."""
    model = write_model(tmp_path / "models", "echo", ECHO, **tensors("FP32", [5]))
    good = [request(form, [FIVE]) for form in FORMS]
    sent = [one for at, bad in enumerate(MISFITS.values()) for one in (bad, good[at % 3])]
    namespace = await waiting_records(noida, "echo", [Sent(one.value, one.key, one.headers, 0) for one in sent])
    async with serving(noida, tmp_path / "models", namespace=namespace) as node:
        results = await node.results("echo", len(MISFITS), settle_s=0.1)
        letters = await node.dead("echo", len(MISFITS))
        await node.until_committed("echo", {0: len(sent)})
    assert [answer(one).tolist() for one in results] == [[FIVE]] * len(MISFITS)
    messages = {one.key: error_of(one) for one in letters}
    assert messages.keys() == MISFITS.keys()
    assert {code for code, _ in messages.values()} <= {"validation", "decode"}, messages
    code, message = messages[b"7 values for 5"]
    assert code == "validation"
    assert "'x'" in message
    assert "5" in message
    assert "7" in message
    assert sum(model.executions) == len(MISFITS), "what was refused reached the model"


async def test_B6_a_caller_is_refused_while_the_other_has_its_own_answer(noida: str, tmp_path: Path) -> None:
    """Two callers at once, A with the wrong shape: A gets a validation error (400), B its own result."""
    write_model(tmp_path / "models", "echo", ECHO, **tensors("FP32", [5]), max_queue_delay_ms=50)
    async with serving(noida, tmp_path / "models") as node, Client(noida, namespace=node.namespace) as client:
        a, b = await asyncio.gather(
            client.infer("echo", v2([1, 5], SEVEN), content_type="application/json"),
            client.infer("echo", {"x": [FIVE]}),
            return_exceptions=True,
        )
    assert isinstance(a, ValidationError)
    assert a.http_status == 400
    assert not isinstance(b, BaseException)
    assert b.outputs["y"].tolist() == [FIVE]


EXACT: list[tuple[Datatype, list[int]]] = [
    ("INT64", [9007199254740993, -9223372036854775808, 9223372036854775807, -9007199254740993]),
    ("UINT64", [18446744073709551615, 9007199254740993, 0, 9223372036854775809]),
]


@pytest.mark.parametrize(("datatype", "numbers"), EXACT, ids=["INT64", "UINT64"])
async def test_B9_64_bit_integers_keep_every_digit(
    noida: str, tmp_path: Path, datatype: Datatype, numbers: list[int]
) -> None:
    """9007199254740993 and the ends of INT64 and UINT64 come back with the same digits, in every form, alone and in a
    batch, as text and as numbers."""
    write_model(tmp_path / "models", "echo", ECHO, **tensors(datatype, [-1]))
    sent = [request(form, np.array([numbers], dtype_of(datatype)), datatype=datatype) for form in FORMS]
    namespace = await waiting_records(noida, "echo", [*sent, *sent])
    async with serving(noida, tmp_path / "models", namespace=namespace) as node:
        results = await node.results("echo", 6)
        async with Client(noida, namespace=namespace) as client:
            called = await client.infer("echo", {"x": np.array([numbers], dtype_of(datatype))})
            listed = await client.infer("echo", {"x": [[numbers[0]]]})
    digits = ",".join(map(str, numbers)).encode()
    for one in results:
        if one.header("inference-header-content-length") is None:
            assert one.value is not None
            assert digits in one.value.replace(b" ", b"")
        else:
            assert answer(one).dtype == dtype_of(datatype)
            assert answer(one).tolist() == [numbers]
    assert len([one for one in results if one.header("inference-header-content-length")]) == 2
    assert called.outputs["y"].tolist() == [numbers]
    assert listed.outputs["y"].tolist() == [[numbers[0]]]


@pytest.mark.parametrize("text", ["9223372036854775808", "1e400", "1.5", '"7"', "true"])
async def test_B9_what_is_no_64_bit_integer_is_refused_and_not_bent(noida: str, tmp_path: Path, text: str) -> None:
    """A number beyond INT64, a fraction, text or a boolean is refused by name and never rounded or wrapped."""
    write_model(tmp_path / "models", "echo", ECHO, **tensors("INT64", [-1]))
    async with serving(noida, tmp_path / "models") as node:
        await node.send(
            "echo",
            f'{{"x":[[{text}]]}}'.encode(),
            f'{{"inputs":[{{"name":"x","datatype":"INT64","shape":[1,1],"data":[{text}]}}]}}'.encode(),
            b'{"x":[[7]]}',
        )
        letters = await node.dead("echo", 2)
        (result,) = await node.results("echo", 1)
    assert answer(result).tolist() == [[7]]
    assert {error_of(one)[0] for one in letters} <= {"validation", "decode"}


async def held_together(node: Serving, rows: int) -> None:
    await eventually(lambda: node.node.runtime.models["echo"].waiting_rows >= rows, every_s=0.005)


async def test_B22_each_caller_gets_its_own_rows_of_a_shared_batch(noida: str, tmp_path: Path) -> None:
    """Three callers with 1, 2 and 3 rows in one execution: row counts 1, 2 and 3, and each its own values. The same for
    records of every form that share an execution, through the results topic and through reply topics."""
    model = write_model(tmp_path / "models", "echo", ECHO, **tensors("FP32", [2]))
    replies = await make_topic(noida, unique("replies"), partitions=2)

    def rows(count: int, first: float) -> list[list[float]]:
        return [[first + row, -first - row] for row in range(count)]

    async with serving(noida, tmp_path / "models") as node, Client(noida, namespace=node.namespace) as client:
        model.shut()
        await node.send("echo", request("plain", rows(1, 0), key=b"plug"))
        await eventually(lambda: bool(model.executions), every_s=0.005)
        calls = [asyncio.create_task(client.infer("echo", {"x": rows(count, 10.0 * count)})) for count in (1, 2, 3)]
        await held_together(node, 6)
        expected: dict[bytes, list[list[float]]] = {}
        sent = []
        for at, form in enumerate(FORMS):
            for count in (1, 2, 3):
                key = f"{form} {count}".encode()
                expected[key] = rows(count, 100.0 * (at + 1) + 10 * count)
                to = (("headrace-reply-to", f"{replies}:{count % 2}".encode()),) if count > 1 else ()
                sent.append(request(form, expected[key], key=key, headers=to))
        await node.send("echo", *sent)
        await held_together(node, 24)
        model.open()
        answers = await asyncio.gather(*calls)
        results = await node.results("echo", 4)
        replied = await read_all(noida, replies, count=6)
    assert model.executions == [1, 24]
    assert [one.outputs["y"].tolist() for one in answers] == [rows(count, 10.0 * count) for count in (1, 2, 3)]
    got = {one.key: answer(one).tolist() for one in (*results, *replied) if one.key != b"plug"}
    assert got == expected
    assert {one.partition for one in replied if one.key and one.key.endswith(b"2")} == {0}
    assert {one.partition for one in replied if one.key and one.key.endswith(b"3")} == {1}


def sample(datatype: Datatype) -> Array:
    if datatype == "BYTES":
        return np.array([[b"a", b"\xff\x00"]], object)
    if datatype == "BOOL":
        return np.array([[True, False]])
    return np.array([[1, 100]], dtype_of(datatype))


NAMES: dict[Datatype, str] = {name: "object" if name == "BYTES" else str(dtype_of(name)) for name in get_args(Datatype)}


async def test_B30_the_model_sees_the_declared_datatype(noida: str, tmp_path: Path) -> None:
    """INT32, INT8, UINT16, FP64, BOOL and every other datatype, in every form that can carry it, reach the model as
    what they were declared, and come back as it."""
    for name in NAMES:
        declared = tensors(name, [2])
        telling = {**declared, "outputs": [{"name": "y", "datatype": "BYTES", "shape": [1]}]}
        write_model(tmp_path / "models", f"tell-{name}", TELLING, **telling)
        write_model(tmp_path / "models", f"echo-{name}", ECHO, **declared)
    async with serving(noida, tmp_path / "models") as node, Client(noida, namespace=node.namespace) as client:

        async def told(name: Datatype) -> tuple[Datatype, list[object], list[Array]]:
            """What the model says that it was given, in each form, and what comes back from the one that repeats it."""
            binary = {"x": sample(name)}
            answers: list[object] = [(await client.infer(f"tell-{name}", binary)).outputs["y"].tolist()]
            echoes = [(await client.infer(f"echo-{name}", binary)).outputs["y"]]
            # v2 gives the 16-bit floats no JSON, and JSON has no bytes that are not text.
            forms: tuple[Form, ...] = () if name in ("BYTES", "FP16", "BF16") else ("plain", "v2")
            for form in forms:
                value = request(form, sample(name), datatype=name).value or b""
                said = await client.infer(f"tell-{name}", value, content_type="application/json")
                answers.append(said.outputs["y"].reshape(1, -1).tolist())
                back = await client.infer(f"echo-{name}", value, content_type="application/json")
                if form == "v2":  # a plain answer names no datatypes
                    echoes.append(back.outputs["y"])
            return name, answers, echoes

        found = await asyncio.gather(*[told(name) for name in NAMES])
    for name, answers, echoes in found:
        assert answers == [[[NAMES[name].encode()]]] * len(answers), name
        for echoed in echoes:
            assert echoed.dtype == dtype_of(name), name
            assert echoed.tolist() == sample(name).tolist(), name
    assert NAMES["BF16"] == str(np.dtype(ml_dtypes.bfloat16))


async def test_B30_another_datatype_than_the_declared_one_is_refused_by_name(noida: str, tmp_path: Path) -> None:
    """A request that says FP32 to a model declared INT32 is refused with both names and not converted."""
    model = write_model(tmp_path / "models", "echo", ECHO, **tensors("INT32", [2]))
    async with serving(noida, tmp_path / "models") as node:
        await node.send(
            "echo",
            request("v2", [[1, 2]], datatype="FP32"),
            request("binary", np.array([[1, 2]], np.int64), datatype="INT64"),
            b'{"x":[[1.5,2]]}',
            request("v2", [[1, 2]], datatype="INT32"),
        )
        letters = await node.dead("echo", 3)
        (result,) = await node.results("echo", 1, settle_s=0.1)
        await node.until_committed("echo", {0: 4})
    assert answer(result).tolist() == [[1, 2]]
    assert {error_of(one)[0] for one in letters} == {"validation"}
    messages = [error_of(one)[1] for one in letters]
    assert sum("INT32" in message for message in messages) == 3, messages
    assert any("FP32" in message for message in messages)
    assert any("INT64" in message for message in messages)
    assert model.executions == [1]
