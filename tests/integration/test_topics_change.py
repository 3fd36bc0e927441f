"""Topics that change under a running node: said in readiness, and read again without a restart."""

from __future__ import annotations

from pathlib import Path

from aiokafka.admin import AIOKafkaAdminClient

from tests.support.models import ECHO, write_model
from tests.support.nodes import serving
from tests.support.records import committed_offsets, make_topic
from tests.support.waiting import eventually


async def test_a_request_topic_that_is_deleted_is_missed_and_read_again_once_it_is_back(
    kafka: str, tmp_path: Path
) -> None:
    write_model(tmp_path / "models", "echo", ECHO)
    async with serving(kafka, tmp_path / "models", kafka={"metadata_max_age_ms": 500}) as node:
        requests = node.topics.requests("echo")
        await node.send("echo", b'{"x": [1]}')
        await node.results("echo", 1)
        # A commit still under way when the topic goes would be made on the new one.
        await node.until_committed("echo", {0: 1})
        admin = AIOKafkaAdminClient(bootstrap_servers=kafka)
        await admin.start()
        try:
            await admin.delete_topics([requests])
        finally:
            await admin.close()
        await eventually(
            lambda: f"topics are gone: {requests};" in node.node.ready().reason, 15.0, why="the node to miss its topic"
        )

        async def forgotten() -> bool:
            return not await committed_offsets(kafka, node.group, requests)

        # Offsets of the old topic would be taken for the new one's.
        await eventually(forgotten, 15.0, why="the group to forget the topic's offsets")
        await make_topic(kafka, requests)
        await node.send("echo", b'{"x": [2]}')
        results = await node.results("echo", 2)
        assert [one.value for one in results] == [b'{"y":[1.0]}', b'{"y":[2.0]}']
        await eventually(lambda: node.node.ready().ok, 15.0, why="the node to be ready again")
