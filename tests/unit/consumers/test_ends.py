"""Headers of everything a record can end as: the producer's own, byte for byte and in order, then ours."""

from __future__ import annotations

import json

import hypothesis.strategies as st
import pytest
from hypothesis import given

from consumers import ends
from headrace.dead_letters import original_headers
from schemas.errors import ModelError, ValidationError
from schemas.model import QueuePolicy, RetryPolicy
from schemas.record import Envelope, Headers, parse_headers
from tests.unit.consumers.parts import FakeRecord

TRACE = b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
NEW_TRACE = b"00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01"
ODD: Headers = (
    ("b", b"1"),
    ("a", None),
    ("raw", b"\xff\xfe\x00"),
    ("b", b"2"),
    ("ce_type", b"x"),
    ("", b""),
    ("headrace-unknown", b"?"),
)
OURS: Headers = (
    ("headrace-id", b"id-1"),
    ("content-type", b"application/json"),
    ("headrace-sequence", b"7"),
    ("headrace-deadline", b"99"),
)
CONTENT: Headers = (("content-type", b"application/json"),)


def result(headers: Headers) -> ends.HeaderList:
    envelope = parse_headers(headers)
    return ends.result_headers([envelope], [envelope.id or "made"], [CONTENT])[0]


def test_a_result_repeats_the_producers_headers_byte_for_byte_and_in_order() -> None:
    assert result((*ODD[:3], *OURS, *ODD[3:])) == [
        *ODD,
        ("headrace-id", b"id-1"),
        ("content-type", b"application/json"),
        ("headrace-sequence", b"7"),
    ]


def test_results_written_together_are_what_each_is_alone() -> None:
    envelopes = [parse_headers(()), parse_headers(()), parse_headers(ODD), parse_headers(OURS)]
    ids, contents = ["a", "b", "c", "d"], [CONTENT, (), CONTENT, ()]
    together = ends.result_headers(envelopes, ids, contents)
    alone = [
        ends.result_headers([envelope], [id_], [content])[0]
        for envelope, id_, content in zip(envelopes, ids, contents, strict=True)
    ]
    assert together == alone
    alike = ends.result_headers(envelopes[:2], ids[:2], contents[:2])
    assert alike == alone[:2]
    assert alike[0] is not alike[1]


def test_this_hops_trace_context_takes_the_place_of_the_producers() -> None:
    headers: Headers = (("a", b"1"), ("traceparent", TRACE), ("z", b"2"), ("traceparent", TRACE))
    envelope = parse_headers(headers)
    traced = ends.traced_result_headers(envelope, "i", (), NEW_TRACE)
    assert traced == [("a", b"1"), ("traceparent", NEW_TRACE), ("z", b"2"), ("headrace-id", b"i")]
    assert result(headers)[1] == ("traceparent", TRACE), "and stays as it is when tracing is off"
    assert ends.traced_result_headers(Envelope(), "i", (), NEW_TRACE)[0] == ("traceparent", NEW_TRACE)


def test_an_error_reply_says_what_went_wrong_in_value_and_headers() -> None:
    envelope = parse_headers((*OURS, *ODD))
    value, headers = ends.error_reply(
        envelope, "id-1", ValidationError("no input 'x'"), stage="m", attempts=2, traceparent=None
    )
    assert json.loads(value) == {"id": "id-1", "error": "no input 'x'", "code": "validation"}
    assert headers == [
        *ODD,
        ("headrace-id", b"id-1"),
        ("content-type", b"application/json"),
        ("headrace-error", b"validation"),
        ("headrace-error-message", b"no input 'x'"),
        ("headrace-stage", b"m"),
        ("headrace-attempt", b"2"),
        ("headrace-sequence", b"7"),
    ]


@pytest.mark.parametrize("message", ["\ud800 is no text", "x" * 10_000, "größer", ""])
def test_whatever_a_model_says_can_be_written(message: str) -> None:
    error = ModelError(message)
    value, headers = ends.error_reply(Envelope(), "i", error, stage="m", attempts=1, traceparent=None)
    said = json.loads(value)["error"]
    assert said == message.encode("utf-8", "replace").decode()[:2_000]
    assert (dict(headers)["headrace-error-message"] or b"").decode() == said
    letter = ends.dead_letter_headers(FakeRecord(), Envelope(), "i", error, stage="m", attempts=1)
    assert (dict(letter)["headrace-error-message"] or b"").decode() == said


def letter(record: FakeRecord) -> ends.HeaderList:
    envelope = parse_headers(record.headers)
    id_ = ends.record_id(record, envelope)
    return ends.dead_letter_headers(record, envelope, id_, ModelError("boom"), stage="m", attempts=3)


def test_a_dead_letter_keeps_every_header_and_says_why_where_and_when() -> None:
    record = FakeRecord(headers=(*ODD, *OURS), offset=42, timestamp=1234)
    assert letter(record) == [
        *ODD,
        *OURS,
        ("headrace-error", b"model"),
        ("headrace-error-message", b"boom"),
        ("headrace-stage", b"m"),
        ("headrace-attempt", b"3"),
        ("headrace-origin", b"headrace.models.m:0:42"),
        ("headrace-timestamp", b"1234"),
    ]


def test_a_record_with_no_id_gets_one_that_a_redelivery_gets_again() -> None:
    record = FakeRecord(headers=ODD, offset=42)
    assert ends.record_id(record, parse_headers(record.headers)) == "headrace.models.m-0-42"
    assert dict(letter(record))["headrace-id"] == b"headrace.models.m-0-42"


def test_the_id_of_a_record_whose_headers_could_not_be_read_is_not_replaced() -> None:
    record = FakeRecord(headers=(("headrace-id", b"mine"), ("headrace-deadline", b"soon")))
    envelope = Envelope(passthrough=record.headers)
    headers = ends.dead_letter_headers(record, envelope, "made", ValidationError("bad"), stage="m", attempts=1)
    assert [value for name, value in headers if name == "headrace-id"] == [b"mine"]


def test_a_retry_counts_its_attempts_and_remembers_where_it_came_from() -> None:
    record = FakeRecord(headers=(*ODD, *OURS), offset=42, timestamp=1234)
    envelope = parse_headers(record.headers)
    first = ends.retry_headers(record, envelope, "id-1", attempts=1, not_before_ms=5000)
    assert first == [
        *ODD,
        *OURS,
        ("headrace-not-before", b"5000"),
        ("headrace-attempt", b"1"),
        ("headrace-origin", b"headrace.models.m:0:42"),
        ("headrace-timestamp", b"1234"),
    ]
    again = FakeRecord(headers=tuple(first), topic="headrace.models.m.retry", offset=3, timestamp=9999)
    second = ends.retry_headers(again, parse_headers(again.headers), "id-1", attempts=2, not_before_ms=7000)
    assert second[: len(ODD) + len(OURS)] == [*ODD, *OURS]
    assert dict(second)["headrace-attempt"] == b"2"
    assert dict(second)["headrace-not-before"] == b"7000"
    assert dict(second)["headrace-origin"] == b"headrace.models.m:0:42"
    assert dict(second)["headrace-timestamp"] == b"1234"
    assert len(second) == len(first), "nothing is added a second time"


@given(
    st.lists(
        st.tuples(
            st.text(max_size=5).filter(lambda name: not name.startswith("headrace-")),
            st.none() | st.binary(max_size=5),
        )
    ).map(tuple)
)
def test_replaying_a_dead_letter_gives_back_what_its_producer_wrote(theirs: Headers) -> None:
    original: Headers = (*theirs, ("headrace-id", b"i"), ("headrace-reply-to", b"t"))
    record = FakeRecord(headers=original)
    envelope = Envelope(id="i", passthrough=theirs)
    retried = FakeRecord(headers=tuple(ends.retry_headers(record, envelope, "i", attempts=1, not_before_ms=1)))
    dead = ends.dead_letter_headers(retried, envelope, "i", ModelError("x"), stage="m", attempts=2)
    assert original_headers(tuple(dead), {"t"}) == list(original)


@given(st.integers(1, 200), st.integers(0, 10_000), st.integers(0, 100_000))
def test_retry_delays_double_up_to_the_maximum_with_half_of_it_left_to_chance(
    attempts: int, initial: int, most: int
) -> None:
    policy = RetryPolicy(initial_delay_ms=initial, max_delay_ms=most)
    ceiling = min(most, initial * 2 ** (attempts - 1))
    assert ceiling // 2 <= ends.retry_delay_ms(policy, attempts) <= ceiling


def test_records_that_failed_together_do_not_come_back_together() -> None:
    policy = RetryPolicy(initial_delay_ms=10_000)
    assert len({ends.retry_delay_ms(policy, 1) for _ in range(50)}) > 10


@pytest.mark.parametrize(
    ("envelope", "default_ms", "expected"),
    [
        (Envelope(), None, None),
        (Envelope(deadline_ms=7), None, 7),
        (Envelope(deadline_ms=7), 100, 7),
        (Envelope(), 100, 1100),
        (Envelope(timestamp_ms=500), 100, 600),
    ],
)
def test_the_models_default_deadline_counts_from_when_the_producer_wrote_the_record(
    envelope: Envelope, default_ms: int | None, expected: int | None
) -> None:
    record = FakeRecord(timestamp=1000)
    assert ends.deadline_ms_of(record, envelope, QueuePolicy(default_deadline_ms=default_ms)) == expected
