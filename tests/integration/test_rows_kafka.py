"""Kafka in and out, row by row of the requirements, on a node beside an embedded broker.

What moves offsets in more than one way runs on Apache Kafka too.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from headrace import Client, TooLargeError
from headrace.kafka_clients import Broker
from headrace.overview import read_overview
from schemas.record import Headers, Topics, now_ms
from tests.support.models import BOOM, ECHO, PICK, tensors, write_model
from tests.support.nodes import serving, waiting_records
from tests.support.payloads import FORMS, Form, answer, error_of, request
from tests.support.records import Sent, make_topic, read_all, unique
from tests.support.waiting import eventually

RETRY = {"max_attempts": 3, "initial_delay_ms": 20, "max_delay_ms": 50}
OWN: Headers = (("tenant", b"a"), ("null", None), ("bytes", b"\xff\xfe"), ("tenant", b"b"), ("word", "é".encode()))
"""A producer's own headers: repeated, null, not UTF-8."""


def own(headers: Headers) -> Headers:
    """What is left without the headers of the record contract."""
    return tuple(one for one in headers if not one[0].startswith("headrace-") and one[0] not in CONTENT)


CONTENT = ("content-type", "inference-header-content-length")


@pytest.mark.parametrize(
    ("values", "form"), [((1, -1, 2), "plain"), ((-1, 1, 2), "v2"), ((1, 2, -1), "binary")], ids=str
)
async def test_A5_a_failed_record_is_retried_then_buried_and_only_then_passed(
    noida: str, tmp_path: Path, form: Form, values: tuple[int, ...]
) -> None:
    """A failure leads to bounded retries and then to a dead letter with the original key, value and headers, the reason
    and the attempts; the offset moves over the record, and its neighbours are answered."""
    write_model(tmp_path / "models", "pick", PICK, retry=RETRY)
    sent = [request(form, [[value]], key=b"k%d" % value, headers=OWN) for value in values]
    before = now_ms()
    namespace = await waiting_records(noida, "pick", sent)
    async with serving(noida, tmp_path / "models", namespace=namespace) as node:
        results = await node.results("pick", 2)
        (letter,) = await node.dead("pick", 1, settle_s=0.2)
        await node.until_committed("pick", {0: 3})
        await node.until_all_committed("pick")
        assert len(await node.results("pick", 2, settle_s=0.2)) == 2
    assert {one.key: answer(one).reshape(-1).tolist() for one in results} == {b"k1": [1.0], b"k2": [2.0]}
    bad = sent[values.index(-1)]
    assert (letter.key, letter.value) == (bad.key, bad.value)
    assert letter.headers[: len(bad.headers)] == bad.headers
    code, message = error_of(letter)
    assert code == "model"
    assert "there are rows below 0" in message
    assert letter.header("headrace-attempt") == b"3"
    assert letter.header("headrace-stage") == b"pick"
    assert letter.header("headrace-origin") == f"{node.topics.requests('pick')}:0:{values.index(-1)}".encode()
    assert before <= int(letter.header("headrace-timestamp") or b"0") <= now_ms()
    assert node.metric("headrace_retries_total", model="pick") == 2
    assert node.metric("headrace_dead_letters_total", model="pick") == 1


async def test_A5_a_record_of_many_rows_and_one_of_another_partition_fail_as_single_ones_do(
    any_broker: str, tmp_path: Path
) -> None:
    """One bad row fails its whole record and no other, whichever partition they lie in; a caller who waits is told."""
    model = write_model(tmp_path / "models", "pick", PICK, retry=RETRY)
    replies = await make_topic(any_broker, unique("replies"))
    to = (("headrace-reply-to", replies.encode()), ("headrace-id", b"call"))
    async with serving(any_broker, tmp_path / "models", partitions=3) as node:
        await node.send(
            "pick",
            request("v2", [[1], [-2], [3]], partition=0, headers=OWN),
            request("binary", [[4], [5]], partition=0),
            request("plain", [[-6]], partition=1, headers=to),
            request("plain", [[7]], partition=2),
        )
        results = await node.results("pick", 2)
        (letter,) = await node.dead("pick", 1, settle_s=0.2)
        (reply,) = await read_all(any_broker, replies, count=1)
        await node.until_committed("pick", {0: 2, 1: 1, 2: 1})
    assert sorted(answer(one).reshape(-1).tolist() for one in results) == [[4.0, 5.0], [7.0]]
    assert own(letter.headers) == OWN
    assert letter.header("headrace-attempt") == b"3"
    assert error_of(reply)[0] == "model"
    assert reply.header("headrace-id") == b"call"
    assert reply.header("headrace-attempt") == b"3"
    # Row by row once, and then alone in each of two more attempts.
    assert [note["x"] for note in model.journal].count([[-6.0]]) >= 3


async def test_A19_null_non_utf8_and_ordinary_headers_pass_byte_for_byte(noida: str, tmp_path: Path) -> None:
    """Headers a=null, b=FF FE and c='é' come back unchanged and in order, in every form; nothing is dead-lettered."""
    write_model(tmp_path / "models", "echo")
    headers: Headers = (("a", None), ("b", b"\xff\xfe"), ("c", "é".encode()))
    async with serving(noida, tmp_path / "models") as node:
        await node.send("echo", *[request(form, [[1]], headers=headers) for form in FORMS])
        results = await node.results("echo", 3, settle_s=0.2)
        await node.until_committed("echo", {0: 3})
        assert await node.dead("echo", 0) == []
    assert [own(one.headers) for one in results] == [headers] * 3
    assert all(answer(one).reshape(-1).tolist() == [1.0] for one in results)


async def test_A19_headers_pass_unchanged_through_retries_letters_replies_and_beside_other_headers(
    any_broker: str, tmp_path: Path
) -> None:
    """Repeated, empty, null and non-UTF-8 headers keep their order on each way out, and one record's never reach
    another record of its batch."""
    write_model(tmp_path / "models", "pick", PICK, retry={**RETRY, "max_attempts": 2})
    replies = await make_topic(any_broker, unique("replies"))
    to = ("headrace-reply-to", replies.encode())
    mixed: Headers = (*OWN, ("", b""), ("empty", b""))
    namespace = await waiting_records(
        any_broker,
        "pick",
        [
            request("v2", [[1]], headers=mixed),
            request("v2", [[2]]),
            request("v2", [[-1]], headers=mixed, key=b"bad"),
            request("v2", [[-2]], headers=(*mixed, to)),
            request("v2", [[3]], headers=(*mixed[:2], to, *mixed[2:])),
        ],
    )
    async with serving(any_broker, tmp_path / "models", namespace=namespace) as node:
        results = await node.results("pick", 2)
        (letter,) = await node.dead("pick", 1)
        answers = await read_all(any_broker, replies, count=2)
        await node.until_committed("pick", {0: 5})
    assert {answer(one)[0, 0]: own(one.headers) for one in results} == {1.0: mixed, 2.0: ()}
    assert own(letter.headers) == mixed
    assert [own(one.headers) for one in answers] == [mixed, mixed]
    assert {one.header("headrace-error") for one in answers} == {b"model", None}


@pytest.mark.parametrize(
    "order",
    [("v", None, "v"), (None, "v", "v"), ("v", "v", None), (None, None, None)],
    ids=["middle", "first", "last", "all"],
)
async def test_A21_tombstones_are_counted_and_passed_and_their_neighbours_answered(
    noida: str, tmp_path: Path, order: tuple[str | None, ...]
) -> None:
    """A record without a value is skipped and counted, the offset moves over it, its neighbours have their results."""
    write_model(tmp_path / "models", "echo")
    sent = [
        Sent(None, key=b"k", headers=OWN) if one is None else request("plain", [[at]], key=b"v")
        for at, one in enumerate(order)
    ]
    full = [float(at) for at, one in enumerate(order) if one is not None]
    namespace = await waiting_records(noida, "echo", sent)
    async with serving(noida, tmp_path / "models", namespace=namespace) as node:
        await node.until_committed("echo", {0: 3})
        results = await node.results("echo", len(full), settle_s=0.1)
        assert await node.dead("echo", 0) == []
        assert node.metric("headrace_tombstones_total", model="echo") == order.count(None)
    assert [answer(one)[0, 0] for one in results] == full


async def test_A21_tombstones_are_repeated_on_the_results_topic_where_that_is_the_policy(
    any_broker: str, tmp_path: Path
) -> None:
    """With ``tombstones: forward`` the key comes out with its null value, beside the neighbours' results."""
    write_model(tmp_path / "models", "echo")
    sent = [request("plain", [[1]], key=b"k"), Sent(None, key=b"k", headers=OWN), request("plain", [[2]], key=b"k")]
    namespace = await waiting_records(any_broker, "echo", sent)
    async with serving(any_broker, tmp_path / "models", namespace=namespace, tombstones="forward") as node:
        results = await node.results("echo", 3, settle_s=0.1)
        await node.until_committed("echo", {0: 3})
        assert node.metric("headrace_tombstones_total", model="echo") == 1
    assert [one.key for one in results] == [b"k"] * 3
    assert [own(one.headers) for one in results if one.value is None] == [OWN]
    assert sorted(answer(one)[0, 0] for one in results if one.value is not None) == [1.0, 2.0]


BINARY: Headers = (("content-type", b"application/octet-stream"), ("inference-header-content-length", b"999999"))
UNREADABLE = {
    "bytes 80 41": Sent(b"\x80\x41"),
    "nothing": Sent(b""),
    "cut short": Sent(b'{"x":[1'),
    "no object": Sent(b"[1]"),
    "not UTF-8": Sent(b'{"x":"\xff"}'),
    "binary with a wrong length": Sent(b"{}", headers=BINARY),
    "deeply nested": Sent(b'{"x":' + b"[" * 100_000 + b"1" + b"]" * 100_000 + b"}"),
    "not Arrow": Sent(b"\x80\x41", headers=(("content-type", b"application/vnd.apache.arrow.stream"),)),
    "unknown media type": Sent(b"\x80\x41", headers=(("content-type", b"image/png"),)),
}


@pytest.mark.parametrize("at", [0, 1, 2])
async def test_A23_an_undecodable_record_is_buried_alone(noida: str, tmp_path: Path, at: int) -> None:
    """Bytes 80 41 among two good values: two results, one dead letter with the reason ``decode``, all three passed."""
    write_model(tmp_path / "models", "echo", retry=RETRY)
    sent = [Sent(b'{"x":1}'), Sent(b'{"x":2}')]
    sent.insert(at, Sent(b"\x80\x41", key=b"k", headers=OWN))
    namespace = await waiting_records(noida, "echo", [Sent(one.value, one.key, one.headers, 0) for one in sent])
    async with serving(noida, tmp_path / "models", namespace=namespace) as node:
        results = await node.results("echo", 2, settle_s=0.1)
        (letter,) = await node.dead("echo", 1)
        await node.until_committed("echo", {0: 3})
        assert node.node.live().ok
        assert node.node.ready().ok
    assert [answer(one).tolist() for one in results] == [[1.0], [2.0]]
    assert error_of(letter)[0] == "decode"
    assert (letter.key, letter.value, own(letter.headers)) == (b"k", b"\x80\x41", OWN)
    assert letter.header("headrace-attempt") == b"1"


async def test_A23_each_kind_of_undecodable_record_fails_alone_and_the_node_goes_on(
    any_broker: str, tmp_path: Path
) -> None:
    """Whatever cannot be read is buried with its own value, once, without a retry; what lies between is answered."""
    write_model(tmp_path / "models", "echo", retry=RETRY)
    bad = list(UNREADABLE.values())
    sent = [one for pair in zip(bad, [request("v2", [[at]]) for at in range(len(bad))], strict=True) for one in pair]
    namespace = await waiting_records(any_broker, "echo", sent)
    async with serving(any_broker, tmp_path / "models", namespace=namespace) as node:
        results = await node.results("echo", len(bad), settle_s=0.1)
        letters = await node.dead("echo", len(bad))
        await node.until_committed("echo", {0: len(sent)})
        await node.send("echo", request("plain", [[99]]))
        await node.results("echo", len(bad) + 1)
    assert sorted(answer(one)[0, 0] for one in results) == [float(at) for at in range(len(bad))]
    assert {one.value for one in letters} == {one.value for one in bad}
    codes = {name: error_of(one)[0] for name, sent in UNREADABLE.items() for one in letters if one.value == sent.value}
    assert codes.pop("not UTF-8") in ("decode", "validation")
    assert set(codes.values()) == {"decode"}, codes


async def test_A23_a_malformed_header_of_ours_fails_its_record_alone(noida: str, tmp_path: Path) -> None:
    """A deadline that is no number, and a null or non-UTF-8 id, are refused by name; the neighbours are answered."""
    write_model(tmp_path / "models", "echo", retry=RETRY)
    wrong: list[Headers] = [
        (("headrace-deadline", b"soon"),),
        (("headrace-id", None),),
        (("headrace-id", b"\xff"),),
        (("headrace-attempt", b"-1"),),
        (("headrace-reply-to", b"no such topic!"),),
    ]
    sent = [request("plain", [[at]], headers=headers) for at, headers in enumerate([(), *wrong, ()])]
    namespace = await waiting_records(noida, "echo", sent)
    async with serving(noida, tmp_path / "models", namespace=namespace) as node:
        results = await node.results("echo", 2, settle_s=0.1)
        letters = await node.dead("echo", len(wrong))
        await node.until_committed("echo", {0: len(sent)})
    assert sorted(answer(one)[0, 0] for one in results) == [0.0, float(len(wrong) + 1)]
    assert {error_of(one)[0] for one in letters} == {"validation"}
    for headers in wrong:
        assert any(headers[0][0] in error_of(one)[1] for one in letters)


BIG = ECHO.replace("return x", "return np.array([[b'z' * int(cell)] for cell in x[:, 0]], object)")
BIG_TENSORS = {**tensors("INT32", [1]), "outputs": [{"name": "y", "datatype": "BYTES", "shape": [1]}]}
THREE_MB = 3 * 1024 * 1024


async def test_A25_a_result_above_the_limit_becomes_a_dead_letter_and_is_passed(
    any_broker: str, tmp_path: Path
) -> None:
    """A result of 3 MB under a limit of 1 MB ends as an error record that names both; the offset moves over it, and
    small results of the same batch come out."""
    write_model(tmp_path / "models", "big", BIG, **BIG_TENSORS, retry=RETRY)
    sent = [request(form, [[size]], datatype="INT32") for size in (5, THREE_MB, 7) for form in FORMS]
    namespace = await waiting_records(any_broker, "big", sent)
    async with serving(any_broker, tmp_path / "models", namespace=namespace) as node:
        results = await node.results("big", 6, settle_s=0.1)
        letters = await node.dead("big", 3)
        await node.until_committed("big", {0: 9})
    assert sorted(len(answer(one)[0, 0]) for one in results) == [5, 5, 5, 7, 7, 7]
    assert {one.value for one in letters} == {one.value for one in sent[3:6]}
    for one in letters:
        code, message = error_of(one)
        assert code == "too_large"
        assert "3,145," in message or "3,146," in message, "with key and headers it is a little more than 3 MB"
        assert "1,048,576" in message


async def test_A25_a_result_that_only_the_topic_refuses_is_an_error_too(any_broker: str, tmp_path: Path) -> None:
    """Below the client's limit and above the topic's: the broker's refusal fails that record alone, with its size, and
    the caller is told where one waits."""
    write_model(tmp_path / "models", "big", BIG, **BIG_TENSORS)
    sent = [request("v2", [[size]], datatype="INT32", key=b"%d" % size) for size in (5, 500_000, 7)]
    namespace = await waiting_records(any_broker, "big", sent)
    narrow = {"max.message.bytes": "100000"}
    await make_topic(any_broker, Topics(namespace).results("big"), config=narrow)
    replies = await make_topic(any_broker, unique("replies"), config=narrow)
    async with serving(any_broker, tmp_path / "models", namespace=namespace) as node:
        to = (("headrace-reply-to", replies.encode()),)
        await node.send("big", request("v2", [[400_000]], datatype="INT32", headers=to, key=b"400000"))
        results = await node.results("big", 2, settle_s=0.2)
        (letter,) = await node.dead("big", 1)
        (reply,) = await read_all(any_broker, replies, count=1)
        await node.until_committed("big", {0: 4})
    assert [len(answer(one)[0, 0]) for one in results] == [5, 7]
    assert letter.key == b"500000"
    for one, size in ((letter, "500,"), (reply, "400,")):
        code, message = error_of(one)
        assert code == "too_large"
        assert size in message


async def test_A25_a_waiting_caller_is_told_at_once_with_size_and_limit(noida: str, tmp_path: Path) -> None:
    """The caller of a result above the limit gets a typed error with the size and the limit within a second."""
    write_model(tmp_path / "models", "big", BIG, **BIG_TENSORS, retry=RETRY)
    async with serving(noida, tmp_path / "models") as node, Client(noida, namespace=node.namespace) as client:
        await client.infer("big", {"x": [[3]]})
        started = time.monotonic()
        with pytest.raises(TooLargeError, match=r"3,146,\d\d\d.*1,048,576"):
            await client.infer("big", {"x": [[THREE_MB]]}, deadline_s=20)
        assert time.monotonic() - started < 1.0
        await node.until_committed("big", {0: 2})
        assert await node.dead("big", 0) == []


async def test_A25_a_letter_above_the_limit_is_written_without_its_value(noida: str, tmp_path: Path) -> None:
    """A failed record that does not fit the producer's limit leaves a letter that says where its value lies; the same
    goes for a result of many rows, each of them small."""
    write_model(tmp_path / "models", "boom", BOOM, **tensors("BYTES", [1]))
    write_model(tmp_path / "models", "big", BIG, **BIG_TENSORS)
    async with serving(noida, tmp_path / "models", kafka={"max_request_size": 100_000}) as node:
        await node.send(
            "boom",
            Sent(b"z" * 150_000, b"k", (("content-type", b"application/octet-stream"), *OWN)),
            request("plain", ["small"], datatype="BYTES"),
        )
        await node.send(
            "big", request("v2", [[30_000]] * 4, datatype="INT32"), request("v2", [[30_000]], datatype="INT32")
        )
        letters = await node.dead("boom", 2)
        (many,) = await node.dead("big", 1)
        (one,) = await node.results("big", 1)
        await node.until_committed("boom", {0: 2})
        await node.until_committed("big", {0: 2})
    large = next(letter for letter in letters if letter.key == b"k")
    assert large.value == b""
    assert own(large.headers) == OWN
    assert large.header("headrace-origin") == f"{node.topics.requests('boom')}:0:0".encode()
    assert "150,000 bytes" in error_of(large)[1]
    assert "boom" in error_of(large)[1], "why the record died in the first place is lost"
    assert error_of(many)[0] == "too_large"
    assert len(answer(one)[0, 0]) == 30_000


@pytest.fixture
def _measured_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lag is measured with every commit, in place of every 2 seconds."""
    monkeypatch.setattr("consumers.commits.MEASURE_INTERVAL_S", 0.25)


@pytest.mark.usefixtures("_measured_often")
async def test_A28_lag_is_what_is_not_finished_and_never_below_0(any_broker: str, tmp_path: Path) -> None:
    """Ten records done: lag 0. Three not done: lag 3. Both in the metric and in the overview; under load neither is
    ever negative."""
    model = write_model(tmp_path / "models", "echo", max_batch_size=1)
    broker = Broker(any_broker)
    async with serving(any_broker, tmp_path / "models", partitions=2) as node:

        async def overview_lag() -> int | None:
            views = {one.name: one for one in (await read_overview(broker, node.namespace)).models}
            return views["echo"].lag

        await node.send("echo", *[request("plain", [[at]], partition=at % 2) for at in range(10)])
        await node.until_committed("echo", {0: 5, 1: 5})
        assert await overview_lag() == 0
        model.shut()
        await node.send("echo", *[request("plain", [[at]], partition=at % 2) for at in range(3)])
        await eventually(lambda: node.metric("headrace_lag_records", model="echo") == 3, why="lag of 3")
        assert node.metric("headrace_lag_records", model="echo", partition="0") == 2
        # The end of the log may be known a moment before the records are: only then have they an age.
        await eventually(lambda: node.metric("headrace_oldest_age_seconds", model="echo") > 0, why="an age")
        assert await overview_lag() == 3
        model.open()
        seen: list[float] = []

        done = asyncio.Event()

        async def watch() -> None:
            while not done.is_set():
                seen.append(node.metric("headrace_lag_records", model="echo"))
                await asyncio.sleep(0.02)

        async def watch_overview() -> None:
            while not done.is_set():
                seen.append(float(await overview_lag() or 0))

        async with asyncio.TaskGroup() as watching:
            watching.create_task(watch())
            watching.create_task(watch_overview())
            await node.send("echo", *[request("plain", [[at]], partition=at % 2) for at in range(300)])
            await node.until_committed("echo", {0: 157, 1: 156})
            await eventually(lambda: node.metric("headrace_lag_records", model="echo") == 0, why="lag of 0")
            done.set()
    assert len(seen) > 4
    assert min(seen) >= 0


@pytest.mark.usefixtures("_measured_often")
async def test_A28_a_retry_that_waits_does_not_hide_the_lag_of_the_requests(noida: str, tmp_path: Path) -> None:
    """A model's lag is that of its request and its retry partitions together, whichever was read last."""
    model = write_model(
        tmp_path / "models", "pick", PICK, retry={"max_attempts": 2, "initial_delay_ms": 60_000, "max_delay_ms": 60_000}
    )
    async with serving(noida, tmp_path / "models") as node:
        await node.send("pick", request("plain", [[-1]]))
        await node.until_committed("pick", {0: 1})
        await eventually(lambda: node.metric("headrace_lag_records", model="pick") == 1, why="the retry to count")
        model.shut()
        await node.send("pick", *[request("plain", [[at]]) for at in range(3)])
        await eventually(lambda: node.metric("headrace_lag_records", model="pick") == 4, why="lag of 3 and 1")
        (view,) = (await read_overview(Broker(noida), node.namespace)).models
        assert view.lag == 4, "the overview says something else than the metric"
        model.open()
        await eventually(
            lambda: node.metric("headrace_lag_records", model="pick") == 1, why="the retry alone to be left"
        )
