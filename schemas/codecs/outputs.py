"""A model's raw outputs -> arrays of the declared datatypes, before they are written. Knows no form.

Text of any kind (str, numpy <U and S, object arrays of str or bytes) becomes BYTES in UTF-8. Numbers are converted to
the declared datatype within their kind (float64 to FP32, int64 to INT32); a float where an integer is declared is the
model's mistake and is said so.
"""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import numpy.typing as npt

from schemas.codecs.plan import Plan, TensorPlan
from schemas.errors import ModelError
from schemas.tensors import Array, Tensors

__all__ = ["as_array", "bytes_elements", "declared_outputs", "stacked_outputs"]


def as_array(given: npt.ArrayLike) -> Array:
    """An array of anything array-like. Lists of text never pass through numpy's S and U, which drop trailing zeros."""
    array = np.asarray(given)
    if array is not given and array.dtype.kind in "SU":
        return np.asarray(given, np.object_)
    return array


def stacked_outputs(plan: Plan, outputs: Mapping[str, npt.ArrayLike], rows: int | None) -> Tensors:
    """Every declared output, in the order of the configuration, with its rows checked: no row may reach another caller.

    Args:
        rows: what the first dimension must be; None for a model with no batch dimension.

    Raises:
        ModelError: one is missing or has other rows.
    """
    found: Tensors = {}
    for name, tensor in plan.outputs.items():
        if name not in outputs:
            raise ModelError(f"{tensor.label}: the model returned no such output, only {', '.join(map(repr, outputs))}")
        array = as_array(outputs[name])
        if rows is not None and (not array.ndim or array.shape[0] != rows):
            raise ModelError(f"{tensor.label}: expected {rows} rows, the model returned shape {list(array.shape)}")
        found[name] = array
    return found


def declared_outputs(plan: Plan, arrays: Tensors) -> Tensors:
    """The same in the declared datatypes.

    Raises:
        ModelError: one has another kind of datatype than declared.
    """
    return {name: _declared(array, plan.outputs[name]) for name, array in arrays.items()}


def _declared(array: Array, tensor: TensorPlan) -> Array:
    if tensor.datatype == "BYTES":
        return bytes_elements(array, tensor.label)
    if array.dtype == tensor.dtype:
        return array
    if array.dtype == np.object_ or not _converts(array.dtype, tensor.dtype):
        raise ModelError(f"{tensor.label}: expected {tensor.datatype}, the model returned numpy {array.dtype}")
    with np.errstate(over="ignore"):
        return array.astype(tensor.dtype)


def _converts(given: np.dtype[np.generic], wanted: np.dtype[np.generic]) -> bool:
    """Within its kind. numpy does not know that bfloat16 is a float, so FP32 stands in for it."""
    stand_ins = [np.dtype(np.float32) if dtype == ml_dtypes.bfloat16 else dtype for dtype in (given, wanted)]
    return np.can_cast(stand_ins[0], stand_ins[1], "same_kind")


def bytes_elements(array: Array, label: str) -> Array:
    """An object array of `bytes` from text in any of numpy's forms.

    Raises:
        ModelError: an element is neither str nor bytes.
    """
    flat = array.reshape(-1).tolist()
    if array.dtype == np.object_ and set(map(type, flat)) <= {bytes}:
        return array
    elements = []
    for element in flat:
        if isinstance(element, bytes | bytearray):
            elements.append(bytes(element))
        elif isinstance(element, str):
            # Half a surrogate pair, which only a program can make, is written as '?'.
            elements.append(element.encode(errors="replace"))
        else:
            raise ModelError(f"{label}: expected str or bytes for BYTES, got {element!r:.60}")
    result = np.empty(len(elements), np.object_)
    result[:] = elements
    return result.reshape(array.shape)
