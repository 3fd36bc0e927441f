"""Records of one fetch that share a signature: one request to the runtime, and an end for each of them.

What becomes of those that fail is decided in `consumers.failures`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from consumers import ends
from consumers.desk import Desk, Ending
from consumers.failures import Failure, bury, fail_records
from consumers.hooks import End, Traced
from consumers.kafka import Record
from consumers.ledger import Chunk
from consumers.partition import Partition
from gpu_runtime.request import Outcome, Request, ScopeState
from schemas.codec import Answer, DecodedGroup, Encoded, Form
from schemas.codecs import encode_many
from schemas.errors import HeadraceError
from schemas.record import Envelope, Headers, ReplyTo
from schemas.tensors import Tensors

__all__ = ["Bundle"]

_T = TypeVar("_T")


class Bundle:
    """
    The request knows its bundle and not the other way round: a cycle would leave tensors and records to the garbage
    collector.

    Args:
        records, envelopes, indices: parallel lists, one entry a record; ``indices`` are positions in ``chunk``.
    """

    __slots__ = (
        "answers",
        "chunk",
        "desk",
        "envelopes",
        "form",
        "ids",
        "indices",
        "partition",
        "records",
        "rows",
        "traced",
    )

    def __init__(
        self,
        desk: Desk,
        partition: Partition,
        chunk: Chunk,
        group: DecodedGroup,
        *,
        form: Form,
        records: list[Record],
        envelopes: list[Envelope],
        indices: list[int],
    ) -> None:
        self.desk = desk
        self.partition = partition
        self.chunk = chunk
        self.form = form
        self.records = records
        self.envelopes = envelopes
        self.indices = indices
        self.rows = group.rows
        self.answers = group.answers
        self.ids = _ids(records, envelopes, group.answers)
        self.traced: Traced | None = desk.hooks.trace(partition.route.model, [record.headers for record in records])

    def request(self, group: DecodedGroup, *, deadline: float | None, priority: int) -> Request:
        """The request that ends these records, from the group they were decoded to."""
        parameters = None
        if group.parameters is not None:
            parameters = [each for each, rows in zip(group.parameters, group.rows, strict=True) for _ in range(rows)]
        return Request(
            tensors=group.tensors,
            rows=sum(group.rows),
            signature=group.signature,
            on_done=self._done,
            deadline=deadline,
            priority=priority,
            parameters=parameters,
            scope=self.partition.scope,
            tag=self.traced,
        )

    # -- from the runtime --------------------------------------------------------------------------------------

    def _done(self, outcome: Outcome) -> None:
        self.desk.wake()
        if self.partition.scope.state is ScopeState.CLOSED:
            return
        desk, model, count = self.desk, self.partition.route.model, len(self.records)
        desk.hooks.latency(model, count, outcome.queue_s, outcome.compute_s)
        errors = self._errors_by_record(outcome.errors)
        if outcome.outputs is not None and len(errors) < count:
            self._answer(outcome.outputs, errors)
        if errors:
            failures = [self._failure(position, error) for position, error in sorted(errors.items())]
            fail_records(desk, self.partition, self.chunk, failures)
        if self.traced is not None:
            codes = {position: error.code for position, error in errors.items()}
            self.traced.finish(outcome.queue_s, outcome.compute_s, outcome.batch_rows, codes)

    def _errors_by_record(self, errors: Mapping[int, HeadraceError]) -> dict[int, HeadraceError]:
        """A record fails with the first of its rows that failed."""
        if not errors:
            return {}
        if self.rows.count(1) == len(self.rows):
            return dict(errors)
        record_of_row = np.repeat(np.arange(len(self.rows)), self.rows).tolist()
        found: dict[int, HeadraceError] = {}
        for row in sorted(errors):
            found.setdefault(record_of_row[row], errors[row])
        return found

    def _answer(self, outputs: Tensors, errors: dict[int, HeadraceError]) -> None:
        positions: Sequence[int] = range(len(self.records))
        rows, answers, ids = self.rows, self.answers, self.ids
        if errors:
            positions = [position for position in positions if position not in errors]
            rows, answers, ids = _pick(rows, positions), _pick(answers, positions), _pick(ids, positions)
            keep = np.repeat([position not in errors for position in range(len(self.rows))], self.rows)
            outputs = {name: array[keep] for name, array in outputs.items()}
        encoded = encode_many(self.form, answers, rows, outputs, self.partition.route.config, ids)
        values = encoded.values
        kept: Sequence[int] = range(len(values))
        if set(map(type, values)) != {bytes}:
            for at, value in enumerate(values):
                if isinstance(value, HeadraceError):
                    errors[positions[at]] = value
            kept = [at for at in kept if positions[at] not in errors]
        envelopes = self.envelopes
        if envelopes.count(envelopes[0]) == len(envelopes):
            self._send(envelopes[0].reply_to, kept, positions, encoded)
            return
        targets: dict[ReplyTo | None, list[int]] = {}
        for at in kept:
            targets.setdefault(envelopes[positions[at]].reply_to, []).append(at)
        for reply_to, picks in targets.items():
            self._send(reply_to, picks, positions, encoded)

    def _send(self, reply_to: ReplyTo | None, picks: Sequence[int], positions: Sequence[int], encoded: Encoded) -> None:
        """Sends the answers at ``picks``, which belong to the records at ``positions[pick]``."""
        if not picks:
            return
        chosen = [positions[at] for at in picks]
        records, indices = self.records, self.indices
        self.desk.outbox.add_many(
            self.partition.route.results if reply_to is None else reply_to.topic,
            partition=None if reply_to is None else reply_to.partition,
            keys=[records[position].key for position in chosen],
            values=[encoded.values[at] for at in picks],  # type: ignore[misc] # errors were taken out by the caller
            headers=self._result_headers(chosen, [encoded.headers[at] for at in picks]),
            indices=[indices[position] for position in chosen],
            receipt=Ending(self.desk, self.partition, self.chunk, "result", self._refused),
            to_reply=reply_to is not None,
        )

    def _result_headers(self, chosen: Sequence[int], content: Sequence[Headers]) -> list[ends.HeaderList]:
        ids, envelopes, traced = self.ids, self.envelopes, self.traced
        if traced is None:
            return ends.result_headers(
                [envelopes[position] for position in chosen], [ids[position] for position in chosen], content
            )
        return [
            ends.traced_result_headers(envelopes[position], ids[position], each, traced.traceparent(position))
            for position, each in zip(chosen, content, strict=True)
        ]

    def _refused(self, index: int, error: HeadraceError, _: End) -> None:
        """The result cannot be delivered. A caller whose reply topic exists is told; anything else is a letter."""
        failure = self._failure(self.indices.index(index), error)
        if error.code == "too_large":
            fail_records(self.desk, self.partition, self.chunk, [failure])
        else:
            self.desk.hooks.error(self.partition.route.model, error.code, 1)
            bury(self.desk, self.partition, self.chunk, failure, error=error, tried="result")

    def _failure(self, position: int, error: HeadraceError) -> Failure:
        return Failure(
            self.records[position],
            self.envelopes[position],
            self.ids[position],
            self.indices[position],
            error,
            None if self.traced is None else self.traced.traceparent(position),
        )


def _pick(items: Sequence[_T], positions: Sequence[int]) -> list[_T]:
    return [items[position] for position in positions]


def _ids(records: list[Record], envelopes: list[Envelope], answers: list[Answer]) -> list[str]:
    ids = [envelope.id or answer.id for envelope, answer in zip(envelopes, answers, strict=True)]
    if None in ids:
        first = records[0]
        prefix = f"{first.topic}-{first.partition}-"
        return [each or f"{prefix}{record.offset}" for each, record in zip(ids, records, strict=True)]
    return ids  # type: ignore[return-value] # None was looked for
