"""Producers that use transactions: only what they committed is work, and their markers are not lag.

On Apache Kafka only: the embedded broker also counts what follows an aborted transaction as aborted.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from aiokafka import AIOKafkaProducer

from tests.support.models import ECHO, write_model
from tests.support.nodes import serving
from tests.support.records import unique
from tests.support.waiting import eventually


@pytest.mark.kafka
async def test_records_of_an_aborted_transaction_are_not_answered(kafka: str, tmp_path: Path) -> None:
    write_model(tmp_path, "echo", ECHO)
    async with serving(kafka, tmp_path) as node:
        producer = AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=unique("t"))
        await producer.start()
        try:
            for value, wanted in ((1, True), (2, False), (3, True)):
                await producer.begin_transaction()
                await producer.send_and_wait(node.topics.requests("echo"), b'{"x": [%d]}' % value, partition=0)
                await (producer.commit_transaction() if wanted else producer.abort_transaction())
        finally:
            await producer.stop()
        answers = await node.results("echo", 2, settle_s=0.5)
        assert [answer.value for answer in answers] == [b'{"y":[1.0]}', b'{"y":[3.0]}']
        # Each of the three transactions ends in a marker, which is an offset too.
        await eventually(lambda: node.metric("headrace_lag_records", model="echo", partition="0") == 0, 10.0)
