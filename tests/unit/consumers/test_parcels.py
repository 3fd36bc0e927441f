"""Records are spread over partitions: keyed ones by their key, others evenly, none lost and none doubled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import hypothesis.strategies as st
import pytest
from hypothesis import given

from consumers.parcels import Entry, part_of, record_bytes, spread
from consumers.partitioning import partition_of
from schemas.errors import HeadraceError


class _Nobody:
    def delivered(self, indices: Sequence[int]) -> None: ...
    def refused(self, index: int, error: HeadraceError) -> None: ...


def entry(keys: Sequence[bytes | None]) -> Entry:
    values = [str(at).encode() for at in range(len(keys))]
    return Entry(keys, values, [[] for _ in keys], list(range(100, 100 + len(keys))), _Nobody(), False)


@pytest.mark.parametrize(("size", "count"), [(1, 4), (3, 4), (4, 4), (10, 4), (1001, 7)])
def test_records_with_no_key_are_spread_evenly(size: int, count: int) -> None:
    parts, _ = spread(entry([None] * size), count, 0)
    sizes = [len(part.indices) for _, part in parts]
    assert sum(sizes) == size
    assert max(sizes) - (min(sizes) if len(parts) == count else 0) <= 1
    assert len({chosen for chosen, _ in parts}) == len(parts)


def test_records_with_no_key_go_on_where_the_last_ones_ended() -> None:
    seen: Counter[int] = Counter()
    first = 0
    for _ in range(8):
        parts, first = spread(entry([None]), 4, first)
        seen.update(chosen for chosen, _ in parts)
    assert seen == {0: 2, 1: 2, 2: 2, 3: 2}


def test_null_keys_among_others_are_spread_evenly_too() -> None:
    parts, _ = spread(entry([None, b"k"] * 40), 4, 0)
    nulls = Counter({chosen: list(part.keys).count(None) for chosen, part in parts})
    assert nulls == {0: 10, 1: 10, 2: 10, 3: 10}


@given(st.lists(st.none() | st.binary(max_size=3), min_size=1, max_size=40), st.integers(2, 5), st.integers(0, 1))
def test_each_record_goes_to_one_partition_and_keys_stay_together(
    keys: list[bytes | None], count: int, first: int
) -> None:
    whole = entry(keys)
    parts, following = spread(whole, count, first)
    assert 0 <= following < count
    assert sorted(index for _, part in parts for index in part.indices) == whole.indices
    for chosen, part in parts:
        assert list(part.indices) == sorted(part.indices), "order within a partition is the order of the input"
        for at, index in enumerate(part.indices):
            key = whole.keys[index - 100]
            assert part.keys[at] == key
            assert part.values[at] == whole.values[index - 100]
            if key is not None:
                assert chosen == partition_of(key, count)


@pytest.mark.parametrize("picks", [range(1, 3), [1, 2], [0, 3], [2]])
def test_a_part_keeps_what_belongs_together(picks: Sequence[int]) -> None:
    whole = entry([b"a", b"b", b"c", b"d"])
    part = part_of(whole, picks)
    assert list(part.keys) == [whole.keys[at] for at in picks]
    assert list(part.values) == [whole.values[at] for at in picks]
    assert list(part.indices) == [whole.indices[at] for at in picks]


def test_the_size_of_a_record_counts_key_value_and_headers() -> None:
    one = Entry([b"12"], [b"345"], [[("name", b"67"), ("null", None)]], [0], _Nobody(), False)
    assert record_bytes(one, 0) >= 2 + 3 + 4 + 2 + 4
