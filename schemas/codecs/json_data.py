"""JSON values <-> arrays, for v2 ``data`` and plain JSON. Knows no request: shapes are checked before.

- Integers are exact over all 64 bits; a float, a boolean or a number out of range is refused.
- Floating types take integers too, and null as NaN; a finite number that would become infinite is refused.
  Numbers are rounded to the nearest FP64 and from there to the nearest FP32, FP16 or BF16.
- BYTES are UTF-8 strings. BOOL is true or false.
- On the way out NaN and the infinities are null (JSON has no word for them; ask for binary to keep the bits), and
  FP16 and BF16 are printed as the FP32 numbers they are equal to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import chain
from typing import Final

import ml_dtypes
import msgspec
import numpy as np
import orjson

from schemas.codecs.checks import show_shape
from schemas.codecs.plan import TensorPlan
from schemas.errors import DecodeError, ValidationError
from schemas.model import Datatype
from schemas.tensors import Array

__all__ = ["MAX_DEPTH", "array_from_json", "infer_shape", "json_ready", "json_text", "read_json"]

MAX_DEPTH: Final = 100
"""Lists and objects within each other."""

_FLOATS: Final[frozenset[Datatype]] = frozenset({"FP16", "BF16", "FP32", "FP64"})
_NUMBERS: Final[frozenset[type]] = frozenset({int, float, type(None)})
_KINDS: Final[dict[Datatype, tuple[frozenset[type], str]]] = {
    "BOOL": (frozenset({bool}), "true or false"),
    "BYTES": (frozenset({str}), "a string"),
    **dict.fromkeys(_FLOATS, (_NUMBERS, "a number or null")),
}
_INTEGER: Final = (frozenset({int}), "an integer")


def read_json(text: bytes) -> object:
    """Strict JSON: no NaN, no trailing commas, valid UTF-8, at most `MAX_DEPTH` deep.

    Raises:
        DecodeError: it is not.
    """
    too_deep = DecodeError(f"JSON is nested more than {MAX_DEPTH} deep; flatten the data (row-major)")
    try:
        value: object = msgspec.json.decode(text)
    except RecursionError:
        raise too_deep from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DecodeError(f"value is not JSON: {error}") from None
    if text.count(b"[") + text.count(b"{") <= MAX_DEPTH:
        return value  # Too few brackets to be deeper.
    level: list[object] = [value]
    for _ in range(MAX_DEPTH):
        inner: list[object] = []
        for item in level:
            if type(item) is list:
                inner += [child for child in item if type(child) in (list, dict)]
            elif type(item) is dict:
                inner += [child for child in item.values() if type(child) in (list, dict)]
        if not inner:
            return value
        level = inner
    raise too_deep


def infer_shape(value: object) -> tuple[int, ...]:
    """The shape a nested list has if it is regular; () for a scalar."""
    shape = []
    while type(value) is list:
        shape.append(len(value))
        if not value:
            break
        value = value[0]
    return tuple(shape)


def array_from_json(data: object, tensor: TensorPlan, shape: Sequence[int]) -> Array:
    """An array of ``shape`` from data that is flat (row-major) or nested as the shape says.

    Raises:
        ValidationError: number, nesting or type of the elements do not fit.
    """
    flat = _flatten(data, tensor, shape)
    kinds, expected = _KINDS.get(tensor.datatype, _INTEGER)
    found = set(map(type, flat))
    if not kinds.issuperset(found):
        position, element = next((i, e) for i, e in enumerate(flat) if type(e) not in kinds)
        raise _misfit(tensor, position, element, expected)
    if tensor.datatype in _FLOATS:
        array = _floats([math.nan if e is None else e for e in flat] if type(None) in found else flat, tensor)
    elif tensor.datatype == "BYTES":
        array = _strings(flat, tensor)
    else:
        array = _integers(flat, tensor)
    return array.reshape(shape)


def _misfit(tensor: TensorPlan, position: int, element: object, expected: str) -> ValidationError:
    shown = f"{element!r:.60}" if not isinstance(element, list | dict) else "nested"
    return ValidationError(
        f"{tensor.label}: element {position} is {shown} ({type(element).__name__}), "
        f"expected {expected} for {tensor.datatype}"
    )


def _flatten(data: object, tensor: TensorPlan, shape: Sequence[int]) -> list[object]:
    count = math.prod(shape)
    if type(data) is not list:
        raise ValidationError(f"{tensor.label}: expected data to be a list of {count} elements, got {data!r:.60}")
    if not (data and type(data[0]) is list):
        if len(data) != count:
            raise ValidationError(
                f"{tensor.label}: shape {show_shape(shape)} needs {count} elements, got {len(data)} in data"
            )
        return data
    items: list[list[object]] = [data]
    for axis, size in enumerate(shape):
        for item in items:
            if type(item) is not list or len(item) != size:
                got = f"{len(item)} elements" if type(item) is list else f"{item!r:.60}"
                raise ValidationError(
                    f"{tensor.label}: nested data does not have shape {show_shape(shape)}: "
                    f"expected {size} elements at depth {axis}, got {got}"
                )
        items = list(chain.from_iterable(items))  # type: ignore[arg-type]  # checked at the head of the loop
    return items  # type: ignore[return-value]  # the innermost level: elements


def _integers(flat: list[object], tensor: TensorPlan) -> Array:
    try:
        return np.fromiter(flat, tensor.dtype, len(flat))
    except OverflowError:
        info = np.iinfo(tensor.dtype)  # type: ignore[type-var]  # BOOL cannot overflow
        wrong = ((i, e) for i, e in enumerate(flat) if not info.min <= e <= info.max)  # type: ignore[operator]
        position, element = next(wrong)
        raise _misfit(tensor, position, element, f"{info.min} to {info.max}") from None


def _floats(flat: list[object], tensor: TensorPlan) -> Array:
    try:
        wide = np.fromiter(flat, np.float64, len(flat))
    except OverflowError:
        raise ValidationError(f"{tensor.label}: an integer is out of range for {tensor.datatype}") from None
    if tensor.datatype == "FP64":
        return wide
    with np.errstate(over="ignore"):
        narrow = wide.astype(tensor.dtype)
    infinite = np.flatnonzero(np.isinf(narrow))
    if len(infinite):
        position = int(infinite[0])
        raise _misfit(tensor, position, flat[position], "a number in range")
    return narrow


def _strings(flat: list[object], tensor: TensorPlan) -> Array:
    array = np.empty(len(flat), np.object_)
    try:
        array[:] = [element.encode() for element in flat]  # type: ignore[attr-defined]  # all are str
    except UnicodeEncodeError:
        raise DecodeError(f"{tensor.label}: a string holds half a surrogate pair, expected valid Unicode") from None
    return array


def json_ready(array: Array) -> Array:
    """The same numbers in a dtype and layout that `json_text` can print. Not for BYTES."""
    if array.dtype == np.float16 or array.dtype == ml_dtypes.bfloat16:
        array = array.astype(np.float32)
    return np.ascontiguousarray(array) if array.ndim else array


def json_text(value: object) -> bytes:
    """Strict JSON; arrays are printed as lists, the shortest digits that round-trip, NaN and infinities as null."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
