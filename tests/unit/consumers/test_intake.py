"""What becomes of fetched records before a model sees them: tombstones, malformed headers, retries, deadlines, room."""

from __future__ import annotations

import json

import pytest

from gpu_runtime.request import ScopeState
from schemas.errors import ModelError
from schemas.record import Headers, now_ms
from tests.unit.consumers.parts import FakeRecord, Scene, config, echo

X = b'{"x": [1, 2]}'


def header(name: str, value: object) -> Headers:
    return ((name, str(value).encode()),)


def v2(**parameters: object) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    return json.dumps({"inputs": [tensor], "parameters": parameters}).encode()


def test_records_of_one_fetch_are_one_request() -> None:
    scene = Scene()
    scene.take(*(FakeRecord(X) for _ in range(5)))
    (request,) = scene.runtime.take()
    assert (request.rows, request.priority, request.deadline) == (5, 0, None)
    assert request.scope is scene.partition.scope
    assert request.tensors["x"].tolist() == [[1, 2]] * 5
    assert scene.hooks.counts["in"] == 5
    assert scene.position == 0


def test_a_tombstone_is_counted_and_passed_over() -> None:
    scene = Scene()
    scene.take(FakeRecord(None), FakeRecord(X), FakeRecord(None))
    assert scene.runtime.take()[0].rows == 1
    assert scene.outbox.take() == []
    assert scene.hooks.ended() == {"tombstone": 2}
    assert scene.position == 1, "it is finished, the record behind it is not"


def test_a_tombstone_is_forwarded_where_that_is_asked_for() -> None:
    scene = Scene(tombstones="forward")
    headers: Headers = (("a", None), ("headrace-id", b"i"))
    scene.take(FakeRecord(None, key=b"k", headers=headers))
    (sent,) = scene.outbox.take()
    assert (sent.topic, sent.key, sent.value) == ("headrace.models.m.results", b"k", None)
    assert sent.headers == list(headers)
    assert scene.position == 0
    sent.ack()
    assert scene.position == 1
    assert scene.hooks.ended() == {"tombstone": 1}


@pytest.mark.parametrize(
    "headers",
    [
        header("headrace-deadline", "soon"),
        header("headrace-priority", -1),
        header("headrace-attempt", "1.5"),
        (("headrace-id", b"\xff"),),
        (("headrace-reply-to", None),),
        header("headrace-reply-to", "no such/topic"),
        (*header("headrace-id", "mine"), *header("headrace-deadline", "")),
    ],
)
@pytest.mark.parametrize("company", [0, 2])
def test_a_malformed_header_of_ours_buries_the_record_and_no_other(headers: Headers, company: int) -> None:
    scene = Scene()
    scene.take(FakeRecord(X, headers=headers, key=b"k"), *(FakeRecord(X) for _ in range(company)))
    (letter,) = scene.outbox.take()
    assert (letter.topic, letter.key, letter.value) == ("headrace.models.m.dead", b"k", X)
    assert letter.header("headrace-error") == "validation"
    assert headers[-1][0] in (letter.header("headrace-error-message") or "")
    assert letter.header("headrace-origin") == "headrace.models.m:0:0"
    assert sum(request.rows for request in scene.runtime.take()) == company
    letter.ack()
    assert scene.position == 1
    assert scene.hooks.ended() == {"dead_letter": 1}
    assert scene.hooks.counts["error validation"] == 1


def test_a_caller_who_got_one_header_wrong_is_answered_where_another_one_says() -> None:
    scene = Scene()
    headers = (*header("headrace-deadline", "soon"), *header("headrace-reply-to", "r:2"), *header("headrace-id", "i"))
    scene.take(FakeRecord(X, headers=headers))
    (reply,) = scene.outbox.take()
    assert (reply.topic, reply.partition, reply.to_reply) == ("r", 2, True)
    assert reply.header("headrace-id") == "i"
    assert reply.header("headrace-error") == "validation"
    assert "headrace-deadline" in (reply.header("headrace-error-message") or "")
    reply.ack()
    assert scene.position == 1


def test_a_retry_that_is_not_due_is_held_until_it_is() -> None:
    scene = Scene(of_retries=True)
    scene.take(FakeRecord(X, headers=header("headrace-not-before", now_ms() + 20_000)), FakeRecord(X))
    assert scene.runtime.take()[0].rows == 1
    assert scene.partition.next_due_ms is not None
    scene.intake.take_due(scene.partition)
    assert scene.runtime.take() == []
    assert scene.position == 0, "it is unfinished while it is held"


def test_on_the_request_topic_nobody_can_hold_up_those_behind() -> None:
    scene = Scene()
    later = header("headrace-not-before", now_ms() + 20_000)
    scene.take(FakeRecord(X, headers=later), FakeRecord(X, headers=later), FakeRecord(X))
    assert sum(request.rows for request in scene.runtime.take()) == 3
    assert scene.partition.next_due_ms is None


def test_a_retry_whose_time_has_come_is_run() -> None:
    scene = Scene(of_retries=True)
    scene.take(FakeRecord(X, headers=header("headrace-not-before", now_ms() - 1)))
    assert scene.runtime.take()[0].rows == 1


def test_held_retries_are_run_when_they_are_due() -> None:
    scene = Scene(config(max_delay_ms=0), of_retries=True)
    scene.take(
        *(FakeRecord(X, headers=header("headrace-not-before", now_ms() + 50_000 - number)) for number in range(3))
    )
    assert scene.runtime.take() == []
    scene.intake.take_due(scene.partition)
    requests = scene.runtime.take()
    assert sum(request.rows for request in requests) == 3
    for request in requests:
        echo(request)
    assert sorted(sent.index for sent in scene.outbox.sent) == [0, 1, 2]


def test_no_header_holds_a_record_for_longer_than_a_retry_is_delayed() -> None:
    scene = Scene(config(max_delay_ms=30_000), of_retries=True)
    scene.take(FakeRecord(X, headers=header("headrace-not-before", now_ms() + 10**12)))
    due = scene.partition.next_due_ms
    assert due is not None
    assert due <= now_ms() + 30_000


def test_a_deadline_becomes_seconds_of_the_runtimes_clock() -> None:
    scene = Scene()
    scene.take(FakeRecord(X, headers=header("headrace-deadline", now_ms() + 60_000)))
    deadline = scene.runtime.take()[0].deadline
    assert deadline is not None
    assert scene.clock.now + 50 < deadline <= scene.clock.now + 60


def test_a_record_whose_deadline_has_passed_is_not_run() -> None:
    scene = Scene()
    headers = header("headrace-deadline", now_ms() - 1)
    scene.take(
        FakeRecord(X, headers=headers),
        FakeRecord(X, headers=(*headers, *header("headrace-reply-to", "inbox:3"))),
    )
    assert scene.runtime.take() == []
    letter, reply = scene.outbox.take()
    assert (letter.topic, letter.header("headrace-error")) == ("headrace.models.m.dead", "expired")
    assert (reply.topic, reply.partition, reply.header("headrace-error")) == ("inbox", 3, "expired")
    letter.ack()
    reply.ack()
    assert scene.hooks.ended() == {"expired": 2}
    assert scene.position == 2


def test_the_models_default_deadline_counts_from_the_records_timestamp() -> None:
    scene = Scene(config(default_deadline_ms=10_000))
    scene.take(FakeRecord(X, timestamp=now_ms() - 11_000), FakeRecord(X, timestamp=now_ms() - 4_000))
    (letter,) = scene.outbox.take()
    assert letter.header("headrace-error") == "expired"
    deadline = scene.runtime.take()[0].deadline
    assert deadline is not None
    assert scene.clock.now + 1 < deadline <= scene.clock.now + 6


def test_a_retry_does_not_get_the_default_deadline_anew() -> None:
    scene = Scene(config(default_deadline_ms=10_000))
    written = header("headrace-timestamp", now_ms() - 11_000)
    scene.take(FakeRecord(X, timestamp=now_ms(), headers=written))
    assert scene.runtime.take() == []
    assert scene.outbox.take()[0].header("headrace-error") == "expired"


def test_priorities_are_kept_apart() -> None:
    scene = Scene()
    urgent = header("headrace-priority", 1)
    scene.take(FakeRecord(X), FakeRecord(X, headers=urgent), FakeRecord(X))
    assert sorted((request.priority, request.rows) for request in scene.runtime.take()) == [(0, 2), (1, 1)]


def test_a_body_may_ask_for_a_priority_and_a_timeout_in_microseconds() -> None:
    scene = Scene()
    scene.take(FakeRecord(v2(priority=2, timeout=3_000_000)), FakeRecord(v2()), FakeRecord(v2(priority=1)))
    requests = scene.runtime.take()
    assert [(request.priority, request.rows) for request in requests] == [(2, 1), (0, 1), (1, 1)]
    assert [request.deadline for request in requests] == [scene.clock.now + 3, None, None]


def test_the_priority_header_outranks_the_body_and_the_nearer_deadline_counts() -> None:
    scene = Scene()
    headers = (*header("headrace-priority", 5), *header("headrace-deadline", now_ms() + 2_000))
    scene.take(
        FakeRecord(v2(priority=2, timeout=3_000_000), headers=headers),
        FakeRecord(v2(timeout=1_000_000), headers=headers),
    )
    first, second = scene.runtime.take()
    assert (first.priority, second.priority) == (5, 5)
    assert first.deadline is not None
    assert first.deadline <= scene.clock.now + 2
    assert second.deadline == scene.clock.now + 1


def test_a_record_that_cannot_be_decoded_fails_alone() -> None:
    scene = Scene()
    scene.take(FakeRecord(X), FakeRecord(b"{nonsense"), FakeRecord(b'{"x": [1, 2, 3]}'), FakeRecord(X))
    assert sum(request.rows for request in scene.runtime.take()) == 2
    codes = {letter.index: letter.header("headrace-error") for letter in scene.outbox.take()}
    assert codes == {1: "decode", 2: "validation"}


def test_a_content_type_that_is_not_known_fails_alone() -> None:
    scene = Scene()
    odd = header("content-type", "application/x-unheard-of")
    scene.take(FakeRecord(X), FakeRecord(X, headers=odd), FakeRecord(X, headers=odd))
    assert sum(request.rows for request in scene.runtime.take()) == 1
    letters = scene.outbox.take()
    assert [letter.index for letter in letters] == [1, 2]
    assert {letter.topic for letter in letters} == {"headrace.models.m.dead"}


def test_what_finds_no_room_waits_in_order_and_is_admitted_when_there_is_some() -> None:
    scene = Scene(capacity=2)
    for number in range(3):
        scene.take(FakeRecord(b'{"x": [%d, 0]}' % number), FakeRecord(X))
    assert len(scene.runtime.take()) == 1
    assert len(scene.route.waiting) == 2
    scene.runtime.capacity = 3
    scene.intake.admit_waiting(scene.route)
    assert scene.runtime.take()[0].tensors["x"][0].tolist() == [1, 0]
    assert len(scene.route.waiting) == 1


def test_what_waits_for_room_past_its_deadline_is_answered_expired() -> None:
    scene = Scene(capacity=0)
    scene.take(FakeRecord(X, headers=header("headrace-deadline", now_ms() + 60_000)), FakeRecord(X))
    scene.clock.advance(61)
    scene.intake.admit_waiting(scene.route)
    assert [sent.header("headrace-error") for sent in scene.outbox.take()] == ["expired"]
    assert len(scene.route.waiting) == 1


def test_what_waits_for_room_is_dropped_with_its_partition() -> None:
    scene = Scene(capacity=0)
    scene.take(FakeRecord(X))
    scene.partition.scope.state = ScopeState.CLOSED
    scene.intake.admit_waiting(scene.route)
    assert not scene.route.waiting
    assert scene.outbox.take() == []
    assert scene.partition.ledger.unfinished == 1, "handed back: the next owner reads it again"


def test_a_fetch_of_many_kinds_loses_none_of_them() -> None:
    scene = Scene(of_retries=True)
    scene.take(
        FakeRecord(None),
        FakeRecord(X, headers=header("headrace-priority", "x")),
        FakeRecord(X, headers=header("headrace-not-before", now_ms() + 5_000)),
        FakeRecord(X, headers=header("headrace-deadline", 1)),
        FakeRecord(b"?"),
        FakeRecord(X),
    )
    for request in scene.runtime.take():
        echo(request)
    ended = {sent.index for sent in scene.outbox.sent}
    assert ended == {1, 3, 4, 5}
    for sent in scene.outbox.take():
        sent.ack()
    assert scene.partition.ledger.unfinished == 1
    assert scene.position == 2


def test_a_retriable_failure_of_a_held_retry_is_counted_on() -> None:
    scene = Scene(config(max_delay_ms=0, max_attempts=3), of_retries=True)
    headers = (*header("headrace-not-before", now_ms() + 5_000), *header("headrace-attempt", 1))
    scene.take(FakeRecord(X, headers=headers))
    scene.intake.take_due(scene.partition)
    (request,) = scene.runtime.take()
    echo(request, {0: ModelError("boom")})
    (retry,) = scene.outbox.take()
    assert (retry.topic, retry.header("headrace-attempt")) == ("headrace.models.m.retry", "2")
