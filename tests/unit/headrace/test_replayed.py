"""The memory of what was replayed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from headrace.replayed import LIMIT_BYTES, Replayed

OFFSETS = st.lists(st.integers(min_value=0, max_value=60))


@given(floor=st.integers(min_value=0, max_value=20), offsets=OFFSETS)
def test_it_holds_what_was_added_and_all_below_the_floor(floor: int, offsets: list[int]) -> None:
    done = Replayed(floor)
    for offset in offsets:
        done.add(offset)
    assert [at for at in range(70) if at in done] == [at for at in range(70) if at < floor or at in offsets]


@given(floor=st.integers(min_value=0, max_value=20), offsets=OFFSETS)
def test_a_commit_gives_back_the_same_set(floor: int, offsets: list[int]) -> None:
    done = Replayed(floor)
    for offset in offsets:
        done.add(offset)
    again = Replayed.read(done.floor, done.metadata)
    assert (again.floor, again.metadata) == (done.floor, done.metadata)


def test_the_floor_rises_as_soon_as_nothing_is_missing_below() -> None:
    done = Replayed()
    done.add(1)
    done.add(2)
    assert (done.floor, done.metadata) == (0, "1-2")
    done.add(0)
    assert (done.floor, done.metadata) == (3, "")


def test_a_range_of_offsets_that_hold_no_record_is_added_at_once() -> None:
    done = Replayed()
    done.add(0, 9)
    assert done.floor == 10
    done.add(10, 9)
    assert done.floor == 10


def test_what_is_no_longer_retained_counts_as_done() -> None:
    done = Replayed.read(3, "5,9-11", start=10)
    assert (done.floor, done.metadata) == (12, "")


def test_metadata_of_somebody_else_counts_as_none() -> None:
    done = Replayed.read(3, "made by hand, 7-, -8,x-9")
    assert (done.floor, done.metadata) == (3, "")
    assert Replayed.read(3, None).metadata == ""


def test_it_says_when_another_range_may_not_fit_into_a_commit() -> None:
    done, offset = Replayed(), 10**12
    while not done.full:
        done.add(offset)
        offset += 2
    done.add(offset)
    assert len(done.metadata) <= LIMIT_BYTES
