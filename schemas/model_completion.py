"""Completes a configuration from the model's own files: backend, file name, tensors, batch size.

For ONNX, as Triton does: a model takes batches if and only if the first dimension of every input and output is
dynamic; a tensor that is left with no dimension has shape [1] for callers and [] for the model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from schemas.model import ModelConfig, TensorSpec
from schemas.model_file import ModelFile, close_match, inner_path, refusal, refusals
from schemas.model_rules import check_config
from schemas.onnx_signature import OnnxSignature, OnnxTensor, read_onnx_signature

__all__ = ["MODEL_FILES", "complete"]

MODEL_FILES: Final = {"model.onnx": "onnx", "model.py": "python", "model.pt": "torch", "model.plan": "tensorrt"}
"""Default file of a version folder -> backend, in the order in which they are looked for."""

_DEFAULT_FILES: Final = {"onnx": "model.onnx", "python": "model.py"}
_SUFFIXES: Final = {".onnx": "onnx", ".py": "python", ".pt": "torch", ".plan": "tensorrt"}


def complete(source: ModelFile, *, name: str, folder: Path, version: int) -> ModelConfig:
    """
    Args:
        folder: the version folder.

    Raises:
        ConfigError: naming file, field and remedy.
    """
    stated = source.stated
    backend, filename = _backend(source, folder)
    values: dict[str, object] = {field: getattr(stated, field) for field in ModelConfig.model_fields}
    values |= {"name": name, "version": version, "backend": backend, "default_filename": filename}
    if backend == "onnx" and filename is not None:
        model = folder / filename
        values |= _from_onnx(source, read_onnx_signature(model), model)
    else:
        for field, specs in (("inputs", stated.inputs), ("outputs", stated.outputs)):
            if not specs:
                raise refusal(
                    source.path,
                    field,
                    f"are not declared, and a {backend} model's cannot be found from its files; declare them "
                    f"(`{field}: [{{name: x, datatype: FP32, shape: [64]}}]` in headrace.yaml)",
                )
    try:
        config = ModelConfig.model_validate(values)
    except ValidationError as error:
        raise refusals(source.path, error) from None
    check_config(config, source.path)
    return config


def _backend(source: ModelFile, folder: Path) -> tuple[str, str | None]:
    """The backend and the model's file within the version folder, both looked up where the file says nothing."""
    backend, filename = source.stated.backend, source.stated.default_filename
    if not backend and filename:
        backend = _SUFFIXES.get(Path(filename).suffix, "")
    if not backend:
        backend = next((MODEL_FILES[known] for known in MODEL_FILES if (folder / known).exists()), "")
    if not backend:
        raise refusal(
            source.path,
            "backend",
            f"cannot be found: {folder} holds none of {', '.join(MODEL_FILES)}; add the model's file, or name its "
            "backend",
        )
    if filename is None:
        filename = _DEFAULT_FILES.get(backend)
        if filename is None:
            return backend, None
        if not (folder / filename).exists():
            raise refusal(source.path, "default_filename", _absent(folder, filename))
    path = inner_path(folder, filename, file=source.path, field="default_filename", root=folder.parent)
    if backend == "onnx" and path.is_dir():  # external data beside the model, in a folder of the model's name
        filename = f"{filename}/model.onnx"
        inner_path(folder, filename, file=source.path, field="default_filename", root=folder.parent)
    return backend, filename


def _absent(folder: Path, filename: str) -> str:
    others = sorted(path.name for path in folder.iterdir() if path.suffix == Path(filename).suffix)
    remedy = f"set it to {others[0]!r}" if others else "copy the model there, or remove the version folder"
    return f"{folder / filename} does not exist; {remedy}"


def _from_onnx(source: ModelFile, signature: OnnxSignature, model: Path) -> dict[str, object]:
    """The fields that the ONNX file decides; what is declared is checked against it."""
    stated = source.stated
    inputs, outputs = stated.inputs, stated.outputs
    batchable = all(tensor.shape and tensor.shape[0] == -1 for tensor in (*signature.inputs, *signature.outputs))
    size = stated.max_batch_size
    if not source.batch_size_stated:
        declared = (*inputs, *outputs)
        alike = _leave_out_batch(declared, (*signature.inputs, *signature.outputs))
        size = source.completed_batch_size if batchable and alike else 0
    elif size and not batchable and not (inputs and outputs):
        raise refusal(
            source.path,
            "max_batch_size",
            f"is {size}, but not every input and output of {model} has a dynamic first dimension; set it to 0, or "
            "export the model with a dynamic batch axis",
        )
    batched = size > 0
    for kind, specs, tensors in (("inputs", inputs, signature.inputs), ("outputs", outputs, signature.outputs)):
        more = signature.overridable if kind == "inputs" else ()
        _check_declared(source.path, kind, specs, known=(*tensors, *more), batched=batched)
    lacking = {tensor.name for tensor in signature.inputs} - {spec.name for spec in inputs}
    if inputs and lacking:
        raise refusal(source.path, "inputs", f"lack {', '.join(sorted(lacking))}, which {model} needs; declare them")
    return {
        "max_batch_size": size,
        "inputs": inputs or _specs(source.path, "inputs", signature.inputs, batched=batched),
        "outputs": outputs or _specs(source.path, "outputs", signature.outputs, batched=batched),
    }


def _model_shape(spec: TensorSpec, *, batched: bool) -> tuple[int, ...]:
    """The shape that the model sees."""
    row = spec.shape if spec.reshape is None else spec.reshape
    return (-1, *row) if batched else row


def _leave_out_batch(specs: Iterable[TensorSpec], tensors: Iterable[OnnxTensor]) -> bool:
    """Whether the declared shapes are those of one row, which a model that takes batches has one dimension more of."""
    ranks = {tensor.name: len(tensor.shape) for tensor in tensors if tensor.shape is not None}
    return all(ranks.get(spec.name, -1) in (-1, len(_model_shape(spec, batched=True))) for spec in specs)


def _specs(path: Path, field: str, tensors: Sequence[OnnxTensor], *, batched: bool) -> tuple[TensorSpec, ...]:
    return tuple(_spec(path, field, tensor, batched=batched) for tensor in tensors)


def _spec(path: Path, field: str, tensor: OnnxTensor, *, batched: bool) -> TensorSpec:
    where = f"{field}.{tensor.name}"
    if tensor.datatype is None:
        raise refusal(
            path,
            where,
            f"is of type {tensor.type_name} in the ONNX file, which no v2 datatype holds; declare the {field} to serve "
            "without it, or export the model so that it gives a tensor (zipmap=False in skl2onnx)",
        )
    if tensor.shape is None:
        raise refusal(path, where, f"has no shape in the ONNX file; declare the {field}")
    shape = tensor.shape[1:] if batched else tensor.shape
    if batched and not shape:
        return TensorSpec(name=tensor.name, datatype=tensor.datatype, shape=(1,), reshape=())
    return TensorSpec(name=tensor.name, datatype=tensor.datatype, shape=shape)


def _check_declared(
    path: Path, kind: str, specs: Sequence[TensorSpec], *, known: Sequence[OnnxTensor], batched: bool
) -> None:
    tensors = {tensor.name: tensor for tensor in known}
    for index, spec in enumerate(specs):
        field = f"{kind}[{index}] ({spec.name})"
        tensor = tensors.get(spec.name)
        if tensor is None:
            raise refusal(path, field, f"the ONNX file has no such {kind[:-1]}; {close_match(spec.name, tensors)}")
        if tensor.datatype != spec.datatype:
            actual = tensor.datatype or tensor.type_name
            raise refusal(
                path, f"{field}.datatype", f"is {spec.datatype}, but {actual} in the ONNX file; write {actual}"
            )
        _check_shape(path, spec, tensor, field=field, batched=batched)


def _check_shape(path: Path, spec: TensorSpec, tensor: OnnxTensor, *, field: str, batched: bool) -> None:
    if tensor.shape is None:
        return
    shape = _model_shape(spec, batched=batched)
    if batched and tensor.shape[:1] != (-1,) and len(tensor.shape) == len(shape):
        raise refusal(
            path,
            "max_batch_size",
            f"is above 0, but {spec.name} is {list(tensor.shape)} in the ONNX file, whose first dimension is not "
            "dynamic; set it to 0, or export the model with a dynamic batch axis",
        )
    agree = len(shape) == len(tensor.shape) and all(
        actual in (-1, want) for want, actual in zip(shape, tensor.shape, strict=True)
    )
    if not agree:
        batch = ", the batch (-1) included," if batched else ""
        raise refusal(
            path,
            f"{field}.shape",
            f"gives the model {list(shape)}{batch} but the ONNX file says {list(tensor.shape)}; make them agree",
        )
