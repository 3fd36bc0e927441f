"""The next step of records that failed: a retry, an answer to the caller, a dead letter. Sends nothing itself."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from consumers import ends
from consumers.desk import Desk, Ending
from consumers.hooks import End
from consumers.kafka import Record
from consumers.ledger import Chunk
from consumers.partition import Partition
from schemas.errors import Cancelled, Expired, HeadraceError
from schemas.record import Envelope, now_ms

__all__ = ["Failure", "bury", "fail_records", "fail_unbatched"]

log = logging.getLogger("headrace.failures")

_END_OF_CODE: Final[dict[str, End]] = {Expired.code: "expired", Cancelled.code: "cancelled"}


@dataclass(slots=True)
class Failure:
    """One record that failed. ``position`` is its place in the lists of its bundle."""

    record: Record
    envelope: Envelope
    id: str
    index: int
    error: HeadraceError
    traceparent: bytes | None = None


def fail_records(desk: Desk, partition: Partition, chunk: Chunk, failures: Sequence[Failure]) -> None:
    """Gives each failed record its next step: a retry if that can help, else an answer to its caller, else a letter."""
    by_index = {failure.index: failure for failure in failures}

    def failed_again(index: int, error: HeadraceError, end: End) -> None:
        if end == "retry":
            # What the retry would carry is too much for its topic, so this was the last attempt.
            conclude(by_index[index])
        else:
            bury(desk, partition, chunk, by_index[index], error=error, tried=end)

    def conclude(failure: Failure) -> None:
        if failure.envelope.reply_to is not None:
            end: End = _END_OF_CODE.get(failure.error.code, "error_reply")
            _reply_error(desk, failure, Ending(desk, partition, chunk, end, failed_again))
        else:
            bury(desk, partition, chunk, failure, error=failure.error, tried=None)

    route = partition.route
    for failure in failures:
        desk.hooks.error(route.model, failure.error.code, 1)
        attempts = failure.envelope.attempt + 1
        not_before = now_ms() + ends.retry_delay_ms(route.config.retry, attempts)
        deadline = ends.deadline_ms_of(failure.record, failure.envelope, route.config.queue)
        if (
            failure.error.retriable
            and attempts < route.config.retry.max_attempts
            and (deadline is None or not_before < deadline)
        ):
            headers = ends.retry_headers(
                failure.record, failure.envelope, failure.id, attempts=attempts, not_before_ms=not_before
            )
            receipt = Ending(desk, partition, chunk, "retry", failed_again)
            desk.outbox.add_many(
                route.retry,
                keys=[failure.record.key],
                values=[failure.record.value],
                headers=[headers],
                indices=[failure.index],
                receipt=receipt,
            )
        else:
            conclude(failure)


def fail_unbatched(desk: Desk, partition: Partition, chunk: Chunk, failures: Sequence[Failure]) -> None:
    """As `fail_records`, for records that never came into a bundle, and so have no spans yet."""
    traced = desk.hooks.trace(partition.route.model, [failure.record.headers for failure in failures])
    if traced is not None:
        for at, failure in enumerate(failures):
            failure.traceparent = traced.traceparent(at)
    fail_records(desk, partition, chunk, failures)
    if traced is not None:
        traced.finish(0.0, 0.0, 0, {at: failure.error.code for at, failure in enumerate(failures)})


def _reply_error(desk: Desk, failure: Failure, receipt: Ending) -> None:
    reply_to = failure.envelope.reply_to
    if reply_to is None:
        return
    value, headers = ends.error_reply(
        failure.envelope,
        failure.id,
        failure.error,
        stage=receipt.partition.route.model,
        attempts=failure.envelope.attempt + 1,
        traceparent=failure.traceparent,
    )
    desk.outbox.add_many(
        reply_to.topic,
        partition=reply_to.partition,
        keys=[failure.record.key],
        values=[value],
        headers=[headers],
        indices=[failure.index],
        receipt=receipt,
        to_reply=True,
    )


def bury(
    desk: Desk, partition: Partition, chunk: Chunk, failure: Failure, *, error: HeadraceError, tried: End | None
) -> None:
    """Writes a dead letter. ``tried`` is the end that was refused before, if any: a letter that was itself refused
    for its size goes again without its value, which still lies at its origin."""
    route = partition.route
    value = failure.record.value
    end: End = _END_OF_CODE.get(error.code, "dead_letter") if tried is None else "dead_letter"
    if tried == "dead_letter":
        error = type(failure.error)(
            f"value of {len(value or b''):,} bytes left out, see headrace-origin: {failure.error}"
        )
        value = b""

    def refused(index: int, again: HeadraceError, _: End) -> None:
        if tried == "dead_letter":
            # Even the letter without its value is refused, so its headers alone exceed what the broker takes.
            log.error("record %s cannot be buried: %s; it died of: %s", failure.id, again, failure.error)
            desk.hooks.error(route.model, "undeliverable", 1)
            chunk.finish([index])
            return
        bury(desk, partition, chunk, failure, error=again, tried="dead_letter")

    headers = ends.dead_letter_headers(
        failure.record,
        failure.envelope,
        failure.id,
        error,
        stage=route.model,
        attempts=failure.envelope.attempt + 1,
    )
    desk.outbox.add_many(
        route.dead,
        keys=[failure.record.key],
        values=[value],
        headers=[headers],
        indices=[failure.index],
        receipt=Ending(desk, partition, chunk, end, refused),
    )
