"""Reads the inputs and outputs of an ONNX file, and nothing else of it.

The file is mapped and its protobuf fields are walked; weights are stepped over, so a file of 2 GB costs as much as
one of 2 kB. The graph is not checked: that is the runtime's work when it loads the model. Field numbers are those of
``onnx.proto`` (ModelProto, GraphProto, ValueInfoProto, TypeProto, TensorShapeProto, TensorProto).
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

from schemas.errors import ConfigError
from schemas.model import Datatype

__all__ = ["OnnxSignature", "OnnxTensor", "read_onnx_signature"]

# fmt: off
_TYPE_NAMES: Final = (
    "UNDEFINED", "FLOAT", "UINT8", "INT8", "UINT16", "INT16", "INT32", "INT64", "STRING", "BOOL", "FLOAT16",
    "DOUBLE", "UINT32", "UINT64", "COMPLEX64", "COMPLEX128", "BFLOAT16", "FLOAT8E4M3FN", "FLOAT8E4M3FNUZ",
    "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "UINT4", "INT4", "FLOAT4E2M1", "FLOAT8E8M0", "UINT2", "INT2",
)
# fmt: on
"""``TensorProto.DataType`` in the order of its numbers."""

_DATATYPES: Final[dict[str, Datatype]] = {
    "BOOL": "BOOL",
    "UINT8": "UINT8",
    "UINT16": "UINT16",
    "UINT32": "UINT32",
    "UINT64": "UINT64",
    "INT8": "INT8",
    "INT16": "INT16",
    "INT32": "INT32",
    "INT64": "INT64",
    "FLOAT16": "FP16",
    "BFLOAT16": "BF16",
    "FLOAT": "FP32",
    "DOUBLE": "FP64",
    "STRING": "BYTES",
}
_KINDS: Final = {4: "sequence", 5: "map", 7: "opaque", 8: "sparse tensor", 9: "optional"}
"""Fields of TypeProto that are no dense tensors."""


@dataclass(frozen=True, slots=True)
class OnnxTensor:
    """One input or output of the graph.

    Attributes:
        datatype: None when the v2 protocol has no name for it; ``type_name`` then says what it is.
        shape: every dimension, the batch included; -1 where it is symbolic or unknown. None when the file gives no
            shape at all.
        type_name: ONNX's word: ``FLOAT``, ``COMPLEX64``, ``sequence``, ...
    """

    name: str
    datatype: Datatype | None
    shape: tuple[int, ...] | None
    type_name: str


@dataclass(frozen=True, slots=True)
class OnnxSignature:
    """``overridable`` are the inputs that the file itself gives a value (initializers); a caller need not send them."""

    inputs: tuple[OnnxTensor, ...]
    outputs: tuple[OnnxTensor, ...]
    overridable: tuple[OnnxTensor, ...] = ()


def read_onnx_signature(path: Path) -> OnnxSignature:
    """Blocks for as long as it takes to page in the graph's structure.

    Raises:
        ConfigError: the file cannot be read, or is not ONNX.
    """
    try:
        with path.open("rb") as file:
            head = file.read(64)
            if not head:
                raise ConfigError(f"{path}: the file is empty; export or copy the model again")
            if head.startswith(b"version https://git-lfs"):
                raise ConfigError(f"{path}: this is a Git LFS pointer, not the model; run `git lfs pull`")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _read_model(data)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; check the path and its permissions") from error
    except _NotOnnx as error:
        raise ConfigError(
            f"{path}: not an ONNX model ({error}); export it again, or name the backend that reads it"
        ) from None


class _NotOnnx(Exception):
    """The bytes do not have the structure of a ModelProto."""


_Field: TypeAlias = tuple[int, int, int]
"""Field number, and its value for a number or its start and end for bytes (a number has the end -1)."""


def _varint(data: mmap.mmap, at: int, end: int) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7
    raise _NotOnnx(f"broken number at byte {at}")


def _fields(data: mmap.mmap, at: int, end: int) -> Iterator[_Field]:
    """The fields of one message; nested ones are not entered, so their bytes are not touched."""
    while at < end:
        tag, at = _varint(data, at, end)
        number, wire = tag >> 3, tag & 7
        if number == 0:
            raise _NotOnnx(f"field number 0 at byte {at}")
        if wire == 2:
            length, at = _varint(data, at, end)
            if at + length > end:
                raise _NotOnnx(f"cut short: a field at byte {at} needs {length} bytes and {end - at} are there")
            yield number, at, at + length
            at += length
        elif wire == 0:
            value, at = _varint(data, at, end)
            yield number, value, -1
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
            if at > end:
                raise _NotOnnx("cut short")
        else:
            raise _NotOnnx(f"wire type {wire} at byte {at}")


def _messages(data: mmap.mmap, span: tuple[int, int], number: int) -> Iterator[tuple[int, int]]:
    for found, start, end in _fields(data, *span):
        if found == number and end >= 0:
            yield start, end


def _text(data: mmap.mmap, start: int, end: int) -> str:
    try:
        return data[start:end].decode()
    except UnicodeDecodeError:
        raise _NotOnnx(f"a name at byte {start} is not UTF-8") from None


def _name(data: mmap.mmap, span: tuple[int, int], number: int) -> str:
    """The text field ``number`` of a message; stops there, so what follows is not touched."""
    for start, end in _messages(data, span, number):
        return _text(data, start, end)
    return ""


def _read_model(data: mmap.mmap) -> OnnxSignature:
    ir_version = 0
    graph: tuple[int, int] | None = None
    for number, start, end in _fields(data, 0, len(data)):
        if number == 1 and end < 0:
            ir_version = start
        elif number == 7 and end >= 0:
            graph = (start, end)
    if not ir_version or graph is None:
        raise _NotOnnx("no IR version" if graph else "no graph")
    inputs: list[OnnxTensor] = []
    outputs: list[OnnxTensor] = []
    given: set[str] = set()
    for number, start, end in _fields(data, *graph):
        if number == 11:
            inputs.append(_read_tensor(data, (start, end)))
        elif number == 12:
            outputs.append(_read_tensor(data, (start, end)))
        elif number == 5:
            given.add(_name(data, (start, end), 8))
        elif number == 15:  # a sparse initializer is named by its values
            given.update(_name(data, values, 8) for values in _messages(data, (start, end), 1))
    return OnnxSignature(
        inputs=tuple(tensor for tensor in inputs if tensor.name not in given),
        outputs=tuple(outputs),
        overridable=tuple(tensor for tensor in inputs if tensor.name in given),
    )


def _read_tensor(data: mmap.mmap, span: tuple[int, int]) -> OnnxTensor:
    name = _name(data, span, 1)
    if not name:
        raise _NotOnnx("an input or output has no name")
    for kind in _messages(data, span, 2):
        for number, start, end in _fields(data, *kind):
            if number == 1 and end >= 0:
                return _read_dense(data, (start, end), name)
            if number in _KINDS:
                return OnnxTensor(name, None, None, _KINDS[number])
    return OnnxTensor(name, None, None, "untyped")


def _read_dense(data: mmap.mmap, span: tuple[int, int], name: str) -> OnnxTensor:
    element = 0
    shape: tuple[int, ...] | None = None
    for number, start, end in _fields(data, *span):
        if number == 1 and end < 0:
            element = start
        elif number == 2 and end >= 0:
            shape = tuple(_read_dim(data, dim) for dim in _messages(data, (start, end), 1))
    type_name = _TYPE_NAMES[element] if element < len(_TYPE_NAMES) else f"type {element}"
    return OnnxTensor(name, _DATATYPES.get(type_name), shape, type_name)


def _read_dim(data: mmap.mmap, span: tuple[int, int]) -> int:
    for number, value, end in _fields(data, *span):
        if number == 1 and end < 0:
            return value if value < 1 << 63 else -1  # some exporters write -1 for unknown
    return -1
