"""The fast path equals the plain one, values survive the round trip, and hostile bytes are always a typed refusal."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.codec import Answer, Decoded, Encoded, Form, Limits
from schemas.codecs import decode_many, decode_response, encode_many, encode_request, form_of
from schemas.codecs.arrow import ARROW
from schemas.codecs.decode import decode_each
from schemas.codecs.encode import encode_each
from schemas.codecs.plain import PLAIN, PLAIN_SQUEEZED, RAW, RAW_SQUEEZED
from schemas.errors import DecodeError, HeadraceError, ValidationError
from schemas.model import Datatype, ModelConfig
from schemas.tensors import Array, dtype_of
from tests.unit.schemas.codec_models import model, v2_body, v2_input

WIDTHS: dict[Datatype, int] = {
    "INT8": 8, "INT16": 16, "INT32": 32, "INT64": 64, "UINT8": 8, "UINT16": 16, "UINT32": 32, "UINT64": 64,
}  # fmt: skip
INTEGERS: dict[Datatype, tuple[int, int]] = {
    name: (0, 2**width - 1) if name.startswith("U") else (-(2 ** (width - 1)), 2 ** (width - 1) - 1)
    for name, width in WIDTHS.items()
}
FLOATS: dict[Datatype, int] = {"FP16": 16, "FP32": 32, "FP64": 64}
DATATYPES: list[Datatype] = [*INTEGERS, *FLOATS, "BOOL", "BYTES", "BF16"]


def elements(datatype: Datatype) -> st.SearchStrategy[Any]:
    if datatype in INTEGERS:
        return st.integers(*INTEGERS[datatype])
    if datatype == "FP16":  # by their bits: hypothesis throws most of its own away
        return st.tuples(st.integers(0, 0x7BFF), st.integers(0, 1)).map(
            lambda drawn: float(np.array(drawn[0] | drawn[1] << 15, np.uint16).view(np.float16))
        )
    if datatype in FLOATS:
        return st.floats(width=FLOATS[datatype], allow_nan=False, allow_infinity=False)  # type: ignore[arg-type]
    if datatype == "BF16":
        return st.integers(-128, 128).map(float)
    return st.booleans() if datatype == "BOOL" else st.text(max_size=5)


def awkward(datatype: Datatype) -> st.SearchStrategy[Any]:
    """Mostly what fits, at times what does not."""
    odd: st.SearchStrategy[Any] = st.sampled_from(
        [None, True, 1.5, 1, -1, 2**63, 2**64, 10**400, 1e39, 65520.0, "a", [], {}]
    )
    return st.one_of(elements(datatype), elements(datatype), elements(datatype), odd)


def assert_same(fast: Decoded, plain: Decoded) -> None:
    assert {i: (type(e), str(e)) for i, e in fast.failures.items()} == {
        i: (type(e), str(e)) for i, e in plain.failures.items()
    }
    assert len(fast.groups) == len(plain.groups)
    for one, other in zip(fast.groups, plain.groups, strict=True):
        for field in ("indices", "rows", "signature", "answers", "parameters", "priorities", "timeouts_ms"):
            assert getattr(one, field) == getattr(other, field)
        assert list(one.tensors) == list(other.tensors)
        for name, array in one.tensors.items():
            assert array.dtype == other.tensors[name].dtype
            assert array.shape == other.tensors[name].shape
            assert array.tolist() == other.tensors[name].tolist() or array.tobytes() == other.tensors[name].tobytes()


def every_record_has_one_place(decoded: Decoded, count: int) -> None:
    places = [*decoded.failures, *(index for group in decoded.groups for index in group.indices)]
    assert sorted(places) == list(range(count))
    assert all(isinstance(error, HeadraceError) for error in decoded.failures.values())
    for group in decoded.groups:
        assert group.indices == sorted(group.indices)
        assert len(group.rows) == len(group.answers) == len(group.indices)


@pytest.mark.parametrize("datatype", DATATYPES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_json_runs_decode_like_single_records(datatype: Datatype, data: st.DataObject) -> None:
    config = model(("x", datatype, (2,)), max_batch_size=data.draw(st.sampled_from([2, 3, 32])))
    strategy = data.draw(st.sampled_from([elements(datatype), awkward(datatype)]))
    style = data.draw(st.sampled_from(["v2", "plain", "mixed"]))
    ids: st.SearchStrategy[dict[str, object]] = st.sampled_from([{}, {}, {"id": "é"}, {"id": ""}, {"id": None}])
    values = []
    for row in data.draw(st.lists(st.lists(strategy, min_size=2, max_size=2), max_size=6)):
        v2 = style == "v2" or (style == "mixed" and data.draw(st.booleans()))
        body = {"inputs": [v2_input("x", datatype, [1, 2], row)], **data.draw(ids)} if v2 else {"x": row}
        values.append(json.dumps(body).encode())
    decoded = decode_many(Form.JSON, values, None, config, Limits())
    every_record_has_one_place(decoded, len(values))
    assert_same(decoded, decode_each(Form.JSON, values, None, config, Limits()))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_json_runs_with_several_inputs_decode_like_single_records(data: st.DataObject) -> None:
    config = model(("x", "FP32", (2, 1)), ("not a name", "INT8", (1,)), ("t", "BYTES", ()))
    good = [
        v2_input("x", "FP32", [1, 2, 1], [1, 2]),
        v2_input("not a name", "INT8", [1, 1], [3]),
        v2_input("t", "BYTES", [1], ["é"]),
    ]
    values = []
    for _ in range(data.draw(st.integers(1, 4))):
        inputs = [dict(entry) for entry in good]
        change = data.draw(st.sampled_from(["", "", "", "order", "drop", "shape", "datatype", "data", "more"]))
        if change == "order":
            inputs.reverse()
        elif change == "drop":
            inputs.pop()
        elif change == "more":
            inputs[0]["parameters"] = {"content_type": "np"}
        elif change:
            inputs[1][change] = {"shape": [1], "datatype": "INT16", "data": ["3"]}[change]
        values.append(v2_body(*inputs))
    decoded = decode_many(Form.JSON, values, None, config, Limits())
    assert_same(decoded, decode_each(Form.JSON, values, None, config, Limits()))


@pytest.mark.parametrize("datatype", DATATYPES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_raw_runs_decode_like_single_records(datatype: Datatype, data: st.DataObject) -> None:
    config = model(("x", datatype, (1,)), max_batch_size=data.draw(st.sampled_from([0, 2, 32])))
    size = dtype_of(datatype).itemsize
    sizes = st.sampled_from([size, size, size, 2 * size, 0, size + 1])
    values = [data.draw(st.binary(min_size=n, max_size=n)) for n in data.draw(st.lists(sizes, max_size=6))]
    decoded = decode_many(Form.RAW, values, None, config, Limits())
    every_record_has_one_place(decoded, len(values))
    assert_same(decoded, decode_each(Form.RAW, values, None, config, Limits()))


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_binary_runs_decode_like_single_records(data: st.DataObject) -> None:
    config = model(("x", "FP32", (2,)), ("z", "INT64", (-1,)), max_batch_size=data.draw(st.sampled_from([1, 3, 32])))
    values, lengths = [], []
    for _ in range(data.draw(st.integers(1, 6))):
        rows = data.draw(st.sampled_from([1, 1, 1, 2]))
        free = data.draw(st.sampled_from([1, 1, 1, 2]))
        number = data.draw(st.integers(0, 9))
        value, headers = encode_request(
            {"x": np.full((rows, 2), number, np.float32), "z": np.full((rows, free), number)},
            id=data.draw(st.sampled_from([None, None, "i"])),
            parameters=data.draw(st.sampled_from([None, None, {"priority": 1, "k": 2}])),
        )
        damage = data.draw(st.sampled_from([b"", b"", b"", b"!"]))
        values.append(value + damage)
        lengths.append(int(headers[1][1] or b""))
    decoded = decode_many(Form.V2_BINARY, values, lengths, config, Limits())
    every_record_has_one_place(decoded, len(values))
    assert_same(decoded, decode_each(Form.V2_BINARY, values, lengths, config, Limits()))


def assert_encoded_same(fast: Encoded, plain: Encoded) -> None:
    assert [str(v) if isinstance(v, HeadraceError) else v for v in fast.values] == [
        str(v) if isinstance(v, HeadraceError) else v for v in plain.values
    ]
    assert fast.headers == plain.headers


def stack(datatype: Datatype, rows: Sequence[Sequence[Any]], shape: tuple[int, ...]) -> Array:
    flat = [e.encode() if isinstance(e, str) else e for row in rows for e in row]
    array = np.empty(len(flat), dtype_of(datatype))
    array[:] = flat
    return array.reshape(shape)


@pytest.mark.parametrize("datatype", DATATYPES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_runs_are_encoded_like_single_records(datatype: Datatype, data: st.DataObject) -> None:
    dims = data.draw(st.sampled_from([(2,), (2, 1), (1, 2)]))
    second = data.draw(st.booleans())
    outputs: list[tuple[str, Datatype, tuple[int, ...]]] = [("y", datatype, dims)]
    config = model(("x", "FP32", (1,)), outputs=[*outputs, ("s", "FP64", ())] if second else outputs)
    count = data.draw(st.integers(1, 4))
    rows = data.draw(st.sampled_from([[1] * count, [1] * count, [2] + [1] * (count - 1)]))
    total = sum(rows)
    content = data.draw(st.lists(st.lists(elements(datatype), min_size=2, max_size=2), min_size=total, max_size=total))
    arrays = {"y": stack(datatype, content, (total, *dims))}
    if second:
        arrays["s"] = np.array([np.nan, 1, 0.1, np.inf, 5][:total])
    alike = data.draw(
        st.sampled_from(
            [
                (Form.JSON, Answer("v2")),
                (Form.JSON, Answer("v2", id='"é')),
                (Form.JSON, Answer("v2", outputs=("y",))),
                (Form.JSON, Answer("v2", binary=frozenset({"y"}))),
                (Form.V2_BINARY, Answer("v2", binary=frozenset(arrays))),
                (Form.JSON, PLAIN),
                (Form.JSON, PLAIN_SQUEEZED),
                (Form.RAW, RAW),
                (Form.RAW, RAW_SQUEEZED),
            ]
        )
    )
    form, answer = alike
    answers = [answer] * count
    if data.draw(st.booleans()):
        answers[-1] = Answer("v2", id="own")
    if answer.squeeze and rows[0] == 2:
        rows = [1] * count
        arrays = {name: array[:count] for name, array in arrays.items()}
    ids = [f'"{i}\n' for i in range(count)]
    fast = encode_many(form, answers, rows, arrays, config, ids)
    assert_encoded_same(fast, encode_each(answers, rows, arrays, config, ids))


@pytest.mark.parametrize("datatype", DATATYPES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_values_survive_the_round_trip_in_json_and_in_binary(datatype: Datatype, data: st.DataObject) -> None:
    config = model(("x", datatype, (2,)), outputs=[("x", datatype, (2,))])
    rows = data.draw(st.lists(st.lists(elements(datatype), min_size=2, max_size=2), min_size=1, max_size=3))
    sent = stack(datatype, rows, (len(rows), 2))
    value, headers = encode_request({"x": sent}, id="日本", datatypes={"x": datatype})
    length = int(headers[1][1] or b"")
    json_value = v2_body(v2_input("x", datatype, [len(rows), 2], rows), id="日本")
    for form, request, json_length in ((Form.V2_BINARY, value, length), (Form.JSON, json_value, None)):
        (group,) = decode_many(form, [request], [json_length], config, Limits()).groups
        assert group.tensors["x"].tobytes() == sent.tobytes() or group.tensors["x"].tolist() == sent.tolist()
        encoded = encode_many(form, group.answers, group.rows, group.tensors, config, ["made"])
        answer = encoded.values[0]
        assert isinstance(answer, bytes)
        outputs, fields = decode_response(answer, encoded.headers[0])
        assert outputs["x"].tolist() == sent.tolist()
        assert outputs["x"].dtype == sent.dtype
        assert fields["id"] == "日本"


MODELS: list[ModelConfig] = [
    model(("x", "FP32", (2,))),
    model(("x", "BYTES", (1,)), max_batch_size=0),
    model(("x", "INT64", (-1, -1)), ("o", "BOOL", (1,)), optional=["o"]),
    model(("x", "FP16", ()), ("inputs", "BF16", (-1,))),
]
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                ["inputs", "x", "o", "name", "shape", "datatype", "data", "parameters", "outputs", "id", "timeout",
                 "binary_data_size", "priority", "binary_data"]
            ),
            inner,
            max_size=4,
        ),
    ),
    max_leaves=12,
)  # fmt: skip
SIZES = st.one_of(st.integers(-2, 3), st.sampled_from([2**31, 2**63, 2**64, 2**200]))
ENTRY = st.fixed_dictionaries(
    {
        "name": st.sampled_from(["x", "o", "inputs"]),
        "datatype": st.sampled_from(["FP32", "BYTES", "INT64", "BOOL", "FP16", "BF16"]),
        "shape": st.lists(SIZES, max_size=4),
    },
    optional={
        "data": JSON,
        "parameters": st.fixed_dictionaries({}, optional={"binary_data_size": SIZES}),
    },
)
ALMOST = st.fixed_dictionaries({"inputs": st.lists(ENTRY, max_size=3)}, optional={"parameters": JSON, "outputs": JSON})


@settings(max_examples=400, deadline=None)
@given(
    config=st.sampled_from(MODELS),
    form=st.sampled_from([Form.JSON, Form.V2_BINARY, Form.RAW]),
    bodies=st.lists(st.tuples(st.one_of(JSON, ALMOST), st.binary(max_size=20)), min_size=1, max_size=3),
    off=st.sampled_from([0, 0, 0, 1, -1]),
)
def test_hostile_values_are_typed_refusals(
    config: ModelConfig, form: Form, bodies: list[tuple[object, bytes]], off: int
) -> None:
    heads = [json.dumps(body).encode() for body, _ in bodies]
    values = [head + tail for head, (_, tail) in zip(heads, bodies, strict=True)]
    lengths = [len(head) + off for head in heads]
    decoded = decode_many(form, values if form is not Form.JSON else heads, lengths, config, Limits(max_bytes=10_000))
    every_record_has_one_place(decoded, len(values))
    for error in decoded.failures.values():
        assert len(str(error)) < 1000


@settings(max_examples=200, deadline=None)
@given(
    config=st.sampled_from(MODELS),
    form=st.sampled_from(list(Form)),
    values=st.lists(st.binary(max_size=60), max_size=4),
    length=st.one_of(st.none(), st.integers(-5, 100)),
)
def test_arbitrary_bytes_are_typed_refusals(
    config: ModelConfig, form: Form, values: list[bytes], length: int | None
) -> None:
    decoded = decode_many(form, values, [length] * len(values), config, Limits())
    every_record_has_one_place(decoded, len(values))


@settings(max_examples=150, deadline=None)
@given(position=st.integers(0, 10_000), byte=st.integers(0, 255))
def test_arrow_streams_with_a_changed_byte_are_read_or_refused(position: int, byte: int) -> None:
    config = model(("x", "FP32", (2,)), outputs=[("x", "FP32", (2,))])
    (value,) = encode_many(Form.ARROW, [ARROW], [3], {"x": np.ones((3, 2), np.float32)}, config, ["i"]).values
    assert isinstance(value, bytes)
    at = position % len(value)
    damaged = value[:at] + bytes([byte]) + value[at + 1 :]
    every_record_has_one_place(decode_many(Form.ARROW, [damaged], None, config, Limits()), 1)


@settings(max_examples=200, deadline=None)
@given(
    value=st.one_of(st.binary(max_size=60), st.one_of(JSON, ALMOST).map(lambda body: json.dumps(body).encode())),
    content_type=st.sampled_from([b"application/json", b"application/octet-stream", b"", b"text/html", b"\xff"]),
    length=st.sampled_from([None, b"5", b"0", b"x", b"9" * 30]),
)
def test_a_caller_meets_only_typed_errors(value: bytes, content_type: bytes, length: bytes | None) -> None:
    headers: list[tuple[str, bytes | None]] = [("content-type", content_type)]
    if length is not None:
        headers.append(("inference-header-content-length", length))
    outputs_value = value.replace(b'"inputs"', b'"outputs"').replace(b"{", b'{"model_name":"m",', 1)
    for each in (value, outputs_value):
        try:
            decode_response(each, tuple(headers))
        except (DecodeError, ValidationError):
            continue


@given(content_type=st.text(max_size=40), length=st.one_of(st.none(), st.integers(-1, 5)))
def test_unknown_content_types_never_crash(content_type: str, length: int | None) -> None:
    for config in MODELS:
        try:
            assert isinstance(form_of(content_type, length, config), Form)
        except DecodeError:
            continue
