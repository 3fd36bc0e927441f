"""Reads ``headrace.yaml``. Fields and types are checked here; what the model's files must complete is left open."""

from __future__ import annotations

import json
from collections.abc import Hashable
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import yaml
from pydantic import ValidationError

from schemas.errors import ConfigError
from schemas.model_file import ModelFile, StatedConfig, backend_name, refusal, refusals

__all__ = ["BATCH_SIZE", "read_yaml"]

BATCH_SIZE: Final = 32
"""``max_batch_size`` of an ONNX model that takes batches, when ``headrace.yaml`` says nothing. Triton's 4 (kept for
``config.pbtxt``) wastes a device, and an execution with few rows costs no more for a larger limit."""

_DEPTH: Final = 32

if TYPE_CHECKING:
    from yaml import SafeLoader as _SafeLoader
else:
    # libyaml reads a thousand files in a tenth of the time.
    _SafeLoader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _DuplicateKeyError(yaml.MarkedYAMLError):
    """YAML forbids a key twice; the loader would keep the last and say nothing."""


class _Loader(_SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, object]:
        seen: set[object] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:str":
                if key.value in seen:
                    raise _DuplicateKeyError(None, None, f"field {key.value!r} stands twice", key.start_mark)
                seen.add(key.value)
        return super().construct_mapping(node, deep)


def read_yaml(path: Path) -> ModelFile:
    """
    Raises:
        ConfigError: the file cannot be read, is not YAML, or a field is unknown, of the wrong type or not available;
            names file, field, given value and remedy.
    """
    values = _load(path)
    _refuse_unavailable(path, values)
    if type(values.get("instances")) is int:
        values["instances"] = [{"count": values["instances"]}]
    _check_json(path, values, "")
    try:
        # By way of JSON, because only there does pydantic's strict mode take a list for a tuple.
        stated = StatedConfig.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        raise refusals(path, error) from None
    if "version" in stated.model_fields_set and stated.version < 1:
        raise refusal(path, "version", f"must be 1 or more, got {stated.version}; name one of the version folders")
    return ModelFile(
        path=path,
        stated=stated.model_copy(update={"backend": backend_name(stated.backend)}),
        batch_size_stated="max_batch_size" in stated.model_fields_set,
        completed_batch_size=BATCH_SIZE,
        versions=(stated.version,) if "version" in stated.model_fields_set else None,
    )


def _load(path: Path) -> dict[str, object]:
    try:
        text = path.read_text(encoding="utf-8")
        values = yaml.load(text, _Loader)  # noqa: S506 - it derives from the safe loader
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}; check its permissions") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 at byte {error.start}; save it as UTF-8") from None
    except yaml.MarkedYAMLError as error:
        at = error.problem_mark
        where = f"{path}:{at.line + 1}:{at.column + 1}" if at else str(path)
        raise ConfigError(f"{where}: {error.problem}; correct the YAML there") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path}: {' '.join(str(error).split())}; correct the YAML") from None
    if values is None:
        return {}  # an empty file: everything is found from the model's files
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: must hold fields (`max_batch_size: 32`), got {values!r:.60}; see the documentation")
    return cast(dict[str, object], values)


def _refuse_unavailable(path: Path, values: dict[str, object]) -> None:
    if values.get("delivery") == "exactly-once":
        raise refusal(
            path,
            "delivery",
            "'exactly-once' is not available; set delivery: at-least-once and let readers of the results drop "
            "repeated headrace-id values",
        )
    if values.get("ordering") == "key":
        raise refusal(
            path,
            "ordering",
            "'key' is not available; set ordering: none and let readers of the results order them, "
            "for example by the headrace-sequence header",
        )


def _check_json(path: Path, value: object, field: str, depth: int = 0) -> None:
    """Refuses what YAML can say and JSON cannot: keys that are no text, dates, sets, binary, circles."""
    if depth > _DEPTH:
        raise refusal(path, field.partition(".")[0], f"is nested more than {_DEPTH} deep; make it flatter")
    if isinstance(value, dict):
        for key, inner in value.items():
            if not isinstance(key, str):
                raise refusal(path, field, f"key {key!r} is not text; put it in quotes")
            _check_json(path, inner, f"{field}.{key}".removeprefix("."), depth + 1)
    elif isinstance(value, list):
        for index, inner in enumerate(value):
            _check_json(path, inner, f"{field}[{index}]", depth + 1)
    elif not isinstance(value, str | int | float | bool | None):
        raise refusal(path, field, f"{value!r:.60} is a {type(value).__name__}; put it in quotes to make it text")
