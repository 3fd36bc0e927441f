"""The runs that speed was bought for do take the fast path; that it gives the same is test_codec_properties' work."""

from __future__ import annotations

import numpy as np
import pytest

from schemas.codec import Answer, Form, Limits
from schemas.codecs import encode_request
from schemas.codecs.fast_decode import decode_alike, decode_fast
from schemas.codecs.fast_encode import encode_fast
from schemas.codecs.plain import PLAIN_SQUEEZED, RAW_SQUEEZED
from schemas.codecs.plan import plan_of
from schemas.tensors import Array
from tests.unit.schemas.codec_models import model, v2_body, v2_input

CONFIG = model(("x", "FP32", (2,)), outputs=[("y", "FP32", (2,))])
BINARY, HEADERS = encode_request({"x": np.ones((1, 2), np.float32)})
VALUES = {
    Form.JSON: v2_body(v2_input("x", "FP32", [1, 2], [1, 1])),
    Form.RAW: np.ones(2, np.float32).tobytes(),
    Form.V2_BINARY: BINARY,
}


@pytest.mark.parametrize("form", list(VALUES))
def test_like_records_of_one_row_are_decoded_as_a_run(form: Form) -> None:
    lengths = [int(HEADERS[1][1] or b"")] * 5 if form is Form.V2_BINARY else None
    groups = decode_fast(form, [VALUES[form]] * 5, lengths, plan_of(CONFIG), Limits())
    assert groups is not None
    assert [group.tensors["x"].tolist() for group in groups] == [[[1, 1]] * 5]


def test_plain_json_of_one_row_is_decoded_as_a_run() -> None:
    groups = decode_fast(Form.JSON, [b'{"x":[1,1]}'] * 5, None, plan_of(CONFIG), Limits())
    assert groups is not None
    assert groups[0].answers == [PLAIN_SQUEEZED] * 5


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (Form.JSON, Answer("v2")),
        (Form.JSON, PLAIN_SQUEEZED),
        (Form.RAW, RAW_SQUEEZED),
        (Form.V2_BINARY, Answer("v2", binary=frozenset({"y"}))),
    ],
)
def test_like_answers_of_one_row_are_encoded_as_a_run(form: Form, answer: Answer) -> None:
    arrays: dict[str, Array] = {"y": np.ones((5, 2), np.float32)}
    encoded = encode_fast(form, [answer] * 5, [1] * 5, arrays, plan_of(CONFIG), ["i"] * 5)
    assert encoded is not None
    assert len(encoded.values) == len(encoded.headers) == 5


def test_values_are_never_joined_before_each_has_been_parsed_on_its_own() -> None:
    whole = VALUES[Form.JSON]
    halves = [whole[:20], whole[20:]]
    assert decode_fast(Form.JSON, halves, None, plan_of(CONFIG), Limits()) is None


def test_in_a_mixed_run_those_alike_are_still_read_together() -> None:
    values = [VALUES[Form.JSON], b"{", b'{"x":[1,1]}', VALUES[Form.JSON]]
    alike = decode_alike(values, plan_of(CONFIG), Limits())
    assert list(alike) == [0, 3]
    assert alike[0].tensors["x"].base is not None
    assert decode_alike([b"{"], plan_of(CONFIG), Limits()) == {}
