"""Reads Triton's ``config.pbtxt``: accepts exactly what Triton's text format accepts, refuses what its validator does.

What is read but not honoured gives a warning; what would change answers if it were not honoured is refused. Kept
different from Triton on purpose:

- Without ``dynamic_batching`` Triton runs one request an execution; here rows that wait are batched in any case.
- One version serves: the highest that ``version_policy`` allows.
- ``max_queue_size`` bounds rows and not requests, and never lies below one batch; 0 is our own bound, not infinity.
- ``default_timeout_microseconds`` is a deadline on the answer, not on the wait in the queue alone, in whole ms.
- A CPU instance group without ``count`` has one instance, also for ONNX: a session uses all cores it is given.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from schemas.errors import ConfigError
from schemas.model_file import ModelFile, StatedConfig, backend_name, close_match, inner_path, refusal, refusals
from schemas.pbtxt_rules import check_message, unhonoured
from schemas.pbtxt_schema import model_config_class

__all__ = ["BATCH_SIZE", "read_pbtxt"]

BATCH_SIZE: Final = 4
"""Triton's ``default-max-batch-size``, for an ONNX model that takes batches and whose file leaves out tensors."""

# Platforms and the backend each of them means.
_PLATFORMS: Final = {
    "onnxruntime_onnx": "onnxruntime",
    "pytorch_libtorch": "pytorch",
    "torch_aoti": "pytorch",
    "tensorrt_plan": "tensorrt",
    "tensorflow_savedmodel": "tensorflow",
    "tensorflow_graphdef": "tensorflow",
}
_UNKNOWN_FIELD: Final = re.compile(r'type "inference\.([\w.]+)" has no field named "(\w+)"')

# Messages of a descriptor built at run time have no static type.
_Message = Any


def read_pbtxt(path: Path, *, gpus: Sequence[int] = ()) -> ModelFile:
    """
    Args:
        gpus: the devices of this machine, for groups of KIND_AUTO and for KIND_GPU without ``gpus``.

    Raises:
        ConfigError: naming file, line or field, and remedy.
    """
    message = _parse(path)
    check_message(path, message)
    warnings = unhonoured(message)
    fields: dict[str, object] = {
        "name": message.name,
        "backend": _backend(path, message),
        "default_filename": message.default_model_filename or None,
        "max_batch_size": message.max_batch_size,
        "inputs": [_tensor(spec, optional=spec.optional) for spec in message.input],
        "outputs": [_tensor(spec, labels=_labels(path, index, spec)) for index, spec in enumerate(message.output)],
        "instances": _instances(message, gpus, warnings),
        "parameters": _parameters(message),
        "warmup": [_warmup(path, index, sample) for index, sample in enumerate(message.model_warmup)],
    }
    if message.HasField("dynamic_batching"):
        fields |= _batching(message)
    try:
        stated = StatedConfig.model_validate(fields)
    except ValidationError as error:
        raise refusals(path, error) from None
    complete = bool(message.input and message.output)
    policy = message.version_policy
    return ModelFile(
        path=path,
        stated=stated,
        batch_size_stated=complete or message.max_batch_size > 0,
        completed_batch_size=BATCH_SIZE,
        versions=tuple(policy.specific.versions) if policy.HasField("specific") else None,
        warnings=tuple(f"{path}: {warning}" for warning in warnings),
    )


def _parse(path: Path) -> _Message:
    try:
        message: _Message = model_config_class()()
        from google.protobuf import text_format
    except ImportError:
        raise ConfigError(
            f"{path}: reading config.pbtxt needs protobuf; pip install 'headrace[node]', or write a headrace.yaml"
        ) from None
    try:
        text_format.Parse(path.read_text(encoding="utf-8"), message)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; check its permissions") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    except text_format.ParseError as error:
        # The text repeats the position in front.
        reason = re.sub(r"^\d+:\d+ : ", "", str(error)).rstrip(".")
        line = error.GetLine()
        where = f"{path}:{line}" if line is not None else str(path)
        raise ConfigError(f"{where}: {reason}; {_parse_remedy(message, reason)}") from None
    return message


def _parse_remedy(message: _Message, reason: str) -> str:
    unknown = _UNKNOWN_FIELD.search(reason)
    if unknown:
        pool = message.DESCRIPTOR.file.pool
        owner = pool.FindMessageTypeByName(f"inference.{unknown[1]}")
        return close_match(unknown[2], sorted(field.name for field in owner.fields))
    if "oneof" in reason:
        return "keep one of the two"
    return "correct the line (Triton refuses it too)"


def _backend(path: Path, message: _Message) -> str:
    platform, backend = message.platform, message.backend
    implied = _PLATFORMS.get(platform, platform)
    if backend and platform and platform != "libtorch" and implied != backend:
        raise refusal(path, "platform", f"{platform!r} does not go with backend {backend!r}; remove one of them")
    return backend_name(backend or implied)


def _datatype(number: int) -> str:
    name: str = model_config_class().DESCRIPTOR.file.enum_types_by_name["DataType"].values_by_number[number].name
    name = name.removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def _tensor(spec: _Message, **more: object) -> dict[str, object]:
    return {
        "name": spec.name,
        "datatype": _datatype(spec.data_type),
        "shape": tuple(spec.dims),
        "reshape": tuple(spec.reshape.shape) if spec.HasField("reshape") else None,
        **more,
    }


def _labels(path: Path, index: int, spec: _Message) -> tuple[str, ...]:
    if not spec.label_filename:
        return ()
    field = f"output[{index}].label_filename"
    labels = inner_path(path.parent, spec.label_filename, file=path, field=field, root=path.parent)
    try:
        return tuple(labels.read_text(encoding="utf-8").splitlines())
    except (OSError, UnicodeDecodeError) as error:
        raise refusal(path, field, f"{labels} cannot be read: {error}; give a UTF-8 text file") from error


def _instances(message: _Message, gpus: Sequence[int], warnings: list[str]) -> list[dict[str, object]]:
    """``count`` holds for each device of a group, as in Triton. No group is one of KIND_AUTO."""
    empty: _Message = model_config_class()()
    groups = message.instance_group or [empty.instance_group.add()]
    instances: list[dict[str, object]] = []
    for index, group in enumerate(groups):
        kind = group.DESCRIPTOR.fields_by_name["kind"].enum_type.values_by_number[group.kind].name
        listed = list(group.gpus) or list(gpus)
        devices = [f"cuda:{number}" for number in listed]
        if kind == "KIND_AUTO" and not set(listed) <= set(gpus):
            devices = []
        elif kind == "KIND_GPU" and not devices:
            warnings.append(f"instance_group[{index}].kind: KIND_GPU, but no GPU is at hand; runs on the CPU")
        elif kind in ("KIND_CPU", "KIND_MODEL"):
            devices = []
            if kind == "KIND_MODEL":
                warnings.append(f"instance_group[{index}].kind: KIND_MODEL is not honoured; runs on the CPU")
        instances.extend({"count": group.count or 1, "device": device} for device in devices or ["cpu"])
    return instances


def _batching(message: _Message) -> dict[str, object]:
    batching = message.dynamic_batching
    policy = batching.default_queue_policy
    queue: dict[str, object] = {}
    if policy.max_queue_size:
        queue["max_rows"] = max(policy.max_queue_size, message.max_batch_size)
    if policy.default_timeout_microseconds:
        queue["default_deadline_ms"] = -(-policy.default_timeout_microseconds // 1000)
    return {
        "preferred_batch_size": tuple(batching.preferred_batch_size),
        "max_queue_delay_ms": batching.max_queue_delay_microseconds / 1000,
        "priority_levels": batching.priority_levels,
        "default_priority_level": batching.default_priority_level,
        "queue": queue,
    }


def _parameters(message: _Message) -> dict[str, object]:
    """The file's own, with ``graph_level`` and ``execution_accelerators`` of ``optimization`` beside them."""
    parameters: dict[str, object] = {key: value.string_value for key, value in message.parameters.items()}
    if message.optimization.HasField("graph"):
        parameters["graph_level"] = message.optimization.graph.level
    if message.optimization.HasField("execution_accelerators"):
        both = message.optimization.execution_accelerators
        parameters["execution_accelerators"] = {
            kind: [{"name": item.name, "parameters": dict(item.parameters)} for item in items]
            for kind, items in (("gpu", both.gpu_execution_accelerator), ("cpu", both.cpu_execution_accelerator))
        }
    return parameters


def _warmup(path: Path, index: int, sample: _Message) -> dict[str, object]:
    inputs: dict[str, object] = {}
    for name, given in sample.inputs.items():
        choice = given.WhichOneof("input_data_type")
        if choice is None:
            raise refusal(
                path,
                f"model_warmup[{index}].inputs[{name}]",
                "has no data; set zero_data: true, random_data: true or input_data_file",
            )
        from_file = choice == "input_data_file"
        inputs[name] = {
            "datatype": _datatype(given.data_type),
            "shape": tuple(given.dims),
            "data": "file" if from_file else choice.removesuffix("_data"),
            "file": given.input_data_file if from_file else None,
        }
    return {
        "name": sample.name or f"sample {index}",
        "rows": sample.batch_size,
        "count": sample.count,
        "inputs": inputs,
    }
