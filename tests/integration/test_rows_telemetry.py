"""Trace context through topics, row by row of the requirements."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from headrace import Client
from infra.telemetry.tracing import Tracing
from schemas.record import Headers
from tests.support.models import PICK, write_model
from tests.support.nodes import Serving, serving, waiting_records
from tests.support.payloads import FORMS, answer, error_of, request
from tests.support.records import Sent, Stored, make_topic, read_all, unique

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01".encode()
VALID = re.compile(r"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-0[01]")


class Traced:
    """A node whose spans are kept; complete once the node has been left."""

    def __init__(self, node: Serving, exporter: InMemorySpanExporter) -> None:
        self.node = node
        self._exporter = exporter

    def spans(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]


@asynccontextmanager
async def traced(bootstrap: str, models: Path, **options: str) -> AsyncIterator[Traced]:
    exporter = InMemorySpanExporter()
    with Tracing(version="0", exporter=exporter) as tracing:
        async with serving(bootstrap, models, tracer=tracing, namespace=options.get("namespace")) as node:
            yield Traced(node, exporter)


def context(record: Stored) -> tuple[str, str]:
    """Trace id and span id of the record's one ``traceparent``, which must be valid."""
    values = [value for name, value in record.headers if name == "traceparent"]
    assert len(values) == 1, record.headers
    match = VALID.fullmatch((values[0] or b"").decode())
    assert match, values
    return match[1], match[2]


def span_id(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"{span.context.span_id:016x}"


async def test_I1_results_and_errors_carry_the_trace_id_and_a_span_id_of_this_node(noida: str, tmp_path: Path) -> None:
    """A record with traceparent T: whatever answers it has the same trace id and the id of this node's span, a child of
    the producer's; ``tracestate`` and the other headers are left as they were."""
    write_model(tmp_path / "models", "pick", PICK)
    replies = await make_topic(noida, unique("replies"))
    to = ("headrace-reply-to", replies.encode())
    own: Headers = (("first", b"1"), ("traceparent", PARENT), ("tracestate", b"vendor=opaque"), ("last", None))
    namespace = await waiting_records(
        noida,
        "pick",
        [
            *[request(form, [[1]], headers=own) for form in FORMS],
            request("v2", [[2]], headers=(*own, to)),
            request("v2", [[-3]], headers=(*own, to)),
            Sent(b"\x80\x41", headers=(*own, to)),
        ],
    )
    async with traced(noida, tmp_path / "models", namespace=namespace) as here:
        results = await here.node.results("pick", 3)
        answers = await read_all(noida, replies, count=3)
        await here.node.until_committed("pick", {0: 6})
    found = [context(one) for one in (*results, *answers)]
    assert {trace for trace, _ in found} == {TRACE}
    assert SPAN not in {span for _, span in found}
    assert len({span for _, span in found}) == 6, "each record has a span of its own"
    spans = here.spans("process pick")
    assert {span_id(span) for span in spans} == {span for _, span in found}
    assert {f"{span.parent.span_id:016x}" for span in spans if span.parent} == {SPAN}
    failed = [span for span in spans if not span.status.is_ok and span.attributes and "error.type" in span.attributes]
    assert sorted(str((span.attributes or {})["error.type"]) for span in failed) == ["decode", "model"]
    for one in (*results, *answers):
        names = [name for name, _ in one.headers if not name.startswith(("headrace", "content-", "inference-"))]
        assert names == ["first", "traceparent", "tracestate", "last"]
        assert one.header("tracestate") == b"vendor=opaque"


async def test_I1_a_batch_is_a_span_that_links_to_the_spans_of_its_records(noida: str, tmp_path: Path) -> None:
    """Records of two traces that ran together: one batch span, with a link to each of their spans."""
    write_model(tmp_path / "models", "echo")
    other = PARENT.replace(b"4bf9", b"5bf9")
    namespace = await waiting_records(
        noida,
        "echo",
        [request("v2", [[at]], headers=(("traceparent", one),)) for at, one in enumerate((PARENT, other))],
    )
    async with traced(noida, tmp_path / "models", namespace=namespace) as here:
        results = await here.node.results("echo", 2)
        await here.node.until_committed("echo", {0: 2})
    assert {context(one)[0] for one in results} == {TRACE, "5bf9" + TRACE[4:]}
    (batch,) = here.spans("batch echo")
    linked = {f"{link.context.span_id:016x}" for link in batch.links}
    assert linked == {span_id(span) for span in here.spans("process echo")} == {context(one)[1] for one in results}


async def test_I1_dead_letters_keep_the_trace_id(noida: str, tmp_path: Path) -> None:
    """A record that failed, after its retries, and one that could not be read: their letters name the same trace."""
    write_model(tmp_path / "models", "pick", PICK, retry={"max_attempts": 2, "initial_delay_ms": 20})
    own: Headers = (("traceparent", PARENT),)
    async with traced(noida, tmp_path / "models") as here:
        await here.node.send("pick", request("v2", [[-1]], headers=own), Sent(b"\x80\x41", headers=own))
        letters = await here.node.dead("pick", 2)
        await here.node.until_all_committed("pick")
    assert {error_of(one)[0] for one in letters} == {"model", "decode"}
    assert {context(one)[0] for one in letters} == {TRACE}
    assert {f"{span.parent.trace_id:032x}" for span in here.spans("process pick") if span.parent} == {TRACE}


async def test_I1_a_call_keeps_its_trace_over_all_hops(noida: str, tmp_path: Path) -> None:
    """A client's traceparent comes back with its answer, the trace the same and the span the node's."""
    write_model(tmp_path / "models", "echo")
    async with traced(noida, tmp_path / "models") as here, Client(noida, namespace=here.node.namespace) as client:
        result = await client.infer("echo", {"x": [[1.0]]}, headers=[("traceparent", PARENT)])
    values = [value for name, value in result.headers if name == "traceparent"]
    assert len(values) == 1
    match = VALID.fullmatch((values[0] or b"").decode())
    assert match
    assert match[1] == TRACE
    assert match[2] == span_id(here.spans("process echo")[0])


BROKEN: dict[str, Headers] = {
    "absent": (),
    "null": (("traceparent", None),),
    "FF": (("traceparent", b"\xff"),),
    "garbage": (("traceparent", b"garbage"),),
    "all zeros": (("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-00"),),
    "no trace id": (("traceparent", b"00-" + b"0" * 32 + b"-" + SPAN.encode() + b"-01"),),
    "no span id": (("traceparent", b"00-" + TRACE.encode() + b"-" + b"0" * 16 + b"-01"),),
    "upper case": (("traceparent", PARENT.upper()),),
    "forbidden version": (("traceparent", b"ff" + PARENT[2:]),),
    "too long": (("traceparent", PARENT + b"-more"),),
    "empty": (("traceparent", b""),),
    "spaces": (("traceparent", b" " + PARENT + b" "),),
    "a megabyte less": (("traceparent", b"0" * 200_000),),
}


async def test_I3_broken_trace_headers_start_a_new_root_and_fail_nothing(noida: str, tmp_path: Path) -> None:
    """``traceparent`` absent, null, FF, garbage, all zeros and so on: every record is processed, under a new root."""
    write_model(tmp_path / "models", "echo")
    sent = [request(FORMS[at % 3], [[at]], headers=headers) for at, headers in enumerate(BROKEN.values())]
    namespace = await waiting_records(noida, "echo", sent)
    async with traced(noida, tmp_path / "models", namespace=namespace) as here:
        results = await here.node.results("echo", len(sent), settle_s=0.1)
        await here.node.until_committed("echo", {0: len(sent)})
        assert await here.node.dead("echo", 0) == []
    assert sorted(float(answer(one).reshape(())) for one in results) == [float(at) for at in range(len(sent))]
    traces = [context(one)[0] for one in results]
    assert len(set(traces)) == len(sent), "each is a root of its own"
    assert TRACE not in traces
    assert [span.parent for span in here.spans("process echo")] == [None] * len(sent)


@pytest.mark.parametrize(
    "state",
    [None, b"\xff", b"no member", b"=,=", b"a=" + b"x" * 100_000],
    ids=["null", "FF", "no member", "empty members", "long"],
)
async def test_I3_a_broken_tracestate_costs_neither_the_record_nor_its_parent(
    noida: str, tmp_path: Path, state: bytes | None
) -> None:
    """Whatever ``tracestate`` holds, the parent counts, the record is processed and the header passes as it came."""
    write_model(tmp_path / "models", "echo")
    async with traced(noida, tmp_path / "models") as here:
        await here.node.send("echo", request("v2", [[1]], headers=(("traceparent", PARENT), ("tracestate", state))))
        (result,) = await here.node.results("echo", 1)
    assert context(result)[0] == TRACE
    assert result.header("tracestate") == state
    assert answer(result).tolist() == [[1.0]]


async def test_I3_with_tracing_off_every_trace_header_passes_as_it_came(noida: str, tmp_path: Path) -> None:
    """Off, which is the default: nothing is read, nothing fails, and the header comes back byte for byte."""
    write_model(tmp_path / "models", "echo")
    sent = [request("v2", [[at]], headers=headers) for at, headers in enumerate(BROKEN.values())]
    namespace = await waiting_records(noida, "echo", sent)
    async with serving(noida, tmp_path / "models", namespace=namespace) as node:
        results = await node.results("echo", len(sent))
        await node.until_committed("echo", {0: len(sent)})
    came = {
        int(answer(one)[0, 0]): tuple(header for header in one.headers if header[0] == "traceparent") for one in results
    }
    assert [came[at] for at in range(len(sent))] == list(BROKEN.values())
