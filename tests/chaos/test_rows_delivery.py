"""Rows of the requirements on delivery, on real Apache Kafka with nodes as processes: what is committed, and when."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.chaos.scene import SLEEPER, Scene, lag, metric, values_of
from tests.support.models import ECHO, PICK, tensors, write_model
from tests.support.records import Sent, make_topic, read_all, unique
from tests.support.waiting import eventually

pytestmark = [pytest.mark.kafka, pytest.mark.timeout(90)]


async def test_A2_a_commit_stops_at_the_lowest_unfinished_record(kafka: str, tmp_path: Path) -> None:
    """Records finished behind an unfinished one are not committed, so that a crash cannot lose it.

    Record 0 takes 4 s, the nine behind it none; the node is killed once all nine have results and a later commit of
    another model is in.
    """
    scene = Scene(kafka, tmp_path / "models")
    write_model(scene.models, "slow", SLEEPER, max_batch_size=1, instances=[{"count": 2, "device": "cpu"}])
    write_model(scene.models, "echo")
    async with scene.node() as node:
        await node.until_ready()
        await scene.send_numbers("slow", [4000, *range(1, 10)])
        assert await scene.numbers("slow", 9) == list(range(1, 10))
        await scene.send_numbers("echo", [1])
        await scene.until_committed("echo", {0: 1})
        committed = await scene.committed("slow")
        node.kill()
        assert committed.get(0, 0) == 0
        assert await scene.result_count("slow") == 9
    async with scene.node():
        found = await scene.numbers("slow", 19, deadline_s=30)
        assert set(found) == {4000, *range(1, 10)}
        await scene.until_committed("slow", {0: 10})


async def test_A5_a_failed_record_is_retried_then_buried_and_only_then_committed(kafka: str, tmp_path: Path) -> None:
    """A failure is followed by its retries, then by a dead letter; the offset moves only after that."""
    scene = Scene(kafka, tmp_path / "models")
    write_model(scene.models, "pick", PICK, retry={"max_attempts": 3, "initial_delay_ms": 100})
    headers = (("trace", b"\xff\x00"), ("nothing", None))
    async with scene.node() as node:
        await node.until_ready()
        await scene.send(
            "pick",
            Sent(b'{"x":[1]}', partition=0),
            Sent(b'{"x":[-1]}', key=b"the key", headers=headers, partition=0, timestamp_ms=1_700_000_000_000),
            Sent(b'{"x":[2]}', partition=0),
        )
        [letter] = await read_all(kafka, scene.topics.dead("pick"), count=1)
        assert (letter.key, letter.value) == (b"the key", b'{"x":[-1]}')
        assert letter.headers[:2] == headers
        assert letter.header("headrace-error") == b"model"
        assert b"below 0" in (letter.header("headrace-error-message") or b"")
        assert letter.header("headrace-attempt") == b"3"
        assert letter.header("headrace-timestamp") == b"1700000000000"
        assert await scene.numbers("pick", 2, settle_s=0.5) == [1, 2]
        await scene.until_committed("pick", {0: 3})
        await scene.until_all_committed("pick")
        assert await metric(node, "headrace_retries_total", model="pick") == 2


async def test_A21_A23_tombstones_and_garbage_hold_nobody_up(kafka: str, tmp_path: Path) -> None:
    """A record with no value is counted and passed over, one that cannot be decoded becomes a dead letter; the
    records beside them are answered and all are committed."""
    scene = Scene(kafka, tmp_path / "models")
    write_model(scene.models, "empty")
    write_model(scene.models, "garbled")
    await scene.make_topics("empty", "garbled")
    await scene.send(
        "empty",
        Sent(b'{"x":[1]}', partition=0),
        Sent(None, key=b"k", partition=0),
        Sent(b'{"x":[2]}', partition=0),
    )
    await scene.send("garbled", b'{"x":[1]}', b"\x80\x41", b'{"x":[2]}')
    async with scene.node() as node:
        await scene.until_committed("empty", {0: 3}, 30)
        await scene.until_committed("garbled", {0: 3})
        assert await scene.numbers("empty", 2) == [1, 2]
        assert await scene.numbers("garbled", 2) == [1, 2]
        [letter] = await read_all(kafka, scene.topics.dead("garbled"), count=1)
        assert (letter.value, letter.header("headrace-error")) == (b"\x80\x41", b"decode")
        assert await metric(node, "headrace_tombstones_total", model="empty") == 1
        await node.until_ready()


async def test_A25_a_result_that_the_broker_refuses_for_its_size_is_an_error_with_the_size(
    kafka: str, tmp_path: Path
) -> None:
    """Where the topic takes less than the client would send, a result too large for it becomes an error reply to a
    caller who named a topic, else a dead letter; its neighbours and what comes later are answered."""
    scene = Scene(kafka, tmp_path / "models")
    write_model(scene.models, "echo", ECHO, **tensors("BYTES", [1]))
    limit = {"max.message.bytes": "10000"}
    await scene.make_topics("echo", **limit)
    replies = await make_topic(kafka, unique("replies"), config=limit)
    large, reply_to = b'{"x":["' + b"a" * 20_000 + b'"]}', (("headrace-reply-to", replies.encode()),)
    await scene.send(
        "echo",
        b'{"x":["before"]}',
        Sent(large, key=b"unheard"),
        Sent(large, headers=(*reply_to, ("headrace-id", b"heard"))),
        Sent(b'{"x":["small"]}', headers=reply_to),
        b'{"x":["after"]}',
    )
    async with scene.node() as node:
        await scene.until_committed("echo", {0: 5}, 30)
        await scene.send("echo", b'{"x":["later"]}')
        answers = [result.value for result in await scene.results("echo", 3)]
        assert answers == [b'{"y":["before"]}', b'{"y":["after"]}', b'{"y":["later"]}']
        [letter] = await read_all(kafka, scene.topics.dead("echo"), count=1)
        assert (letter.key, letter.value, letter.header("headrace-error")) == (b"unheard", large, b"too_large")
        assert b"20," in (letter.header("headrace-error-message") or b"")
        heard = {reply.header("headrace-error"): reply for reply in await read_all(kafka, replies, count=2)}
        assert heard[None].value == b'{"y":["small"]}'
        assert heard[b"too_large"].header("headrace-id") == b"heard"
        assert b"20," in (heard[b"too_large"].value or b"")
        await scene.until_committed("echo", {0: 6})
        await node.until_ready()


async def test_A28_lag_is_what_is_not_done_and_never_below_zero(kafka: str, tmp_path: Path) -> None:
    """Lag is the end of the log less the committed offset: 0 when all is done, also where the log ends in the marker
    of a transaction, and the number of records that are not done otherwise."""
    scene = Scene(kafka, tmp_path / "models")
    model = write_model(scene.models, "echo")
    async with scene.node() as node:
        await node.until_ready()
        await scene.send_numbers("echo", range(10))
        await scene.until_committed("echo", {0: 10})
        seen: list[float] = []

        async def lag_is(wanted: float) -> bool:
            seen.append(await lag(node, "echo"))
            return seen[-1] == wanted

        model.shut()
        await scene.send_numbers("echo", range(3))
        await eventually(lambda: lag_is(3), why="lag of 3")
        model.open()
        await eventually(lambda: lag_is(0), why="lag of 0")
        producer = AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=unique("transaction"))
        await producer.start()
        try:
            async with producer.transaction():
                await producer.send_and_wait(scene.topics.requests("echo"), b'{"x":[1]}', partition=0)
        finally:
            await producer.stop()
        # 13 records, one in the transaction, and its marker.
        await scene.until_committed("echo", {0: 15})
        await eventually(lambda: lag_is(0), why="lag of 0 behind a marker")
        for _ in range(20):
            await scene.send_numbers("echo", range(50))
            await lag_is(0)
        await scene.until_committed("echo", {0: 1015})
        await eventually(lambda: lag_is(0), why="lag of 0 after load")
        assert min(seen) >= 0


async def test_H9_queued_records_survive_a_kill(kafka: str, tmp_path: Path) -> None:
    """Ten records fetched together are committed only as their results are acknowledged: killed half way, the node
    answers the others when it is back. Each takes 300 ms here."""
    scene = Scene(kafka, tmp_path / "models")
    write_model(scene.models, "slow", ECHO, max_batch_size=1, parameters={"ms": 300})
    await scene.make_topics("slow")
    await scene.send_numbers("slow", range(10))
    async with scene.node() as node:
        await scene.results("slow", 3, deadline_s=30)
        committed = (await scene.committed("slow")).get(0, 0)
        node.kill()
        answered = await scene.result_count("slow")
        assert committed <= answered < 10
    async with scene.node():
        await scene.until_committed("slow", {0: 10}, 30)
    found = values_of(await scene.results("slow", 10))
    assert set(found) == set(range(10))
    print(f"{len(found) - 10} duplicates after one kill")
