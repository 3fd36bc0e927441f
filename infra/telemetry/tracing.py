"""Spans for records and batches. Off unless asked for; then where they go is for the standard ``OTEL_*`` variables.

Reading trace context never fails a record: what cannot be read starts a new trace. Context is W3C Trace Context,
https://www.w3.org/TR/trace-context/.
"""

from __future__ import annotations

import importlib.util
import os
import re
import threading
import time
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Final

from opentelemetry import trace as api
from opentelemetry.context import Context
from opentelemetry.trace import Link, NonRecordingSpan, Span, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from gpu_runtime.request import Request
from schemas.clock import Clock, monotonic
from schemas.errors import ConfigError
from schemas.record import TRACEPARENT, TRACESTATE

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter

__all__ = ["RecordSpans", "Tracing", "read_context"]

RecordHeaders = Sequence[tuple[str, bytes | None]]

# Versions above 00 may append fields; 00 has none, and ff is forbidden.
_TRACEPARENT: Final = re.compile(rb"(?!ff)([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.DOTALL)
_STATE_MEMBER: Final = re.compile(
    r"[a-z0-9][_0-9a-z*/@-]{0,255}=[\x20-\x2b\x2d-\x3c\x3e-\x7e]{0,255}[\x21-\x2b\x2d-\x3c\x3e-\x7e]"
)
_STATE_MEMBERS: Final = 32


def read_context(headers: RecordHeaders) -> SpanContext | None:
    """The producer's span; None when there is none or it cannot be read. Where a header repeats, the last counts."""
    parent: bytes | None = None
    state: bytes | None = None
    for name, value in headers:
        if name == TRACEPARENT:
            parent = value
        elif name == TRACESTATE:
            state = value
    match = None if parent is None else _TRACEPARENT.fullmatch(parent)
    if match is None or (match[1] == b"00" and match[5] is not None):
        return None
    trace_id, span_id = int(match[2], 16), int(match[3], 16)
    if not trace_id or not span_id:
        return None
    return SpanContext(trace_id, span_id, True, TraceFlags(int(match[4], 16)), _read_state(state))


def _read_state(state: bytes | None) -> TraceState:
    """An unreadable state is dropped as a whole, as the recommendation has it."""
    if not state or not state.isascii():
        return TraceState()
    members = [member.strip() for member in state.decode().split(",") if member.strip()]
    if len(members) > _STATE_MEMBERS or not all(_STATE_MEMBER.fullmatch(member) for member in members):
        return TraceState()
    return TraceState([(name, value) for name, _, value in (member.partition("=") for member in members)])


class RecordSpans:
    """Satisfies ``Traced``: one span for each record of a bundle. Put it in ``Request.tag`` to link its batches."""

    __slots__ = ("spans",)

    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans

    def traceparent(self, index: int) -> bytes:
        context = self.spans[index].get_span_context()
        # The flags that version 00 knows, and none that a later version may have set.
        return b"00-%032x-%016x-%02x" % (context.trace_id, context.span_id, context.trace_flags & 1)

    def finish(self, queue_s: float, compute_s: float, rows: int, errors: Mapping[int, str]) -> None:
        for index, span in enumerate(self.spans):
            if not span.is_recording():
                continue
            span.set_attributes({"headrace.queue_s": queue_s, "headrace.compute_s": compute_s, "headrace.rows": rows})
            code = errors.get(index)
            if code is not None:
                span.set_attribute("error.type", code)
                span.set_status(Status(StatusCode.ERROR, code))
            span.end()


class Tracing:
    """``with Tracing(version=...) as tracing``; leaving it sends what is left, for about ``flush_s`` at most.

    ``OTEL_TRACES_EXPORTER`` is ``otlp`` (over HTTP; the default), ``console`` or ``none``. Sampler, endpoint, batch
    sizes, service name and limits follow their variables too; a batch span links to at most
    ``OTEL_SPAN_LINK_COUNT_LIMIT`` records (128 when unset).

    Args:
        exporter: in place of what the variables name.

    Raises:
        ConfigError: the SDK is not installed, or a variable names an exporter that is not known.
    """

    def __init__(
        self, *, version: str, exporter: SpanExporter | None = None, clock: Clock = monotonic, flush_s: float = 5.0
    ) -> None:
        _require_sdk()
        self._exporter = exporter or _exporter(os.environ.get("OTEL_TRACES_EXPORTER", "otlp").strip().lower())
        self._provider = _provider(version, self._exporter)
        self._tracer = self._provider.get_tracer("headrace", version)
        self._clock = clock
        self._flush_s = flush_s

    def __enter__(self) -> Tracing:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        # The SDK's own timeouts do not hold while an exporter waits for its next try.
        ending = threading.Thread(target=self._provider.shutdown, name="tracing shutdown", daemon=True)
        ending.start()
        ending.join(self._flush_s)
        if ending.is_alive() and self._exporter is not None:
            self._exporter.shutdown()
            ending.join(1.0)

    def trace(self, model: str, headers: Sequence[RecordHeaders]) -> RecordSpans:
        attributes = {"messaging.system": "kafka", "messaging.operation.type": "process", "headrace.model": model}
        name = f"process {model}"
        spans = []
        for record_headers in headers:
            parent = read_context(record_headers)
            # An explicit empty context: a span that happens to be current here is not this record's parent.
            context = Context() if parent is None else api.set_span_in_context(NonRecordingSpan(parent), Context())
            spans.append(self._tracer.start_span(name, context=context, kind=SpanKind.CONSUMER, attributes=attributes))
        return RecordSpans(spans)

    def batch_done(
        self, model: str, requests: Sequence[Request], rows: int, started: float, compute_s: float, failed_rows: int
    ) -> None:
        """One span for the execution, a trace of its own, with a link to each of its records' spans."""
        links = [
            Link(span.get_span_context())
            for request in requests
            if isinstance(request.tag, RecordSpans)
            for span in request.tag.spans
        ]
        start_ns = time.time_ns() - int((self._clock() - started) * 1e9)
        span = self._tracer.start_span(
            f"batch {model}",
            context=Context(),
            kind=SpanKind.INTERNAL,
            links=links,
            start_time=start_ns,
            attributes={
                "headrace.model": model,
                "headrace.requests": len(requests),
                "headrace.rows": rows,
                "headrace.failed_rows": failed_rows,
            },
        )
        if failed_rows:
            span.set_status(Status(StatusCode.ERROR, f"{failed_rows} of {rows} rows failed"))
        span.end(start_ns + int(compute_s * 1e9))


def _require_sdk() -> None:
    if importlib.util.find_spec("opentelemetry.sdk") is None:
        raise ConfigError("tracing is on but its SDK is not installed; run: pip install 'headrace[tracing]'")


def _provider(version: str, exporter: SpanExporter | None) -> TracerProvider:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    # `create` lets OTEL_RESOURCE_ATTRIBUTES and OTEL_SERVICE_NAME win over what stands here only for other names.
    attributes: dict[str, str] = {"service.version": version}
    if "OTEL_SERVICE_NAME" not in os.environ and "service.name=" not in os.environ.get("OTEL_RESOURCE_ATTRIBUTES", ""):
        attributes["service.name"] = "headrace"
    # Not the process's global provider: user code in this process may have one of its own.
    provider = TracerProvider(resource=Resource.create(attributes), shutdown_on_exit=False)
    if exporter is not None:
        provider.add_span_processor(BatchSpanProcessor(exporter))
    return provider


def _exporter(name: str) -> SpanExporter | None:
    if name == "none":
        return None
    if name == "console":
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter

        return ConsoleSpanExporter()
    if name != "otlp":
        raise ConfigError(f"OTEL_TRACES_EXPORTER is {name!r}; use otlp, console or none")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ModuleNotFoundError:
        raise ConfigError(
            "tracing is on but its OTLP exporter is not installed; run: pip install 'headrace[tracing]'"
        ) from None
    return OTLPSpanExporter()
