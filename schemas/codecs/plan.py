"""What the codec needs to know of one model, derived from its configuration once. Reads and writes no values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from schemas.codec import Answer
from schemas.model import Datatype, ModelConfig, TensorSpec
from schemas.tensors import dtype_of, item_size

__all__ = ["Plan", "TensorPlan", "plan_of"]

_KEPT: Final = 1024
"""Plans kept. A node has far fewer models; reloads make new configurations, so the store must not grow for ever."""


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One input or output.

    Attributes:
        label: how messages call it, such as ``input 'x' of model 'm'``.
        shape: full expected shape, the batch dimension included (-1), where there is one.
        dims: ``shape`` without the batch dimension.
        item_bytes: bytes an element takes; None for BYTES.
        row_elements: elements in a row; None where a dimension is free.
    """

    name: str
    label: str
    datatype: Datatype
    dtype: np.dtype[np.generic]
    shape: tuple[int, ...]
    dims: tuple[int, ...]
    item_bytes: int | None
    row_elements: int | None
    optional: bool = False

    @property
    def row_bytes(self) -> int | None:
        """Bytes of a row; None where they depend on the record."""
        if self.item_bytes is None or self.row_elements is None:
            return None
        return self.item_bytes * self.row_elements


@dataclass(frozen=True, slots=True, eq=False)
class Plan:
    """One model, hashed by identity.

    Attributes:
        group_rows: most rows of a group, unless one record alone has more.
        only_input: set when there is exactly one.
        v2_json / v2_binary: the answers to v2 requests that ask for nothing else, shared by all of them.
    """

    config: ModelConfig
    model: str
    batched: bool
    group_rows: int
    inputs: dict[str, TensorPlan]
    outputs: dict[str, TensorPlan]
    required: tuple[str, ...]
    output_names: tuple[str, ...]
    only_input: TensorPlan | None
    v2_json: Answer = field(default_factory=lambda: Answer(style="v2"))
    v2_binary: Answer = field(default_factory=lambda: Answer(style="v2"))


def tensor_plan(spec: TensorSpec, *, kind: str, model: str, batched: bool) -> TensorPlan:
    return TensorPlan(
        name=spec.name,
        label=f"{kind} {spec.name!r} of model {model!r}",
        datatype=spec.datatype,
        dtype=dtype_of(spec.datatype),
        shape=(-1, *spec.shape) if batched else spec.shape,
        dims=spec.shape,
        item_bytes=item_size(spec.datatype),
        row_elements=None if -1 in spec.shape else math.prod(spec.shape),
        optional=spec.optional,
    )


def _build(config: ModelConfig) -> Plan:
    def plans(kind: str, specs: tuple[TensorSpec, ...]) -> dict[str, TensorPlan]:
        return {spec.name: tensor_plan(spec, kind=kind, model=config.name, batched=config.batched) for spec in specs}

    inputs = plans("input", config.inputs)
    names = tuple(spec.name for spec in config.outputs)
    return Plan(
        config=config,
        model=config.name,
        batched=config.batched,
        group_rows=max(1, config.max_batch_size),
        inputs=inputs,
        outputs=plans("output", config.outputs),
        required=tuple(spec.name for spec in config.inputs if not spec.optional),
        output_names=names,
        only_input=next(iter(inputs.values())) if len(inputs) == 1 else None,
        v2_binary=Answer(style="v2", binary=frozenset(names) or None),
    )


_plans: dict[int, Plan] = {}


def plan_of(config: ModelConfig) -> Plan:
    """The plan of this very configuration object, built on first use.

    Kept by identity, because a configuration cannot be hashed (it holds dicts) and comparing it costs more than
    decoding. A plan holds its configuration, so an identity is never reused while the plan is kept.
    """
    plan = _plans.get(id(config))
    if plan is None:
        if len(_plans) >= _KEPT:
            _plans.clear()
        plan = _plans[id(config)] = _build(config)
    return plan
