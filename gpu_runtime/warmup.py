"""The batches that an instance runs before it is ready. Makes arrays; runs nothing."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Final

import numpy as np

from schemas.errors import ModelLoadError
from schemas.model import ModelConfig, TensorSpec, WarmupInput, WarmupSample
from schemas.tensors import Array, Tensors, dtype_of

__all__ = ["warmup_batches"]

_FULL_BATCH_LIMIT_BYTES: Final = 64 * 1024 * 1024
"""Without configured samples a full batch is run too, unless its inputs alone are larger than this."""


def warmup_batches(config: ModelConfig, path: Path) -> list[tuple[Tensors, int]]:
    """``(tensors, rows)`` to run one after another; a sample with ``count`` n is listed n times (0 as 1).

    Without samples in the configuration: one row of zeros (empty BYTES), and a full batch of them if that is small;
    free sizes are 1. A model may rightly refuse such made-up values, so a failure of these says less than a failure
    of a configured sample. ``random`` is the same at every load: floats in [0, 1), 0 or 1 for integers (always
    legal as indices), and empty BYTES. A file holds one row in the v2 binary form, repeated for every row.

    Args:
        path: the version folder; files are read from ``warmup/`` beside it.

    Raises:
        ModelLoadError: a sample does not fit the configuration, or its file is missing, too short or too long.
    """
    if not config.warmup:
        return _default_batches(config)
    folder = path.parent / "warmup"
    batches: list[tuple[Tensors, int]] = []
    for sample in config.warmup:
        if sample.rows > 0:
            batches += [_sample_batch(sample, config, folder)] * max(1, sample.count)
    return batches


def _default_batches(config: ModelConfig) -> list[tuple[Tensors, int]]:
    shapes = {spec.name: tuple(1 if dim == -1 else dim for dim in spec.shape) for spec in config.inputs}
    sizes = [math.prod(shapes[spec.name]) * dtype_of(spec.datatype).itemsize for spec in config.inputs]
    rows = [1]
    if config.max_batch_size > 1 and sum(sizes) * config.max_batch_size <= _FULL_BATCH_LIMIT_BYTES:
        rows.append(config.max_batch_size)
    inputs = {spec.name: WarmupInput(datatype=spec.datatype, shape=shapes[spec.name]) for spec in config.inputs}
    return [({name: _batch_of(_made(given), count, config) for name, given in inputs.items()}, count) for count in rows]


def _sample_batch(sample: WarmupSample, config: ModelConfig, folder: Path) -> tuple[Tensors, int]:
    what = f"warm-up sample {sample.name!r} of model {config.name!r}"
    specs = {spec.name: spec for spec in config.inputs}
    if config.batched and sample.rows > config.max_batch_size:
        raise ModelLoadError(f"{what} has {sample.rows} rows, above max_batch_size {config.max_batch_size}; lower them")
    missing = {spec.name for spec in config.inputs if not spec.optional} - sample.inputs.keys()
    if missing:
        raise ModelLoadError(f"{what} lacks input {min(missing)!r}; add it")
    tensors: Tensors = {}
    for name, given in sample.inputs.items():
        if name not in specs:
            raise ModelLoadError(f"{what} names input {name!r}, which the model does not declare; remove it")
        _check(given, specs[name], f"{what}: input {name!r}")
        row = _read(given, folder, f"{what}: input {name!r}") if given.data == "file" else _made(given)
        tensors[name] = _batch_of(row, sample.rows, config)
    return tensors, sample.rows if config.batched else 1


def _check(given: WarmupInput, spec: TensorSpec, what: str) -> None:
    if given.datatype != spec.datatype:
        raise ModelLoadError(f"{what} is {given.datatype}, declared {spec.datatype}; make them the same")
    fits = len(given.shape) == len(spec.shape) and all(
        dim in (-1, size) for size, dim in zip(given.shape, spec.shape, strict=True)
    )
    if not fits:
        raise ModelLoadError(f"{what} has shape {list(given.shape)}, declared {list(spec.shape)}; make them fit")


def _batch_of(row: Array, rows: int, config: ModelConfig) -> Array:
    return np.repeat(row[np.newaxis], rows, axis=0) if config.batched else row


def _made(given: WarmupInput) -> Array:
    if given.datatype == "BYTES":
        return np.full(given.shape, b"", dtype=np.object_)
    dtype = dtype_of(given.datatype)
    if given.data != "random":
        return np.zeros(given.shape, dtype)
    random = np.random.default_rng(0)
    # bfloat16 is of no numpy kind; every other float is "f".
    if dtype.kind == "f" or given.datatype == "BF16":
        return random.random(given.shape).astype(dtype)
    return random.integers(0, 2, given.shape).astype(dtype)


def _read(given: WarmupInput, folder: Path, what: str) -> Array:
    if not given.file:
        raise ModelLoadError(f"{what} is to be read from a file, but names none; set file")
    path = (folder / given.file).resolve()
    if not path.is_relative_to(folder.resolve()):
        raise ModelLoadError(f"{what} names {given.file!r}, which lies outside {folder}; put the file there")
    try:
        value = path.read_bytes()
    except OSError as error:
        raise ModelLoadError(f"{what}: {path} cannot be read: {error.strerror}; put the file there") from error
    if given.datatype == "BYTES":
        return _elements(value, given.shape, f"{what}: {path}")
    dtype = dtype_of(given.datatype)
    expected = math.prod(given.shape) * dtype.itemsize
    if len(value) != expected:
        raise ModelLoadError(
            f"{what}: {path} has {len(value)} bytes, but {given.datatype} {list(given.shape)} takes {expected}"
        )
    return np.frombuffer(value, dtype).reshape(given.shape)


def _elements(value: bytes, shape: tuple[int, ...], what: str) -> Array:
    """BYTES in the v2 binary form: each element after its length in four little-endian bytes."""
    array = np.empty(math.prod(shape), dtype=np.object_)
    position = 0
    for index in range(array.size):
        end = position + 4 + int.from_bytes(value[position : position + 4], "little")
        if position + 4 > len(value) or end > len(value):
            raise ModelLoadError(f"{what} ends within element {index}; write each after its length in four bytes")
        array[index] = value[position + 4 : end]
        position = end
    if position != len(value):
        raise ModelLoadError(f"{what} has {len(value) - position} bytes after its {array.size} elements; remove them")
    return array.reshape(shape)
