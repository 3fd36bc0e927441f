"""Rules that a complete configuration must satisfy, whichever file it came from.

Types and ranges are pydantic's, in `schemas.model`; what needs other models is `schemas.repository`'s.
"""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import Final

from schemas.model import ModelConfig, TensorSpec, WarmupSample
from schemas.model_file import close_match, inner_path, refusal
from schemas.record import DEFAULT_NAMESPACE, Topics

__all__ = ["check_config", "fits", "requests_topic", "retry_topic"]

_TOPIC_MAX: Final = 249
_TOPIC: Final = re.compile(r"[A-Za-z0-9._-]+")
_RETRY: Final = ".retry"


def check_config(config: ModelConfig, file: Path) -> None:
    """
    Args:
        file: where the configuration was written, for messages; warm-up files are looked for beside it.

    Raises:
        ConfigError: naming file, field and remedy.
    """
    for kind, specs in (("inputs", config.inputs), ("outputs", config.outputs)):
        for index, spec in enumerate(specs):
            _check_tensor(config, spec, file=file, field=f"{kind}[{index}] ({spec.name})")
    if not math.isfinite(config.max_queue_delay_ms):
        raise refusal(file, "max_queue_delay_ms", f"must be finite, got {config.max_queue_delay_ms}; set milliseconds")
    if config.priority_levels and not 1 <= config.default_priority_level <= config.priority_levels:
        raise refusal(
            file,
            "default_priority_level",
            f"must be between 1 and priority_levels ({config.priority_levels}), got {config.default_priority_level}",
        )
    if config.retry.max_delay_ms < config.retry.initial_delay_ms:
        raise refusal(
            file,
            "retry.max_delay_ms",
            f"{config.retry.max_delay_ms} is below initial_delay_ms {config.retry.initial_delay_ms}; raise it",
        )
    _check_topics(config, file)
    for index, sample in enumerate(config.warmup):
        _check_warmup(config, sample, file=file, field=f"warmup[{index}]")


def _check_tensor(config: ModelConfig, spec: TensorSpec, *, file: Path, field: str) -> None:
    if 0 in spec.shape:
        raise refusal(file, f"{field}.shape", f"{list(spec.shape)} has a size of 0; write -1 for any size")
    if spec.reshape is None:
        return
    if 0 in spec.reshape:
        raise refusal(file, f"{field}.reshape", f"{list(spec.reshape)} has a size of 0; write -1 for any size")
    if not spec.reshape and not config.batched:
        raise refusal(file, f"{field}.reshape", "may be empty only when max_batch_size is above 0; name a shape")
    if _trunks(spec.shape) != _trunks(spec.reshape):
        raise refusal(
            file,
            f"{field}.reshape",
            f"{list(spec.reshape)} does not hold the elements of shape {list(spec.shape)}; "
            "the sizes between one -1 and the next must multiply to the same number",
        )


def _trunks(shape: tuple[int, ...]) -> list[int]:
    """Products of the sizes between the -1s."""
    products = [1]
    for size in shape:
        if size == -1:
            products.append(1)
        else:
            products[-1] *= size
    return products


def requests_topic(config: ModelConfig, namespace: str = DEFAULT_NAMESPACE) -> str:
    return config.topics.requests or Topics(namespace).requests(config.name)


def retry_topic(config: ModelConfig, namespace: str = DEFAULT_NAMESPACE) -> str:
    return requests_topic(config, namespace) + _RETRY


def _legal_topic(topic: str) -> bool:
    # Names with two leading underscores are Kafka's own.
    legal = _TOPIC.fullmatch(topic) and topic not in (".", "..") and not topic.startswith("__")
    return bool(legal) and len(topic) <= _TOPIC_MAX


def _check_topics(config: ModelConfig, file: Path) -> None:
    topics = config.topics
    for field, topic in (("requests", topics.requests), ("results", topics.results), ("dead", topics.dead)):
        if topic is not None and not _legal_topic(topic):
            raise refusal(
                file,
                f"topics.{field}",
                f"{topic!r} is not a topic name that Kafka takes; use letters, digits, '.', '_' and '-', "
                f"at most {_TOPIC_MAX} characters, and no leading '__'",
            )
    if topics.requests is None:
        return
    if len(topics.requests) + len(_RETRY) > _TOPIC_MAX:
        raise refusal(
            file,
            "topics.requests",
            f"has {len(topics.requests)} characters, but {_RETRY!r} is added for its retry topic and Kafka takes "
            f"{_TOPIC_MAX}; shorten it",
        )


def _check_warmup(config: ModelConfig, sample: WarmupSample, *, file: Path, field: str) -> None:
    declared = {spec.name: spec for spec in config.inputs}
    for name, given in sample.inputs.items():
        where = f"{field}.inputs.{name}"
        spec = declared.get(name)
        if spec is None:
            raise refusal(file, where, f"the model has no such input; {close_match(name, declared)}")
        if given.datatype != spec.datatype:
            raise refusal(file, f"{where}.datatype", f"is {given.datatype}, the input is {spec.datatype}; make it so")
        if not fits(given.shape, spec.shape):
            raise refusal(
                file, f"{where}.shape", f"{list(given.shape)} does not fit the input's {list(spec.shape)}; correct it"
            )
        if given.data == "file":
            inner_path(file.parent / "warmup", given.file or "", file=file, field=f"{where}.file", root=file.parent)
        elif given.file is not None:
            raise refusal(file, f"{where}.file", f"is not read with data: {given.data}; set data: file or remove it")
    missing = [spec.name for spec in config.inputs if not spec.optional and spec.name not in sample.inputs]
    if missing:
        raise refusal(file, f"{field}.inputs", f"lacks {', '.join(missing)}; a sample gives every required input")
    if config.batched and sample.rows > config.max_batch_size:
        raise refusal(file, f"{field}.rows", f"{sample.rows} is above max_batch_size {config.max_batch_size}; lower it")


def fits(shape: tuple[int, ...], declared: tuple[int, ...]) -> bool:
    """Whether the shape is one of those declared, where -1 stands for any size."""
    return len(shape) == len(declared) and all(want in (-1, got) for got, want in zip(shape, declared, strict=True))
