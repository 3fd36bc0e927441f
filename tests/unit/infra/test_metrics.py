"""Metrics: what is reported is what is scraped, in bulk, and gauges of partitions that left are gone."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from consumers.hooks import NodeHooks
from gpu_runtime.hooks import RuntimeHooks
from infra.telemetry.catalogue import CATALOGUE, markdown
from infra.telemetry.metrics import Metrics

Scrape = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(metrics: Metrics) -> Scrape:
    text = metrics.render().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def value(found: Scrape, name: str, **labels: str) -> float | None:
    return found.get((name, tuple(sorted(labels.items()))))


def test_metrics_satisfy_both_seams() -> None:
    metrics = Metrics(version="1")
    runtime: RuntimeHooks = metrics
    node: NodeHooks = metrics
    for seam, name in ((runtime, "batch_done"), (node, "records_out")):
        assert callable(getattr(seam, name))


def test_counts_of_ends_errors_and_drops_are_scraped() -> None:
    metrics = Metrics(version="1.2")
    metrics.records_in("echo", 256)
    metrics.records_out("echo", "result", 250, [5] * 250)
    metrics.records_out("echo", "retry", 3, [5] * 3)
    metrics.records_out("echo", "dead_letter", 2, [5] * 2)
    metrics.records_out("echo", "tombstone", 1, [5])
    metrics.error("echo", "model", 5)
    metrics.dropped("echo", 7, "expired")
    metrics.batch_done("echo", [], 100, 0.0, 0.1, failed_rows=4)
    metrics.rebalance(4, 2)
    found = scrape(metrics)
    assert value(found, "headrace_records_in_total", model="echo") == 256
    assert value(found, "headrace_records_out_total", model="echo", end="result") == 250
    assert value(found, "headrace_retries_total", model="echo") == 3
    assert value(found, "headrace_dead_letters_total", model="echo") == 2
    assert value(found, "headrace_tombstones_total", model="echo") == 1
    assert value(found, "headrace_errors_total", model="echo", code="model") == 5
    assert value(found, "headrace_dropped_rows_total", model="echo", code="expired") == 7
    assert value(found, "headrace_failed_rows_total", model="echo") == 4
    assert value(found, "headrace_rebalances_total") == 1
    assert value(found, "headrace_partitions_revoked_total") == 2
    assert value(found, "headrace_end_to_end_seconds_count", model="echo") == 256
    assert any(name == "headrace_build_info" and ("version", "1.2") in labels for name, labels in found)
    assert value(found, "headrace_process_resident_memory_bytes")


@pytest.mark.parametrize(
    ("ages", "edge", "below"),
    [
        ([0, 0, 1], "0.001", 3),
        ([2, 2, 3], "0.002", 2),
        ([1000, 1001], "1", 1),
        ([1, 50, 7_000_000], "0.05", 2),
        ([-40, 3], "0.0005", 1),
        ([], "+Inf", None),
    ],
)
def test_ages_fall_into_the_bucket_whose_edge_they_do_not_exceed(
    ages: list[int], edge: str, below: float | None
) -> None:
    metrics = Metrics(version="1")
    if ages:
        metrics.records_out("m", "result", len(ages), ages)
    found = scrape(metrics)
    assert value(found, "headrace_end_to_end_seconds_bucket", model="m", le=edge) == below
    if ages:
        assert value(found, "headrace_end_to_end_seconds_bucket", model="m", le="+Inf") == len(ages)
        assert value(found, "headrace_end_to_end_seconds_sum", model="m") == pytest.approx(
            sum(max(0, age) for age in ages) / 1000
        )


def test_rows_and_durations_are_histograms_weighted_by_records() -> None:
    metrics = Metrics(version="1")
    metrics.batch_done("m", [], 32, 0.0, 0.1, 0)
    metrics.batch_done("m", [], 33, 0.0, 0.1, 0)
    metrics.latency("m", 200, queue_s=0.004, compute_s=0.03)
    found = scrape(metrics)
    assert value(found, "headrace_batch_rows_bucket", model="m", le="32") == 1
    assert value(found, "headrace_batch_rows_bucket", model="m", le="64") == 2
    assert value(found, "headrace_batch_rows_sum", model="m") == 65
    assert value(found, "headrace_queue_seconds_bucket", model="m", le="0.005") == 200
    assert value(found, "headrace_compute_seconds_sum", model="m") == pytest.approx(6.0)


def test_gauges_of_a_partition_that_left_vanish_and_the_others_stay() -> None:
    metrics = Metrics(version="1")
    for partition in (0, 1):
        metrics.lag("m", partition, 10, 1.5)
        metrics.paused("m", partition, True)
    metrics.queue_depth("m", 5)
    metrics.batch_limit("m", 8)
    metrics.instance_threads("m", 2)
    assert value(scrape(metrics), "headrace_assigned_partitions") == 2
    metrics.partition_gone("m", 0)
    metrics.partition_gone("m", 7)
    found = scrape(metrics)
    for name in ("headrace_lag_records", "headrace_oldest_age_seconds", "headrace_paused"):
        assert value(found, name, model="m", partition="0") is None
        assert value(found, name, model="m", partition="1") is not None
    assert value(found, "headrace_assigned_partitions") == 1
    assert value(found, "headrace_queued_rows", model="m") == 5
    assert value(found, "headrace_batch_limit_rows", model="m") == 8
    assert value(found, "headrace_intra_op_threads", model="m") == 2


def test_pauses_are_counted_though_they_are_over_when_somebody_looks() -> None:
    metrics = Metrics(version="1")
    for _ in range(3):
        metrics.paused("m", 0, True)
        metrics.paused("m", 0, False)
    assert value(scrape(metrics), "headrace_paused", model="m", partition="0") == 0
    assert value(scrape(metrics), "headrace_pauses_total", model="m") == 3


def test_every_metric_begins_with_headrace_and_is_declared_once() -> None:
    names = [metric.name for metric in CATALOGUE]
    assert len(set(names)) == len(names)
    for family in text_string_to_metric_families(Metrics(version="1").render().decode()):
        assert family.name.startswith("headrace_")


def test_label_values_that_need_escaping_are_escaped() -> None:
    metrics = Metrics(version='1"\n\\')
    assert any(("version", '1"\n\\') in labels for _, labels in scrape(metrics))


def test_the_documented_table_is_the_declared_one() -> None:
    assert markdown() in (Path(__file__).parents[3] / "docs" / "metrics.md").read_text()


def test_a_bundle_of_256_records_costs_a_small_part_of_what_they_take_to_run() -> None:
    metrics, ages = Metrics(version="1"), list(range(300, 44, -1))
    spent = []
    for _ in range(50):
        before = time.perf_counter()
        metrics.records_in("m", 256)
        metrics.records_out("m", "result", 256, ages)
        metrics.latency("m", 256, 0.004, 0.002)
        metrics.batch_done("m", [], 256, 0.0, 0.002, 0)
        spent.append(time.perf_counter() - before)
    # Observed one by one these take 500 microseconds and more; here about 10. The bound leaves room for slow machines.
    assert min(spent) < 100e-6
