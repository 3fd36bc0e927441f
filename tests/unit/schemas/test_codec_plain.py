"""Plain JSON and raw values, and which content type means which form."""

from __future__ import annotations

import json

import numpy as np
import pytest

from schemas.codec import Encoded, Form, Limits
from schemas.codecs import decode_many, decode_response, encode_many, form_of
from schemas.errors import DecodeError
from schemas.model import Datatype, ModelConfig
from schemas.tensors import Array
from tests.unit.schemas.codec_models import Spec, decode_one, model, only, refusal


def answer(config: ModelConfig, value: bytes, outputs: dict[str, Array], *, form: Form = Form.JSON) -> Encoded:
    group = decode_one(config, value, form=form)
    return encode_many(form, group.answers, group.rows, outputs, config, ["i"])


@pytest.mark.parametrize(
    ("content_type", "json_length", "form"),
    [
        ("", None, Form.JSON),
        ("application/json", None, Form.JSON),
        ("text/json", None, Form.JSON),
        ("application/cloudevents+json", None, Form.JSON),
        ("application/octet-stream", 12, Form.V2_BINARY),
        ("application/octet-stream", 0, Form.RAW),
        ("application/octet-stream", None, Form.RAW),
        ("application/vnd.apache.arrow.stream", None, Form.ARROW),
        ("image/png", None, Form.RAW),
        ("text/plain", None, Form.RAW),
    ],
)
def test_content_type_names_the_form(content_type: str, json_length: int | None, form: Form) -> None:
    assert form_of(content_type, json_length, model(("x", "BYTES", (1,)))) is form


def test_a_media_type_that_the_model_cannot_take_is_refused_with_those_it_can() -> None:
    for config in (model(("x", "FP32", (1,))), model(("x", "BYTES", (1,)), ("z", "BYTES", (1,)))):
        with pytest.raises(DecodeError, match="does not take content-type 'image/png': use application/json"):
            form_of("image/png", None, config)


@pytest.mark.parametrize(
    ("dims", "value", "rows", "squeeze"),
    [
        ((2,), [1, 2], [[1, 2]], True),
        ((2,), [[1, 2]], [[1, 2]], False),
        ((2,), [[1, 2], [3, 4]], [[1, 2], [3, 4]], False),
        ((1,), 5, [[5]], True),
        ((1,), [5], [[5]], True),
        ((1,), [[5], [6]], [[5], [6]], False),
        ((), 5, [5], True),
        ((), [5, 6], [5, 6], False),
        ((-1,), [], [[]], True),
        ((2, 1), [[1], [2]], [[[1], [2]]], True),
        ((2, 1), [[[1], [2]]], [[[1], [2]]], False),
    ],
)
def test_one_row_fits_without_the_batch_dimension_and_many_with_it(
    dims: tuple[int, ...], value: object, rows: object, squeeze: bool
) -> None:
    group = decode_one(model(("x", "INT32", dims)), json.dumps({"x": value}).encode())
    assert group.tensors["x"].tolist() == rows
    assert group.tensors["x"].dtype == np.int32
    assert group.answers[0].style == "plain"
    assert group.answers[0].squeeze is squeeze


def test_the_answer_goes_back_the_way_the_request_came() -> None:
    config = model(("x", "FP32", (2,)), outputs=[("y", "FP32", (3,)), ("label", "BYTES", (1,))])
    y: Array = np.array([[1, np.nan, 0.1]], np.float32)
    outputs: dict[str, Array] = {"y": y, "label": np.array([["é"]])}
    one = answer(config, b'{"x":[1,2]}', outputs)
    assert one.values == ['{"y":[1.0,null,0.1],"label":["é"]}'.encode()]
    assert one.headers == [(("content-type", b"application/json"),)]
    many = answer(config, b'{"x":[[1,2]]}', outputs)
    assert many.values == ['{"y":[[1.0,null,0.1]],"label":[["é"]]}'.encode()]


def test_without_a_batch_dimension_plain_json_is_the_models_own_shape() -> None:
    config = model(("x", "FP32", (2,)), outputs=[("y", "FP32", (1, 2)), ("s", "INT8", ())], max_batch_size=0)
    outputs: dict[str, Array] = {"y": np.array([[1.5, 2]]), "s": np.array(3)}
    encoded = answer(config, b'{"x":[1,2]}', outputs)
    assert encoded.values == [b'{"y":[[1.5,2.0]],"s":3}']
    assert "expected nested lists of shape [2], got [1,2]" in str(refusal(config, b'{"x":[[1,2]]}'))


def test_an_input_may_be_called_inputs() -> None:
    config = model(("inputs", "FP32", (2,)))
    assert decode_one(config, b'{"inputs":[1,2]}').tensors["inputs"].tolist() == [[1, 2]]
    v2 = b'{"inputs":[{"name":"inputs","shape":[1,2],"datatype":"FP32","data":[1,2]}]}'
    assert decode_one(config, v2).answers[0].style == "v2"


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (b"{}", "needs input 'x', 'z', got none"),
        (b'{"x":[1,2]}', "needs input 'z', got 'x'"),
        (b'{"x":[1,2],"z":[1,2],"w":1}', "no input 'w'; its inputs are 'x', 'z'"),
        (b'{"x":[1,2],"z":[[1,2]]}', "expected all inputs with the batch dimension or all without, got 'x' [2]"),
        (b'{"x":[[1,2]],"z":[[1,2],[3,4]]}', "expected 1 rows as in input 'x', got 2"),
        (b'{"x":[1,2,3],"z":[1,2]}', "expected shape [-1,2], got [1,3]"),
        (b'{"x":[[1,2],[3]],"z":[[1,2],[3,4]]}', "expected 2 elements at depth 1, got 1 elements"),
        (b'{"x":[[1,2],3],"z":[[1,2],[3,4]]}', "expected 2 elements at depth 1, got 3"),
        (b'{"x":1,"z":[1,2]}', "expected nested lists of shape [2] for one row or [-1,2] for many, got []"),
        (b'{"x":[1,{}],"z":[1,2]}', "element 1 is nested (dict)"),
        (b'{"x":null,"z":[1,2]}', "expected nested lists"),
    ],
)
def test_plain_json_that_does_not_fit_is_refused_by_name(value: bytes, says: str) -> None:
    assert says in str(refusal(model(("x", "FP32", (2,)), ("z", "FP32", (2,))), value))


def test_raw_bytes_are_the_one_element_of_a_bytes_input_and_the_only_output_goes_back_raw() -> None:
    for dims in ((1,), (), (-1,)):
        config = model(("x", "BYTES", dims), outputs=[("y", "BYTES", (1,))])
        group = only(decode_many(Form.RAW, [b"a\0", b""], None, config, Limits()))
        assert group.tensors["x"].reshape(-1).tolist() == [b"a\0", b""]
        assert group.tensors["x"].ndim == 1 + len(dims)
        outputs: dict[str, Array] = {"y": np.array([[b"\xff\0"], [b"z"]], object)}
        encoded = encode_many(Form.RAW, group.answers, group.rows, outputs, config, ["i", "j"])
        assert encoded.values == [b"\xff\0", b"z"]
        assert encoded.headers == [(("content-type", b"application/octet-stream"),)] * 2


def test_raw_numbers_are_little_endian_rows_without_a_copy() -> None:
    config = model(("x", "INT16", (2,)), outputs=[("y", "INT16", (1,))])
    value = b"\x01\0\x02\0\x03\0\x04\0"
    group = decode_one(config, value, form=Form.RAW)
    assert (group.rows, group.tensors["x"].tolist()) == ([2], [[1, 2], [3, 4]])
    assert np.shares_memory(group.tensors["x"], np.frombuffer(value, np.uint8))
    outputs: dict[str, Array] = {"y": np.array([[5], [6]], np.int16)}
    assert encode_many(Form.RAW, group.answers, [2], outputs, config, ["i"]).values == [b"\x05\0\x06\0"]


def test_raw_requests_to_a_model_of_several_outputs_are_answered_in_plain_json() -> None:
    config = model(("x", "BYTES", (1,)), outputs=[("label", "BYTES", (1,)), ("score", "FP32", (1,))])
    outputs: dict[str, Array] = {"label": np.array([["png"]]), "score": np.array([[0.5]])}
    encoded = answer(config, b"\x89PNG", outputs, form=Form.RAW)
    assert encoded.values == [b'{"label":["png"],"score":[0.5]}']
    assert encoded.headers == [(("content-type", b"application/json"),)]


@pytest.mark.parametrize(
    ("specs", "batch", "value", "says"),
    [
        ([("x", "FP32", (2,))], 8, b"", "input 'x' of model 'm': expected 8 bytes or a multiple of it, got 0"),
        ([("x", "FP32", (2,))], 8, b"1234567", "expected 8 bytes or a multiple of it, got 7"),
        ([("x", "FP32", (2,))], 0, b"1" * 16, "expected 8 bytes, got 16"),
        ([("x", "FP32", (-1,))], 8, b"1234", "needs a fixed size or one BYTES element, got FP32 [-1]"),
        ([("x", "BYTES", (2,))], 8, b"1234", "needs a fixed size or one BYTES element, got BYTES [2]"),
        ([("x", "BYTES", (1,)), ("z", "BYTES", (1,))], 8, b"1", "has 2 inputs, expected one for a raw value"),
        ([("x", "BOOL", (2,))], 8, b"\0\x07", "0 or 1, got 7"),
    ],
)
def test_raw_values_that_do_not_fit_are_refused(specs: list[Spec], batch: int, value: bytes, says: str) -> None:
    assert says in str(refusal(model(*specs, max_batch_size=batch), value, form=Form.RAW))


def test_raw_rows_are_limited() -> None:
    config = model(("x", "INT8", (1,)))
    assert refusal(config, b"123", form=Form.RAW, limits=Limits(max_rows=2)).code == "too_large"
    assert refusal(config, b"123", form=Form.RAW, limits=Limits(max_bytes=2)).code == "too_large"


@pytest.mark.parametrize(
    ("value", "datatype", "array"),
    [
        (b'{"y":[[1,2]]}', "int64", [[1, 2]]),
        (b'{"y":[1,2.5]}', "float64", [1, 2.5]),
        (b'{"y":["a"]}', "object", [b"a"]),
        (b'{"y":true}', "bool", True),
    ],
)
def test_a_caller_reads_plain_answers_with_the_nearest_datatype(value: bytes, datatype: str, array: object) -> None:
    tensors, fields = decode_response(value, (("content-type", b"application/json"),))
    assert tensors["y"].dtype == datatype
    assert tensors["y"].tolist() == array
    assert fields == {}


def test_a_caller_reads_a_raw_answer_as_one_element_without_a_name() -> None:
    tensors, fields = decode_response(b"\xff\0", (("content-type", b"application/octet-stream"),))
    assert (tensors[""].tolist(), fields) == ([b"\xff\0"], {})


def test_datatypes_of_two_models_of_one_name_do_not_mix() -> None:
    datatypes: list[Datatype] = ["INT8", "FP64"]
    for datatype in datatypes:
        array = decode_one(model(("x", datatype, (1,))), b'{"x":[1]}').tensors["x"]
        assert array.dtype == {"INT8": np.int8, "FP64": np.float64}[datatype]
