"""Runs of like records decoded at once. Gives what `schemas.codecs.decode.decode_each` gives, or None.

None means that something about the run is unusual (an option, another shape, an error): the plain path then reads every
record and says what is wrong. So nothing here needs a message, and anything accepted here must be accepted there.

A JSON run is parsed by a decoder generated for the model: names, datatypes, shapes and lengths are checked while
parsing, and `struct` packs the numbers, which takes half of numpy's time and refuses numbers out of range.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec
import numpy as np

from schemas.codec import Answer, DecodedGroup, Form, Limits
from schemas.codecs.binary import bytes_array
from schemas.codecs.checks import Parsed
from schemas.codecs.json_data import read_json
from schemas.codecs.plain import PLAIN_SQUEEZED, RAW_SQUEEZED
from schemas.codecs.plan import Plan, TensorPlan
from schemas.codecs.v2 import parse_v2
from schemas.errors import HeadraceError
from schemas.model import Datatype
from schemas.tensors import Array

__all__ = ["decode_alike", "decode_fast"]

_CODES: Final[dict[Datatype, tuple[str, Any]]] = {
    "BOOL": ("?", bool),
    "UINT8": ("B", int),
    "UINT16": ("H", int),
    "UINT32": ("I", int),
    "UINT64": ("Q", int),
    "INT8": ("b", int),
    "INT16": ("h", int),
    "INT32": ("i", int),
    "INT64": ("q", int),
    "FP16": ("e", float),
    "FP32": ("f", float),
    "FP64": ("d", float),
}
"""`struct` code and JSON type. BF16 has no code and takes the plain path."""

_FEWEST_ALIKE: Final = 4
"""Records below which reading the first one twice does not pay."""

_MOST_ELEMENTS: Final = 65_536
"""Elements of a row up to which they are handed to `struct.pack` as arguments."""

_Row = Sequence[Any]
_Rows = Sequence[_Row]


def decode_fast(
    form: Form, values: Sequence[bytes], json_lengths: Sequence[int | None] | None, plan: Plan, limits: Limits
) -> list[DecodedGroup] | None:
    """The groups of a run whose records are all alike, one row each; None for anything else."""
    if not values or not plan.batched or limits.max_rows < 1 or max(map(len, values)) > limits.max_bytes:
        return None
    if form is Form.JSON:
        return _decode_json(values, plan, limits)
    if form is Form.RAW:
        return _decode_raw(values, plan)
    if form is Form.V2_BINARY and json_lengths and json_lengths.count(json_lengths[0]) == len(json_lengths):
        return _decode_binary(values, json_lengths[0] or 0, plan, limits)
    return None


def _decode_binary(values: Sequence[bytes], json_length: int, plan: Plan, limits: Limits) -> list[DecodedGroup] | None:
    """Values whose JSON is the same to the byte, as a producer sends them: read it once, and cut columns of bytes."""
    head = values[0][:json_length]
    if len(values) < _FEWEST_ALIKE or len(head) != json_length or set(map(len, values)) != {len(values[0])}:
        return None
    if not all(value.startswith(head) for value in values):
        return None
    try:
        body = read_json(head)
        first = parse_v2(plan, body, limits, (values[0], json_length))
    except HeadraceError:
        return None
    if first.rows != 1 or first.parameters or first.priority or first.timeout_ms or not isinstance(body, dict):
        return None
    table = np.frombuffer(b"".join(values), np.uint8).reshape(len(values), -1)
    arrays: dict[str, Array] = {}
    position = json_length
    for entry in body["inputs"]:
        tensor, array = plan.inputs[entry["name"]], first.tensors[entry["name"]]
        if "data" in entry or tensor.item_bytes is None or tensor.datatype == "BOOL" or not array.nbytes:
            return None
        column = np.ascontiguousarray(table[:, position : position + array.nbytes])
        arrays[tensor.name] = column.view(tensor.dtype).reshape(len(values), *array.shape[1:])
        position += array.nbytes
    return _groups(plan, {name: arrays[name] for name in first.tensors}, first.answer)


def _decode_raw(values: Sequence[bytes], plan: Plan) -> list[DecodedGroup] | None:
    tensor = plan.only_input
    if tensor is None:
        return None
    array: Array
    if tensor.datatype == "BYTES":
        if tensor.dims not in ((1,), (-1,), ()):
            return None
        array = bytes_array(values).reshape((len(values), *(1 for _ in tensor.dims)))
    else:
        if not tensor.row_bytes or tensor.datatype == "BOOL" or set(map(len, values)) != {tensor.row_bytes}:
            return None
        array = np.frombuffer(b"".join(values), tensor.dtype).reshape(len(values), *tensor.dims)
    return _groups(plan, {tensor.name: array}, RAW_SQUEEZED)


def _groups(plan: Plan, arrays: dict[str, Array], answers: Answer | list[Answer]) -> list[DecodedGroup]:
    """Views of at most ``group_rows`` rows; each record is one row."""
    total = len(next(iter(arrays.values())))
    signature = tuple([(name, array.shape[1:]) for name, array in arrays.items()])
    groups = []
    for start in range(0, total, plan.group_rows):
        stop = min(start + plan.group_rows, total)
        groups.append(
            DecodedGroup(
                indices=list(range(start, stop)),
                rows=[1] * (stop - start),
                tensors={name: array[start:stop] for name, array in arrays.items()},
                signature=signature,
                answers=answers[start:stop] if isinstance(answers, list) else [answers] * (stop - start),
            )
        )
    return groups


@dataclass(frozen=True, slots=True)
class _Packer:
    """Makes one input's array of the rows' JSON data."""

    tensor: TensorPlan
    pack: Callable[..., bytes] | None

    def array(self, rows: _Rows) -> Array:
        """
        Raises:
            struct.error | OverflowError | UnicodeEncodeError: an element is out of range.
        """
        shape = (len(rows), *self.tensor.dims)
        if self.pack is None:
            return bytes_array([text.encode() for row in rows for text in row]).reshape(shape)
        pack = self.pack
        array: Array = np.frombuffer(b"".join([pack(*row) for row in rows]), self.tensor.dtype)
        return array.reshape(shape)


@dataclass(frozen=True, slots=True)
class _JsonRun:
    """What is generated for one model. ``plain`` is None where rows are not one-dimensional."""

    packers: tuple[_Packer, ...]
    v2: Callable[[bytes], Any]
    plain: Callable[[bytes], Any] | None


def _decode_json(values: Sequence[bytes], plan: Plan, limits: Limits) -> list[DecodedGroup] | None:
    run = _json_run(plan)
    if run is None or _declared_bytes(run.packers) > limits.max_bytes:
        return None
    try:
        columns, answers = _read_v2(run, values, plan) or _read_plain(run, values) or (None, None)
        if columns is None or answers is None:
            return None
        arrays = {packer.tensor.name: packer.array(rows) for packer, rows in zip(run.packers, columns, strict=True)}
    except (struct.error, OverflowError, UnicodeEncodeError):
        return None
    return _groups(plan, arrays, answers)


def decode_alike(values: Sequence[bytes], plan: Plan, limits: Limits) -> dict[int, Parsed]:
    """Those records of a mixed run of v2 JSON that are alike, so that a few others do not slow all of them down."""
    run = _json_run(plan) if plan.batched and limits.max_rows >= 1 else None
    if run is None or _declared_bytes(run.packers) > limits.max_bytes:
        return {}
    messages = {}
    for index, value in enumerate(values):
        if len(value) <= limits.max_bytes:
            try:
                messages[index] = run.v2(value)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue
    inputs = [message.inputs for message in messages.values()]
    try:
        arrays = {
            packer.tensor.name: packer.array([one[k].data for one in inputs]) for k, packer in enumerate(run.packers)
        }
    except (struct.error, OverflowError, UnicodeEncodeError):
        return {}
    return {
        index: Parsed(
            1,
            {name: array[row : row + 1] for name, array in arrays.items()},
            plan.v2_json if message.id is None else Answer("v2", id=message.id),
        )
        for row, (index, message) in enumerate(messages.items())
    }


def _declared_bytes(packers: Sequence[_Packer]) -> int:
    return sum((packer.tensor.row_elements or 1) * (packer.tensor.item_bytes or 1) for packer in packers)


def _read_v2(run: _JsonRun, values: Sequence[bytes], plan: Plan) -> tuple[list[_Rows], Answer | list[Answer]] | None:
    try:
        messages = list(map(run.v2, values))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    inputs = [message.inputs for message in messages]
    columns: list[_Rows] = [[one[k].data for one in inputs] for k in range(len(run.packers))]
    ids = [message.id for message in messages]
    if ids.count(None) == len(ids):
        return columns, plan.v2_json
    return columns, [plan.v2_json if each is None else Answer("v2", id=each) for each in ids]


def _read_plain(run: _JsonRun, values: Sequence[bytes]) -> tuple[list[_Rows], Answer | list[Answer]] | None:
    if run.plain is None:
        return None
    try:
        messages = list(map(run.plain, values))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return [[getattr(message, f"f{k}") for message in messages] for k in range(len(run.packers))], PLAIN_SQUEEZED


@lru_cache(maxsize=1024)
def _json_run(plan: Plan) -> _JsonRun | None:
    """None for a model whose rows can differ in shape, and for what `struct` cannot pack."""
    packers = []
    entries = []
    rows = []
    for tensor in plan.inputs.values():
        count = tensor.row_elements
        code, kind = ("", str) if tensor.datatype == "BYTES" else _CODES.get(tensor.datatype, ("", None))
        if count is None or not 0 < count <= _MOST_ELEMENTS or kind is None or tensor.optional:
            return None
        data: Any = Annotated[list.__class_getitem__(kind), msgspec.Meta(min_length=count, max_length=count)]
        sizes = tuple(Literal[size] for size in (1, *tensor.dims))
        entry = msgspec.defstruct(
            "Input",
            [
                ("name", Literal[tensor.name]),
                ("datatype", Literal[tensor.datatype]),
                ("shape", tuple.__class_getitem__(sizes)),
                ("data", data),
            ],
            forbid_unknown_fields=True,
            gc=False,
        )
        packers.append(_Packer(tensor, struct.Struct(f"<{count}{code}").pack if code else None))
        entries.append(entry)
        rows.append(data)
    if not entries:
        return None
    request = msgspec.defstruct(
        "Request",
        [("inputs", tuple.__class_getitem__(tuple(entries))), ("id", str | None, None)],
        forbid_unknown_fields=True,
        gc=False,
    )
    return _JsonRun(tuple(packers), msgspec.json.Decoder(request).decode, _plain_decoder(plan, rows))


def _plain_decoder(plan: Plan, rows: Sequence[Any]) -> Callable[[bytes], Any] | None:
    if "inputs" in plan.inputs or any(len(tensor.dims) != 1 for tensor in plan.inputs.values()):
        return None
    names = [f"f{k}" for k in range(len(rows))]
    request = msgspec.defstruct(
        "Plain",
        list(zip(names, rows, strict=True)),
        rename=dict(zip(names, plan.inputs, strict=True)),
        forbid_unknown_fields=True,
        gc=False,
    )
    return msgspec.json.Decoder(request).decode
