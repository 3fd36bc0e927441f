"""Every record of a bundle ends once: as a result, an error reply, a retry or a dead letter, and is then finished."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest

from gpu_runtime.request import Outcome, ScopeState
from schemas.errors import Cancelled, Expired, HeadraceError, ModelError, TooLargeError, Unavailable
from schemas.record import Headers, now_ms
from tests.unit.consumers.parts import FakeRecord, Scene, Sent, config, echo

X = b'{"x": [1, 2]}'
TWO_ROWS = b'{"x": [[1, 2], [3, 4]]}'
REQUESTS, RESULTS, RETRY, DEAD = (f"headrace.models.m{end}" for end in ("", ".results", ".retry", ".dead"))


def header(name: str, value: object) -> Headers:
    return ((name, str(value).encode()),)


def reply_to(topic: str) -> Headers:
    return header("headrace-reply-to", topic)


def run(scene: Scene, *records: FakeRecord, errors: Mapping[int, HeadraceError] | None = None) -> list[Sent]:
    """Takes the records, answers their one request, and returns what was sent."""
    scene.take(*records)
    (request,) = scene.runtime.take()
    echo(request, errors)
    return scene.outbox.take()


def test_a_result_goes_to_the_results_topic_with_the_key_of_its_record() -> None:
    scene = Scene()
    first, second = run(scene, FakeRecord(X, key=b"k"), FakeRecord(b'{"x": [3, 4]}'))
    assert (first.topic, first.key, first.partition, first.to_reply) == (RESULTS, b"k", None, False)
    assert [json.loads(each.value or b"") for each in (first, second)] == [{"y": [1, 2]}, {"y": [3, 4]}]
    assert first.header("headrace-id") == f"{REQUESTS}-0-0"
    assert scene.outbox.calls == [2], "one call for both"
    assert scene.hooks.counts["latency"] == 2
    assert scene.woken == 1


def test_a_record_is_finished_when_its_end_is_acknowledged_and_counted_then() -> None:
    scene = Scene()
    record = FakeRecord(X, timestamp=now_ms() - 2_000)
    first, second = run(scene, record, FakeRecord(X, timestamp=now_ms()))
    assert scene.position == 0
    second.ack()
    assert scene.position == 0
    first.ack()
    assert scene.position == 2
    assert scene.hooks.ended() == {"result": 2}
    assert any(age >= 2_000 for age in scene.hooks.ages)


def test_answers_are_grouped_by_where_they_go() -> None:
    scene = Scene()
    sent = run(
        scene,
        FakeRecord(X, headers=reply_to("inbox-a")),
        FakeRecord(X, headers=reply_to("inbox-b:4")),
        FakeRecord(X),
        FakeRecord(X, headers=reply_to("inbox-a")),
    )
    where = {each.index: (each.topic, each.partition, each.to_reply) for each in sent}
    assert where == {
        0: ("inbox-a", None, True),
        1: ("inbox-b", 4, True),
        2: (RESULTS, None, False),
        3: ("inbox-a", None, True),
    }
    assert sorted(scene.outbox.calls) == [1, 1, 2]


def test_one_failing_row_fails_its_record_and_no_other() -> None:
    scene = Scene(config(max_attempts=1))
    sent = run(scene, FakeRecord(X), FakeRecord(TWO_ROWS), FakeRecord(X), errors={2: ModelError("row 2")})
    by_index = {each.index: each for each in sent}
    assert {index: each.topic for index, each in by_index.items()} == {0: RESULTS, 1: DEAD, 2: RESULTS}
    assert by_index[1].header("headrace-error-message") == "row 2"
    assert by_index[1].value == TWO_ROWS
    assert json.loads(by_index[2].value or b"") == {"y": [1, 2]}


def test_a_record_with_several_failing_rows_ends_once_with_the_first_of_them() -> None:
    scene = Scene(config(max_attempts=1))
    (letter,) = run(scene, FakeRecord(TWO_ROWS), errors={1: ModelError("second"), 0: ModelError("first")})
    assert letter.header("headrace-error-message") == "first"


def test_rows_before_a_failed_record_are_not_given_to_those_behind_it() -> None:
    scene = Scene(config(max_attempts=1))
    values = [b'{"x": [%d, 0]}' % number for number in range(4)]
    sent = run(scene, *(FakeRecord(value) for value in values), errors={1: ModelError("x")})
    answers = {each.index: json.loads(each.value or b"") for each in sent if each.topic == RESULTS}
    assert answers == {0: {"y": [0, 0]}, 2: {"y": [2, 0]}, 3: {"y": [3, 0]}}


def test_a_failure_that_may_pass_is_retried_up_to_max_attempts_counted_in_the_record() -> None:
    scene = Scene(config(max_attempts=3, initial_delay_ms=100))
    record = FakeRecord(X, key=b"k", headers=header("a", 1), timestamp=77)
    topics = []
    for attempt in (1, 2, 3):
        before = now_ms()
        (sent,) = run(scene, record, errors={0: ModelError(f"attempt {attempt}")})
        topics.append(sent.topic)
        assert sent.header("headrace-attempt") == str(attempt)
        assert sent.header("headrace-origin") == f"{REQUESTS}:0:0"
        assert sent.header("headrace-timestamp") == "77"
        assert (sent.key, sent.value) == (b"k", X)
        assert sent.headers[0] == ("a", b"1")
        if sent.topic == RETRY:
            not_before = int(sent.header("headrace-not-before") or 0)
            assert before + 50 * 2 ** (attempt - 1) <= not_before <= now_ms() + 100 * 2 ** (attempt - 1)
            # It comes back from the retry topic when it is due.
            due = [(name, value) for name, value in sent.headers if name != "headrace-not-before"]
            record = FakeRecord(X, key=b"k", headers=tuple(due), timestamp=9_999, topic=RETRY)
        sent.ack()
    assert topics == [RETRY, RETRY, DEAD]
    assert scene.hooks.ended() == {"retry": 2, "dead_letter": 1}
    assert scene.position == 3


@pytest.mark.parametrize("error", [TooLargeError("x"), HeadraceError("x")])
def test_a_failure_that_will_not_pass_is_not_retried(error: HeadraceError) -> None:
    (sent,) = run(Scene(), FakeRecord(X), errors={0: error})
    assert sent.topic == DEAD


def test_no_retry_is_made_that_would_come_after_the_deadline() -> None:
    scene = Scene(config(initial_delay_ms=60_000, max_delay_ms=60_000))
    headers = header("headrace-deadline", now_ms() + 20_000)
    (sent,) = run(scene, FakeRecord(X, headers=headers), errors={0: ModelError("x")})
    assert (sent.topic, sent.header("headrace-error")) == (DEAD, "model")


def test_no_retry_is_made_that_would_come_after_the_models_default_deadline() -> None:
    scene = Scene(config(initial_delay_ms=60_000, max_delay_ms=60_000, default_deadline_ms=20_000))
    (sent,) = run(scene, FakeRecord(X, timestamp=now_ms()), errors={0: ModelError("x")})
    assert sent.topic == DEAD


def test_a_caller_is_told_of_the_error_in_place_of_a_dead_letter() -> None:
    scene = Scene(config(max_attempts=1))
    headers = (*reply_to("inbox:1"), *header("headrace-id", "mine"), *header("a", 1))
    (sent,) = run(scene, FakeRecord(X, key=b"k", headers=headers), errors={0: ModelError("boom")})
    assert (sent.topic, sent.partition, sent.key, sent.to_reply) == ("inbox", 1, b"k", True)
    assert json.loads(sent.value or b"") == {"id": "mine", "error": "boom", "code": "model"}
    assert sent.headers[0] == ("a", b"1")
    sent.ack()
    assert scene.hooks.ended() == {"error_reply": 1}
    assert scene.position == 1


@pytest.mark.parametrize(("error", "end"), [(Expired("late"), "expired"), (Cancelled("taken back"), "cancelled")])
@pytest.mark.parametrize("to", [(), reply_to("inbox")])
def test_expired_and_cancelled_records_are_counted_as_such(error: HeadraceError, end: str, to: Headers) -> None:
    scene = Scene()
    (sent,) = run(scene, FakeRecord(X, headers=to), errors={0: error})
    sent.ack()
    assert scene.hooks.ended() == {end: 1}


def test_a_result_too_large_for_its_topic_is_an_error_reply_to_a_caller() -> None:
    scene = Scene()
    (result,) = run(scene, FakeRecord(X, headers=reply_to("inbox")))
    result.refuse(TooLargeError("9 MB"))
    (reply,) = scene.outbox.take()
    assert (reply.topic, reply.header("headrace-error")) == ("inbox", "too_large")
    reply.ack()
    assert scene.hooks.ended() == {"error_reply": 1}
    assert scene.hooks.counts["error too_large"] == 1
    assert scene.position == 1


def test_a_result_too_large_for_the_results_topic_is_a_dead_letter() -> None:
    scene = Scene()
    (result,) = run(scene, FakeRecord(X))
    result.refuse(TooLargeError("9 MB"))
    (letter,) = scene.outbox.take()
    assert (letter.topic, letter.value, letter.header("headrace-error")) == (DEAD, X, "too_large")


def test_a_result_whose_reply_topic_is_missing_is_a_dead_letter() -> None:
    scene = Scene()
    (result,) = run(scene, FakeRecord(X, headers=reply_to("inbox")))
    result.refuse(Unavailable("topic inbox does not exist"))
    (letter,) = scene.outbox.take()
    assert (letter.topic, letter.header("headrace-error")) == (DEAD, "unavailable")
    assert scene.hooks.counts["error unavailable"] == 1
    letter.ack()
    assert scene.hooks.ended() == {"dead_letter": 1}


def test_an_error_reply_that_cannot_be_delivered_is_a_dead_letter() -> None:
    scene = Scene(config(max_attempts=1))
    (reply,) = run(scene, FakeRecord(X, headers=reply_to("inbox")), errors={0: ModelError("boom")})
    reply.refuse(Unavailable("topic inbox does not exist"))
    (letter,) = scene.outbox.take()
    assert letter.topic == DEAD
    letter.ack()
    assert scene.position == 1


def test_a_dead_letter_too_large_for_its_topic_goes_without_its_value_and_says_so() -> None:
    scene = Scene(config(max_attempts=1))
    (letter,) = run(scene, FakeRecord(X, key=b"k"), errors={0: ModelError("boom")})
    letter.refuse(TooLargeError("9 MB"))
    (again,) = scene.outbox.take()
    assert (again.topic, again.key, again.value) == (DEAD, b"k", b"")
    assert again.header("headrace-error") == "model", "what it died of, not what burying it ran into"
    message = again.header("headrace-error-message") or ""
    assert "left out" in message
    assert "boom" in message
    assert scene.position == 0
    again.ack()
    assert scene.position == 1
    assert scene.hooks.ended() == {"dead_letter": 1}


def test_a_record_that_cannot_even_be_buried_does_not_stop_its_partition_and_is_counted() -> None:
    scene = Scene(config(max_attempts=1))
    (letter,) = run(scene, FakeRecord(X), errors={0: ModelError("boom")})
    letter.refuse(TooLargeError("9 MB"))
    scene.outbox.take()[0].refuse(TooLargeError("headers"))
    assert scene.outbox.take() == []
    assert scene.position == 1
    assert scene.hooks.counts["error undeliverable"] == 1


@pytest.mark.parametrize(("to", "topic"), [((), DEAD), (reply_to("inbox"), "inbox")])
def test_a_retry_too_large_for_its_topic_was_the_last_attempt(to: Headers, topic: str) -> None:
    scene = Scene()
    (retry,) = run(scene, FakeRecord(X, headers=to), errors={0: ModelError("boom")})
    assert retry.topic == RETRY
    retry.refuse(TooLargeError("1 byte more than the request"))
    (end,) = scene.outbox.take()
    assert (end.topic, end.header("headrace-error")) == (topic, "model")
    assert end.header("headrace-error-message") == "boom"
    end.ack()
    assert scene.position == 1


def test_what_comes_back_after_the_partition_was_closed_counts_no_more() -> None:
    scene = Scene()
    scene.take(FakeRecord(X))
    (request,) = scene.runtime.take()
    scene.partition.scope.state = ScopeState.CLOSED
    echo(request)
    assert scene.outbox.take() == []
    assert scene.hooks.counts["latency"] == 0
    assert scene.woken == 1, "there is room all the same"


def test_what_comes_back_while_the_partition_is_suspended_counts() -> None:
    scene = Scene()
    scene.take(FakeRecord(X))
    (request,) = scene.runtime.take()
    scene.partition.scope.state = ScopeState.SUSPENDED
    echo(request)
    assert [sent.topic for sent in scene.outbox.take()] == [RESULTS]


def test_a_request_that_failed_as_a_whole_fails_every_record() -> None:
    scene = Scene(config(max_attempts=1))
    scene.take(FakeRecord(X), FakeRecord(TWO_ROWS))
    (request,) = scene.runtime.take()
    request.on_done(Outcome(None, dict.fromkeys(range(3), ModelError("dead"))))
    assert [(sent.index, sent.topic) for sent in scene.outbox.take()] == [(0, DEAD), (1, DEAD)]


def test_the_id_of_a_v2_body_is_echoed_unless_a_header_says_otherwise() -> None:
    scene = Scene()
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2]}
    body = json.dumps({"id": "body", "inputs": [tensor]}).encode()
    first, second = run(scene, FakeRecord(body), FakeRecord(body, headers=header("headrace-id", "header")))
    assert (first.header("headrace-id"), second.header("headrace-id")) == ("body", "header")
    assert json.loads(first.value or b"")["id"] == "body"


class _Spans:
    def __init__(self) -> None:
        self.finished: list[tuple[float, float, int, dict[int, str]]] = []

    def traceparent(self, index: int) -> bytes:
        return f"span-{index}".encode()

    def finish(self, queue_s: float, compute_s: float, rows: int, errors: Mapping[int, str]) -> None:
        self.finished.append((queue_s, compute_s, rows, dict(errors)))


def test_each_record_carries_its_own_span_on_and_the_spans_end_with_the_bundle() -> None:
    scene = Scene(config(max_attempts=1))
    spans = scene.hooks.traced = _Spans()
    sent = run(
        scene,
        FakeRecord(X),
        FakeRecord(X, headers=reply_to("inbox")),
        FakeRecord(X),
        errors={1: ModelError("x")},
    )
    assert {each.index: each.header("traceparent") for each in sent} == {0: "span-0", 1: "span-1", 2: "span-2"}
    assert spans.finished == [(0.1, 0.2, 3, {1: "model"})]


def test_a_model_with_no_batch_dimension_answers_record_by_record() -> None:
    scene = Scene(config(max_batch_size=0))
    scene.take(FakeRecord(X), FakeRecord(b'{"x": [3, 4]}'))
    first, second = scene.runtime.take()
    echo(second)
    echo(first, {0: ModelError("x")})
    answer, retry = scene.outbox.take()
    assert (answer.index, json.loads(answer.value or b"")) == (1, {"y": [3, 4]})
    assert (retry.index, retry.topic) == (0, RETRY)
