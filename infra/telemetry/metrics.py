"""Counts what the runtime and the node report, and renders it for Prometheus.

Written for bulk: one call a bundle, a few microseconds for hundreds of records. ``prometheus_client`` is asked to
render only; its own counters lock and look up labels for every record. Names and meanings: `infra.telemetry.catalogue`.
"""

from __future__ import annotations

import platform
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family

from consumers.hooks import End, Traced
from gpu_runtime.request import Request
from infra.telemetry.catalogue import CATALOGUE, MetricName

__all__ = ["CONTENT_TYPE", "BatchTracer", "Metrics"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS: Final = (
    (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
)  # fmt: skip
_ROWS: Final = tuple(float(1 << power) for power in range(13))

Key = tuple[str, ...]


class BatchTracer(Protocol):
    """What `infra.telemetry.tracing` adds: spans. Metrics pass the calls on."""

    def trace(self, model: str, headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> Traced | None: ...

    def batch_done(
        self, model: str, requests: Sequence[Request], rows: int, started: float, compute_s: float, failed_rows: int
    ) -> None: ...


class _Histogram:
    """Counts by upper edge, the last for everything above, and the sum."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        self.total = 0.0

    def add(self, value: float, count: int) -> None:
        """``count`` observations of one value."""
        self.counts[bisect_left(self.edges, value)] += count
        self.total += value * count

    def add_ms(self, values: Sequence[int]) -> None:
        """Many observations in milliseconds, into edges in seconds.

        Ages of one bundle lie close together: sorted, they fall into few buckets, found by bisection.
        """
        ordered = sorted(values)
        if not ordered:
            return
        if ordered[0] < 0:  # A producer's clock may be ahead of ours.
            ordered = [max(0, value) for value in ordered]
        self.total += sum(ordered) / 1000
        bucket, low, count = bisect_left(self.edges, ordered[0] / 1000), 0, len(ordered)
        while low < count:
            high = bisect_right(ordered, self.edges[bucket] * 1000, low) if bucket < len(self.edges) else count
            self.counts[bucket] += high - low
            low, bucket = high, bucket + 1

    def cumulative(self) -> tuple[list[tuple[str, float]], float]:
        counts, total = list(self.counts), self.total
        running, buckets = 0, []
        for edge, count in zip((*self.edges, float("inf")), counts, strict=True):
            running += count
            buckets.append(("+Inf" if edge == float("inf") else f"{edge:g}", float(running)))
        return buckets, total


class Metrics:
    """Satisfies ``RuntimeHooks`` and ``NodeHooks``. Written on the event loop, rendered from any thread.

    A scrape in the middle of a bundle may show part of it; the next one shows the rest.
    """

    def __init__(self, *, version: str, tracer: BatchTracer | None = None) -> None:
        self._tracer = tracer
        self._counters: dict[MetricName, defaultdict[Key, int]] = defaultdict(lambda: defaultdict(int))
        self._gauges: dict[MetricName, dict[Key, float]] = defaultdict(dict)
        self._histograms: dict[MetricName, dict[str, _Histogram]] = defaultdict(dict)
        self._gauges["headrace_build_info"][(version, platform.python_version())] = 1
        for name in ("headrace_rebalances", "headrace_partitions_revoked"):
            self._counters[name][()] = 0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        ProcessCollector(namespace="headrace", registry=self._registry)

    def render(self) -> bytes:
        """The exposition, in the form that `CONTENT_TYPE` names."""
        return generate_latest(self._registry)

    # What the runtime reports.

    def batch_done(
        self, model: str, requests: Sequence[Request], rows: int, started: float, compute_s: float, failed_rows: int
    ) -> None:
        self._histogram("headrace_batch_rows", model, _ROWS).add(rows, 1)
        if failed_rows:
            self._counters["headrace_failed_rows"][(model,)] += failed_rows
        if self._tracer is not None:
            self._tracer.batch_done(model, requests, rows, started, compute_s, failed_rows)

    def queue_depth(self, model: str, rows: int) -> None:
        self._gauges["headrace_queued_rows"][(model,)] = rows

    def dropped(self, model: str, rows: int, code: str) -> None:
        self._counters["headrace_dropped_rows"][(model, code)] += rows

    def batch_limit(self, model: str, rows: int) -> None:
        self._gauges["headrace_batch_limit_rows"][(model,)] = rows

    def instance_threads(self, model: str, threads: int) -> None:
        self._gauges["headrace_intra_op_threads"][(model,)] = threads

    # What the node reports.

    def records_in(self, model: str, count: int) -> None:
        self._counters["headrace_records_in"][(model,)] += count

    def records_out(self, model: str, end: End, count: int, ages_ms: Sequence[int]) -> None:
        self._counters["headrace_records_out"][(model, end)] += count
        if end == "retry":
            self._counters["headrace_retries"][(model,)] += count
        elif end == "dead_letter":
            self._counters["headrace_dead_letters"][(model,)] += count
        elif end == "tombstone":
            self._counters["headrace_tombstones"][(model,)] += count
        self._histogram("headrace_end_to_end_seconds", model, _SECONDS).add_ms(ages_ms)

    def latency(self, model: str, count: int, queue_s: float, compute_s: float) -> None:
        self._histogram("headrace_queue_seconds", model, _SECONDS).add(queue_s, count)
        self._histogram("headrace_compute_seconds", model, _SECONDS).add(compute_s, count)

    def error(self, model: str, code: str, count: int) -> None:
        self._counters["headrace_errors"][(model, code)] += count

    def lag(self, model: str, partition: int, records: int, oldest_age_s: float) -> None:
        key = (model, str(partition))
        self._gauges["headrace_lag_records"][key] = records
        self._gauges["headrace_oldest_age_seconds"][key] = oldest_age_s

    def partition_gone(self, model: str, partition: int) -> None:
        key = (model, str(partition))
        for name in ("headrace_lag_records", "headrace_oldest_age_seconds", "headrace_paused"):
            self._gauges[name].pop(key, None)

    def paused(self, model: str, partition: int, paused: bool) -> None:
        self._gauges["headrace_paused"][(model, str(partition))] = int(paused)
        if paused:
            self._counters["headrace_pauses"][(model,)] += 1

    def rebalance(self, assigned: int, revoked: int) -> None:
        self._counters["headrace_rebalances"][()] += 1
        self._counters["headrace_partitions_revoked"][()] += revoked

    def trace(self, model: str, headers: Sequence[Sequence[tuple[str, bytes | None]]]) -> Traced | None:
        return None if self._tracer is None else self._tracer.trace(model, headers)

    def _histogram(self, name: MetricName, model: str, edges: tuple[float, ...]) -> _Histogram:
        by_model = self._histograms[name]
        found = by_model.get(model)
        if found is None:
            found = by_model[model] = _Histogram(edges)
        return found

    # What prometheus_client asks.

    def collect(self) -> Iterator[Family]:
        for metric in CATALOGUE:
            name, labels = metric.name, metric.labels
            # `list` of a dict's items is one step of the interpreter: the event loop cannot change it meanwhile.
            if metric.kind == "histogram":
                histogram = HistogramMetricFamily(name, metric.meaning, labels=labels)
                for model, counts in list(self._histograms.get(name, {}).items()):
                    buckets, total = counts.cumulative()
                    histogram.add_metric([model], buckets, total)
                yield histogram
            elif metric.kind == "counter":
                counter = CounterMetricFamily(name, metric.meaning, labels=labels)
                for key, count in list(self._counters.get(name, {}).items()):
                    counter.add_metric(key, count)
                yield counter
            else:
                gauge = GaugeMetricFamily(name, metric.meaning, labels=labels)
                for key, value in list(self._gauge_values(name).items()):
                    gauge.add_metric(key, value)
                yield gauge

    def _gauge_values(self, name: MetricName) -> Mapping[Key, float]:
        if name == "headrace_assigned_partitions":
            return {(): len(self._gauges["headrace_lag_records"])}
        return self._gauges.get(name, {})
