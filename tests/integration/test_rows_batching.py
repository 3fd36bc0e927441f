"""Batching and failures inside a batch, row by row of the requirements, through topics and the client library."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

from gpu_runtime.request import Outcome, Request
from headrace import Cancelled, Client, Expired, HeadraceError, ModelError
from schemas.record import Headers, now_ms
from schemas.tensors import Array
from tests.support.models import BOOM, DROPPING, ECHO, OOM, PICK, Model, tensors, write_model
from tests.support.nodes import Serving, serving
from tests.support.payloads import FORMS, answer, error_of, request
from tests.support.records import Sent, Stored, make_topic, read_all, unique
from tests.support.waiting import eventually

FREE = tensors("FP32", [-1])
RETRY = {"max_attempts": 2, "initial_delay_ms": 20, "max_delay_ms": 50}


async def until_running(model: Model, executions: int = 1) -> None:
    await eventually(lambda: len(model.executions) >= executions, every_s=0.005, why=f"{executions} executions")


async def plugged(node: Serving, model: Model) -> None:
    """Holds the model with a record of its own, so that what is sent from now on is batched together."""
    model.shut()
    await node.send(model.name, request("plain", [[0]]))
    await until_running(model)


async def until_queued(node: Serving, model: Model, rows: int) -> None:
    await eventually(
        lambda: node.node.runtime.models[model.name].waiting_rows >= rows,
        every_s=0.005,
        why=f"{rows} rows to be queued",
    )


class Waits:
    """Stands where a tracer would, and keeps the queue time of each record."""

    def __init__(self) -> None:
        self.queue_s: list[float] = []

    def trace(self, model: str, headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> _Waited:
        return _Waited(self, len(headers))

    def batch_done(
        self, model: str, requests: Sequence[Request], rows: int, started: float, compute_s: float, failed_rows: int
    ) -> None: ...


class _Waited:
    def __init__(self, waits: Waits, records: int) -> None:
        self._waits = waits
        self._records = records

    def traceparent(self, index: int) -> bytes:
        return b"00-00000000000000000000000000000001-0000000000000001-00"

    def finish(self, queue_s: float, compute_s: float, rows: int, errors: Mapping[int, str]) -> None:
        self._waits.queue_s += [queue_s] * self._records


class Stalls:
    """The longest that the event loop was late: what a busy machine adds to each wait measured on it."""

    def __init__(self) -> None:
        self.longest_s = 0.0

    async def watch(self) -> None:
        while True:
            due = time.monotonic() + 0.002
            await asyncio.sleep(0.002)
            self.longest_s = max(self.longest_s, time.monotonic() - due)


async def test_C1_shapes_in_turn_fill_batches_of_their_own_and_none_starves(noida: str, tmp_path: Path) -> None:
    """Lengths 16 and 20 in turn at 100 a second and a wait of 20 ms: all 200 are answered with their own values, both
    shapes share executions with their like, and no record waits longer than twice the 20 ms."""
    model = write_model(tmp_path / "models", "echo", ECHO, **FREE, max_queue_delay_ms=20)
    waits, stalls = Waits(), Stalls()
    async with (
        serving(noida, tmp_path / "models", tracer=waits) as node,
        Client(noida, namespace=node.namespace) as client,
    ):
        watching = asyncio.create_task(stalls.watch())
        loop = asyncio.get_running_loop()
        began = loop.time()
        for turn in range(50):
            # Four at a time, so that like shapes meet within 20 ms: 100 a second on average all the same.
            await asyncio.sleep(max(0.0, began + turn * 0.04 - loop.time()))
            async with asyncio.TaskGroup() as tasks:
                for at in range(turn * 4, turn * 4 + 4):
                    tasks.create_task(client.submit("echo", {"x": [[float(at)] * (16, 20)[at % 2]]}, id=str(at)))
        results = await node.results("echo", 200)
        await node.until_committed("echo", {0: 200})
        watching.cancel()
        await asyncio.wait([watching])
        assert await node.dead("echo", 0) == []
    for one in results:
        at = int(one.header("headrace-id") or b"-1")
        assert answer(one).tolist() == [[float(at)] * (16, 20)[at % 2]]
    for length in (16, 20):
        sizes = [note["shape"][0] for note in model.journal if note["shape"][1] == length]  # type: ignore[index]
        assert max(sizes) > 1
        assert sum(sizes) == 100
    assert len(waits.queue_s) == 200
    assert max(waits.queue_s) <= 0.04 + stalls.longest_s


async def test_C3_a_deadline_is_answered_on_time_while_the_model_is_busy_and_never_runs(
    noida: str, tmp_path: Path
) -> None:
    """With the model busy, a record whose 500 ms pass is answered ``expired`` at 0.5 ± 0.3 s, however it states its
    deadline and wherever its error goes; the model runs once."""
    model = write_model(tmp_path / "models", "echo")
    own = write_model(tmp_path / "models", "impatient", queue={"max_rows": 4096, "default_deadline_ms": 500})
    replies = await make_topic(noida, unique("replies"))
    to: Headers = (("headrace-reply-to", replies.encode()),)
    async with serving(noida, tmp_path / "models") as node:
        await plugged(node, model)
        own.shut()
        await node.send(
            "impatient", request("plain", [[0]], headers=(("headrace-deadline", b"%d" % (now_ms() + 60_000)),))
        )
        await until_running(own)
        sent_ms = now_ms()
        by: Headers = (("headrace-deadline", b"%d" % (now_ms() + 500)),)
        in_body = (
            b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,1],"data":[3]}],"parameters":{"timeout":500000}}'
        )
        await node.send(
            "echo",
            request("plain", [[1]], headers=(*by, *to)),
            request("binary", [[2]], headers=(*by, *to)),
            Sent(in_body, headers=to),
            request("v2", [[4], [5]], headers=by, key=b"no reply"),
        )
        await node.send("impatient", request("plain", [[6]], headers=to))
        answers = await read_all(noida, replies, count=4)
        (letter,) = await node.dead("echo", 1)
        for one in (*answers, letter):
            assert abs(one.timestamp_ms - sent_ms - 500) <= 300, one
        assert {error_of(one)[0] for one in (*answers, letter)} == {"expired"}
        assert letter.key == b"no reply"
        model.open()
        own.open()
        await node.until_committed("echo", {0: 5})
        await node.until_committed("impatient", {0: 2})
        assert len(await node.results("echo", 1, settle_s=0.1)) == 1
        assert node.metric("headrace_records_out_total", model="echo", end="expired") == 4
    assert model.executions == [1]
    assert own.executions == [1]


async def test_C3_a_record_that_is_read_too_late_is_answered_expired_at_once(noida: str, tmp_path: Path) -> None:
    """A deadline that has passed before the record is read: ``expired``, and no execution."""
    model = write_model(tmp_path / "models", "echo")
    late: Headers = (("headrace-deadline", b"%d" % (now_ms() - 1)),)
    async with serving(noida, tmp_path / "models") as node:
        await node.send("echo", *[request(form, [[1]], headers=late) for form in FORMS], request("plain", [[2]]))
        letters = await node.dead("echo", 3)
        (result,) = await node.results("echo", 1, settle_s=0.1)
        await node.until_committed("echo", {0: 4})
    assert {error_of(one)[0] for one in letters} == {"expired"}
    assert answer(result)[0, 0] == 2
    assert model.executions == [1]


async def test_C4_a_thousand_records_pass_a_queue_of_four(noida: str, tmp_path: Path) -> None:
    """Topic input is paused and not refused: with room for 4 rows, 1,000 records of several partitions are all done."""
    model = write_model(tmp_path / "models", "slow", parameters={"ms": 1}, queue={"max_rows": 4})
    async with serving(noida, tmp_path / "models", partitions=2) as node:
        await node.send("slow", *[request(FORMS[at % 3], [[at]], partition=at % 2) for at in range(1000)])
        results = await node.results("slow", 1000, settle_s=0.1)
        await node.until_committed("slow", {0: 500, 1: 500})
        assert await node.dead("slow", 0) == []
    assert sorted(float(answer(one).reshape(())) for one in results) == [float(at) for at in range(1000)]
    assert sum(model.executions) == 1000


async def test_C4_a_record_with_more_rows_than_the_queue_is_done_too(noida: str, tmp_path: Path) -> None:
    """A record of 10 rows does not wait for ever for room in a queue of 4, and neither do its neighbours."""
    write_model(tmp_path / "models", "echo", queue={"max_rows": 4})
    async with serving(noida, tmp_path / "models") as node:
        rows = [[float(at)] for at in range(10)]
        await node.send(
            "echo", request("v2", [[1]]), request("v2", rows), request("binary", rows), request("plain", [[2]])
        )
        results = await node.results("echo", 4, settle_s=0.1)
        await node.until_committed("echo", {0: 4})
    assert sorted(len(answer(one)) for one in results) == [1, 1, 10, 10]


async def test_C4_of_ten_calls_one_runs_four_wait_and_five_are_refused_at_once(noida: str, tmp_path: Path) -> None:
    """Direct calls beyond a queue of 4 are refused within 100 ms; those accepted are answered."""
    model = write_model(tmp_path / "models", "slow", max_batch_size=1, queue={"max_rows": 4})
    done: list[Outcome] = []

    def call() -> Request:
        return Request({"x": np.zeros((1, 1), np.float32)}, 1, ("x", (1,)), done.append)

    async with serving(noida, tmp_path / "models") as node:
        runtime = node.node.runtime
        model.shut()
        assert runtime.try_submit("slow", call())
        await until_running(model)
        began = time.monotonic()
        accepted = [runtime.try_submit("slow", call()) for _ in range(9)]
        assert time.monotonic() - began < 0.1
        assert accepted == [True] * 4 + [False] * 5
        model.open()
        await eventually(lambda: len(done) == 5)
    assert not any(outcome.errors for outcome in done)


async def test_D1_one_bad_call_of_four_fails_alone(noida: str, tmp_path: Path) -> None:
    """Of four calls at once in one batch, the negative one is refused by the model and the others have their values."""
    model = write_model(tmp_path / "models", "pick", PICK)
    async with serving(noida, tmp_path / "models") as node, Client(noida, namespace=node.namespace) as client:
        await plugged(node, model)
        calls = [asyncio.create_task(client.infer("pick", {"x": [[value]]})) for value in (1.0, 2.0, -3.0, 4.0)]
        await until_queued(node, model, 4)
        model.open()
        answers = await asyncio.gather(*calls, return_exceptions=True)
    assert model.executions[1] == 4, "they were not in one batch"
    bad = answers.pop(2)
    assert isinstance(bad, ModelError)
    assert "there are rows below 0" in str(bad)
    assert [one.outputs["y"].tolist() for one in answers if not isinstance(one, BaseException)] == [
        [[1.0]],
        [[2.0]],
        [[4.0]],
    ]


@pytest.mark.parametrize("at", [0, 3])
async def test_D1_one_bad_record_of_four_is_buried_alone(noida: str, tmp_path: Path, at: int) -> None:
    """Three results and one dead letter, wherever in the batch the bad one stands, and whatever forms share it."""
    model = write_model(tmp_path / "models", "pick", PICK)
    async with serving(noida, tmp_path / "models") as node:
        await plugged(node, model)
        values = [1.0, 2.0, 4.0]
        values.insert(at, -3.0)
        forms = [*FORMS, "v2"]
        await node.send("pick", *[request(form, [[v]], key=b"%d" % v) for form, v in zip(forms, values, strict=True)])
        await until_queued(node, model, 4)
        model.open()
        results = await node.results("pick", 4, settle_s=0.1)
        (letter,) = await node.dead("pick", 1)
        await node.until_committed("pick", {0: 5})
    assert model.executions[1] == 4, "they were not in one batch"
    assert {one.key: answer(one).tolist() for one in results if one.key} == {
        b"1": [[1.0]],
        b"2": [[2.0]],
        b"4": [[4.0]],
    }
    assert letter.key == b"-3"


async def test_D1_a_model_that_fails_every_row_gives_each_record_its_own_letter(noida: str, tmp_path: Path) -> None:
    """``boom`` raises for whatever it is given: one letter a record, everything passed, and other models go on."""
    write_model(tmp_path / "models", "boom", BOOM, retry=RETRY)
    write_model(tmp_path / "models", "echo")
    async with serving(noida, tmp_path / "models") as node:
        await node.send("boom", *[request("v2", [[at]] * (at + 1), key=b"%d" % at) for at in range(3)])
        await node.send("echo", request("plain", [[1]]))
        letters = await node.dead("boom", 3, settle_s=0.1)
        await node.results("echo", 1)
        await node.until_committed("boom", {0: 3})
        await node.until_all_committed("boom")
    assert sorted(one.key or b"" for one in letters) == [b"0", b"1", b"2"]
    assert {one.header("headrace-attempt") for one in letters} == {b"2"}


async def test_D3_callers_that_give_up_cost_later_ones_nothing(noida: str, tmp_path: Path) -> None:
    """50 calls given up after 50 ms by a model that takes 500, then 50 calls that wait: those 50 are all answered."""
    write_model(tmp_path / "models", "slow", parameters={"ms": 500}, max_batch_size=64)
    async with serving(noida, tmp_path / "models") as node, Client(noida, namespace=node.namespace) as client:
        warm = asyncio.create_task(client.infer("slow", {"x": [[0.0]]}))
        await warm

        async def given_up(at: int) -> None:
            # Every other one by its own deadline, the rest by cancelling the task that waits.
            if at % 2:
                await client.infer("slow", {"x": [[float(at)]]}, deadline_s=0.05)
            else:
                async with asyncio.timeout(0.05):
                    await client.infer("slow", {"x": [[float(at)]]})

        gone = await asyncio.gather(*[given_up(at) for at in range(50)], return_exceptions=True)
        assert all(isinstance(one, TimeoutError | Expired | HeadraceError) for one in gone), gone
        kept = await asyncio.gather(*[client.infer("slow", {"x": [[float(at)]]}) for at in range(50)])
        await node.until_committed("slow", {0: 101})
    assert [one.outputs["y"].tolist() for one in kept] == [[[float(at)]] for at in range(50)]


async def test_D9_no_execution_has_more_rows_than_the_limit(noida: str, tmp_path: Path) -> None:
    """Five calls of 20 rows and one of 100 under a limit of 32 rows: no execution above 32, answers in their order."""
    model = write_model(tmp_path / "models", "echo", max_batch_size=32)
    async with serving(noida, tmp_path / "models") as node, Client(noida, namespace=node.namespace) as client:
        await plugged(node, model)
        batches = [np.arange(rows, dtype=np.float32)[:, None] + 1000 * at for at, rows in enumerate((20,) * 5 + (100,))]
        calls = [asyncio.create_task(client.infer("echo", {"x": batch})) for batch in batches]
        await until_queued(node, model, 200 - 32)
        model.open()
        answers = await asyncio.gather(*calls)
        await node.send("echo", *[request(form, batches[5]) for form in FORMS])
        results = (await node.results("echo", 4))[1:]
    assert max(model.executions) <= 32
    assert sum(model.executions) == 1 + 200 + 300
    for sent, got in zip(batches, answers, strict=True):
        np.testing.assert_array_equal(got.outputs["y"], sent)
    for one in results:
        np.testing.assert_array_equal(answer(one), batches[5])


@pytest.mark.parametrize("always", [False, True], ids=["single rows are right", "every answer is short"])
async def test_D12_a_model_that_drops_a_row_shifts_no_answer(noida: str, tmp_path: Path, always: bool) -> None:
    """One of four rows missing from the model's answer: nobody gets a neighbour's value. Each has an error, or what a
    right retry of its single row gave."""
    model = write_model(tmp_path / "models", "dropping", DROPPING, parameters={"always": always})
    async with serving(noida, tmp_path / "models") as node, Client(noida, namespace=node.namespace) as client:
        await plugged(node, model)
        calls = [asyncio.create_task(client.infer("dropping", {"x": [[value]]})) for value in (1.0, 2.0)]
        await until_queued(node, model, 2)
        await node.send("dropping", request("v2", [[3], [4]], key=b"two"), request("plain", [[5]], key=b"one"))
        await until_queued(node, model, 5)
        model.open()
        answers = await asyncio.gather(*calls, return_exceptions=True)
        await node.until_committed("dropping", {0: 5})
        results = await node.results("dropping", 0 if always else 3, settle_s=0.1)
        letters = await node.dead("dropping", 3 if always else 0)
    assert model.executions[1] == 5, "they were not in one batch"
    if always:
        assert all(isinstance(one, ModelError) for one in answers), answers
        assert {error_of(one)[0] for one in letters} == {"model"}
        assert results == []
    else:
        values = [one if isinstance(one, BaseException) else one.outputs["y"].tolist() for one in answers]
        assert values == [[[1.0]], [[2.0]]]
        assert {one.key: answer(one).tolist() for one in results if one.key} == {
            b"two": [[3.0], [4.0]],
            b"one": [[5.0]],
        }


async def test_E3_out_of_memory_halves_the_batch_and_every_row_is_answered(noida: str, tmp_path: Path) -> None:
    """Room for 8 rows and 16 of them, in one record and in sixteen: all answered right, nothing dead-lettered."""
    model = write_model(tmp_path / "models", "oom", OOM, parameters={"room": 8})
    async with serving(noida, tmp_path / "models") as node:
        await plugged(node, model)
        await node.send("oom", *[request(FORMS[at % 3], [[at]], key=b"%d" % at) for at in range(16)])
        await until_queued(node, model, 16)
        await node.send("oom", request("binary", np.arange(16)[:, None], key=b"all"))
        model.open()
        results: list[Stored] = await node.results("oom", 18)
        await node.until_committed("oom", {0: 18})
        assert await node.dead("oom", 0) == []
        assert node.metric("headrace_batch_limit_rows", model="oom") == 8
    got: dict[bytes | None, Array] = {one.key: answer(one).reshape(-1) for one in results if one.key}
    assert got.pop(b"all").tolist() == [float(at) for at in range(16)]
    assert {key: value.tolist() for key, value in got.items()} == {b"%d" % at: [float(at)] for at in range(16)}


async def test_E3_a_row_that_never_fits_is_buried_as_oom_and_the_next_record_is_answered(
    noida: str, tmp_path: Path
) -> None:
    """Room for 0 rows and 1 of them: a dead letter with the reason ``oom``, a caller is told the same, and the next
    record of this node is answered."""
    write_model(tmp_path / "models", "oom", OOM, parameters={"room": 0}, retry=RETRY)
    write_model(tmp_path / "models", "echo")
    async with serving(noida, tmp_path / "models") as node, Client(noida, namespace=node.namespace) as client:
        await node.send("oom", request("plain", [[1]], key=b"k"), request("binary", [[2], [3]]))
        letters = await node.dead("oom", 2)
        assert (await client.infer("echo", {"x": [[4.0]]})).outputs["y"].tolist() == [[4.0]]
        with pytest.raises(HeadraceError) as raised:
            await client.infer("oom", {"x": [[5.0]]})
        await node.send("echo", request("plain", [[6]]))
        assert answer((await node.results("echo", 1))[0]).reshape(-1).tolist() == [6.0]
        await node.until_committed("oom", {0: 3})
    assert {error_of(one)[0] for one in letters} == {"oom"}
    assert {one.header("headrace-attempt") for one in letters} == {b"2"}
    assert raised.value.code == "oom"
    assert not isinstance(raised.value, Cancelled)


async def test_E3_a_poison_row_leaves_the_other_rows_of_its_batch_their_room(noida: str, tmp_path: Path) -> None:
    """A row that is out of memory by itself fails alone among rows that fit."""
    source = OOM.replace('len(x) > self.parameters["room"]', "(x > 90).any()")
    model = write_model(tmp_path / "models", "oom", source)
    async with serving(noida, tmp_path / "models") as node:
        await plugged(node, model)
        await node.send("oom", *[request("v2", [[value]], key=b"%d" % value) for value in (1, 2, 99, 3)])
        await until_queued(node, model, 4)
        model.open()
        results = await node.results("oom", 4, settle_s=0.1)
        (letter,) = await node.dead("oom", 1)
        await node.until_committed("oom", {0: 5})
    assert {one.key: answer(one).tolist() for one in results if one.key} == {b"%d" % v: [[float(v)]] for v in (1, 2, 3)}
    assert (letter.key, error_of(letter)[0]) == (b"99", "oom")
