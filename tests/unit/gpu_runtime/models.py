"""Configurations and requests that the runtime's tests share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from gpu_runtime.request import Outcome, Request
from schemas.model import ModelConfig, TensorSpec, WarmupSample

NO_WARMUP = (WarmupSample(rows=0),)


def config_of(**fields: Any) -> ModelConfig:
    """``x`` in, ``y`` out, one FP32 a row; no warm-up."""
    given: dict[str, Any] = {
        "name": "m",
        "backend": "fake",
        "max_batch_size": 8,
        "inputs": (TensorSpec(name="x", datatype="FP32", shape=(1,)),),
        "outputs": (TensorSpec(name="y", datatype="FP32", shape=(1,)),),
        "warmup": NO_WARMUP,
    }
    return ModelConfig(**(given | fields))


class Answers:
    """Collects outcomes in the order in which they come."""

    def __init__(self) -> None:
        self.outcomes: list[Outcome] = []

    def __call__(self, outcome: Outcome) -> None:
        self.outcomes.append(outcome)


def ignore(_: Outcome) -> None: ...


def request_of(
    rows: int = 1,
    *,
    shape: object = "a",
    values: list[float] | None = None,
    on_done: Callable[[Outcome], None] = ignore,
    **fields: Any,
) -> Request:
    """``rows`` rows with values 0, 1, ... unless given; ``shape`` stands for the signature."""
    x = np.array(values if values is not None else range(rows), dtype=np.float32).reshape(-1, 1)
    return Request(tensors={"x": x}, rows=len(x), signature=shape, on_done=on_done, **fields)
