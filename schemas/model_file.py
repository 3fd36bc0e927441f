"""What one configuration file says about a model, before the model's own files fill in the rest.

The readers (`schemas.yaml_config`, `schemas.pbtxt`) make a `ModelFile`; `schemas.model_completion` turns it into a
`ModelConfig`. Here are also the words in which a file is refused.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from pydantic import BaseModel, ValidationError, model_validator

from schemas.errors import ConfigError
from schemas.model import Datatype, ModelConfig, TensorSpec

__all__ = [
    "ModelFile",
    "StatedConfig",
    "backend_name",
    "check_inside",
    "close_match",
    "inner_path",
    "refusal",
    "refusals",
]

_BACKENDS: Final = {"onnxruntime": "onnx", "onnxruntime_onnx": "onnx"}


class StatedConfig(ModelConfig):
    """A configuration as far as it is written: what is absent is empty, ``model_fields_set`` tells what is not."""

    name: str = ""
    version: int = 0
    backend: str = ""
    inputs: tuple[TensorSpec, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> StatedConfig:
        return self  # only a complete configuration can be judged as a whole


@dataclass(frozen=True, slots=True)
class ModelFile:
    """
    Attributes:
        path: the file, for messages; the model's folder when there is none.
        batch_size_stated: ``max_batch_size`` is to be kept as it is.
        completed_batch_size: what it becomes otherwise, when the model takes batches.
        versions: those that may serve; None allows all. The highest present one serves.
        warnings: what was read and is not honoured, each naming the file and the field.
    """

    path: Path
    stated: StatedConfig
    batch_size_stated: bool
    completed_batch_size: int
    versions: tuple[int, ...] | None = None
    warnings: tuple[str, ...] = ()


def backend_name(name: str) -> str:
    """Our name for a backend or platform; one that is not ours keeps its own."""
    return _BACKENDS.get(name, name)


def close_match(given: str, known: Iterable[str]) -> str:
    """``did you mean 'x'?``, or the list of what is known."""
    names = list(known)
    found = difflib.get_close_matches(given, names, n=1)
    return f"did you mean {found[0]!r}?" if found else f"known: {', '.join(names)}"


def refusal(file: Path, field: str, reason: str) -> ConfigError:
    """The error for one field; ``reason`` ends with the remedy."""
    return ConfigError(f"{file}: {field}: {reason}" if field else f"{file}: {reason}")


def refusals(file: Path, error: ValidationError) -> ConfigError:
    """One error for all that pydantic found, a line each: file, dotted field, given value, remedy."""
    lines = []
    for detail in error.errors(include_url=False):
        field = _dotted(detail["loc"])
        lines.append(str(refusal(file, field, _reason(detail["type"], detail["msg"], detail["loc"], detail["input"]))))
    return ConfigError("\n".join(lines))


def _dotted(loc: tuple[int | str, ...]) -> str:
    text = ""
    for part in loc:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _reason(kind: str, message: str, loc: tuple[int | str, ...], given: object) -> str:
    value = repr(given)
    value = value if len(value) <= 80 else value[:77] + "..."
    if kind == "extra_forbidden":
        return f"unknown field; {close_match(str(loc[-1]), _known_fields(loc[:-1]))}"
    if kind == "missing":
        return "is missing; add it"
    if kind == "value_error":
        return message.removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    remedy = _datatype_remedy(given) if loc[-1] == "datatype" else ""
    return f"{message}, got {value}; {remedy or 'correct the value'}"


def _datatype_remedy(given: object) -> str:
    """The v2 name for what frameworks call ``float32``, ``TYPE_FP32`` or ``string``."""
    name = str(given).upper().removeprefix("TYPE_")
    name = {"FLOAT": "FP32", "DOUBLE": "FP64", "STRING": "BYTES", "BFLOAT16": "BF16", "BOOLEAN": "BOOL"}.get(name, name)
    name = name.replace("FLOAT", "FP")
    return f"write {name}" if name in get_args(Datatype) else ""


def _known_fields(loc: tuple[int | str, ...]) -> list[str]:
    """The fields of the model that ``loc`` leads to."""
    here: object = StatedConfig
    for part in loc:
        if isinstance(here, type) and issubclass(here, BaseModel):
            here = here.model_fields[str(part)].annotation
        else:
            here = next(arg for arg in get_args(here) if isinstance(arg, type) and issubclass(arg, BaseModel))
    return list(here.model_fields) if isinstance(here, type) and issubclass(here, BaseModel) else []


def inner_path(folder: Path, name: str, *, file: Path, field: str, root: Path) -> Path:
    """A path that ``field`` of ``file`` names, below ``folder``.

    Args:
        root: the model's folder; the repository is the one above it.

    Raises:
        ConfigError: the name leads out of the folder, a link out of the repository, or there is no such path.
    """
    path = folder / name
    if not name or Path(name).is_absolute() or ".." in Path(name).parts:
        raise refusal(file, field, f"{name!r} must be a path within {folder}")
    if not path.exists():
        raise refusal(file, field, f"{path} does not exist; add the file or correct the name")
    check_inside(path, root.parent)
    return path


def check_inside(path: Path, repository: Path) -> None:
    """
    Raises:
        ConfigError: links lead from the path to the outside of the repository.
    """
    if not path.resolve().is_relative_to(repository.resolve()):
        raise ConfigError(f"{path}: is a link to {path.resolve()}, out of the repository; copy the files into it")
