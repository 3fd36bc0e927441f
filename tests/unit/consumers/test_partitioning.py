"""Keys go where the Java client puts them."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from consumers.partitioning import partition_of, partitions_of

# From Apache Kafka's own test of its hash, `UtilsTest.testMurmur2`.
KNOWN = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}
MANY = 2**31 - 1


def expected(key: bytes, count: int) -> int:
    return (KNOWN[key] & 0x7FFFFFFF) % count


@pytest.mark.parametrize("key", KNOWN)
@pytest.mark.parametrize("count", [1, 3, 8, MANY])
def test_a_key_goes_where_the_java_client_puts_it(key: bytes, count: int) -> None:
    assert partition_of(key, count) == expected(key, count)


@pytest.mark.parametrize("key", KNOWN)
def test_many_keys_go_where_one_goes(key: bytes) -> None:
    assert partitions_of([key] * 20, MANY) == [expected(key, MANY)] * 20


@given(st.lists(st.binary(max_size=9), max_size=60), st.integers(1, 1000))
def test_hashing_many_keys_at_once_gives_what_hashing_each_gives(keys: list[bytes], count: int) -> None:
    assert partitions_of(keys, count) == [partition_of(key, count) for key in keys]


@given(st.lists(st.binary(min_size=30, max_size=33), min_size=8, max_size=60))
def test_long_keys_of_one_length_are_no_exception(keys: list[bytes]) -> None:
    assert partitions_of(keys, 12) == [partition_of(key, 12) for key in keys]


def test_empty_keys_have_a_partition_too() -> None:
    assert set(partitions_of([b""] * 10, 7)) == {partition_of(b"", 7)}
