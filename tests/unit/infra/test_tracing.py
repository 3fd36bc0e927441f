"""Tracing (I1, I3): context goes in and out, and no header, however bad, fails a record."""

from __future__ import annotations

import time
from collections.abc import Iterator

import numpy as np
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from consumers.hooks import Traced
from gpu_runtime.request import Request
from infra.child import free_port
from infra.telemetry.metrics import Metrics
from infra.telemetry.tracing import RecordSpans, Tracing, read_context
from schemas.errors import ConfigError

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
SPAN = "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01".encode()


@pytest.fixture
def exporter() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def tracing(exporter: InMemorySpanExporter) -> Iterator[Tracing]:
    with Tracing(version="1", exporter=exporter) as tracing:
        yield tracing


def test_I1_outgoing_context_has_the_same_trace_and_a_new_span(tracing: Tracing) -> None:
    traced: Traced = tracing.trace("m", [(("traceparent", PARENT),)])
    version, trace, span, flags = traced.traceparent(0).decode().split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert span not in (SPAN, "0" * 16)


@pytest.mark.parametrize(
    "header",
    [
        None,
        b"",
        b"\xff\xfe\xff",
        b"garbage",
        b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-00",
        f"00-{TRACE}-{'0' * 16}-01".encode(),
        f"00-{'0' * 32}-{SPAN}-01".encode(),
        f"ff-{TRACE}-{SPAN}-01".encode(),
        f"00-{TRACE.upper()}-{SPAN}-01".encode(),
        f"00-{TRACE}-{SPAN}-01-more".encode(),
        f"00-{TRACE}-{SPAN}-1".encode(),
        PARENT + b"\n",
        PARENT * 10_000,
    ],
)
def test_I3_a_context_that_cannot_be_read_starts_a_new_trace(tracing: Tracing, header: bytes | None) -> None:
    traced = tracing.trace("m", [(("traceparent", header), ("tracestate", b"\xff"))])
    _, trace, span, _ = traced.traceparent(0).decode().split("-")
    assert trace not in (TRACE, "0" * 32)
    assert int(span, 16)
    traced.finish(0.0, 0.0, 1, {})


def test_I3_records_without_any_headers_start_traces_of_their_own(tracing: Tracing) -> None:
    traced = tracing.trace("m", [(), ()])
    assert traced.traceparent(0)[3:35] != traced.traceparent(1)[3:35]


def test_a_later_version_may_say_more_than_we_understand() -> None:
    context = read_context([("traceparent", f"01-{TRACE}-{SPAN}-01-later".encode())])
    assert context is not None
    assert f"{context.trace_id:032x}" == TRACE


def test_the_last_of_repeated_headers_counts_and_state_travels_with_it() -> None:
    context = read_context([("traceparent", b"garbage"), ("traceparent", PARENT), ("tracestate", b"a=1, b@c=2")])
    assert context is not None
    assert list(context.trace_state.items()) == [("a", "1"), ("b@c", "2")]


@pytest.mark.parametrize("state", [None, b"", b"\xff", b"no value", b"A=1", b"a=1,,=,", b",".join([b"a=1"] * 33)])
def test_a_bad_state_is_dropped_and_the_trace_kept(state: bytes | None) -> None:
    context = read_context([("traceparent", PARENT), ("tracestate", state)])
    assert context is not None
    assert not list(context.trace_state.items())


def test_spans_say_how_long_and_what_failed_and_batches_link_to_their_records(
    exporter: InMemorySpanExporter,
) -> None:
    with Tracing(version="1", exporter=exporter, clock=lambda: 100.0) as tracing:
        metrics = Metrics(version="1", tracer=tracing)
        traced = metrics.trace("m", [(("traceparent", PARENT),), ()])
        assert isinstance(traced, RecordSpans)
        request = Request({"x": np.zeros(2)}, 2, "s", lambda _: None, tag=traced)
        metrics.batch_done("m", [request], 2, started=99.5, compute_s=0.25, failed_rows=1)
        traced.finish(0.1, 0.25, 2, {1: "model"})
    batch, first, second = exporter.get_finished_spans()
    assert [batch.name, first.name, second.name] == ["batch m", "process m", "process m"]
    assert batch.parent is None
    assert batch.start_time is not None
    assert batch.end_time is not None
    assert batch.end_time - batch.start_time == 250_000_000
    assert [link.context.span_id for link in batch.links] == [first.context.span_id, second.context.span_id]
    assert first.kind is SpanKind.CONSUMER
    assert first.parent is not None
    assert f"{first.parent.span_id:016x}" == SPAN
    assert first.attributes is not None
    assert first.attributes["headrace.queue_s"] == 0.1
    assert first.status.status_code is StatusCode.UNSET
    assert second.parent is None
    assert second.attributes is not None
    assert second.attributes["error.type"] == "model"
    assert second.status.status_code is StatusCode.ERROR


def test_a_parent_that_was_not_sampled_is_followed_and_nothing_is_exported(
    tracing: Tracing, exporter: InMemorySpanExporter
) -> None:
    traced = tracing.trace("m", [(("traceparent", f"00-{TRACE}-{SPAN}-00".encode()),)])
    assert traced.traceparent(0).startswith(f"00-{TRACE}-".encode())
    assert traced.traceparent(0).endswith(b"-00")
    traced.finish(0.0, 0.0, 1, {})
    assert exporter.get_finished_spans() == ()


def test_off_means_no_spans_at_all() -> None:
    assert Metrics(version="1").trace("m", [()]) is None


def test_an_unknown_exporter_stops_the_start_and_none_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "jaeger")
    with pytest.raises(ConfigError, match=r"OTEL_TRACES_EXPORTER is 'jaeger'; use otlp, console or none"):
        Tracing(version="1")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    with Tracing(version="1") as tracing:
        assert tracing.trace("m", [()]).traceparent(0)


def test_without_the_sdk_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[tracing\]'"):
        Tracing(version="1")


def test_a_collector_that_is_away_holds_up_the_end_only_for_the_time_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    with Tracing(version="1", flush_s=0.2) as tracing:
        tracing.trace("m", [()]).finish(0.0, 0.0, 1, {})
        before = time.monotonic()
    assert time.monotonic() - before < 2.5
