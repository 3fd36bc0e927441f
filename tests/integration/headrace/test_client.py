"""The client library against a broker and a loop that answers in a node's place."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

import numpy as np
import orjson
import pytest

from headrace import (
    Client,
    Expired,
    HeadraceError,
    ModelError,
    Overloaded,
    TooLargeError,
    Unavailable,
    UnknownModelError,
    ValidationError,
)
from infra.topics import TopicSpec, ensure_topics, topic_names
from schemas.record import Topics, parse_headers
from schemas.registry import ModelEntry, encode_entry, model_key
from tests.integration.headrace.answering import Reply, announce, answering
from tests.support.records import Stored, read_all, unique
from tests.support.waiting import eventually

MODEL = "echo"
JSON = (("content-type", b"application/json"),)


@dataclass(frozen=True)
class Place:
    """A namespace of its own, with the topics of one model and a registry."""

    bootstrap: str
    topics: Topics

    @property
    def requests(self) -> str:
        return self.topics.requests(MODEL)

    @property
    def results(self) -> str:
        return self.topics.results(MODEL)

    def client(self) -> Client:
        return Client(self.bootstrap, namespace=self.topics.namespace)


@pytest.fixture
async def place(noida: str) -> Place:
    topics = Topics(unique("client"))
    specs = [TopicSpec(name, 1) for name in (topics.requests(MODEL), topics.results(MODEL), topics.registry)]
    await ensure_topics(noida, specs)
    return Place(noida, topics)


@pytest.fixture
async def client(place: Place) -> AsyncIterator[Client]:
    async with place.client() as client:
        yield client


def doubled(request: Stored) -> Reply:
    """Answers ``y = 2 x`` for plain and binary requests."""
    envelope = parse_headers(request.headers)
    assert request.value is not None
    head = orjson.loads(request.value[: envelope.json_length])
    (entry,) = head["inputs"]
    x = np.frombuffer(request.value[envelope.json_length :], dtype="<f4").reshape(entry["shape"])
    return Reply(orjson.dumps({"y": (x * 2).tolist()}), JSON)


def refused(code: str, message: str) -> Reply:
    return Reply(b"", (("headrace-error", code.encode()), ("headrace-error-message", message.encode())))


async def test_an_answer_comes_back_as_arrays_with_the_callers_headers(place: Place, client: Client) -> None:
    x = np.array([[1, 2], [3, 4]], dtype=np.float32)
    async with answering(place.bootstrap, place.requests, place.results, doubled) as node:
        result = await client.infer(MODEL, {"x": x}, key="k", headers=[("mine", b"\xff"), ("mine", None)], priority=1)
    assert result.outputs["y"].tolist() == [[2, 4], [6, 8]]
    assert [value for name, value in result.headers if name == "mine"] == [b"\xff", None]
    assert result.latency_s > 0
    (request,) = node.seen
    envelope = parse_headers(request.headers)
    assert (request.key, envelope.id, envelope.priority) == (b"k", result.id, 1)
    assert envelope.deadline_ms is not None
    assert 0 < envelope.deadline_ms - time.time() * 1000 <= 30_000


async def test_many_requests_at_once_each_get_their_own_answer(place: Place, client: Client) -> None:
    async with answering(place.bootstrap, place.requests, place.results, doubled):
        x = [np.full((1, 2), number, dtype=np.float32) for number in range(100)]
        results = await asyncio.gather(*(client.infer(MODEL, {"x": one}) for one in x))
    assert [result.outputs["y"][0, 0] for result in results] == [2 * number for number in range(100)]
    names = await topic_names(place.bootstrap)
    assert len([name for name in names if name.startswith(f"{place.topics.namespace}.replies.")]) == 1


@pytest.mark.parametrize(
    ("code", "kind"),
    [("validation", ValidationError), ("model", ModelError), ("overloaded", Overloaded), ("new_in_9", HeadraceError)],
)
async def test_an_error_reply_is_raised_as_the_nodes_own_error(
    place: Place, client: Client, code: str, kind: type[HeadraceError]
) -> None:
    async with answering(place.bootstrap, place.requests, place.results, lambda _: refused(code, "because")):
        with pytest.raises(kind, match=r"^because$") as caught:
            await client.infer(MODEL, {"x": [[1.0]]})
    assert type(caught.value) is kind


async def test_without_an_answer_the_call_ends_at_its_deadline_and_nothing_is_left_waiting(
    place: Place, client: Client
) -> None:
    async with answering(place.bootstrap, place.requests, place.results, lambda _: Reply(None, times=0)):
        started = time.monotonic()
        with pytest.raises(Expired, match=r"model 'echo' gave no answer to \w+ within 1.5 s"):
            await client.infer(MODEL, {"x": [[1.0]]}, deadline_s=1.5)
    assert 1.4 < time.monotonic() - started < 5
    assert client.waiting == 0


async def test_an_answer_that_comes_twice_is_counted_and_dropped(place: Place, client: Client) -> None:
    reply = Reply(b'{"y": [1]}', JSON, times=2)
    async with answering(place.bootstrap, place.requests, place.results, lambda _: reply):
        await client.infer(MODEL, {"x": [[1.0]]})
        await eventually(lambda: client.unknown_replies == 1)


async def test_closing_deletes_the_reply_topic_and_fails_who_waits(place: Place) -> None:
    async with answering(place.bootstrap, place.requests, place.results, lambda _: Reply(None, times=0)) as node:
        async with place.client() as client:
            waiting = asyncio.create_task(client.infer(MODEL, {"x": [[1.0]]}))
            await eventually(lambda: node.seen)
        with pytest.raises(Unavailable, match="client is closed"):
            await waiting
    left = [name for name in await topic_names(place.bootstrap) if name.startswith(f"{place.topics.namespace}.replies")]
    assert left == []


async def test_a_request_that_fits_in_no_record_is_refused_with_its_size(client: Client) -> None:
    with pytest.raises(TooLargeError, match=r"a record of 20\d{5} bytes does not fit: .* at most 1048576 bytes"):
        await client.infer(MODEL, {"x": np.zeros((1, 500_000), dtype=np.float32)})
    assert client.waiting == 0


async def test_an_unknown_model_is_refused_and_no_topic_made(place: Place, client: Client) -> None:
    entry = ModelEntry("encode", 1, "a", "b", "c", "d", {})
    await announce(place.bootstrap, place.topics.registry, model_key("encode"), encode_entry(entry))
    with pytest.raises(UnknownModelError, match=r"'encod' and there is no topic .*; did you mean encode\?"):
        await client.submit("encod", {"x": [1]})
    assert place.topics.requests("encod") not in await topic_names(place.bootstrap)


async def test_an_announced_model_is_asked_on_its_own_topic_with_its_datatypes(place: Place) -> None:
    own = unique("own-topic")
    await ensure_topics(place.bootstrap, [TopicSpec(own, 1)])
    config = {
        "name": MODEL,
        "backend": "python",
        "max_batch_size": 4,
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [2]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [2]}],
    }
    entry = ModelEntry(MODEL, 1, own, place.results, "retry", "dead", config)
    await announce(place.bootstrap, place.topics.registry, model_key(MODEL), encode_entry(entry))
    async with place.client() as client, answering(place.bootstrap, own, place.results, doubled):
        result = await client.infer(MODEL, {"x": [[1, 2]]})  # whole numbers: INT64, were it not announced
    assert result.outputs["y"].tolist() == [[2, 4]]


async def test_a_submitted_value_is_on_the_broker_as_it_was_given(place: Place, client: Client) -> None:
    submitted = await client.submit(MODEL, b"\x00raw", key=b"k", content_type="image/png", id="my-id", deadline_s=5)
    (record,) = await read_all(place.bootstrap, place.requests, count=1)
    assert (record.topic, record.partition, record.offset) == (submitted.topic, submitted.partition, submitted.offset)
    assert (record.value, record.key, record.header("content-type")) == (b"\x00raw", b"k", b"image/png")
    assert (submitted.id, record.header("headrace-id")) == ("my-id", b"my-id")
    assert record.header("headrace-reply-to") is None
    assert record.header("headrace-deadline") is not None


async def test_results_are_read_from_where_the_stream_was_opened(place: Place, client: Client) -> None:
    async with answering(place.bootstrap, place.requests, place.results, doubled):
        await client.submit(MODEL, {"x": np.ones((1, 1), np.float32)}, id="before")
        await read_all(place.bootstrap, place.results, count=1)
        async with client.results(MODEL) as now, client.results(MODEL, from_beginning=True) as all_of_them:
            await client.submit(MODEL, {"x": np.ones((1, 1), np.float32)}, id="after")
            assert [(await anext(now)).id] == ["after"]
            assert [(await anext(all_of_them)).id for _ in range(2)] == ["before", "after"]


async def test_a_result_gives_its_outputs_or_raises_what_failed_it(place: Place, client: Client) -> None:
    def answer(request: Stored) -> Reply:
        return refused("model", "no") if request.header("headrace-id") == b"bad" else doubled(request)

    async with answering(place.bootstrap, place.requests, place.results, answer), client.results(MODEL) as results:
        for name in ("good", "bad"):
            await client.submit(MODEL, {"x": np.ones((1, 1), np.float32)}, id=name)
        good, bad = await anext(results), await anext(results)
    assert good.outputs()["y"].tolist() == [[2]]
    assert (good.error, bad.error_code) == (None, "model")
    with pytest.raises(ModelError, match=r"^no$"):
        bad.outputs()


async def test_a_closed_stream_ends_its_loop(client: Client) -> None:
    results = client.results(MODEL, from_beginning=True)
    assert await results.next(timeout_s=0.2) is None
    await results.aclose()
    assert [one async for one in results] == []


async def test_with_no_broker_entering_fails_within_its_time() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    started = time.monotonic()
    with pytest.raises(Unavailable, match=f"no Kafka broker answers at {address} within 0.3 s"):
        async with Client(address, connect_s=0.3):
            pass
    assert time.monotonic() - started < 3


async def test_bytes_take_no_parameters(client: Client) -> None:
    with pytest.raises(ValidationError, match="a value in bytes carries its own"):
        await client.infer(MODEL, b"x", parameters={"a": 1})


async def test_parameters_and_wanted_outputs_are_in_the_request(place: Place, client: Client) -> None:
    async with answering(place.bootstrap, place.requests, place.results, doubled) as node:
        await client.infer(MODEL, {"x": np.ones((1, 1), np.float32)}, parameters={"beam": 4}, outputs=["y"])
    (request,) = node.seen
    assert request.value is not None
    body = orjson.loads(request.value[: parse_headers(request.headers).json_length])
    assert body["parameters"] == {"beam": 4}
    assert [output["name"] for output in body["outputs"]] == ["y"]
