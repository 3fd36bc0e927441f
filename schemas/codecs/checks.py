"""Refusals common to all forms: shapes, rows, bytes, completeness. Parses nothing."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from schemas.codec import Answer, Limits
from schemas.codecs.plan import Plan, TensorPlan
from schemas.errors import TooLargeError, ValidationError
from schemas.tensors import Tensors

__all__ = ["Parsed", "check_datatype", "check_inputs", "check_shapes", "show_shape", "unknown_input"]


@dataclass(slots=True)
class Parsed:
    """One record, decoded and valid. ``tensors`` are in the order of the configuration."""

    rows: int
    tensors: Tensors
    answer: Answer
    parameters: Mapping[str, object] | None = None
    priority: int = 0
    timeout_ms: float | None = None


def show_shape(shape: Sequence[int]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _quoted(names: Collection[str]) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def unknown_input(plan: Plan, name: str) -> ValidationError:
    return ValidationError(f"model {plan.model!r} has no input {name[:80]!r}; its inputs are {_quoted(plan.inputs)}")


def check_inputs(plan: Plan, got: Collection[str]) -> None:
    """
    Raises:
        ValidationError: a required input is missing, or there is no input at all.
    """
    missing = [name for name in plan.required if name not in got]
    if missing:
        raise ValidationError(
            f"model {plan.model!r} needs input {_quoted(missing)}, got {_quoted(got)}; "
            f"required are {_quoted(plan.required)}"
        )
    if not got:
        raise ValidationError(f"model {plan.model!r} needs an input, got none; its inputs are {_quoted(plan.inputs)}")


def check_datatype(tensor: TensorPlan, got: str) -> None:
    if got != tensor.datatype:
        raise ValidationError(f"{tensor.label}: expected datatype {tensor.datatype}, got {got[:40]!r}")


def _check_shape(plan: Plan, tensor: TensorPlan, shape: Sequence[int]) -> None:
    expected = tensor.shape
    fits = len(shape) == len(expected) and all(
        want in (-1, have) and have >= 0 for want, have in zip(expected, shape, strict=True)
    )
    if fits:
        return
    hint = "; the first dimension is the batch" if plan.batched else ""
    raise ValidationError(f"{tensor.label}: expected shape {show_shape(expected)}, got {show_shape(shape[:16])}{hint}")


def check_shapes(plan: Plan, shapes: Mapping[str, Sequence[int]], limits: Limits) -> int:
    """The rows that all inputs share. Called before anything is allocated for them.

    Raises:
        ValidationError: a shape does not fit, there are no rows, or two inputs differ in rows.
        TooLargeError: rows or bytes exceed the limits.
    """
    total = 0
    rows = 1
    first = ""
    for name, shape in shapes.items():
        tensor = plan.inputs[name]
        _check_shape(plan, tensor, shape)
        # Sizes of 0 count as 1, so that no product of the rest overflows numpy's own arithmetic.
        total += math.prod(max(size, 1) for size in shape) * (tensor.item_bytes or 1)
        if not plan.batched:
            continue
        if not first:
            first, rows = name, shape[0]
        elif shape[0] != rows:
            raise ValidationError(
                f"{tensor.label}: expected {rows} rows as in input {first!r}, got {shape[0]}; "
                "all inputs of a request share the batch dimension"
            )
    if rows == 0:
        raise ValidationError(f"{plan.inputs[first].label}: expected at least 1 row, got 0")
    if rows > limits.max_rows:
        raise TooLargeError(
            f"model {plan.model!r}: expected at most {limits.max_rows} rows in a record, got {rows}; split the request"
        )
    if total > limits.max_bytes:
        raise TooLargeError(
            f"model {plan.model!r}: expected at most {limits.max_bytes} bytes of inputs in a record, "
            f"got {total} declared by shapes {', '.join(show_shape(shape[:16]) for shape in shapes.values())}"
        )
    return rows
