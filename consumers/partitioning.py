"""Which partition a key goes to: as the Java client does it (murmur2), many keys at a time.

Source of the hash: MurmurHash2 with Kafka's seed, ``org.apache.kafka.common.utils.Utils.murmur2``; the partition is the
hash with its sign bit cleared, modulo the number of partitions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt
from aiokafka.partitioner import murmur2

__all__ = ["partition_of", "partitions_of"]

_SEED = 0x9747B28C
_M = np.uint32(0x5BD1E995)
_FEW = 8
"""Below so many keys of one length, numpy's fixed costs exceed its gain."""

_hash_one = lru_cache(maxsize=16_384)(murmur2)


def partition_of(key: bytes, count: int) -> int:
    return int(_hash_one(key) & 0x7FFFFFFF) % count


def partitions_of(keys: Sequence[bytes], count: int) -> list[int]:
    """The partition of each key, in order."""
    if count == 1:
        return [0] * len(keys)
    if len(keys) < _FEW:
        return [partition_of(key, count) for key in keys]
    by_length: dict[int, list[int]] = {}
    for index, key in enumerate(keys):
        by_length.setdefault(len(key), []).append(index)
    result = [0] * len(keys)
    for length, indices in by_length.items():
        if len(indices) < _FEW:
            for index in indices:
                result[index] = partition_of(keys[index], count)
            continue
        hashes = _murmur2_many(b"".join([keys[index] for index in indices]), length=length, count=len(indices))
        for index, partition in zip(
            indices, ((hashes & np.uint32(0x7FFFFFFF)) % np.uint32(count)).tolist(), strict=True
        ):
            result[index] = partition
    return result


def _murmur2_many(data: bytes, *, length: int, count: int) -> npt.NDArray[np.uint32]:
    """Hashes of ``count`` keys of ``length`` bytes each, laid end to end. All arithmetic is modulo 2**32."""
    keys = np.frombuffer(data, np.uint8).reshape(count, length)
    words = length // 4
    h = np.full(count, _SEED ^ length, np.uint32)
    if words:
        k_all = np.ascontiguousarray(keys[:, : words * 4]).view("<u4").astype(np.uint32) * _M
        k_all ^= k_all >> np.uint32(24)
        k_all *= _M
        for word in range(words):
            h *= _M
            h ^= k_all[:, word]
    tail = keys[:, words * 4 :].astype(np.uint32)
    if tail.shape[1]:
        for position in range(tail.shape[1]):
            h ^= tail[:, position] << np.uint32(8 * position)
        h *= _M
    h ^= h >> np.uint32(13)
    h *= _M
    h ^= h >> np.uint32(15)
    return h
