"""The ledger never lets a commit pass an unfinished record."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from consumers.ledger import Chunk, Ledger


def deliver(ledger: Ledger, *offsets: int) -> Chunk:
    return ledger.deliver(list(offsets), [offset * 1000 for offset in offsets])


def test_before_anything_is_delivered_the_position_is_the_commit_or_unknown() -> None:
    assert Ledger().position() is None
    assert Ledger(7).position() == 7


def test_the_consumers_own_position_counts_when_nothing_is_unfinished() -> None:
    assert Ledger().position(3) == 3
    assert Ledger(7).position(9) == 9
    assert Ledger(7).position(5) == 7
    ledger = Ledger(0)
    chunk = deliver(ledger, 0, 1)
    assert ledger.position(5) == 0
    chunk.finish([0, 1])
    assert ledger.position(5) == 5


def test_the_position_is_the_lowest_unfinished_offset_and_then_the_end_of_what_was_delivered() -> None:
    ledger = Ledger(10)
    chunk = deliver(ledger, 10, 11, 12)
    assert ledger.next_offset == 13
    chunk.finish([1, 2])
    assert ledger.position() == 10
    chunk.finish([0])
    assert ledger.position() == 13


def test_gaps_in_the_log_are_passed_over() -> None:
    ledger = Ledger(0)
    chunk = deliver(ledger, 3, 7, 100)
    assert ledger.position() == 3
    chunk.finish([0])
    assert ledger.position() == 7
    chunk.finish([1, 2])
    assert ledger.position() == 101


def test_an_early_chunk_holds_back_those_that_are_finished_behind_it() -> None:
    ledger = Ledger(0)
    first, second = deliver(ledger, 0, 1), deliver(ledger, 2, 3)
    second.finish([0, 1])
    first.finish([0])
    assert (ledger.position(), ledger.unfinished) == (1, 1)
    first.finish([1])
    assert (ledger.position(), ledger.unfinished) == (4, 0)


def test_a_record_finished_twice_counts_once() -> None:
    chunk = Chunk([0, 1, 2, 3], [0, 0, 0, 0])
    chunk.finish([1, 2])
    chunk.finish([1, 2])
    chunk.finish([0, 2])
    assert (chunk.left, chunk.lowest_unfinished()) == (1, 3)


def test_a_log_that_starts_over_is_followed_down() -> None:
    ledger = Ledger(900)
    deliver(ledger, 900, 901).finish([0, 1])
    again = deliver(ledger, 0, 1)
    assert ledger.position() == 0
    again.finish([0])
    assert ledger.position() == 1
    again.finish([1])
    assert ledger.position() == 2


def test_the_oldest_timestamp_is_that_of_the_lowest_unfinished_record() -> None:
    ledger = Ledger(0)
    first, second = deliver(ledger, 0, 1), deliver(ledger, 2)
    first.finish([0])
    assert ledger.oldest_timestamp() == 1000
    first.finish([1])
    assert ledger.oldest_timestamp() == 2000
    second.finish([0])
    assert ledger.oldest_timestamp() is None


def test_finished_chunks_are_let_go_also_behind_one_that_is_not() -> None:
    ledger = Ledger(0)
    slow = deliver(ledger, 0)
    for offset in range(1, 100):
        deliver(ledger, offset).finish([0])
    assert ledger.position() == 0
    assert len(ledger._chunks) == 1
    slow.finish([0])
    assert ledger.position() == 100


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[list[int]], list[list[tuple[int, int]]]]:
    """Chunks of ascending offsets with gaps, and their records in the order and groups in which they finish."""
    steps = draw(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=6), min_size=1, max_size=5))
    chunks, at = [], 0
    for gaps in steps:
        chunk = []
        for gap in gaps:
            at += gap
            chunk.append(at)
        chunks.append(chunk)
    every = [(number, index) for number, chunk in enumerate(chunks) for index in range(len(chunk))]
    order = draw(st.permutations(every))
    groups: list[list[tuple[int, int]]] = []
    for record in order:
        if groups and groups[-1][0][0] == record[0] and draw(st.booleans()):
            groups[-1].append(record)
        else:
            groups.append([record])
    return chunks, groups


@given(histories(), st.none() | st.integers(0, 200))
def test_no_order_of_finishing_lets_the_position_pass_an_unfinished_record(
    history: tuple[list[list[int]], list[list[tuple[int, int]]]], consumed_to: int | None
) -> None:
    chunks, groups = history
    ledger = Ledger(0)
    delivered = [ledger.deliver(offsets, offsets) for offsets in chunks]
    unfinished = {offset for offsets in chunks for offset in offsets}
    before = -1
    for group in groups:
        number = group[0][0]
        delivered[number].finish(sorted(index for _, index in group))
        unfinished -= {chunks[number][index] for _, index in group}
        position = ledger.position(consumed_to)
        assert position is not None
        if unfinished:
            assert position == min(unfinished) == ledger.oldest_timestamp()
        else:
            assert position == max(chunks[-1][-1] + 1, consumed_to or 0)
        assert position >= before
        assert ledger.unfinished == len(unfinished)
        before = position


@pytest.mark.parametrize("indices", [[0], [0, 1, 2], [0, 2], range(3)])
def test_a_chunk_takes_runs_and_scattered_records_alike(indices: list[int]) -> None:
    chunk = Chunk([5, 6, 7], [0, 0, 0])
    chunk.finish(indices)
    assert chunk.left == 3 - len(indices)
