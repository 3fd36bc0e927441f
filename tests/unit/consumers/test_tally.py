"""Counts for the registry are taken on the way to the hooks, which get everything all the same."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from consumers.hooks import NodeHooks
from consumers.tally import Counts, Tally
from gpu_runtime.hooks import RuntimeHooks
from gpu_runtime.request import Request
from tests.unit.consumers.parts import RecordingHooks


class _RuntimeCalls:
    """Satisfies `RuntimeHooks`."""

    def __init__(self) -> None:
        self.calls: list[tuple[object, ...]] = []

    def batch_done(
        self, model: str, requests: Sequence[Request], rows: int, started: float, compute_s: float, failed_rows: int
    ) -> None:
        self.calls.append(("batch_done", model, rows, failed_rows))

    def queue_depth(self, model: str, rows: int) -> None:
        self.calls.append(("queue_depth", model, rows))

    def dropped(self, model: str, rows: int, code: str) -> None:
        self.calls.append(("dropped", model, rows, code))

    def batch_limit(self, model: str, rows: int) -> None:
        self.calls.append(("batch_limit", model, rows))

    def instance_threads(self, model: str, threads: int) -> None:
        self.calls.append(("instance_threads", model, threads))


def test_records_and_batches_are_counted_by_model() -> None:
    tally = Tally(RecordingHooks(), _RuntimeCalls())
    tally.records_in("m", 10)
    tally.records_out("m", "result", 4, [1] * 4)
    tally.records_out("m", "tombstone", 1, [1])
    for end in ("error_reply", "dead_letter", "expired", "cancelled"):
        tally.records_out("m", end, 1, [1])
    tally.batch_done("m", [], 8, 0.0, 0.1, 0)
    tally.batch_done("m", [], 3, 0.0, 0.1, 1)
    found = tally.counts("m")
    assert (found.records_in, found.records_out, found.records_failed) == (10, 5, 4)
    assert (found.batches, found.rows) == (2, 11)
    assert tally.counts("other") == Counts()


def test_everything_is_passed_on() -> None:
    hooks, calls = RecordingHooks(), _RuntimeCalls()
    tally = Tally(hooks, calls)
    node: NodeHooks = tally
    runtime: RuntimeHooks = tally
    node.records_in("m", 2)
    node.records_out("m", "result", 1, [5])
    node.latency("m", 1, 0.1, 0.2)
    node.error("m", "model", 1)
    node.lag("m", 0, 3, 1.5)
    node.paused("m", 0, True)
    node.partition_gone("m", 1)
    node.rebalance(4, 2)
    assert node.trace("m", []) is None
    runtime.batch_done("m", [], 1, 0.0, 0.1, 0)
    runtime.queue_depth("m", 7)
    runtime.dropped("m", 1, "expired")
    runtime.batch_limit("m", 4)
    runtime.instance_threads("m", 2)
    assert hooks.counts == {"in": 2, "result": 1, "latency": 1, "error model": 1}
    assert (hooks.ages, hooks.lags, hooks.pauses) == ([5], {("m", 0): (3, 1.5)}, {("m", 0): True})
    assert (hooks.gone, hooks.rebalances) == ([("m", 1)], [(4, 2)])
    assert [call[0] for call in calls.calls] == [
        "batch_done",
        "queue_depth",
        "dropped",
        "batch_limit",
        "instance_threads",
    ]


def test_the_rate_is_of_records_ended_since_it_was_last_asked_for() -> None:
    counts = Counts()
    assert counts.rate(100.0) == 0.0
    counts.records_out, counts.records_failed = 8, 2
    assert counts.rate(105.0) == pytest.approx(2.0)
    assert counts.rate(110.0) == 0.0


def test_a_second_reader_gets_the_same_rate() -> None:
    counts = Counts()
    counts.rate(100.0)
    counts.records_out = 10
    assert counts.rate(105.0) == pytest.approx(2.0)
    counts.records_out = 11
    assert counts.rate(105.5) == pytest.approx(2.0)
    assert counts.rate(106.0) == pytest.approx(1.0)
