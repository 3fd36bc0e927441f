"""Rows and signature of tensors that come without the codecs. Decodes nothing."""

from __future__ import annotations

from schemas.errors import ValidationError
from schemas.model import ModelConfig
from schemas.tensors import Tensors, dtype_of

__all__ = ["measure"]


def measure(config: ModelConfig, tensors: Tensors) -> tuple[int, tuple[tuple[str, tuple[int, ...]], ...]]:
    """Rows and signature of a direct call, made as the codecs make them, so that both share batches.

    Raises:
        ValidationError: inputs are missing or unknown, or differ in datatype, dimensions or rows.
    """
    specs = {spec.name: spec for spec in config.inputs}
    wrong = sorted(tensors.keys() - specs) or sorted(n for n, s in specs.items() if not s.optional and n not in tensors)
    if wrong or not tensors:
        raise ValidationError(f"model {config.name!r} takes inputs {sorted(specs)}, got {sorted(tensors)}")
    skip = 1 if config.batched else 0
    rows: int | None = None if config.batched else 1
    for name, array in tensors.items():
        spec = specs[name]
        shape = array.shape[skip:]
        fits = len(shape) == len(spec.shape) and all(w in (-1, g) for g, w in zip(shape, spec.shape, strict=True))
        if array.dtype != dtype_of(spec.datatype) or array.ndim < skip or not fits:
            wanted = ["rows", *spec.shape] if config.batched else [*spec.shape]
            raise ValidationError(
                f"input {name!r} of model {config.name!r} must be {spec.datatype} {wanted}, "
                f"got {array.dtype} {list(array.shape)}"
            )
        if config.batched:
            if rows is not None and rows != array.shape[0]:
                raise ValidationError(f"input {name!r} has {array.shape[0]} rows, another has {rows}; make them equal")
            rows = int(array.shape[0])
    return rows or 0, tuple(
        [(spec.name, tensors[spec.name].shape[skip:]) for spec in config.inputs if spec.name in tensors]
    )
