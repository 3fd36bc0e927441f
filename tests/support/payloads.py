"""Requests in each form a record may have, and answers back to arrays."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import numpy as np
import numpy.typing as npt
import orjson

from schemas.codecs.client import decode_response, encode_request
from schemas.model import Datatype
from schemas.record import Headers
from schemas.tensors import Array
from tests.support.records import Sent, Stored

__all__ = ["FORMS", "Form", "answer", "error_of", "request"]

Form = Literal["plain", "v2", "binary"]
FORMS: Final[Sequence[Form]] = ("plain", "v2", "binary")


def request(
    form: Form,
    rows: npt.ArrayLike,
    *,
    datatype: Datatype = "FP32",
    key: bytes | None = None,
    headers: Headers = (),
    partition: int | None = None,
) -> Sent:
    """A record with ``x``: nested lists or an array, the batch dimension included."""
    content: Headers = ()
    if form == "binary":
        array = np.asarray(rows, object if datatype == "BYTES" else None)
        value, content = encode_request({"x": array}, datatypes={"x": datatype})
    else:
        data = rows.tolist() if isinstance(rows, np.ndarray) else rows
        body: dict[str, object] = {"x": data}
        if form == "v2":
            shape = list(np.shape(np.asarray(data)))
            body = {"inputs": [{"name": "x", "datatype": datatype, "shape": shape, "data": data}]}
        value = orjson.dumps(body)
    return Sent(value, key=key, headers=(*headers, *content), partition=partition)


def answer(record: Stored) -> Array:
    """Output ``y`` of a result in any form; fails the test when the record is an error."""
    assert record.header("headrace-error") is None, record
    assert record.value is not None, record
    outputs, _ = decode_response(record.value, record.headers)
    return outputs["y"]


def error_of(record: Stored) -> tuple[str, str]:
    """Code and message of an error record or a dead letter."""
    code, message = record.header("headrace-error"), record.header("headrace-error-message")
    assert code is not None, record
    assert message is not None, record
    return code.decode(), message.decode()
