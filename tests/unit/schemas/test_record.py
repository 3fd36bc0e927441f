"""The record contract: our headers parsed, everybody else's untouched, names that are safe."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from schemas.errors import ValidationError
from schemas.record import (
    Envelope,
    Headers,
    ReplyTo,
    Topics,
    check_name,
    parse_headers,
    salvage_headers,
)

OURS = ["headrace-id", "headrace-reply-to", "headrace-deadline", "headrace-priority", "headrace-attempt"]


def test_every_header_of_ours_is_read() -> None:
    headers: Headers = (
        ("headrace-id", "日本-42".encode()),
        ("headrace-reply-to", b"replies:3"),
        ("headrace-deadline", b"1700000000000"),
        ("headrace-priority", b"2"),
        ("headrace-attempt", b"1"),
        ("headrace-sequence", b"s"),
        ("content-type", b"Application/JSON; charset=utf-8"),
        ("inference-header-content-length", b"12"),
        ("mine", None),
    )
    assert parse_headers(headers) == Envelope(
        id="日本-42",
        reply_to=ReplyTo("replies", 3),
        deadline_ms=1_700_000_000_000,
        priority=2,
        attempt=1,
        sequence="s",
        content_type="application/json",
        json_length=12,
        passthrough=(("mine", None),),
    )


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("headrace-id", None),
        ("headrace-id", b"\xff\xfe"),
        ("headrace-deadline", b"soon"),
        ("headrace-deadline", b"-1"),
        ("headrace-deadline", "٣".encode()),
        ("headrace-deadline", b"9" * 19),
        ("headrace-priority", b""),
        ("headrace-reply-to", b"a b"),
        ("headrace-reply-to", b"__consumer_offsets"),
        ("headrace-reply-to", b"topic:x"),
        ("headrace-reply-to", b""),
        ("content-type", b"\xff"),
    ],
)
def test_a_malformed_header_of_ours_is_refused_by_name(name: str, value: bytes | None) -> None:
    with pytest.raises(ValidationError, match=name):
        parse_headers(((name, value),))


def test_the_last_of_a_repeated_header_counts() -> None:
    assert parse_headers((("headrace-id", b"a"), ("headrace-id", b"b"))).id == "b"


@pytest.mark.parametrize("value", [None, b"\xff", b"garbage", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-00"])
def test_trace_headers_pass_through_whatever_they_hold(value: bytes | None) -> None:
    headers: Headers = (("traceparent", value), ("tracestate", value))
    assert parse_headers(headers).passthrough == headers


@given(
    st.lists(
        st.tuples(
            st.text().filter(lambda name: not name.startswith(("headrace-", "content", "infer"))),
            st.none() | st.binary(),
        )
    )
)
def test_the_producers_headers_are_kept_byte_for_byte_and_in_order(headers: list[tuple[str, bytes | None]]) -> None:
    assert parse_headers(tuple(headers)).passthrough == tuple(headers)
    mixed = (("headrace-id", b"i"), *headers, ("headrace-priority", b"1"))
    assert parse_headers(mixed).passthrough == tuple(headers)


@given(st.lists(st.tuples(st.sampled_from([*OURS, "mine"]), st.none() | st.binary() | st.just(b"7"))))
def test_whatever_is_well_formed_is_salvaged_from_the_rest(headers: list[tuple[str, bytes | None]]) -> None:
    envelope = salvage_headers(tuple(headers))
    assert envelope.passthrough == tuple(header for header in headers if header[0] == "mine")
    if all(header[0] == "mine" for header in headers):
        assert envelope == parse_headers(tuple(headers))


@pytest.mark.parametrize("name", ["mlp", "a.b_c-1", "9", "x" * 128])
def test_a_safe_name_is_returned(name: str) -> None:
    assert check_name("model", name) == name


@pytest.mark.parametrize("name", ["", ".", "..", "a..b", "../x", "a/b", "-a", "a b", "ä", "x" * 129, "a\n"])
def test_a_name_that_could_leave_its_folder_or_its_topic_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="model name"):
        check_name("model", name)


def test_topics_share_their_namespace() -> None:
    topics = Topics("ns")
    assert [topics.requests("m"), topics.results("m"), topics.retry("m"), topics.dead("m")] == [
        "ns.models.m",
        "ns.models.m.results",
        "ns.models.m.retry",
        "ns.models.m.dead",
    ]
    assert (topics.registry, topics.control) == ("ns.registry", "ns.control")
