"""Triton's dynamic batcher table, each case by its name, on a clock moved by hand.

Maximum 8, delay 10 s, preferred [2, 6] unless a case says otherwise. Where Headrace differs on purpose, the test says
so.
"""

from __future__ import annotations

from typing import Any

from gpu_runtime.batching import DynamicBatcher
from gpu_runtime.fake import ManualClock
from gpu_runtime.request import Request
from tests.unit.gpu_runtime.models import config_of, request_of

DELAY_S = 10.0


class Bench:
    """A batcher with an instance that is always free, unless held (the pre-fill of Triton's own test)."""

    def __init__(self, **fields: Any) -> None:
        self.clock = ManualClock()
        given = {"preferred_batch_size": (2, 6), "max_queue_delay_ms": DELAY_S * 1000} | fields
        self.batcher = DynamicBatcher(config_of(**given), clock=self.clock)
        self.ran: list[int] = []
        self.order: list[Request] = []

    def send(self, *sizes: int | tuple[int, str], held: bool = False) -> None:
        for size in sizes:
            rows, shape = size if isinstance(size, tuple) else (size, "a")
            assert self.batcher.try_add(request_of(rows, shape=shape))
            if not held:
                self.pull()

    def pull(self) -> None:
        while batch := self.batcher.try_next(self.clock()):
            self.ran.append(batch.rows)
            self.order += [part.request for part in batch.parts]
        self.batcher.check_integrity()

    def now_and_after_delay(self) -> tuple[list[int], list[int]]:
        """Batches so far, and those that the delay brings."""
        self.pull()
        now = [*self.ran]
        self.clock.advance(DELAY_S - 0.001)
        self.pull()
        assert self.ran == now, "nothing may go before the delay is over"
        self.clock.advance(0.001)
        self.pull()
        assert self.batcher.waiting_rows == 0
        return now, self.ran[len(now) :]


def test_static_batch_preferred() -> None:
    bench = Bench()
    bench.send(2, 6)
    assert bench.now_and_after_delay() == ([2, 6], [])


def test_static_batch_lt_any_preferred() -> None:
    bench = Bench()
    bench.send(1)
    assert bench.now_and_after_delay() == ([], [1])


def test_static_batch_not_preferred() -> None:
    bench = Bench()
    bench.send(3)
    assert bench.now_and_after_delay() == ([], [3])


def test_static_batch_gt_max_preferred() -> None:
    bench = Bench()
    bench.send(7)
    assert bench.now_and_after_delay() == ([7], [])


def test_different_shape_allow_ragged() -> None:
    """Whoever builds requests gives shapes that may be mixed one signature."""
    bench = Bench()
    bench.send((1, "ragged"), (1, "ragged"))
    assert bench.now_and_after_delay() == ([2], [])


def test_different_shape() -> None:
    """Differs: Triton sends the first at once because the second pushes it out. Here each waits its own delay."""
    bench = Bench()
    bench.send((1, "a"), (1, "b"))
    assert bench.now_and_after_delay() == ([], [1, 1])


def test_not_preferred() -> None:
    bench = Bench()
    bench.send(1)
    bench.clock.advance(4)
    bench.send(3)
    bench.clock.advance(DELAY_S - 4 - 0.001)
    bench.pull()
    assert bench.ran == []
    bench.clock.advance(0.001)  # the delay of the first
    bench.pull()
    assert bench.ran == [4]


def test_not_preferred_different_shape() -> None:
    """Differs: 4 waits for the delay too; in Triton the other shape pushes it out."""
    bench = Bench()
    bench.send(1, 3, (1, "b"))
    assert bench.now_and_after_delay() == ([], [4, 1])


def test_preferred_different_shape() -> None:
    """Differs: the group that meets a preferred size goes at once, the other after its delay."""
    bench = Bench()
    bench.send(1, 3, (1, "b"), (5, "b"))
    assert bench.now_and_after_delay() == ([6], [4])


def test_gt_max_preferred() -> None:
    bench = Bench()
    bench.send(3, 7)
    assert bench.now_and_after_delay() == ([3, 7], [])


def test_sum_gt_max_preferred() -> None:
    bench = Bench()
    bench.send(3)
    bench.clock.advance(1)
    bench.send(4)
    assert bench.now_and_after_delay() == ([3], [4])


def test_same_output_and_different_outputs() -> None:
    """Every request is computed with all outputs; who asked for which is for whoever writes the answer."""
    bench = Bench()
    bench.send(1, 1)
    assert bench.now_and_after_delay() == ([2], [])


def test_delayed_sum_gt_max_preferred() -> None:
    bench = Bench()
    bench.send(3, 4, held=True)
    assert bench.now_and_after_delay() == ([3], [4])


def test_delayed_use_max_batch() -> None:
    bench = Bench()
    bench.send(3, 4, 1, held=True)
    bench.clock.advance(DELAY_S)
    bench.pull()
    assert bench.ran == [8]


def test_delayed_preferred_different_shape() -> None:
    """Differs as in `preferred_different_shape`."""
    bench = Bench()
    bench.send(1, 3, (1, "b"), (5, "b"), held=True)
    assert bench.now_and_after_delay() == ([6], [4])


def test_use_biggest_preferred() -> None:
    bench = Bench()
    bench.send(*[1] * 6, held=True)
    assert bench.now_and_after_delay() == ([6], [])


def test_use_best_preferred() -> None:
    bench = Bench()
    bench.send(1, 1, 1, held=True)
    assert bench.now_and_after_delay() == ([2], [1])


def test_preserve_ordering() -> None:
    """Batches leave in the order of requests; with one instance that is the order of answers."""
    bench = Bench(preferred_batch_size=(4,))
    requests = [request_of() for _ in range(12)]
    for request in requests:
        bench.batcher.try_add(request)
        bench.pull()
    assert bench.ran == [4, 4, 4]
    assert bench.order == requests


def test_preferred_only_aligned() -> None:
    assert _preferred_only(4) == [4]


def test_preferred_only_unaligned() -> None:
    assert _preferred_only(5) == [4, 1]


def test_preferred_only_use_biggest_preferred() -> None:
    assert _preferred_only(7) == [6, 1]


def test_preferred_only_use_no_preferred_size() -> None:
    assert _preferred_only(3) == [3]


def _preferred_only(count: int) -> list[int]:
    bench = Bench(preferred_batch_size=(4, 6), max_queue_delay_ms=0)
    bench.send(*[1] * count, held=True)
    bench.pull()
    return bench.ran


def test_max_queue_delay_only_non_default() -> None:
    bench = Bench(preferred_batch_size=())
    bench.send(*[1] * 12)
    assert bench.now_and_after_delay() == ([8], [4])


def test_max_queue_delay_only_default() -> None:
    bench = Bench(preferred_batch_size=(), max_queue_delay_ms=0)
    bench.send(*[1] * 12, held=True)
    bench.pull()
    assert bench.ran == [8, 4]


def test_queue_timeout() -> None:
    """Differs: at its deadline, where Triton polls every half second. No instance asks for a batch meanwhile."""
    bench = Bench()
    late = request_of(1, deadline=bench.clock() + 2)
    bench.batcher.try_add(late)
    assert bench.batcher.wake_at(bench.clock()) == late.deadline
    bench.clock.advance(1.999)
    assert bench.batcher.expire(bench.clock()) == []
    bench.clock.advance(0.001)
    assert [(drop.request, drop.code) for drop in bench.batcher.expire(bench.clock())] == [(late, "expired")]
    assert bench.batcher.waiting_rows == 0
