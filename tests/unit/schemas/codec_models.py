"""Models and values that the codec tests share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from schemas.codec import Decoded, DecodedGroup, Form, Limits
from schemas.codecs import decode_many
from schemas.errors import HeadraceError
from schemas.model import Datatype, ModelConfig, TensorSpec

Spec = tuple[str, Datatype, tuple[int, ...]]


def tensor(spec: Spec, *, optional: bool = False) -> TensorSpec:
    name, datatype, shape = spec
    return TensorSpec(name=name, datatype=datatype, shape=shape, optional=optional)


def model(
    *inputs: Spec,
    outputs: Sequence[Spec] = (("y", "FP32", (8,)),),
    max_batch_size: int = 32,
    optional: Sequence[str] = (),
) -> ModelConfig:
    return ModelConfig(
        name="m",
        backend="python",
        max_batch_size=max_batch_size,
        inputs=tuple(tensor(spec, optional=spec[0] in optional) for spec in inputs),
        outputs=tuple(tensor(spec) for spec in outputs),
    )


def v2_input(name: str, datatype: str, shape: Sequence[int], data: object, **more: object) -> dict[str, object]:
    return {"name": name, "datatype": datatype, "shape": list(shape), "data": data, **more}


def v2_body(*inputs: dict[str, object], **more: object) -> bytes:
    return json.dumps({"inputs": inputs, **more}).encode()


def decode_one(config: ModelConfig, value: bytes, *, form: Form = Form.JSON, json_length: int | None = None) -> Any:
    """The only group of the only record; raises what is wrong with it."""
    return only(decode_many(form, [value], [json_length], config, Limits()))


def only(decoded: Decoded) -> DecodedGroup:
    for error in decoded.failures.values():
        raise error
    (group,) = decoded.groups
    return group


def refusal(
    config: ModelConfig,
    value: bytes,
    *,
    form: Form = Form.JSON,
    json_length: int | None = None,
    limits: Limits | None = None,
) -> HeadraceError:
    """What the codec says to a value that it must refuse."""
    decoded = decode_many(form, [value], [json_length], config, limits or Limits())
    assert decoded.groups == []
    return decoded.failures[0]
