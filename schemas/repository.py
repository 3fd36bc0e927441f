"""The model repository: finds every model's folder, version and configuration, and says all that is wrong at once.

::

    <repository>/<model>/headrace.yaml | config.pbtxt | neither     one at most
    <repository>/<model>/<version>/model.onnx | model.py | ...      version: a number, not beginning with 0

Nothing is loaded and nothing is written. Files in the repository itself, and folders whose names begin with a dot,
are not looked at.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from schemas.errors import ConfigError, ValidationError
from schemas.model import ModelConfig
from schemas.model_completion import MODEL_FILES, complete
from schemas.model_file import ModelFile, StatedConfig, check_inside, refusal
from schemas.model_rules import requests_topic, retry_topic
from schemas.pbtxt import read_pbtxt
from schemas.record import DEFAULT_NAMESPACE, Topics, check_name
from schemas.yaml_config import BATCH_SIZE, read_yaml

__all__ = ["ModelFolder", "Repository", "load_model", "scan"]

YAML: Final = "headrace.yaml"
PBTXT: Final = "config.pbtxt"

# Left by file systems and by Python; no one means a model by them.
_NOT_MODELS: Final = frozenset({"lost+found", "__pycache__"})


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """One model that can be served.

    Attributes:
        path: the version folder, ``<repository>/<name>/<version>``.
        config: complete; tensors, backend and file name are there whatever the file left out.
        warnings: what the configuration asks for and does not get.
    """

    name: str
    path: Path
    config: ModelConfig
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Repository:
    """``models`` are sorted by name. With ``errors`` the repository must not be served: see them all at once."""

    root: Path
    models: tuple[ModelFolder, ...] = ()
    errors: list[ConfigError] = field(default_factory=list)


def scan(
    root: Path,
    *,
    namespace: str = DEFAULT_NAMESPACE,
    gpus: Sequence[int] = (),
    backends: Collection[str] | None = None,
) -> Repository:
    """Reads every model's configuration. Blocks; raises nothing for what stands in the files.

    Args:
        namespace: first part of the topic names, for the check that no two models share one.
        gpus: device numbers of this machine, for ``config.pbtxt`` groups that leave the choice open.
        backends: names of those that can serve a model; None leaves that unchecked.
    """
    try:
        folders = sorted(_model_folders(root))
    except OSError as error:
        problem = ConfigError(
            f"{root}: cannot be read as a model repository: {error.strerror}; name a folder of models"
        )
        return Repository(root, errors=[problem])
    models: list[ModelFolder] = []
    errors: list[ConfigError] = []
    for folder in folders:
        try:
            model = load_model(folder, gpus=gpus)
            _check_backend(model, backends)
            models.append(model)
        except ConfigError as error:
            errors.append(error)
    if not folders:
        errors.append(
            ConfigError(f"{root}: holds no model; add a folder for one, with {YAML} and 1/model.onnx or 1/model.py")
        )
    errors.extend(_topic_clashes(models, namespace))
    return Repository(root, tuple(models), errors)


def _check_backend(model: ModelFolder, backends: Collection[str] | None) -> None:
    wanted = model.config.backend
    if backends is not None and wanted not in backends:
        raise ConfigError(
            f"{model.path.parent}: backend: {wanted!r} cannot be served; there are: {', '.join(sorted(backends))}. "
            "Export the model to ONNX, or wrap it in a Python model"
        )


def _model_folders(root: Path) -> Iterator[Path]:
    for path in root.iterdir():
        if not path.name.startswith(".") and path.name not in _NOT_MODELS and path.is_dir():
            yield path


def load_model(folder: Path, *, gpus: Sequence[int] = ()) -> ModelFolder:
    """One model. Its repository is the folder above; links may not lead out of that.

    Raises:
        ConfigError: naming file, field and remedy.
    """
    try:
        return _load(folder, gpus)
    except OSError as error:
        raise ConfigError(
            f"{error.filename or folder}: cannot be read: {error.strerror}; check its permissions"
        ) from error


def _load(folder: Path, gpus: Sequence[int]) -> ModelFolder:
    try:
        name = check_name("model", folder.name)
    except ValidationError as error:
        raise ConfigError(f"{folder}: {error}; rename the folder") from None
    check_inside(folder, folder.parent)
    source = _read_config(folder, gpus)
    if source.stated.name not in ("", name):
        raise refusal(
            source.path,
            "name",
            f"is {source.stated.name!r}, the folder {name!r}; make them the same or remove the field",
        )
    version = _choose_version(folder, source)
    path = folder / str(version)
    check_inside(path, folder.parent)
    config = complete(source, name=name, folder=path, version=version)
    return ModelFolder(name, path, config, source.warnings)


def _read_config(folder: Path, gpus: Sequence[int]) -> ModelFile:
    yaml_file, pbtxt = folder / YAML, folder / PBTXT
    if yaml_file.exists() and pbtxt.exists():
        raise ConfigError(f"{folder}: holds both {YAML} and {PBTXT}; keep one of them")
    if yaml_file.exists():
        check_inside(yaml_file, folder.parent)
        return read_yaml(yaml_file)
    if pbtxt.exists():
        check_inside(pbtxt, folder.parent)
        return read_pbtxt(pbtxt, gpus=gpus)
    if (folder / "headrace.yml").exists():
        raise ConfigError(f"{folder / 'headrace.yml'}: is not read under this name; rename it to {YAML}")
    if not _versions(folder):
        misplaced = next((known for known in MODEL_FILES if (folder / known).exists()), None)
        remedy = (
            f"move {misplaced} into {folder / '1'}"
            if misplaced
            else f"add {YAML} and 1/model.onnx or 1/model.py, or remove the folder"
        )
        raise ConfigError(f"{folder}: holds neither a configuration nor a version of a model; {remedy}")
    # Where it would be, so that messages say where to write the field.
    return ModelFile(yaml_file, StatedConfig(), batch_size_stated=False, completed_batch_size=BATCH_SIZE)


def _versions(folder: Path) -> list[int]:
    """As in Triton, what is not a number, or begins with 0, is no version."""
    names = (path.name for path in folder.iterdir() if path.name.isascii() and path.name.isdigit() and path.is_dir())
    return sorted(int(name) for name in names if not name.startswith("0"))


def _choose_version(folder: Path, source: ModelFile) -> int:
    present = _versions(folder)
    if not present:
        misplaced = next((known for known in MODEL_FILES if (folder / known).exists()), "the model's file")
        raise ConfigError(f"{folder}: has no version folder; make {folder / '1'} and put {misplaced} there")
    allowed = [version for version in present if source.versions is None or version in source.versions]
    if not allowed:
        wanted = ", ".join(map(str, source.versions or ()))
        raise refusal(
            source.path,
            "version_policy" if source.path.name == PBTXT else "version",
            f"allows {wanted or 'none'}, but the folder has {', '.join(map(str, present))}; name one that is there",
        )
    return allowed[-1]


def _topic_clashes(models: Sequence[ModelFolder], namespace: str) -> Iterator[ConfigError]:
    """A topic that is read for one model (requests, retries) may carry nothing else.

    Kafka refuses topics whose names differ in '.' and '_' alone, so those clash too.
    """
    topics = Topics(namespace)
    read: dict[str, tuple[ModelFolder, str, str]] = {}
    for model in models:
        for use, topic in (
            ("requests", requests_topic(model.config, namespace)),
            ("retries", retry_topic(model.config, namespace)),
        ):
            known = read.setdefault(topic.replace(".", "_"), (model, use, topic))
            # Where two share their requests, they share their retries as well: said once.
            if known[0] is not model and not known[1] == use == "retries":
                yield _clash(known, (model, use, topic))
    for model in models:
        for use, topic in (
            ("results", model.config.topics.results or topics.results(model.name)),
            ("dead letters", model.config.topics.dead or topics.dead(model.name)),
        ):
            other = read.get(topic.replace(".", "_"))
            if other:
                yield _clash(other, (model, use, topic))


def _clash(one: tuple[ModelFolder, str, str], other: tuple[ModelFolder, str, str]) -> ConfigError:
    (model, use, topic), (second, second_use, second_topic) = one, other
    alike = "" if topic == second_topic else f" (which Kafka does not tell from {second_topic!r})"
    return ConfigError(
        f"{second.path.parent}: topics: {topic!r}{alike} would carry {use} of model {model.name} and {second_use} of "
        f"model {second.name}; set topics in one {YAML}, or rename one model"
    )
