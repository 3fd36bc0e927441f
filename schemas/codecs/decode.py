"""Values of many records -> groups of stacked tensors. What each form looks like is its own module's business.

`decode_each` is the reference: one record after the other. `decode_many` gives the same and is what to call: it tries
`schemas.codecs.fast_decode` for a run of like records first.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from schemas.codec import Decoded, DecodedGroup, Form, Limits
from schemas.codecs.arrow import parse_arrow
from schemas.codecs.checks import Parsed
from schemas.codecs.fast_decode import decode_alike, decode_fast
from schemas.codecs.json_data import read_json
from schemas.codecs.plain import parse_plain, parse_raw
from schemas.codecs.plan import Plan, plan_of
from schemas.codecs.v2 import is_v2, parse_v2
from schemas.errors import DecodeError, HeadraceError, TooLargeError
from schemas.model import ModelConfig
from schemas.record import JSON_LENGTH
from schemas.tensors import Array, Tensors

__all__ = ["decode_each", "decode_many", "form_of"]

_ARROW = "application/vnd.apache.arrow.stream"
_OCTETS = "application/octet-stream"


def form_of(content_type: str, json_length: int | None, config: ModelConfig) -> Form:
    """The form that a record's headers name. ``content_type`` is lower-case and without parameters.

    Any other media type (``image/png``, ``text/plain``) is the bytes of a model whose only input is BYTES.

    Raises:
        DecodeError: this model takes no value of that type; the message lists what it takes.
    """
    if content_type in ("", "application/json", "text/json") or content_type.endswith("+json"):
        return Form.JSON
    if content_type == _OCTETS:
        return Form.V2_BINARY if json_length else Form.RAW
    if content_type == _ARROW:
        return Form.ARROW
    only = plan_of(config).only_input
    if only is not None and only.datatype == "BYTES":
        return Form.RAW
    raise DecodeError(
        f"model {config.name!r} does not take content-type {content_type[:80]!r}: use application/json, "
        f"{_OCTETS} (with {JSON_LENGTH} for v2 with binary tensors) or {_ARROW}"
    )


def decode_many(
    form: Form,
    values: Sequence[bytes],
    json_lengths: Sequence[int | None] | None,
    config: ModelConfig,
    limits: Limits,
) -> Decoded:
    """Decodes and validates a run of records of one form for one model; groups those of one signature.

    A group holds at most ``max_batch_size`` rows unless one record alone has more, and its records are in the order
    of the input. For a model with no batch dimension each group is one record. Arrays may be read-only views of the
    values. Does not raise for anything in a value: see ``failures``.

    Args:
        json_lengths: bytes of JSON of each value, for `Form.V2_BINARY`; None where no record has any.
    """
    plan = plan_of(config)
    groups = decode_fast(form, values, json_lengths, plan, limits)
    if groups is not None:
        return Decoded(groups)
    alike = decode_alike(values, plan, limits) if form is Form.JSON and len(values) > 1 else {}
    return _decode(form, values, json_lengths, plan=plan, limits=limits, known=alike)


def decode_each(
    form: Form,
    values: Sequence[bytes],
    json_lengths: Sequence[int | None] | None,
    config: ModelConfig,
    limits: Limits,
) -> Decoded:
    """`decode_many`, record by record."""
    return _decode(form, values, json_lengths, plan=plan_of(config), limits=limits, known={})


def _decode(
    form: Form,
    values: Sequence[bytes],
    json_lengths: Sequence[int | None] | None,
    *,
    plan: Plan,
    limits: Limits,
    known: Mapping[int, Parsed],
) -> Decoded:
    parse = _PARSERS[form]
    decoded = Decoded()
    grouping = _Grouping(plan)
    for index, value in enumerate(values):
        try:
            if len(value) > limits.max_bytes:
                raise TooLargeError(
                    f"model {plan.model!r}: expected a value of at most {limits.max_bytes} bytes, got {len(value)}"
                )
            parsed = known.get(index) or parse(plan, value, json_lengths[index] if json_lengths else None, limits)
        except HeadraceError as error:
            decoded.failures[index] = error
        else:
            grouping.add(index, parsed)
    decoded.groups = grouping.finish()
    return decoded


def _json(plan: Plan, value: bytes, json_length: int | None, limits: Limits) -> Parsed:
    body = read_json(value)
    if type(body) is not dict:
        raise DecodeError(
            f"model {plan.model!r}: expected a JSON object (v2 'inputs', or input names as keys), "
            f"got {type(body).__name__}"
        )
    return parse_v2(plan, body, limits) if is_v2(plan, body) else parse_plain(plan, body, limits)


def _v2_binary(plan: Plan, value: bytes, json_length: int | None, limits: Limits) -> Parsed:
    if not json_length or not 0 < json_length <= len(value):
        raise DecodeError(f"header {JSON_LENGTH}: expected 1 to {len(value)} (bytes of the value), got {json_length}")
    return parse_v2(plan, read_json(value[:json_length]), limits, (value, json_length))


def _raw(plan: Plan, value: bytes, json_length: int | None, limits: Limits) -> Parsed:
    return parse_raw(plan, value, limits)


def _arrow(plan: Plan, value: bytes, json_length: int | None, limits: Limits) -> Parsed:
    return parse_arrow(plan, value, limits)


_PARSERS: dict[Form, Callable[[Plan, bytes, int | None, Limits], Parsed]] = {
    Form.JSON: _json,
    Form.V2_BINARY: _v2_binary,
    Form.RAW: _raw,
    Form.ARROW: _arrow,
}


@dataclass(slots=True)
class _Open:
    """A group that may still take records."""

    signature: Hashable
    indices: list[int] = field(default_factory=list)
    records: list[Parsed] = field(default_factory=list)
    rows: int = 0


class _Grouping:
    """Puts records of one signature together, in order, up to the group's rows."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._open: dict[Hashable, _Open] = {}
        self._all: list[_Open] = []

    def add(self, index: int, record: Parsed) -> None:
        skip = 1 if self._plan.batched else 0
        signature = tuple([(name, array.shape[skip:]) for name, array in record.tensors.items()])
        group = self._open.get(signature)
        if group is None or not self._plan.batched or group.rows + record.rows > self._plan.group_rows:
            group = self._open[signature] = _Open(signature)
            self._all.append(group)
        group.indices.append(index)
        group.records.append(record)
        group.rows += record.rows

    def finish(self) -> list[DecodedGroup]:
        return [_close(group) for group in self._all]


def _close(group: _Open) -> DecodedGroup:
    records = group.records
    parameters = [record.parameters or {} for record in records]
    priorities = [record.priority for record in records]
    timeouts_ms = [record.timeout_ms for record in records]
    return DecodedGroup(
        indices=group.indices,
        rows=[record.rows for record in records],
        tensors=_stack(records),
        signature=group.signature,
        answers=[record.answer for record in records],
        parameters=parameters if any(parameters) else None,
        priorities=priorities if any(priorities) else None,
        timeouts_ms=timeouts_ms if any(timeouts_ms) else None,
    )


def _stack(records: list[Parsed]) -> Tensors:
    if len(records) == 1:
        return {name: _aligned(array) for name, array in records[0].tensors.items()}
    return {name: np.concatenate([record.tensors[name] for record in records]) for name in records[0].tensors}


def _aligned(array: Array) -> Array:
    """A binary tensor may begin at any byte; devices and runtimes want the item's own boundary."""
    return array if array.flags.aligned else array.copy()
