"""``reshape`` of the model configuration: the declared shape of a row <-> the shape that the model sees."""

from __future__ import annotations

from schemas.errors import ModelError
from schemas.model import TensorSpec
from schemas.tensors import Array

__all__ = ["declared_shape", "model_shape"]


def model_shape(array: Array, spec: TensorSpec, *, batched: bool) -> Array:
    """An input as the model wants it; the same array when the declaration has no ``reshape``.

    Raises:
        ModelError: the shapes do not hold the same number of values.
    """
    if spec.reshape is None:
        return array
    return _reshape(array, spec.name, spec.shape, spec.reshape, batched=batched)


def declared_shape(array: Array, spec: TensorSpec, *, batched: bool) -> Array:
    """An output as it is declared; the same array when the declaration has no ``reshape``.

    Raises:
        ModelError: the shapes do not hold the same number of values.
    """
    if spec.reshape is None:
        return array
    return _reshape(array, spec.name, spec.reshape, spec.shape, batched=batched)


def _reshape(array: Array, name: str, source: tuple[int, ...], target: tuple[int, ...], *, batched: bool) -> Array:
    lead = array.shape[:1] if batched else ()
    # The n-th free size of one shape is the n-th of the other (Triton's rule for reshape).
    free = iter([size for size, dim in zip(array.shape[len(lead) :], source, strict=False) if dim == -1])
    shape = (*lead, *(next(free, -1) if dim == -1 else dim for dim in target))
    try:
        return array.reshape(shape)
    except ValueError as error:
        raise ModelError(
            f"tensor {name!r} of shape {list(array.shape)} cannot be reshaped to {list(shape)}; "
            "correct its shape or reshape in the model's configuration"
        ) from error
