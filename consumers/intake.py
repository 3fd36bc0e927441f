"""From fetched records to requests: headers, tombstones, retries that are not due, deadlines, decoding, admission.

Everything here is synchronous and per fetch, so that a record costs little more than its decoding.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from consumers.bundle import Bundle
from consumers.desk import Desk
from consumers.ends import deadline_ms_of, record_id
from consumers.failures import Failure, fail_unbatched
from consumers.kafka import Record
from consumers.ledger import Chunk
from consumers.partition import Partition
from consumers.route import Route
from gpu_runtime.request import Outcome, ScopeState
from gpu_runtime.runtime import Runtime
from schemas.clock import Clock, monotonic
from schemas.codec import Decoded, DecodedGroup, Form, Limits
from schemas.codecs import decode_many, form_of
from schemas.errors import Expired, HeadraceError
from schemas.record import Envelope, now_ms, parse_headers, salvage_headers

__all__ = ["Intake"]

_parse = lru_cache(maxsize=4_096)(parse_headers)

_Batchable = tuple[Form, int | None, int]
"""Form, deadline and priority: records that differ in one of them are decoded apart."""


class Intake:
    """
    Args:
        tombstones: ``skip`` or ``forward`` (see `NodeSettings`).
        limits: refusals before batching.
    """

    def __init__(
        self,
        runtime: Runtime,
        desk: Desk,
        *,
        tombstones: str = "skip",
        limits: Limits | None = None,
        clock: Clock = monotonic,
    ) -> None:
        self._runtime = runtime
        self._desk = desk
        self._forward_tombstones = tombstones == "forward"
        self._limits = limits or Limits()
        self._clock = clock

    def take(self, partition: Partition, records: Sequence[Record]) -> None:
        """Enters a fetch of one partition into its ledger and sends each record on its way."""
        chunk = partition.deliver(records)
        self._desk.hooks.records_in(partition.route.model, len(records))
        self._sort(partition, chunk, list(range(len(records))), list(records))

    def take_due(self, partition: Partition) -> None:
        """Sends held retries on whose time has come."""
        for chunk, indices, records in partition.due(now_ms()):
            envelopes = [_parse(record.headers) for record in records]
            self._group(partition, chunk, indices, records, envelopes)

    def admit_waiting(self, route: Route) -> None:
        """Hands waiting requests to the runtime as far as it has room; answers those whose deadline passes first."""
        waiting = route.waiting
        while waiting:
            request = waiting[0]
            gone = request.scope is not None and request.scope.state is ScopeState.CLOSED
            if not gone and not self._runtime.try_submit(route.model, request):
                self._expire_waiting(route)
                return
            waiting.popleft()

    def _expire_waiting(self, route: Route) -> None:
        now = self._clock()
        late = [request for request in route.waiting if request.deadline is not None and request.deadline <= now]
        for request in late:
            route.waiting.remove(request)
            error = Expired("deadline passed before the model's queue had room")
            request.on_done(Outcome(None, dict.fromkeys(range(request.rows), error)))

    def _sort(self, partition: Partition, chunk: Chunk, indices: list[int], records: list[Record]) -> None:
        """Takes out what is not to be decoded now: tombstones, malformed headers, retries that are not due."""
        # On the request topic a producer could hold up everybody behind it.
        is_retry = partition.tp.topic == partition.route.retry
        kinds = {record.headers for record in records}
        if len(kinds) == 1 and all(record.value is not None for record in records):
            try:
                envelope = _parse(records[0].headers)
            except HeadraceError:
                pass  # each of them fails below, by itself
            else:
                if envelope.not_before_ms is None or not is_retry:
                    self._group(partition, chunk, indices, records, [envelope] * len(records))
                    return
        now = now_ms()
        # Whoever writes to the retry topic, nothing is held longer than a retry would be.
        latest = now + partition.route.config.retry.max_delay_ms
        kept: tuple[list[int], list[Record], list[Envelope]] = ([], [], [])
        failures: list[Failure] = []
        for index, record in zip(indices, records, strict=True):
            try:
                envelope = _parse(record.headers)
            except HeadraceError as error:
                envelope = salvage_headers(record.headers)
                failures.append(_failure(record, envelope, index, error))
                continue
            if record.value is None:
                self._tombstone(partition, chunk, index, record)
            elif is_retry and envelope.not_before_ms is not None and envelope.not_before_ms > now:
                partition.hold(min(envelope.not_before_ms, latest), chunk, index, record)
            else:
                kept[0].append(index)
                kept[1].append(record)
                kept[2].append(envelope)
        if failures:
            fail_unbatched(self._desk, partition, chunk, failures)
        if kept[0]:
            self._group(partition, chunk, *kept)

    def _tombstone(self, partition: Partition, chunk: Chunk, index: int, record: Record) -> None:
        route = partition.route
        if not self._forward_tombstones:
            chunk.finish([index])
            self._desk.hooks.records_out(route.model, "tombstone", 1, [now_ms() - record.timestamp])
            return
        self._desk.outbox.add_many(
            route.results,
            keys=[record.key],
            values=[None],
            headers=[list(record.headers)],
            indices=[index],
            receipt=_ForwardedTombstone(self._desk, route, chunk),
        )

    def _group(
        self,
        partition: Partition,
        chunk: Chunk,
        indices: list[int],
        records: list[Record],
        envelopes: list[Envelope],
    ) -> None:
        """Decodes together what can be batched together; refuses what is too late or in no known form."""
        route = partition.route
        queue = route.config.queue
        now = now_ms()
        positions_of: dict[_Batchable, Sequence[int]] = {}
        failures: list[Failure] = []
        forms: dict[tuple[str, int | None], Form] = {}
        # Equal headers parse to one and the same envelope, so a fetch of them is judged by its first record.
        alike = queue.default_deadline_ms is None and envelopes.count(envelopes[0]) == len(envelopes)
        for position, envelope in enumerate(envelopes[:1] if alike else envelopes):
            deadline = deadline_ms_of(records[position], envelope, queue)
            try:
                if deadline is not None and deadline <= now:
                    raise Expired(f"deadline passed {now - deadline} ms before the record was read")
                content = (envelope.content_type, envelope.json_length)
                form = forms.get(content)
                if form is None:
                    form = forms[content] = form_of(*content, route.config)
            except HeadraceError as error:
                same = range(len(records)) if alike else (position,)
                failures.extend(_failure(records[each], envelope, indices[each], error) for each in same)
            else:
                key = (form, deadline, envelope.priority)
                if alike:
                    positions_of[key] = range(len(records))
                else:
                    positions_of.setdefault(key, []).append(position)  # type: ignore[attr-defined] # lists, if unlike
        if failures:
            fail_unbatched(self._desk, partition, chunk, failures)
        for (form, deadline, priority), positions in positions_of.items():
            if len(positions) == len(records):
                batch = (indices, records, envelopes)
            else:
                batch = (
                    [indices[position] for position in positions],
                    [records[position] for position in positions],
                    [envelopes[position] for position in positions],
                )
            due = None if deadline is None else self._clock() + (deadline - now) / 1000
            self._decode(partition, chunk, *batch, form=form, deadline=due, priority=priority)

    def _decode(
        self,
        partition: Partition,
        chunk: Chunk,
        indices: list[int],
        records: list[Record],
        envelopes: list[Envelope],
        *,
        form: Form,
        deadline: float | None,
        priority: int,
    ) -> None:
        values = [record.value or b"" for record in records]
        lengths = [envelope.json_length for envelope in envelopes] if form is Form.V2_BINARY else None
        decoded: Decoded = decode_many(form, values, lengths, partition.route.config, self._limits)
        if decoded.failures:
            failures = [
                _failure(records[position], envelopes[position], indices[position], error)
                for position, error in sorted(decoded.failures.items())
            ]
            fail_unbatched(self._desk, partition, chunk, failures)
        for group in decoded.groups:
            for part in _by_urgency(group):
                at = part.indices
                own_deadline, own_priority = deadline, priority
                if part.priorities is not None and not priority:
                    own_priority = part.priorities[0]
                if part.timeouts_ms is not None and part.timeouts_ms[0] is not None:
                    stated = self._clock() + part.timeouts_ms[0] / 1000
                    own_deadline = stated if deadline is None else min(deadline, stated)
                bundle = Bundle(
                    self._desk,
                    partition,
                    chunk,
                    part,
                    form=form,
                    records=[records[position] for position in at],
                    envelopes=[envelopes[position] for position in at],
                    indices=[indices[position] for position in at],
                )
                partition.route.waiting.append(bundle.request(part, deadline=own_deadline, priority=own_priority))
        self.admit_waiting(partition.route)


def _failure(record: Record, envelope: Envelope, index: int, error: HeadraceError) -> Failure:
    return Failure(record, envelope, record_id(record, envelope), index, error)


def _by_urgency(group: DecodedGroup) -> list[DecodedGroup]:
    """The group as it is, or a group a record when their bodies ask for a priority or a timeout of their own."""
    if group.priorities is None and group.timeouts_ms is None:
        return [group]
    parts = []
    start = 0
    for position, rows in enumerate(group.rows):
        whole = len(group.rows) == 1
        parts.append(
            DecodedGroup(
                indices=[group.indices[position]],
                rows=[rows],
                tensors=group.tensors
                if whole
                else {name: array[start : start + rows] for name, array in group.tensors.items()},
                signature=group.signature,
                answers=[group.answers[position]],
                parameters=None if group.parameters is None else [group.parameters[position]],
                priorities=None if group.priorities is None else [group.priorities[position]],
                timeouts_ms=None if group.timeouts_ms is None else [group.timeouts_ms[position]],
            )
        )
        start += rows
    return parts


class _ForwardedTombstone:
    __slots__ = ("chunk", "desk", "route")

    def __init__(self, desk: Desk, route: Route, chunk: Chunk) -> None:
        self.desk = desk
        self.route = route
        self.chunk = chunk

    def delivered(self, indices: Sequence[int]) -> None:
        self.chunk.finish(indices)
        now = now_ms()
        ages = [now - self.chunk.timestamps[index] for index in indices]
        self.desk.hooks.records_out(self.route.model, "tombstone", len(indices), ages)

    def refused(self, index: int, error: HeadraceError) -> None:
        """A record with no value cannot be too large, and the topic is ours: nothing else refuses it."""
        self.desk.hooks.error(self.route.model, error.code, 1)
        self.chunk.finish([index])
