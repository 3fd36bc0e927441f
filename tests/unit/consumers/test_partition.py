"""A partition keeps retries until they are due, and gives them out so that their chunk can be told."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import pytest

from consumers.partition import Partition
from tests.unit.consumers.parts import FakeRecord, partition, route


def held(due_ms: Sequence[int]) -> Partition:
    one = partition(route())
    records = [FakeRecord(offset=offset) for offset in range(len(due_ms))]
    chunk = one.deliver(records)
    for index, due in enumerate(due_ms):
        one.hold(due, chunk, index, records[index])
    return one


def test_retries_come_out_when_they_are_due_and_not_before() -> None:
    one = held([50, 10, 30])
    assert one.next_due_ms == 10
    assert one.due(9) == []
    assert [indices for _, indices, _ in one.due(30)] == [[1, 2]]
    assert one.next_due_ms == 50
    assert [indices for _, indices, _ in one.due(1000)] == [[0]]
    assert one.next_due_ms is None


@pytest.mark.parametrize("order", list(permutations(range(3))))
def test_whatever_order_they_become_due_in_only_they_are_finished(order: tuple[int, ...]) -> None:
    due_ms = [1000, 0, 0, 0]
    for rank, index in enumerate(order):
        due_ms[index + 1] = rank
    one = held([due_ms[1], due_ms[2], due_ms[0], due_ms[3]])
    for chunk, indices, records in one.due(10):
        assert [record.offset for record in records] == indices
        chunk.finish(indices)
    assert one.ledger.position() == 2, "the record that is not due yet is not finished"


def test_retries_of_two_fetches_are_told_apart() -> None:
    one = partition(route())
    chunks = [one.deliver([FakeRecord(offset=offset)]) for offset in (0, 5)]
    for chunk in chunks:
        one.hold(1, chunk, 0, FakeRecord(offset=chunk.offsets[0]))
    assert [(chunk, records[0].offset) for chunk, _, records in one.due(1)] == [(chunks[0], 0), (chunks[1], 5)]


def test_held_retries_that_are_handed_back_stay_unfinished() -> None:
    one = held([10])
    one.drop_held()
    assert one.due(1000) == []
    assert one.ledger.position() == 0


def test_a_partition_that_holds_a_thousand_retries_holds_too_many() -> None:
    assert not held([10] * 999).holds_too_many
    assert held([10] * 1000).holds_too_many
