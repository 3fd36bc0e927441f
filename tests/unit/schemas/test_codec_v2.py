"""The v2 protocol's values, in and out."""

from __future__ import annotations

import json
import struct
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from schemas.codec import Answer, Encoded, Form, Limits
from schemas.codecs import decode_many, decode_response, encode_many, encode_request
from schemas.errors import DecodeError, HeadraceError, ModelError, TooLargeError, ValidationError
from schemas.model import Datatype, ModelConfig
from schemas.tensors import Array
from tests.unit.schemas.codec_models import decode_one, model, only, refusal, v2_body, v2_input

NUMPY: dict[Datatype, object] = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64", "INT8": "int8",
    "INT16": "int16", "INT32": "int32", "INT64": "int64", "FP16": "float16", "BF16": ml_dtypes.bfloat16,
    "FP32": "float32", "FP64": "float64", "BYTES": "object",
}  # fmt: skip


def binary_request(inputs: list[dict[str, Any]], tail: bytes, **more: object) -> tuple[bytes, int]:
    head = json.dumps({"inputs": inputs, **more}).encode()
    return head + tail, len(head)


def binary_input(name: str, datatype: str, shape: list[int], size: int) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "parameters": {"binary_data_size": size}}


def encode_one(config: ModelConfig, answer: Answer, output: object, *, rows: int = 1, name: str = "y") -> Encoded:
    return encode_many(Form.JSON, [answer], [rows], {name: np.asarray(output)}, config, ["made"])


def body_of(encoded: Encoded, index: int = 0) -> dict[str, Any]:
    value = encoded.values[index]
    if isinstance(value, HeadraceError):
        raise value

    def not_json(word: str) -> object:
        raise AssertionError(f"{word} is not JSON")

    body: dict[str, Any] = json.loads(value, parse_constant=not_json)
    return body


@pytest.mark.parametrize(
    ("datatype", "flat", "nested"),
    [
        ("BYTES", ["a", "b"], [["a"], ["b"]]),
        ("INT32", [1, -2], [[1], [-2]]),
        ("BOOL", [True, False], [[True], [False]]),
        ("FP32", [1.5, 2], [[1.5], [2]]),
    ],
)
def test_B1_flat_and_nested_data_are_equal(datatype: Datatype, flat: list[object], nested: list[object]) -> None:
    config = model(("x", datatype, (1,)))
    for data in (flat, nested):
        array = decode_one(config, v2_body(v2_input("x", datatype, [2, 1], data))).tensors["x"]
        expected = [[e.encode() if isinstance(e, str) else e] for e in flat]
        assert array.tolist() == expected


def test_B6_one_bad_record_fails_alone_and_its_neighbour_keeps_its_rows() -> None:
    config = model(("x", "FP32", (5,)))
    bad = v2_body(v2_input("x", "FP32", [1, 5], [1, 2, 3, 4, 5, 6, 7]))
    good = v2_body(v2_input("x", "FP32", [1, 5], [100, 101, 102, 103, 104]))
    decoded = decode_many(Form.JSON, [bad, good], None, config, Limits())
    assert list(decoded.failures) == [0]
    assert str(decoded.failures[0]) == "input 'x' of model 'm': shape [1,5] needs 5 elements, got 7 in data"
    (group,) = decoded.groups
    assert group.indices == [1]
    assert group.tensors["x"].tolist() == [[100, 101, 102, 103, 104]]


def test_B8_json_answers_write_nan_and_infinities_as_null_and_binary_keeps_the_bits() -> None:
    config = model(("x", "FP32", (4,)), outputs=[("y", "FP32", (4,))])
    output = np.array([[1, np.nan, np.inf, -np.inf]], np.float32)
    assert body_of(encode_one(config, Answer("v2"), output))["outputs"][0]["data"] == [1.0, None, None, None]
    encoded = encode_one(config, Answer("v2", binary=frozenset({"y"})), output)
    assert isinstance(encoded.values[0], bytes)
    assert encoded.values[0].endswith(output.tobytes())


def test_null_in_floating_data_is_nan() -> None:
    array = decode_one(model(("x", "FP16", (2,))), v2_body(v2_input("x", "FP16", [1, 2], [None, 1]))).tensors["x"]
    assert np.isnan(array[0, 0])
    assert array[0, 1] == 1


@pytest.mark.parametrize(
    ("datatype", "numbers"),
    [("INT64", [9007199254740993, -9223372036854775808]), ("UINT64", [18446744073709551615, 9007199254740993])],
)
def test_B9_64_bit_integers_are_exact_both_ways(datatype: Datatype, numbers: list[int]) -> None:
    config = model(("x", datatype, (2,)), outputs=[("y", datatype, (2,))])
    group = decode_one(config, v2_body(v2_input("x", datatype, [1, 2], numbers)))
    assert group.tensors["x"].tolist() == [numbers]
    assert body_of(encode_one(config, group.answers[0], group.tensors["x"]))["outputs"][0]["data"] == numbers


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_B11_half_floats_pass_as_bytes_and_as_json_numbers(datatype: Datatype) -> None:
    config = model(("x", datatype, (3,)), outputs=[("y", datatype, (3,))])
    raw = b"\x80\x3f\x00\xc0\x49\x40"
    value, length = binary_request([binary_input("x", datatype, [1, 3], 6)], raw)
    group = decode_one(config, value, form=Form.V2_BINARY, json_length=length)
    back = encode_many(Form.V2_BINARY, group.answers, group.rows, {"y": group.tensors["x"]}, config, ["i"])
    assert isinstance(back.values[0], bytes)
    assert back.values[0].endswith(raw)
    group = decode_one(config, v2_body(v2_input("x", datatype, [1, 3], [1.5, -2, 0.1])))
    nearest = {"FP16": 0.0999755859375, "BF16": 0.10009765625}[datatype]
    assert group.tensors["x"].astype(np.float64).tolist() == [[1.5, -2.0, nearest]]
    data = body_of(encode_one(config, Answer("v2"), group.tensors["x"]))["outputs"][0]["data"]
    assert np.float32(data[2]) == np.float32(nearest)


@pytest.mark.parametrize(
    ("tail", "message"),
    [
        (b"\0" * 12, "input 'x' of model 'm': expected 16 bytes (binary_data_size), got 12 in the rest of the value"),
        (b"\0" * 20, "expected 16 bytes of binary tensors (the sum of binary_data_size), got 20 after the JSON"),
    ],
)
def test_B13_binary_part_of_another_length_is_refused_with_both_counts(tail: bytes, message: str) -> None:
    config = model(("x", "FP32", (4,)))
    value, length = binary_request([binary_input("x", "FP32", [1, 4], 16)], tail)
    error = refusal(config, value, form=Form.V2_BINARY, json_length=length)
    assert isinstance(error, DecodeError)
    assert str(error) == message


def test_B13_binary_part_of_the_right_length_passes_and_without_the_header_it_is_refused() -> None:
    config = model(("x", "FP32", (4,)))
    value, length = binary_request([binary_input("x", "FP32", [1, 4], 16)], b"\0" * 16)
    assert decode_one(config, value, form=Form.V2_BINARY, json_length=length).tensors["x"].shape == (1, 4)
    json_only, _ = binary_request([binary_input("x", "FP32", [1, 4], 16)], b"")
    assert "set the header inference-header-content-length" in str(refusal(config, json_only))
    assert isinstance(refusal(config, value), DecodeError)
    for wrong in (None, 0, len(value) + 1, length - 1):
        assert refusal(config, value, form=Form.V2_BINARY, json_length=wrong).code == "decode"
    size = [binary_input("x", "FP32", [1, 4], 12)]
    value, length = binary_request(size, b"\0" * 12)
    assert "FP32 of shape [1,4] takes 16 bytes, got 12" in str(
        refusal(config, value, form=Form.V2_BINARY, json_length=length)
    )


def test_B18_the_id_is_echoed_and_made_only_where_absent() -> None:
    config = model(("x", "FP32", (1,)), outputs=[("y", "FP32", (1,))])
    values = [v2_body(v2_input("x", "FP32", [1, 1], [1]), id="日本-42"), v2_body(v2_input("x", "FP32", [1, 1], [2]))]
    group = only(decode_many(Form.JSON, values, None, config, Limits()))
    encoded = encode_many(Form.JSON, group.answers, group.rows, {"y": group.tensors["x"]}, config, ["a", "made"])
    assert [body_of(encoded, i)["id"] for i in (0, 1)] == ["日本-42", "made"]
    assert body_of(encoded) == {
        "id": "日本-42",
        "model_name": "m",
        "model_version": "1",
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [1, 1], "data": [1.0]}],
    }
    assert encoded.headers[0] == (("content-type", b"application/json"),)


def test_B20_each_caller_gets_only_the_outputs_it_asked_for() -> None:
    config = model(("x", "FP32", (1,)), outputs=[("a", "FP32", (1,)), ("b", "INT8", (1,))])
    x = v2_input("x", "FP32", [1, 1], [1])
    values = [v2_body(x, outputs=[{"name": "b"}]), v2_body(x, outputs=[{"name": "a"}]), v2_body(x)]
    group = only(decode_many(Form.JSON, values, None, config, Limits()))
    outputs: dict[str, Array] = {"a": np.array([[1.0], [2], [3]]), "b": np.array([[4], [5], [6]], np.int8)}
    encoded = encode_many(Form.JSON, group.answers, group.rows, outputs, config, ["i", "j", "k"])
    found = [{o["name"]: o["data"] for o in body_of(encoded, i)["outputs"]} for i in range(3)]
    assert found == [{"b": [4]}, {"a": [2.0]}, {"a": [3.0], "b": [6]}]
    error = refusal(config, v2_body(x, outputs=[{"name": "zzz"}]))
    assert str(error) == "model 'm' has no output 'zzz'; its outputs are 'a', 'b'"


def test_B22_rows_go_back_to_the_record_they_came_from() -> None:
    config = model(("x", "INT32", (1,)), outputs=[("y", "INT32", (1,))])
    values = [v2_body(v2_input("x", "INT32", [n, 1], [10 * n + i for i in range(n)])) for n in (1, 2, 3)]
    group = only(decode_many(Form.JSON, values, None, config, Limits()))
    assert group.rows == [1, 2, 3]
    encoded = encode_many(Form.JSON, group.answers, group.rows, {"y": group.tensors["x"]}, config, ["i", "j", "k"])
    assert [body_of(encoded, i)["outputs"][0]["data"] for i in range(3)] == [[10], [20, 21], [30, 31, 32]]


def test_B22_outputs_with_other_rows_than_the_batch_reach_nobody() -> None:
    config = model(("x", "INT32", (1,)), outputs=[("y", "INT32", (1,))])
    encoded = encode_many(Form.JSON, [Answer("v2")] * 2, [1, 1], {"y": np.zeros((3, 1))}, config, ["i", "j"])
    assert [str(value) for value in encoded.values] == [
        "output 'y' of model 'm': expected 2 rows, the model returned shape [3, 1]"
    ] * 2


X = v2_input("x", "FP32", [1, 2], [1, 2])


@pytest.mark.parametrize(
    ("value", "code", "says"),
    [
        (b"", "decode", "not JSON"),
        (b"{", "decode", "not JSON"),
        (b'{"inputs": [NaN]}', "decode", "not JSON"),
        (b'{"inputs": [1e999]}', "decode", "not JSON"),
        (b'"\xff"', "decode", "not JSON"),
        (b"[1]", "decode", "expected a JSON object"),
        (b'{"inputs": 5}', "decode", "expected 'inputs' to be a list, got 5"),
        (b'{"inputs": [5]}', "decode", "inputs[0]: expected an object, got 5"),
        (b'{"inputs": [{}]}', "decode", "inputs[0]: expected 'name'"),
        (b'{"inputs": []}', "validation", "needs input 'x', got none"),
        (v2_body({**X, "name": "z"}), "validation", "no input 'z'; its inputs are 'x'"),
        (v2_body(X, X), "validation", "input 'x' of model 'm': expected once, got it twice"),
        (v2_body({**X, "datatype": "INT32"}), "validation", "expected datatype FP32, got 'INT32'"),
        (v2_body({**X, "datatype": 3}), "decode", "expected 'datatype' to be a string, got 3"),
        (
            v2_body({**X, "shape": [2]}),
            "validation",
            "expected shape [-1,2], got [2]; the first dimension is the batch",
        ),
        (v2_body({**X, "shape": [1, 3]}), "validation", "expected shape [-1,2], got [1,3]"),
        (v2_body({**X, "shape": [-1, 2]}), "decode", "0 or more, got -1"),
        (v2_body({**X, "shape": [True, 2]}), "decode", "0 or more, got True"),
        (v2_body({**X, "shape": [0, 2], "data": []}), "validation", "expected at least 1 row, got 0"),
        (v2_body({**X, "shape": [2**62, 2]}), "too_large", "expected at most 65536 rows in a record"),
        (v2_body({**X, "data": [1, "2"]}), "validation", "element 1 is '2' (str), expected a number or null for FP32"),
        (v2_body({**X, "data": [1, True]}), "validation", "element 1 is True (bool)"),
        (v2_body({**X, "data": [1, 1e39]}), "validation", "element 1 is 1e+39 (float), expected a number in range"),
        (v2_body({**X, "data": [[1], [2]]}), "validation", "does not have shape [1,2]"),
        (v2_body({**X, "data": [[1, [2]]]}), "validation", "element 1 is nested (list)"),
        (v2_body({**X, "data": 5}), "validation", "expected data to be a list of 2 elements, got 5"),
        (v2_body({k: v for k, v in X.items() if k != "data"}), "decode", "expected 'data' or parameter"),
        (v2_body(X, id=5), "decode", "expected 'id' to be a string, got 5"),
        (v2_body(X, parameters={"priority": -1}), "decode", "'priority' to be 0 to"),
        (v2_body(X, outputs=[{"name": "y"}, {"name": "y"}]), "validation", "expected once in 'outputs'"),
        (v2_body(X, outputs=[{"name": "y", "parameters": {"classification": 3}}]), "validation", "not supported"),
        (b'{"inputs":' + b"[" * 101 + b"]" * 101 + b"}", "decode", "nested more than 100 deep"),
        (b"[" * 100_000, "decode", "nested more than 100 deep"),
    ],
)
def test_B24_client_mistakes_are_refused_with_what_was_expected_and_what_came(
    value: bytes, code: str, says: str
) -> None:
    error = refusal(model(("x", "FP32", (2,))), value)
    assert error.code == code
    assert says in str(error)


@pytest.mark.parametrize(
    ("datatype", "element", "expected"),
    [
        ("INT8", 128, "-128 to 127"),
        ("UINT8", -1, "0 to 255"),
        ("INT64", 2**63, "to 9223372036854775807"),
        ("UINT64", 2**64, "0 to 18446744073709551615"),
        ("INT32", 1.0, "an integer"),
        ("INT32", True, "an integer"),
        ("BOOL", 1, "true or false"),
        ("BYTES", 1, "a string"),
        ("INT32", None, "an integer"),
    ],
)
def test_numbers_are_never_bent_to_fit(datatype: Datatype, element: object, expected: str) -> None:
    error = refusal(model(("x", datatype, (1,))), v2_body(v2_input("x", datatype, [1, 1], [element])))
    assert f"element 0 is {element!r}" in str(error)
    assert expected in str(error)


def test_missing_input_names_what_is_there_and_what_is_required() -> None:
    config = model(("x", "FP32", (2,)), ("z", "FP32", (2,)), ("o", "FP32", (1,)), optional=["o"])
    error = refusal(config, v2_body(X))
    assert str(error) == "model 'm' needs input 'z', got 'x'; required are 'x', 'z'"


def test_inputs_with_different_rows_are_refused() -> None:
    config = model(("x", "FP32", (1,)), ("z", "FP32", (1,)))
    value = v2_body(v2_input("x", "FP32", [1, 1], [1]), v2_input("z", "FP32", [2, 1], [1, 2]))
    assert "expected 1 rows as in input 'x', got 2" in str(refusal(config, value))


def test_declared_bytes_are_limited_before_anything_is_allocated() -> None:
    config = model(("x", "FP64", (-1, -1, -1)))
    for shape in ([1, 2**40, 2**40, 2**40], [1, 2**62, 0, 2**62], [1, 3000, 3000, 1]):
        error = refusal(config, v2_body(v2_input("x", "FP64", shape, [])))
        assert isinstance(error, TooLargeError)
    small = Limits(max_bytes=100)
    assert isinstance(refusal(config, b" " * 101, limits=small), TooLargeError)
    one = model(("x", "FP64", (1,)))
    assert isinstance(
        refusal(one, v2_body(v2_input("x", "FP64", [2, 1], [1, 2])), limits=Limits(max_rows=1)), TooLargeError
    )


@pytest.mark.parametrize("datatype", list(NUMPY))
def test_B30_the_model_sees_the_declared_datatype_and_binary_is_not_copied(datatype: Datatype) -> None:
    config = model(("x", datatype, (2,)), outputs=[("y", datatype, (2,))])
    wanted = [[b"a\0", b""]] if datatype == "BYTES" else [[1, 0]]
    value, headers = encode_request({"x": wanted}, datatypes={"x": datatype})
    group = decode_one(config, value, form=Form.V2_BINARY, json_length=int(headers[1][1] or b""))
    array = group.tensors["x"]
    assert array.tolist() == wanted
    assert array.dtype == NUMPY[datatype]
    if datatype != "BYTES":
        assert np.shares_memory(array, np.frombuffer(value, np.uint8))
    answered = encode_many(Form.V2_BINARY, group.answers, [1], {"y": array}, config, ["i"])
    assert isinstance(answered.values[0], bytes)
    outputs, fields = decode_response(answered.values[0], answered.headers[0])
    assert outputs["y"].tolist() == wanted
    assert fields == {"id": "i", "model_name": "m", "model_version": "1"}


def test_an_unaligned_binary_tensor_is_copied_to_its_boundary() -> None:
    config = model(("x", "FP64", (1,)))
    for pad in range(8):
        head = json.dumps({"inputs": [binary_input("x", "FP64", [1, 1], 8)], "id": "i" * pad}).encode()
        value = head + struct.pack("<d", 1.5)
        array = decode_one(config, value, form=Form.V2_BINARY, json_length=len(head)).tensors["x"]
        assert array.flags.aligned
        assert array.tolist() == [[1.5]]


def test_json_and_binary_inputs_mix_in_any_order() -> None:
    config = model(("a", "INT16", (1,)), ("b", "FP32", (1,)), ("c", "BYTES", (2,)))
    tail = b"\x02\0\0\0hi\0\0\0\0" + b"\x05\x00"
    inputs = [
        binary_input("c", "BYTES", [1, 2], 10),
        v2_input("b", "FP32", [1, 1], [0.5]),
        binary_input("a", "INT16", [1, 1], 2),
    ]
    value, length = binary_request(inputs, tail)
    group = decode_one(config, value, form=Form.V2_BINARY, json_length=length)
    assert {name: array.tolist() for name, array in group.tensors.items()} == {
        "a": [[5]], "b": [[0.5]], "c": [[b"hi", b""]],
    }  # fmt: skip
    assert list(group.tensors) == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("tail", "says"),
    [
        (b"\x05\0\0\0hi", "element 0 declares 5 bytes, 2 are left"),
        (b"\x01\0\0\0hi\0", "2 bytes left where a 4-byte length was expected"),
        (b"\0\0\0\0", "expected 2 BYTES elements by its shape, got 1"),
    ],
)
def test_damaged_bytes_tensors_are_refused(tail: bytes, says: str) -> None:
    value, length = binary_request([binary_input("x", "BYTES", [1, 2], len(tail))], tail)
    assert says in str(refusal(model(("x", "BYTES", (2,))), value, form=Form.V2_BINARY, json_length=length))


def test_bool_bytes_other_than_0_and_1_are_refused() -> None:
    value, length = binary_request([binary_input("x", "BOOL", [1, 2], 2)], b"\x01\x02")
    error = refusal(model(("x", "BOOL", (2,))), value, form=Form.V2_BINARY, json_length=length)
    assert "expected each BOOL byte to be 0 or 1, got 2" in str(error)


@pytest.mark.parametrize(
    ("more", "binary"),
    [
        ({}, None),
        ({"parameters": {"binary_data_output": True}}, {"a", "b"}),
        ({"outputs": [{"name": "b", "parameters": {"binary_data": True}}, {"name": "a"}]}, {"b"}),
        ({"outputs": [{"name": "a"}], "parameters": {"binary_data_output": True}}, {"a"}),
        (
            {
                "outputs": [{"name": "a"}, {"name": "b", "parameters": {"binary_data": False}}],
                "parameters": {"binary_data_output": True},
            },
            {"a"},
        ),
    ],
)
def test_a_json_request_may_ask_for_binary_outputs(more: dict[str, object], binary: set[str] | None) -> None:
    config = model(("x", "FP32", (2,)), outputs=[("a", "FP32", (1,)), ("b", "INT8", (1,))])
    group = decode_one(config, v2_body(X, **more))
    (answer,) = group.answers
    assert answer.binary == (frozenset(binary) if binary else None)
    assert group.parameters is None
    outputs: dict[str, Array] = {"a": np.array([[1.5]], np.float32), "b": np.array([[3]], np.int8)}
    encoded = encode_many(Form.JSON, group.answers, group.rows, outputs, config, ["i"])
    assert isinstance(encoded.values[0], bytes)
    assert (encoded.headers[0][0][1] == b"application/octet-stream") is bool(binary)
    found, _ = decode_response(encoded.values[0], encoded.headers[0])
    assert found == {name: outputs[name] for name in (answer.outputs or ("a", "b"))}


def test_a_binary_request_is_answered_in_binary_unless_it_says_otherwise() -> None:
    config = model(("x", "FP32", (1,)), outputs=[("y", "FP32", (1,))])
    x = [binary_input("x", "FP32", [1, 1], 4)]
    for more, binary in (({}, True), ({"outputs": [{"name": "y"}]}, True)):
        value, length = binary_request(x, b"\0" * 4, **more)
        answer = decode_one(config, value, form=Form.V2_BINARY, json_length=length).answers[0]
        assert (answer.binary == {"y"}) is binary
    value, length = binary_request(x, b"\0" * 4, parameters={"binary_data_output": False})
    assert decode_one(config, value, form=Form.V2_BINARY, json_length=length).answers[0].binary is None


def test_priority_and_timeout_are_taken_and_other_parameters_forwarded() -> None:
    config = model(("x", "FP32", (2,)))
    values = [v2_body(X, parameters={"priority": 2, "timeout": 2500, "temperature": 0.5}), v2_body(X)]
    group = only(decode_many(Form.JSON, values, None, config, Limits()))
    assert group.parameters == [{"temperature": 0.5}, {}]
    assert group.priorities == [2, 0]
    assert group.timeouts_ms == [2.5, None]
    without = decode_one(config, v2_body(X))
    assert (without.parameters, without.priorities, without.timeouts_ms) == (None, None, None)


def test_groups_keep_order_hold_one_signature_and_stop_at_max_batch_size() -> None:
    config = model(("x", "INT8", (-1,)), ("o", "INT8", (1,)), max_batch_size=3, optional=["o"])
    a = v2_body(v2_input("x", "INT8", [1, 2], [1, 2]))
    two_rows = v2_body(v2_input("x", "INT8", [2, 2], [3, 4, 5, 6]))
    longer = v2_body(v2_input("x", "INT8", [1, 3], [1, 2, 3]))
    both = v2_body(v2_input("o", "INT8", [1, 1], [9]), v2_input("x", "INT8", [1, 2], [1, 2]))
    huge = v2_body(v2_input("x", "INT8", [5, 2], list(range(10))))
    decoded = decode_many(Form.JSON, [a, longer, two_rows, both, two_rows, huge, a], None, config, Limits())
    assert [(group.indices, group.rows) for group in decoded.groups] == [
        ([0, 2], [1, 2]), ([1], [1]), ([3], [1]), ([4], [2]), ([5], [5]), ([6], [1]),
    ]  # fmt: skip
    assert len({group.signature for group in decoded.groups}) == 3
    assert decoded.groups[0].tensors["x"].tolist() == [[1, 2], [3, 4], [5, 6]]


def test_without_a_batch_dimension_each_record_is_a_group_of_the_models_own_shape() -> None:
    config = model(("x", "FP32", (2,)), outputs=[("y", "FP32", (2, 1))], max_batch_size=0)
    value = v2_body(v2_input("x", "FP32", [2], [1, 2]))
    decoded = decode_many(Form.JSON, [value, value], None, config, Limits())
    assert [(group.indices, group.rows) for group in decoded.groups] == [([0], [1]), ([1], [1])]
    group = decoded.groups[0]
    assert group.tensors["x"].tolist() == [1, 2]
    encoded = encode_many(Form.JSON, group.answers, group.rows, {"y": np.array([[1.0], [2.0]])}, config, ["i"])
    assert body_of(encoded)["outputs"] == [{"name": "y", "datatype": "FP32", "shape": [2, 1], "data": [1.0, 2.0]}]


def test_text_that_json_cannot_hold_fails_its_own_record_and_names_the_remedy() -> None:
    config = model(("x", "FP32", (1,)), outputs=[("y", "BYTES", (1,))])
    output = np.array([[b"\xff"], [b"ok"]], object)
    encoded = encode_many(Form.JSON, [Answer("v2")] * 2, [1, 1], {"y": output}, config, ["i", "j"])
    assert isinstance(encoded.values[0], ValidationError)
    assert "output 'y' of model 'm'" in str(encoded.values[0])
    assert "binary_data: true" in str(encoded.values[0])
    assert body_of(encoded, 1)["outputs"][0]["data"] == ["ok"]


@pytest.mark.parametrize(
    "output",
    [
        np.array([["setosa", "é"]]),
        np.array([["setosa", "é"]], object),
        np.array([[b"setosa", "é".encode()]]),
        np.array([[b"setosa", "é".encode()]], object),
    ],
)
def test_B3_text_outputs_of_any_kind_become_bytes(output: Array) -> None:
    config = model(("x", "FP32", (1,)), outputs=[("y", "BYTES", (2,))])
    (entry,) = body_of(encode_one(config, Answer("v2"), output))["outputs"]
    assert entry == {"name": "y", "datatype": "BYTES", "shape": [1, 2], "data": ["setosa", "é"]}


def test_outputs_are_converted_within_their_kind_and_refused_across_kinds() -> None:
    for datatype in ("FP32", "BF16", "FP16"):
        config = model(("x", "FP32", (1,)), outputs=[("y", datatype, (1,))])
        (entry,) = body_of(encode_one(config, Answer("v2"), np.array([[0.5]])))["outputs"]
        assert (entry["datatype"], entry["data"]) == (datatype, [0.5])
    config = model(("x", "FP32", (1,)), outputs=[("y", "INT32", (1,))])
    error = encode_one(config, Answer("v2"), np.array([[0.5]])).values[0]
    assert isinstance(error, ModelError)
    assert str(error) == "output 'y' of model 'm': expected INT32, the model returned numpy float64"


def test_a_value_of_a_failed_row_does_not_stop_its_neighbours() -> None:
    config = model(("x", "FP32", (1,)), outputs=[("y", "BYTES", (1,))])
    output = np.array([[None], ["ok"]], object)
    encoded = encode_many(Form.JSON, [Answer("v2")] * 2, [1, 1], {"y": output}, config, ["i", "j"])
    assert isinstance(encoded.values[0], ModelError)
    assert body_of(encoded, 1)["outputs"][0]["data"] == ["ok"]


def test_a_missing_output_is_the_models_error() -> None:
    config = model(("x", "FP32", (1,)))
    error = encode_one(config, Answer("v2"), np.zeros((1, 1)), name="other").values[0]
    assert str(error) == "output 'y' of model 'm': the model returned no such output, only 'other'"
