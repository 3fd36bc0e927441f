"""Producers choose how they compress; a node reads what they send."""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.support.models import ECHO, write_model
from tests.support.nodes import serving
from tests.support.records import read_all


@pytest.mark.parametrize("codec", ["gzip", "snappy", "lz4", "zstd"])
async def test_a_batch_is_read_in_every_codec(any_broker: str, tmp_path: Path, codec: str) -> None:
    write_model(tmp_path / "models", "echo", ECHO)
    async with serving(any_broker, tmp_path / "models") as node:
        requests = node.topics.requests("echo")
        async with AIOKafkaProducer(bootstrap_servers=any_broker, compression_type=codec, linger_ms=20) as producer:
            sent = [await producer.send(requests, b'{"x": [%d]}' % number, partition=0) for number in range(50)]
            for one in sent:
                await one
        results = await read_all(any_broker, node.topics.results("echo"), count=50)
        assert [one.value for one in results] == [b'{"y":[%d.0]}' % number for number in range(50)]
