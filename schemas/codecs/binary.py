"""Raw little-endian tensors <-> arrays, without a copy where numpy allows.

Arrays read here are read-only views of the record's value. A BYTES element is a 4-byte little-endian length and
as many bytes (KServe v2 binary tensor data extension).
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from schemas.codecs.checks import show_shape
from schemas.codecs.plan import TensorPlan
from schemas.errors import DecodeError, ValidationError
from schemas.tensors import Array

__all__ = ["array_from_bytes", "bytes_array", "bytes_from_array", "check_booleans"]

_LENGTH: Final = struct.Struct("<I")


def array_from_bytes(value: bytes, *, start: int, size: int, tensor: TensorPlan, shape: Sequence[int]) -> Array:
    """``size`` bytes of ``value`` from ``start`` on, which must be there, as an array of ``shape``.

    Raises:
        ValidationError: the byte count does not fit the shape.
        DecodeError: BYTES elements run over the end.
    """
    count = math.prod(shape)
    if tensor.item_bytes is None:
        return bytes_array(_split(value, start, size, count, tensor)).reshape(shape)
    if size != count * tensor.item_bytes:
        raise ValidationError(
            f"{tensor.label}: {tensor.datatype} of shape {show_shape(shape)} takes {count * tensor.item_bytes} bytes, "
            f"got {size}"
        )
    array: Array = np.frombuffer(value, tensor.dtype, count, start if count else 0)
    check_booleans(array, tensor)
    return array.reshape(shape)


def check_booleans(array: Array, tensor: TensorPlan) -> None:
    """A BOOL byte other than 0 and 1 makes numpy answer differently from one operation to the next."""
    if tensor.datatype == "BOOL" and array.size and int(array.view(np.uint8).max()) > 1:
        raise ValidationError(f"{tensor.label}: expected each BOOL byte to be 0 or 1, got {array.view(np.uint8).max()}")


def _split(value: bytes, start: int, size: int, count: int, tensor: TensorPlan) -> list[bytes]:
    end = start + size
    elements: list[bytes] = []
    position = start
    # Each element takes at least its length, so this loop is bounded by the bytes that are there.
    while position < end:
        body = position + _LENGTH.size
        if body > end:
            raise DecodeError(f"{tensor.label}: {end - position} bytes left where a 4-byte length was expected")
        (length,) = _LENGTH.unpack_from(value, position)
        position = body + length
        if position > end:
            raise DecodeError(
                f"{tensor.label}: element {len(elements)} declares {length} bytes, {end - body} are left in its data"
            )
        elements.append(value[body:position])
    if len(elements) != count:
        raise ValidationError(f"{tensor.label}: expected {count} BYTES elements by its shape, got {len(elements)}")
    return elements


def bytes_array(elements: Sequence[bytes]) -> Array:
    """A 1-D BYTES tensor. Never through numpy's own S type, which drops trailing zero bytes."""
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array


def bytes_from_array(array: Array) -> bytes:
    """Row-major little-endian bytes; BYTES elements with their lengths."""
    if array.dtype != np.object_:
        return array.tobytes()
    elements: Iterable[bytes] = array.reshape(-1).tolist()
    return b"".join([part for element in elements for part in (_LENGTH.pack(len(element)), element)])
