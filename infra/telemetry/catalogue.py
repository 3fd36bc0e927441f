"""Every metric, declared once: name, kind, labels, meaning, and what to do about it. It counts nothing.

``python -m infra.telemetry.catalogue`` prints the table of docs/metrics.md.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import Final, Literal

__all__ = ["CATALOGUE", "Kind", "Metric", "MetricName", "markdown"]

Kind = Literal["counter", "gauge", "histogram"]

MetricName = Literal[
    "headrace_records_in",
    "headrace_records_out",
    "headrace_errors",
    "headrace_retries",
    "headrace_dead_letters",
    "headrace_tombstones",
    "headrace_batch_rows",
    "headrace_failed_rows",
    "headrace_dropped_rows",
    "headrace_queue_seconds",
    "headrace_compute_seconds",
    "headrace_end_to_end_seconds",
    "headrace_lag_records",
    "headrace_oldest_age_seconds",
    "headrace_paused",
    "headrace_pauses",
    "headrace_rebalances",
    "headrace_partitions_revoked",
    "headrace_assigned_partitions",
    "headrace_queued_rows",
    "headrace_batch_limit_rows",
    "headrace_intra_op_threads",
    "headrace_build_info",
]


@dataclass(frozen=True, slots=True)
class Metric:
    """``name`` without the ``_total`` that scrapes add to a counter."""

    name: MetricName
    kind: Kind
    labels: tuple[str, ...]
    meaning: str
    remedy: str


_M = ("model",)
_MP = ("model", "partition")

CATALOGUE: Final[tuple[Metric, ...]] = (
    Metric("headrace_records_in", "counter", _M, "Records fetched.", "Flat while lag grows: see `headrace_paused`."),
    Metric(
        "headrace_records_out",
        "counter",
        ("model", "end"),
        "Records that ended here, by end.",
        "Compare with records in; the difference is in flight.",
    ),
    Metric(
        "headrace_errors",
        "counter",
        ("model", "code"),
        "Records that met an error, by its code, retried ones included.",
        "`decode`, `validation`: look at the producer. `model`: look at the dead letters.",
    ),
    Metric(
        "headrace_retries",
        "counter",
        _M,
        "Records handed to the retry topic.",
        "A steady rate is a model that fails at random.",
    ),
    Metric(
        "headrace_dead_letters",
        "counter",
        _M,
        "Records that failed for good and went to the dead-letter topic; expired ones there have an end of their own.",
        "`headrace dead list MODEL`, mend the cause, then `headrace dead replay MODEL`.",
    ),
    Metric(
        "headrace_tombstones",
        "counter",
        _M,
        "Records without a value.",
        "Expected on compacted topics alone; elsewhere a producer's fault.",
    ),
    Metric(
        "headrace_batch_rows",
        "histogram",
        _M,
        "Rows of each execution.",
        "Far below max_batch_size with lag: raise max_queue_delay_ms or mix fewer shapes.",
    ),
    Metric("headrace_failed_rows", "counter", _M, "Rows that the model failed.", "See `headrace_errors` for the code."),
    Metric(
        "headrace_dropped_rows",
        "counter",
        ("model", "code"),
        "Rows that left the queue without running.",
        "`expired`: add nodes or lengthen deadlines. `withdrawn`: rebalances; see `headrace_rebalances`.",
    ),
    Metric(
        "headrace_queue_seconds",
        "histogram",
        _M,
        "From submission until the record's batch started.",
        "Above max_queue_delay_ms for long: the device is full; add instances or nodes.",
    ),
    Metric(
        "headrace_compute_seconds",
        "histogram",
        _M,
        "Time in the model, for each record.",
        "Growing alone: the device is shared or throttled.",
    ),
    Metric(
        "headrace_end_to_end_seconds",
        "histogram",
        _M,
        "From the record's timestamp to its end.",
        "Far above queue + compute: the time is spent as lag in Kafka.",
    ),
    Metric(
        "headrace_lag_records",
        "gauge",
        _MP,
        "End offset less committed offset, of partitions assigned here; a model's requests and retries together.",
        "Growing: add nodes, up to the number of partitions.",
    ),
    Metric(
        "headrace_oldest_age_seconds",
        "gauge",
        _MP,
        "Age of the oldest unfinished record.",
        "Growing on one partition alone: a record that is retried for long, or a hot key.",
    ),
    Metric(
        "headrace_paused",
        "gauge",
        _MP,
        "1 while fetching waits for the model's queue.",
        "1 for long is back-pressure doing its work; add nodes when lag grows as well.",
    ),
    Metric(
        "headrace_pauses",
        "counter",
        _M,
        "Times that fetching from a partition began to wait for room.",
        "Shows the pauses that begin and end between two scrapes.",
    ),
    Metric(
        "headrace_rebalances",
        "counter",
        (),
        "Changes of the assignment.",
        "More than node starts and stops: raise kafka.session_timeout_ms, look for a starved event loop.",
    ),
    Metric(
        "headrace_partitions_revoked",
        "counter",
        (),
        "Partitions taken away by rebalances.",
        "Many for each rebalance: the assignment moves more than it must.",
    ),
    Metric(
        "headrace_assigned_partitions",
        "gauge",
        (),
        "Partitions assigned to this node whose lag was read.",
        "0 on some nodes: more nodes than partitions.",
    ),
    Metric(
        "headrace_queued_rows",
        "gauge",
        _M,
        "Rows waiting in this process.",
        "At queue.max_rows: fetching pauses; this is as designed.",
    ),
    Metric(
        "headrace_batch_limit_rows",
        "gauge",
        _M,
        "Rows an execution may have since memory ran out.",
        "There at all: lower max_batch_size, or give the model more memory.",
    ),
    Metric(
        "headrace_intra_op_threads",
        "gauge",
        _M,
        "Threads of each instance of the model.",
        "Times instances above the CPU limit: instances take each other's time.",
    ),
    Metric("headrace_build_info", "gauge", ("version", "python"), "Always 1.", "Tells versions apart in a roll-out."),
)


def markdown() -> str:
    """The table for the documentation."""
    rows = ["| metric | kind | labels | meaning | what to do |", "|---|---|---|---|---|"]
    for metric in CATALOGUE:
        name = f"{metric.name}_total" if metric.kind == "counter" else metric.name
        labels = ", ".join(metric.labels) or "-"
        rows.append(f"| `{name}` | {metric.kind} | {labels} | {metric.meaning} | {metric.remedy} |")
    return "\n".join(rows) + "\n"


if __name__ == "__main__":
    sys.stdout.write(markdown())
