"""The embedded broker as a child: it answers, comes back, gives up with words, and never stays behind."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from infra.broker import EmbeddedBroker
from infra.kafka_ping import known_nodes
from schemas.errors import ConfigError, Unavailable
from tests.support.records import make_topic, produce, read_all, unique
from tests.support.waiting import eventually, eventually_sync


async def test_records_go_in_and_come_out_and_a_temporary_directory_is_removed() -> None:
    async with EmbeddedBroker() as broker:
        folder = broker.data_dir
        topic = await make_topic(broker.bootstrap, unique("topic"))
        await produce(broker.bootstrap, topic, [b"one", b"two"])
        assert [one.value for one in await read_all(broker.bootstrap, topic, count=2)] == [b"one", b"two"]
    assert not folder.exists()


async def test_a_given_directory_keeps_the_records_over_an_orderly_end(tmp_path: Path) -> None:
    async with EmbeddedBroker(data_dir=tmp_path) as broker:
        topic = await make_topic(broker.bootstrap, unique("topic"))
        await produce(broker.bootstrap, topic, [b"kept"])
    async with EmbeddedBroker(data_dir=tmp_path) as broker:
        assert [one.value for one in await read_all(broker.bootstrap, topic, count=1)] == [b"kept"]
    assert (tmp_path / "broker.log").exists()


async def test_a_broker_that_dies_comes_back_on_the_same_port() -> None:
    async with EmbeddedBroker() as broker:
        before, pid = broker.bootstrap, broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await eventually(lambda: broker.restarts == 1 and broker.pid not in (None, pid))
        host, _, port = before.partition(":")
        await eventually(lambda: known_nodes(host, int(port), timeout_s=1.0))
        assert broker.bootstrap == before


async def test_a_broker_that_keeps_dying_is_given_up_with_the_end_of_its_log() -> None:
    async with EmbeddedBroker(max_restarts=0) as broker:
        pid = broker.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(Unavailable, match=r"given up; the end of .*broker\.log:\n"):
            await asyncio.wait_for(broker.wait(), 10)


async def test_a_taken_port_is_refused_by_name() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=f"127.0.0.1:{port}.*another port, or 0"):
            async with EmbeddedBroker(port=port):
                pass


async def test_a_data_directory_in_use_is_refused_in_the_brokers_own_words(tmp_path: Path) -> None:
    async with EmbeddedBroker(data_dir=tmp_path):
        with pytest.raises(Unavailable, match="already running"):
            async with EmbeddedBroker(data_dir=tmp_path):
                pass


async def test_without_the_package_the_message_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def files(package: str) -> Path:
        raise ModuleNotFoundError(package)

    monkeypatch.setattr("importlib.resources.files", files)
    with pytest.raises(ConfigError, match=r"pip install 'headrace\[embedded\]'"):
        async with EmbeddedBroker():
            pass


def test_kill_9_of_the_parent_leaves_no_orphan(tmp_path: Path) -> None:
    program = (
        "import asyncio, sys, pathlib\n"
        "from infra.broker import EmbeddedBroker\n"
        "async def main():\n"
        "    async with EmbeddedBroker(data_dir=pathlib.Path(sys.argv[1])) as broker:\n"
        "        print(broker.pid, flush=True)\n"
        "        await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    root = Path(__file__).resolve().parents[3]
    parent = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], cwd=root, stdout=subprocess.PIPE)
    with parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        assert child.is_running()
        parent.kill()
    eventually_sync(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, 10)
