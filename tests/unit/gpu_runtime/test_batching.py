"""The batcher's own promises, on a clock moved by hand."""

from __future__ import annotations

import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpu_runtime.batch import Batch
from gpu_runtime.batching import AGEING_S, DynamicBatcher
from gpu_runtime.fake import ManualClock
from gpu_runtime.request import Request, Scope, ScopeState
from schemas.model import QueuePolicy
from tests.unit.gpu_runtime.models import config_of, request_of


def batcher_of(clock: ManualClock, **fields: Any) -> DynamicBatcher:
    return DynamicBatcher(config_of(**fields), clock=clock)


def pull_all(batcher: DynamicBatcher, clock: ManualClock) -> list[Batch]:
    batches = []
    while batch := batcher.try_next(clock()):
        batches.append(batch)
        batcher.check_integrity()
    return batches


def requests_in(batch: Batch | None) -> list[Request]:
    assert batch is not None
    return [part.request for part in batch.parts]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def test_C1_alternating_shapes_fill_batches_in_both_groups_and_none_waits_twice_the_delay(clock: ManualClock) -> None:
    """Lengths 16 and 20 in turn, one every 2.5 ms, so that a group gets one every 5 ms; the delay is 20 ms."""
    batcher = batcher_of(clock, max_queue_delay_ms=20)
    sizes: dict[object, list[int]] = {16: [], 20: []}
    waits: list[float] = []
    answered = 0

    def pull_due() -> int:
        count = 0
        while batch := batcher.try_next(clock()):
            sizes[batch.parts[0].request.signature].append(batch.rows)
            waits.extend(clock() - part.request.enqueued_at for part in batch.parts)
            count += batch.rows
        return count

    for index in range(200):
        batcher.try_add(request_of(shape=16 if index % 2 else 20))
        answered += pull_due()
        arrival = clock() + 0.0025
        while (moment := batcher.wake_at(clock())) is not None and moment <= arrival:
            clock.now = moment
            answered += pull_due()
        clock.now = arrival
    while (moment := batcher.wake_at(clock())) is not None:
        clock.now = moment
        answered += pull_due()
    assert answered == 200
    assert max(sizes[16]) > 1
    assert max(sizes[20]) > 1
    assert max(waits) <= 2 * 0.020


def test_groups_go_in_the_order_of_their_oldest_so_that_none_starves(clock: ManualClock) -> None:
    batcher = batcher_of(clock)
    batcher.try_add(request_of(shape="rare"))
    for _ in range(20):
        clock.advance(0.001)
        batcher.try_add(request_of(shape="busy"))
    first = batcher.try_next(clock())
    assert first is not None
    assert first.parts[0].request.signature == "rare"


def test_a_group_whose_oldest_has_left_queues_by_the_next(clock: ManualClock) -> None:
    batcher = batcher_of(clock)
    oldest, younger, between = request_of(deadline=clock() + 1), request_of(), request_of(shape="b")
    for request in (oldest, between, younger):
        batcher.try_add(request)
        clock.advance(0.4)
    batcher.expire(clock())
    assert requests_in(batcher.try_next(clock())) == [between]
    assert requests_in(batcher.try_next(clock())) == [younger]


def test_after_the_delay_a_batch_is_larger_than_the_largest_preferred_size(clock: ManualClock) -> None:
    batcher = batcher_of(clock, preferred_batch_size=(2, 6), max_queue_delay_ms=10)
    for _ in range(9):
        batcher.try_add(request_of())
    clock.advance(0.01)
    assert [batch.rows for batch in pull_all(batcher, clock)] == [8, 1]


def test_C4_the_queue_takes_exactly_its_rows(clock: ManualClock) -> None:
    batcher = batcher_of(clock, queue=QueuePolicy(max_rows=4))
    assert [batcher.try_add(request_of()) for _ in range(6)] == [True] * 4 + [False] * 2
    assert batcher.room == 0
    assert not batcher.try_add(request_of(2))
    batcher.try_next(clock())
    assert batcher.room == 4


def test_a_request_larger_than_the_queue_is_taken_only_when_the_queue_is_empty(clock: ManualClock) -> None:
    batcher = batcher_of(clock, queue=QueuePolicy(max_rows=4))
    batcher.try_add(request_of())
    assert not batcher.try_add(request_of(20))
    batcher.try_next(clock())
    assert batcher.try_add(request_of(20))
    assert not batcher.try_add(request_of())


def test_D9_rows_and_not_requests_fill_a_batch(clock: ManualClock) -> None:
    batcher = batcher_of(clock, max_batch_size=32)
    for _ in range(5):
        batcher.try_add(request_of(20))
    batches = pull_all(batcher, clock)
    assert [batch.rows for batch in batches] == [20] * 5, "20 + 20 passes the limit, and no request is split"


def test_D9_a_request_above_the_limit_is_split_into_parts_of_the_limit(clock: ManualClock) -> None:
    batcher = batcher_of(clock, max_batch_size=32, max_queue_delay_ms=10_000)
    big = request_of(100)
    batcher.try_add(big)
    parts = [part for batch in pull_all(batcher, clock) for part in batch.parts]
    assert [(part.start, part.stop) for part in parts] == [(0, 32), (32, 64), (64, 96), (96, 100)]
    assert batcher.waiting_rows == 0, "the last part does not wait for company"


def test_D9_the_last_part_of_a_split_request_shares_its_batch(clock: ManualClock) -> None:
    batcher = batcher_of(clock)
    big, small = request_of(11), request_of(2)
    batcher.try_add(big)
    batcher.try_add(small)
    batches = pull_all(batcher, clock)
    assert [batch.rows for batch in batches] == [8, 5]
    assert requests_in(batches[1]) == [big, small]


def test_a_lowered_limit_holds_for_everything_that_waits(clock: ManualClock) -> None:
    batcher = batcher_of(clock, preferred_batch_size=(6, 8))
    batcher.try_add(request_of(8))
    for _ in range(4):
        batcher.try_add(request_of())
    batcher.lower_limit(3)
    batcher.lower_limit(5)  # a limit never rises
    assert batcher.limit == 3
    assert [batch.rows for batch in pull_all(batcher, clock)] == [3, 3, 3, 3]


def test_a_model_with_no_batch_dimension_runs_one_request_at_a_time(clock: ManualClock) -> None:
    batcher = batcher_of(clock, max_batch_size=0)
    for _ in range(3):
        batcher.try_add(request_of())
    assert [batch.rows for batch in pull_all(batcher, clock)] == [1, 1, 1]


def test_with_a_backlog_nothing_waits_for_the_delay(clock: ManualClock) -> None:
    batcher = batcher_of(clock, max_queue_delay_ms=10_000)
    batcher.try_add(request_of(3))
    assert batcher.try_next(clock()) is None
    batcher.backlog = True
    assert [batch.rows for batch in pull_all(batcher, clock)] == [3]
    batcher.try_add(request_of(2))
    assert [batch.rows for batch in pull_all(batcher, clock)] == [2]
    batcher.try_add(request_of(2))
    batcher.backlog = False
    assert batcher.try_next(clock()) is None
    assert batcher.wake_at(clock()) == clock() + 10


def test_what_is_due_while_no_instance_is_free_does_not_ask_to_be_woken_again(clock: ManualClock) -> None:
    batcher = batcher_of(clock, max_queue_delay_ms=10)
    batcher.try_add(request_of())
    clock.now = batcher.wake_at(clock()) or 0
    assert batcher.wake_at(clock()) is None
    clock.advance(1)
    assert [batch.rows for batch in pull_all(batcher, clock)] == [1]


def test_the_most_urgent_goes_first_and_0_or_too_large_is_the_default_level(clock: ManualClock) -> None:
    batcher = batcher_of(clock, max_batch_size=1, priority_levels=3, default_priority_level=2)
    sent = [request_of(priority=priority) for priority in (3, 0, 99, 2, 1)]
    for request in sent:
        batcher.try_add(request)
    order = [requests_in(batch)[0].priority for batch in pull_all(batcher, clock)]
    assert order == [1, 0, 99, 2, 3]


def test_without_levels_priorities_do_not_count(clock: ManualClock) -> None:
    batcher = batcher_of(clock, max_batch_size=1)
    for priority in (3, 1):
        batcher.try_add(request_of(priority=priority))
    assert [requests_in(batch)[0].priority for batch in pull_all(batcher, clock)] == [3, 1]


def test_waiting_is_worth_one_level_for_each_ageing_period_so_that_low_levels_do_not_starve(clock: ManualClock) -> None:
    batcher = batcher_of(clock, max_batch_size=1, priority_levels=3, default_priority_level=3)
    low = request_of(priority=3)
    batcher.try_add(low)
    ran_after = 0
    for _ in range(100):  # an urgent one arrives for each that runs
        clock.advance(AGEING_S / 10)
        batcher.try_add(request_of(priority=1))
        if requests_in(batcher.try_next(clock())) == [low]:
            break
        ran_after += 1
    assert ran_after == 19, "two levels are made up for in 20 tenths"


def test_priorities_of_one_signature_share_a_batch_in_their_order(clock: ManualClock) -> None:
    batcher = batcher_of(clock, max_batch_size=4, priority_levels=2, default_priority_level=2)
    for priority in (2, 1, 2, 1, 2):
        batcher.try_add(request_of(priority=priority))
    assert [part.request.priority for part in pull_all(batcher, clock)[0].parts] == [1, 1, 2, 2]


def test_suspended_scopes_are_gone_past_and_keep_their_place(clock: ManualClock) -> None:
    batcher = batcher_of(clock, max_batch_size=1)
    scope = Scope()
    first, held, last = request_of(), request_of(scope=scope), request_of()
    for request in (first, held, last):
        batcher.try_add(request)
        clock.advance(0.1)
    scope.state = ScopeState.SUSPENDED
    batcher.look_again()
    assert requests_in(batcher.try_next(clock())) == [first]
    scope.state = ScopeState.ACTIVE
    batcher.look_again()
    assert requests_in(batcher.try_next(clock())) == [held]
    assert requests_in(batcher.try_next(clock())) == [last]
    batcher.check_integrity()


def test_a_suspended_scope_is_noticed_even_when_nobody_says_so(clock: ManualClock) -> None:
    batcher = batcher_of(clock)
    scope = Scope()
    held, free = request_of(scope=scope), request_of()
    batcher.try_add(held)
    batcher.try_add(free)
    scope.state = ScopeState.SUSPENDED
    assert requests_in(batcher.try_next(clock())) == [free]
    assert batcher.try_next(clock()) is None
    assert batcher.waiting_rows == 1


def test_a_request_that_comes_in_under_a_suspended_scope_waits_for_it(clock: ManualClock) -> None:
    batcher = batcher_of(clock)
    scope = Scope()
    scope.state = ScopeState.SUSPENDED
    held = request_of(scope=scope)
    batcher.try_add(held)
    assert batcher.try_next(clock()) is None
    scope.state = ScopeState.ACTIVE
    batcher.look_again()
    assert requests_in(batcher.try_next(clock())) == [held]


def test_closed_scopes_leave_as_withdrawn_even_when_their_deadline_has_passed_too(clock: ManualClock) -> None:
    batcher = batcher_of(clock)
    scope = Scope()
    for deadline in (None, clock() + 1):
        batcher.try_add(request_of(scope=scope, deadline=deadline))
    clock.advance(2)
    scope.state = ScopeState.CLOSED
    assert {drop.code for drop in batcher.expire(clock())} == {"withdrawn"}
    batcher.look_again()
    assert {drop.code for drop in batcher.expire(clock())} == {"withdrawn"}
    assert batcher.waiting_rows == 0


def test_a_suspended_request_expires_like_any_other(clock: ManualClock) -> None:
    batcher = batcher_of(clock)
    scope = Scope()
    scope.state = ScopeState.SUSPENDED
    batcher.try_add(request_of(scope=scope, deadline=clock() + 1))
    assert batcher.wake_at(clock()) == clock() + 1
    clock.advance(1)
    assert [drop.code for drop in batcher.expire(clock())] == ["expired"]
    batcher.check_integrity()


def test_cancelled_requests_never_run_and_are_reported(clock: ManualClock) -> None:
    batcher = batcher_of(clock)
    gone, stays = request_of(), request_of()
    batcher.try_add(gone)
    batcher.try_add(stays)
    gone.cancelled = True
    assert requests_in(batcher.try_next(clock())) == [stays]
    assert [(drop.request, drop.code) for drop in batcher.expire(clock())] == [(gone, "cancelled")]


def test_the_default_deadline_counts_from_the_moment_of_queueing(clock: ManualClock) -> None:
    batcher = batcher_of(clock, queue=QueuePolicy(default_deadline_ms=500))
    plain, own = request_of(), request_of(deadline=clock() + 9)
    batcher.try_add(plain)
    batcher.try_add(own)
    assert plain.deadline == clock() + 0.5
    assert own.deadline == clock() + 9


def test_the_rest_of_a_split_request_expires_when_its_deadline_passes(clock: ManualClock) -> None:
    batcher = batcher_of(clock)
    batcher.try_add(request_of(20, deadline=clock() + 1))
    batcher.try_next(clock())
    clock.advance(1)
    assert [(drop.code, drop.rows) for drop in batcher.expire(clock())] == [("expired", 12)]
    assert batcher.try_next(clock()) is None


def test_long_deadlines_do_not_keep_what_has_run(clock: ManualClock) -> None:
    batcher = batcher_of(clock)
    scope = Scope()
    scope.state = ScopeState.SUSPENDED
    batcher.try_add(request_of(deadline=clock() + 10, scope=scope))  # first in the heap, and stays
    for _ in range(2000):
        batcher.try_add(request_of(deadline=clock() + 3600))
        batcher.try_next(clock())
        batcher.expire(clock())
    assert len(batcher._deadlines._heap) < 200


def test_scopes_that_change_often_while_no_instance_is_free_pile_nothing_up(clock: ManualClock) -> None:
    batcher = batcher_of(clock)
    batcher.try_add(request_of())
    for _ in range(1000):
        batcher.look_again()
        batcher.expire(clock())
    assert len(batcher._ready._items) < 200
    assert batcher.try_next(clock()) is not None


def test_4096_waiting_requests_do_not_make_a_batch_slow(clock: ManualClock) -> None:
    """Linear cost, by comparing 4096 waiting with 256 waiting: per request it may not grow by more than noise."""

    def cost_per_request(waiting: int, *, signatures: int) -> float:
        best = 1.0
        for _ in range(5):
            batcher = batcher_of(clock, max_batch_size=32, max_queue_delay_ms=5)
            requests = [request_of(shape=index % signatures, deadline=clock() + 60) for index in range(waiting)]
            began = time.perf_counter()
            for request in requests:
                batcher.try_add(request)
                batcher.wake_at(clock())
            clock.advance(1)
            while batcher.try_next(clock()):
                batcher.wake_at(clock())
            best = min(best, (time.perf_counter() - began) / waiting)
        return best

    for signatures in (1, 4096):
        assert cost_per_request(4096, signatures=signatures) < 8 * cost_per_request(256, signatures=signatures)


@settings(max_examples=150, deadline=None)
@given(
    steps=st.lists(
        st.tuples(
            st.sampled_from(["add", "add", "add", "pull", "time", "suspend", "resume", "close", "cancel", "limit"]),
            st.integers(1, 20),
            st.integers(0, 3),
        ),
        max_size=60,
    ),
    delay_ms=st.sampled_from([0, 50]),
)
def test_every_row_leaves_exactly_once_and_no_batch_passes_the_limit(
    steps: list[tuple[str, int, int]], delay_ms: int
) -> None:
    clock = ManualClock()
    batcher = batcher_of(
        clock, max_queue_delay_ms=delay_ms, preferred_batch_size=(4,), priority_levels=3, default_priority_level=2
    )
    scopes = [Scope() for _ in range(4)]
    sent: list[Request] = []
    left: dict[Request, int] = {}

    def pull() -> None:
        for drop in batcher.expire(clock()):
            left[drop.request] -= drop.rows
        while batch := batcher.try_next(clock()):
            assert batch.rows == sum(part.rows for part in batch.parts) <= batcher.limit
            assert len({part.request.signature for part in batch.parts}) == 1
            for part in batch.parts:
                assert part.request.scope is None or part.request.scope.state is ScopeState.ACTIVE
                assert not part.request.cancelled
                assert part.start == part.request.rows - left[part.request], "in the order of the rows"
                left[part.request] -= part.rows
        for drop in batcher.expire(clock()):
            left[drop.request] -= drop.rows
        batcher.check_integrity()

    for action, number, which in steps:
        scope = scopes[which]
        if action == "add":
            deadline = None if number % 3 else clock() + number / 100
            request = request_of(
                number, shape=number % 2, priority=which, scope=scope if number % 4 else None, deadline=deadline
            )
            if batcher.try_add(request):
                sent.append(request)
                left[request] = request.rows
        elif action == "pull":
            pull()
        elif action == "time":
            clock.advance(number / 100)
        elif action == "cancel" and sent:
            sent[number % len(sent)].cancelled = True
        elif action == "limit":
            batcher.lower_limit(number)
        elif scope.state is not ScopeState.CLOSED:
            scope.state = {
                "suspend": ScopeState.SUSPENDED,
                "resume": ScopeState.ACTIVE,
                "close": ScopeState.CLOSED,
            }.get(action, scope.state)
            batcher.look_again()
        batcher.check_integrity()
    for scope in scopes:
        scope.state = ScopeState.ACTIVE if scope.state is ScopeState.SUSPENDED else scope.state
    batcher.look_again()
    clock.advance(1)
    pull()
    assert not any(left.values())
    assert batcher.waiting_rows == 0
