"""Plain requests, one record at a time: a JSON object whose keys are input names, or the bytes of the only input.

A plain JSON value has one row when its nesting fits the input without the batch dimension, and many when it fits with
it; a scalar stands for shape [1] (or []). All inputs of a record must agree. The answer goes back the same way.
"""

from __future__ import annotations

from schemas.codec import Answer, Limits
from schemas.codecs.binary import array_from_bytes, bytes_array
from schemas.codecs.checks import Parsed, check_inputs, check_shapes, show_shape, unknown_input
from schemas.codecs.json_data import array_from_json, infer_shape
from schemas.codecs.plan import Plan, TensorPlan
from schemas.errors import ValidationError

__all__ = ["PLAIN", "PLAIN_SQUEEZED", "RAW", "RAW_SQUEEZED", "only_input", "parse_plain", "parse_raw"]

PLAIN = Answer(style="plain")
PLAIN_SQUEEZED = Answer(style="plain", squeeze=True)
RAW = Answer(style="raw")
RAW_SQUEEZED = Answer(style="raw", squeeze=True)


def parse_plain(plan: Plan, body: dict[str, object], limits: Limits) -> Parsed:
    """
    Raises:
        ValidationError | TooLargeError: naming the input, the expected and the actual.
    """
    for name in body:
        if name not in plan.inputs:
            raise unknown_input(plan, name)
    check_inputs(plan, body)
    found = {name: _plain_shape(plan, plan.inputs[name], body[name]) for name in plan.inputs if name in body}
    squeezed = {name: len(shape) == len(plan.inputs[name].dims) for name, shape in found.items()}
    if plan.batched and len(set(squeezed.values())) > 1:
        listed = ", ".join(f"{name!r} {show_shape(shape)}" for name, shape in found.items())
        raise ValidationError(
            f"model {plan.model!r}: expected all inputs with the batch dimension or all without, got {listed}"
        )
    squeeze = plan.batched and all(squeezed.values())
    shapes = {name: (1, *shape) if squeeze else shape for name, shape in found.items()}
    rows = check_shapes(plan, shapes, limits)
    arrays = {}
    for name, shape in shapes.items():
        value = body[name]
        data = value if type(value) is list else [value]
        arrays[name] = array_from_json(data, plan.inputs[name], found[name]).reshape(shape)
    return Parsed(rows, arrays, PLAIN_SQUEEZED if squeeze else PLAIN)


def _plain_shape(plan: Plan, tensor: TensorPlan, value: object) -> tuple[int, ...]:
    shape = infer_shape(value)
    if not shape and tensor.dims == (1,):
        return (1,)
    if len(shape) == len(tensor.dims) or (plan.batched and len(shape) == len(tensor.dims) + 1):
        return shape
    many = f" for one row or {show_shape(tensor.shape)} for many" if plan.batched else ""
    raise ValidationError(
        f"{tensor.label}: expected nested lists of shape {show_shape(tensor.dims)}{many}, got {show_shape(shape[:16])}"
    )


def only_input(plan: Plan) -> TensorPlan:
    """
    Raises:
        ValidationError: the model cannot take raw bytes.
    """
    tensor = plan.only_input
    if tensor is None:
        raise ValidationError(
            f"model {plan.model!r} has {len(plan.inputs)} inputs, expected one for a raw value; "
            "send JSON, or v2 with binary tensors and its length header"
        )
    single = tensor.row_elements == 1 or tensor.dims == (-1,)
    if tensor.row_bytes is None and not (tensor.datatype == "BYTES" and single):
        raise ValidationError(
            f"{tensor.label}: a raw value needs a fixed size or one BYTES element, "
            f"got {tensor.datatype} {show_shape(tensor.dims)}; send v2 with binary tensors and its length header"
        )
    return tensor


def parse_raw(plan: Plan, value: bytes, limits: Limits) -> Parsed:
    """The whole value is the one BYTES element, or little-endian numbers of one or more rows.

    Raises:
        ValidationError | TooLargeError: naming the input, the expected and the actual.
    """
    tensor = only_input(plan)
    row_bytes = tensor.row_bytes
    if row_bytes is None:
        shape = tuple(1 for _ in tensor.shape)
        return Parsed(1, {tensor.name: bytes_array([value]).reshape(shape)}, _raw_answer(plan, 1))
    rows, rest = divmod(len(value), row_bytes) if row_bytes else (0, 1)
    if rest or not rows or (rows > 1 and not plan.batched):
        times = " or a multiple of it" if plan.batched else ""
        raise ValidationError(f"{tensor.label}: expected {row_bytes} bytes{times}, got {len(value)}")
    shape = (rows, *tensor.dims) if plan.batched else tensor.dims
    check_shapes(plan, {tensor.name: shape}, limits)
    array = array_from_bytes(value, start=0, size=len(value), tensor=tensor, shape=shape)
    return Parsed(rows, {tensor.name: array}, _raw_answer(plan, rows))


def _raw_answer(plan: Plan, rows: int) -> Answer:
    return RAW_SQUEEZED if plan.batched and rows == 1 else RAW
