"""Checks what a model gave back against its declaration. Knows nothing of requests.

A batch whose outputs break the law (one row out for each row in, the declared names, datatypes and shapes) is not
delivered by guess: the caller retries it row by row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from schemas.errors import ModelError, ValidationError
from schemas.model import ModelConfig, TensorSpec
from schemas.tensors import Array, Tensors, datatype_of, dtype_of

__all__ = ["check_outputs"]


def check_outputs(outputs: Mapping[str, object], rows: int, config: ModelConfig) -> Tensors:
    """The declared outputs, as they are to be delivered. Outputs that are not declared are left out.

    Text for a BYTES output is encoded (UTF-8). ``reshape`` is the backend's business: here shapes are as declared.

    Raises:
        ModelError: an output is missing, or differs in datatype, number of rows or shape; names it.
    """
    if not isinstance(outputs, Mapping):
        raise ModelError(f"model {config.name!r} returned {type(outputs).__name__}; return {{output name: array}}")
    lead = (rows,) if config.batched else ()
    checked: Tensors = {}
    for spec in config.outputs:
        array = outputs.get(spec.name)
        if array is None:
            raise ModelError(
                f"model {config.name!r} returned no output {spec.name!r} (it returned {sorted(outputs)}); "
                "every declared output is needed"
            )
        if not isinstance(array, np.ndarray):
            raise ModelError(f"output {spec.name!r} is a {type(array).__name__}; return a numpy array")
        checked[spec.name] = _shaped(_typed(array, spec), spec, lead)
    return checked


def _typed(array: Array, spec: TensorSpec) -> Array:
    if spec.datatype == "BYTES":
        return _as_bytes(array, spec.name)
    wanted = dtype_of(spec.datatype)
    if array.dtype == wanted:
        return array
    try:
        found: str = datatype_of(array.dtype)
    except ValidationError:
        found = str(array.dtype)
    raise ModelError(f"output {spec.name!r} is {found}, declared {spec.datatype}; convert it or change the declaration")


def _as_bytes(array: Array, name: str) -> Array:
    kind = array.dtype.kind
    if kind == "S":
        return array.astype(np.object_)
    if kind not in "OUT":
        raise ModelError(f"output {name!r} is {array.dtype}, declared BYTES; return an object array of bytes")
    values = array.astype(np.object_, copy=False)
    if all(isinstance(value, bytes) for value in values.ravel().tolist()):
        return values
    encoded = np.empty(values.shape, dtype=np.object_)
    for index, value in np.ndenumerate(values):
        if not isinstance(value, str | bytes):
            raise ModelError(f"output {name!r} is declared BYTES but holds a {type(value).__name__}; return bytes")
        encoded[index] = value.encode() if isinstance(value, str) else bytes(value)
    return encoded


def _shaped(array: Array, spec: TensorSpec, lead: tuple[int, ...]) -> Array:
    if lead and (array.ndim == 0 or array.shape[0] != lead[0]):
        raise ModelError(
            f"output {spec.name!r} has shape {list(array.shape)} for a batch of {lead[0]} rows; "
            "return one row for each row, in their order"
        )
    trailing = array.shape[len(lead) :]
    if _fits(trailing, spec.shape):
        return array
    raise ModelError(
        f"output {spec.name!r} has rows of shape {list(trailing)}, declared {list(spec.shape)}; "
        "fix the model or the declaration"
    )


def _fits(shape: Sequence[int], declared: Sequence[int]) -> bool:
    return len(shape) == len(declared) and all(want in (-1, got) for got, want in zip(shape, declared, strict=True))
