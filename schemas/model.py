"""One model's configuration, whichever file it came from.

Reading the files is `schemas.repository`'s work; this module only says what a valid configuration is.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

__all__ = [
    "Datatype",
    "Instance",
    "ModelConfig",
    "QueuePolicy",
    "RetryPolicy",
    "TensorSpec",
    "TopicNames",
    "WarmupSample",
]

Datatype = Literal[
    "BOOL",
    "UINT8",
    "UINT16",
    "UINT32",
    "UINT64",
    "INT8",
    "INT16",
    "INT32",
    "INT64",
    "FP16",
    "BF16",
    "FP32",
    "FP64",
    "BYTES",
]

Dim = Annotated[int, Field(ge=-1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=False)


class TensorSpec(_Strict):
    """Name, datatype and shape of one input or output.

    ``shape`` leaves out the batch dimension; -1 stands for any size. ``reshape`` is the shape the backend sees for
    each row when it differs (`[]` for a scalar a row).
    """

    name: Annotated[str, Field(min_length=1)]
    datatype: Datatype
    shape: tuple[Dim, ...]
    reshape: tuple[Dim, ...] | None = None
    optional: bool = False
    labels: tuple[str, ...] = ()


class Instance(_Strict):
    """``count`` instances on one device (``cpu`` or ``cuda:N``)."""

    count: Annotated[int, Field(ge=1, le=64)] = 1
    device: Annotated[str, Field(pattern=r"^(cpu|cuda:\d+)$")] = "cpu"


class QueuePolicy(_Strict):
    """``max_rows`` bounds the rows waiting for this model in this process."""

    max_rows: Annotated[int, Field(ge=1)] = 4096
    default_deadline_ms: Annotated[int, Field(ge=1)] | None = None


class RetryPolicy(_Strict):
    """``max_attempts`` counts the first one. Delays double from ``initial_delay_ms`` up to ``max_delay_ms``."""

    max_attempts: Annotated[int, Field(ge=1, le=1000)] = 3
    initial_delay_ms: Annotated[int, Field(ge=0)] = 200
    max_delay_ms: Annotated[int, Field(ge=0)] = 30_000


class TopicNames(_Strict):
    """Overrides; None keeps the name of the record contract. The retry topic follows ``requests``."""

    requests: str | None = None
    results: str | None = None
    dead: str | None = None


class WarmupInput(_Strict):
    """``shape`` without the batch dimension, all sizes known. ``file`` is relative to ``<model>/warmup/``."""

    datatype: Datatype
    shape: tuple[Annotated[int, Field(ge=0)], ...]
    data: Literal["zero", "random", "file"] = "zero"
    file: str | None = None


class WarmupSample(_Strict):
    name: str = "sample"
    rows: Annotated[int, Field(ge=0)] = 1
    count: Annotated[int, Field(ge=0)] = 1
    inputs: dict[str, WarmupInput] = {}


class ModelConfig(_Strict):
    """A complete model configuration (design surface: ``headrace.yaml``).

    ``version`` is the version that serves; ``default_filename`` the file within its folder.
    """

    name: str
    version: int = 1
    backend: str
    default_filename: str | None = None
    max_batch_size: Annotated[int, Field(ge=0)] = 0
    max_queue_delay_ms: Annotated[float, Field(ge=0)] = 0.0
    preferred_batch_size: tuple[Annotated[int, Field(ge=1)], ...] = ()
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    instances: tuple[Instance, ...] = (Instance(),)
    queue: QueuePolicy = QueuePolicy()
    retry: RetryPolicy = RetryPolicy()
    delivery: Literal["at-least-once"] = "at-least-once"
    ordering: Literal["none"] = "none"
    topics: TopicNames = TopicNames()
    parameters: dict[str, object] = {}
    priority_levels: Annotated[int, Field(ge=0)] = 0
    default_priority_level: Annotated[int, Field(ge=0)] = 0
    warmup: tuple[WarmupSample, ...] = ()

    @model_validator(mode="after")
    def _consistent(self) -> ModelConfig:
        for kind, specs in (("input", self.inputs), ("output", self.outputs)):
            names = [spec.name for spec in specs]
            if len(set(names)) != len(names):
                raise ValueError(f"two {kind}s share a name: {names}; give each its own")
        for size in self.preferred_batch_size:
            if size > self.max_batch_size:
                raise ValueError(
                    f"preferred_batch_size {size} is above max_batch_size {self.max_batch_size}; "
                    "lower it or raise the maximum"
                )
        return self

    @property
    def batched(self) -> bool:
        """Whether tensors carry a batch dimension."""
        return self.max_batch_size > 0
