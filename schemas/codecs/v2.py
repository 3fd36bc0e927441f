"""KServe v2 requests, JSON with or without binary tensors, one record at a time. Writes nothing.

Structure that the protocol does not know is a `DecodeError`; what does not fit the model is a `ValidationError`.

Which outputs are binary: ``binary_data`` of a listed output; else ``binary_data_output`` of the request; else the
form of the request. (Triton ignores ``binary_data_output`` once outputs are listed; its documentation says
otherwise, and we follow the documentation.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeVar

from schemas.codec import Answer, Limits
from schemas.codecs.binary import array_from_bytes
from schemas.codecs.checks import Parsed, check_datatype, check_inputs, check_shapes, unknown_input
from schemas.codecs.json_data import array_from_json
from schemas.codecs.plan import Plan, TensorPlan
from schemas.errors import DecodeError, ValidationError
from schemas.record import JSON_LENGTH
from schemas.tensors import Array

__all__ = ["is_v2", "parse_v2"]

_T = TypeVar("_T")
_JsonObject = dict[str, Any]

_LARGEST: Final = 2**64 - 1
_OURS: Final = frozenset({"priority", "timeout", "binary_data_output"})
_UNSUPPORTED: Final = ("classification", "shared_memory_region")
_JSON_NAMES: Final = {dict: "an object", list: "a list", str: "a string", bool: "true or false", int: "an integer"}


def is_v2(plan: Plan, body: Mapping[str, object]) -> bool:
    """v2 has ``inputs``, a list of objects with names; a model may have an input of that name in plain JSON."""
    if "inputs" not in plan.inputs:
        return "inputs" in body
    inputs = body.get("inputs")
    return type(inputs) is list and bool(inputs) and all(type(item) is dict and "name" in item for item in inputs)


def parse_v2(plan: Plan, body: object, limits: Limits, binary: tuple[bytes, int] | None = None) -> Parsed:
    """
    Args:
        body: the parsed JSON.
        binary: the whole value and the offset of its binary part, when the form has one.

    Raises:
        DecodeError | ValidationError | TooLargeError: naming the tensor or field, the expected and the actual.
    """
    if type(body) is not dict:
        raise DecodeError(f"expected a JSON object with 'inputs', got {type(body).__name__}")
    identity = _field(body, "id", str, "request")
    parameters = _field(body, "parameters", dict, "request") or {}
    entries = _inputs(plan, body)
    check_inputs(plan, entries)
    shapes = {name: _shape(plan.inputs[name], entry) for name, entry in entries.items()}
    rows = check_shapes(plan, shapes, limits)
    arrays = _arrays(plan, entries, shapes, binary)
    timeout_us = _unsigned(parameters, "timeout")
    return Parsed(
        rows,
        {name: arrays[name] for name in plan.inputs if name in arrays},
        _answer(plan, body, parameters, identity=identity, binary=binary is not None),
        {key: value for key, value in parameters.items() if key not in _OURS} or None,
        _unsigned(parameters, "priority"),
        timeout_us / 1000 if timeout_us else None,
    )


def _field(owner: _JsonObject, key: str, kind: type[_T], where: str) -> _T | None:
    """The optional field; null counts as absent."""
    value = owner.get(key)
    if value is None:
        return None
    if type(value) is not kind:
        raise DecodeError(f"{where}: expected {key!r} to be {_JSON_NAMES[kind]}, got {value!r:.60}")
    return value


def _entry(entry: object, where: str) -> tuple[str, _JsonObject]:
    if type(entry) is not dict:
        raise DecodeError(f"{where}: expected an object, got {entry!r:.60}")
    name = _field(entry, "name", str, where)
    if name is None:
        raise DecodeError(f"{where}: expected 'name', got none")
    return name, entry


def _inputs(plan: Plan, body: _JsonObject) -> dict[str, _JsonObject]:
    listed = _field(body, "inputs", list, "request")
    if listed is None:
        raise DecodeError("request: expected 'inputs', a list of objects, got none")
    entries: dict[str, _JsonObject] = {}
    for position, item in enumerate(listed):
        name, entry = _entry(item, f"inputs[{position}]")
        if name not in plan.inputs:
            raise unknown_input(plan, name)
        tensor = plan.inputs[name]
        if name in entries:
            raise ValidationError(f"{tensor.label}: expected once, got it twice")
        datatype = _field(entry, "datatype", str, tensor.label)
        if datatype is None:
            raise DecodeError(f"{tensor.label}: expected 'datatype' ({tensor.datatype}), got none")
        check_datatype(tensor, datatype)
        entries[name] = entry
    return entries


def _shape(tensor: TensorPlan, entry: _JsonObject) -> list[int]:
    shape = _field(entry, "shape", list, tensor.label)
    if shape is None:
        raise DecodeError(f"{tensor.label}: expected 'shape', got none")
    for size in shape:
        if type(size) is not int or not 0 <= size <= _LARGEST:
            raise DecodeError(f"{tensor.label}: expected each size in 'shape' to be 0 or more, got {size!r:.60}")
    return shape


def _arrays(
    plan: Plan, entries: dict[str, _JsonObject], shapes: dict[str, list[int]], binary: tuple[bytes, int] | None
) -> dict[str, Array]:
    """Each input's data: its own JSON, or the next bytes of the binary part."""
    value, position = binary or (b"", 0)
    arrays: dict[str, Array] = {}
    for name, entry in entries.items():
        tensor, shape = plan.inputs[name], shapes[name]
        size = _binary_size(tensor, entry)
        if size is None:
            if "data" not in entry:
                raise DecodeError(f"{tensor.label}: expected 'data' or parameter 'binary_data_size', got neither")
            arrays[name] = array_from_json(entry["data"], tensor, shape)
            continue
        if binary is None:
            raise DecodeError(
                f"{tensor.label}: binary_data_size is {size}, but the value has no binary part: "
                f"set the header {JSON_LENGTH} to the bytes of JSON"
            )
        if "data" in entry:
            raise DecodeError(f"{tensor.label}: expected 'data' or parameter 'binary_data_size', got both")
        if size > len(value) - position:
            raise DecodeError(
                f"{tensor.label}: expected {size} bytes (binary_data_size), got {len(value) - position} "
                "in the rest of the value"
            )
        arrays[name] = array_from_bytes(value, start=position, size=size, tensor=tensor, shape=shape)
        position += size
    if binary is not None and position != len(value):
        raise DecodeError(
            f"expected {position - binary[1]} bytes of binary tensors (the sum of binary_data_size), "
            f"got {len(value) - binary[1]} after the JSON"
        )
    return arrays


def _binary_size(tensor: TensorPlan, entry: _JsonObject) -> int | None:
    parameters = _field(entry, "parameters", dict, tensor.label)
    if not parameters:
        return None
    _refuse_unsupported(parameters, tensor.label)
    size = _field(parameters, "binary_data_size", int, tensor.label)
    if size is not None and size < 0:
        raise DecodeError(f"{tensor.label}: expected binary_data_size to be 0 or more, got {size}")
    return size


def _refuse_unsupported(parameters: _JsonObject, where: str) -> None:
    for name in _UNSUPPORTED:
        if name in parameters:
            raise ValidationError(f"{where}: parameter {name!r} is not supported; leave it out")


def _answer(plan: Plan, body: _JsonObject, parameters: _JsonObject, *, identity: str | None, binary: bool) -> Answer:
    asked = _field(parameters, "binary_data_output", bool, "parameters")
    by_default = binary if asked is None else asked
    listed = _field(body, "outputs", list, "request")
    if not listed:
        plain = plan.v2_binary if by_default else plan.v2_json
        return plain if identity is None else Answer("v2", binary=plain.binary, id=identity)
    names: list[str] = []
    in_binary: set[str] = set()
    for position, item in enumerate(listed):
        name, entry = _entry(item, f"outputs[{position}]")
        if name not in plan.outputs:
            known = ", ".join(map(repr, plan.output_names))
            raise ValidationError(f"model {plan.model!r} has no output {name[:80]!r}; its outputs are {known}")
        label = plan.outputs[name].label
        if name in names:
            raise ValidationError(f"{label}: expected once in 'outputs', got it twice")
        names.append(name)
        wishes = _field(entry, "parameters", dict, label) or {}
        _refuse_unsupported(wishes, label)
        wish = _field(wishes, "binary_data", bool, label)
        if by_default if wish is None else wish:
            in_binary.add(name)
    return Answer("v2", outputs=tuple(names), binary=frozenset(in_binary) or None, id=identity)


def _unsigned(parameters: _JsonObject, key: str) -> int:
    value = _field(parameters, key, int, "parameters") or 0
    if not 0 <= value <= _LARGEST:
        raise DecodeError(f"parameters: expected {key!r} to be 0 to {_LARGEST}, got {value!r:.60}")
    return value
