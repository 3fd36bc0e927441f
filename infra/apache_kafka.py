"""Real Apache Kafka on this machine's loopback, one node or several, for tests and benchmarks. Not for production."""

from __future__ import annotations

import asyncio
import base64
import shutil
import subprocess
import tempfile
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Final

from infra.child import bound_to_parent, free_ports, log_tail
from infra.kafka_download import kafka_jars, program
from infra.kafka_ping import known_nodes
from schemas.clock import Deadline
from schemas.errors import ConfigError, Unavailable

__all__ = ["KafkaCluster"]

_HOST: Final = "127.0.0.1"
_STOP_S: Final = 15.0
"""From SIGTERM to SIGKILL. The last nodes of a cluster have nobody to hand over to, and would wait for minutes."""
_POLL_S: Final = 0.05

_LOG4J: Final = """\
rootLogger.level = INFO
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {path}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d %p %c{{1}} %m%n
"""


@dataclass(slots=True)
class _Node:
    id: int
    port: int
    controller_port: int
    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def log_path(self) -> Path:
        return self.folder / "server.log"

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None


class KafkaCluster:
    """``async with KafkaCluster() as cluster: cluster.bootstrap``; plain ``with`` works as well, and blocks.

    Nodes are numbered from 1 and keep port and data over `stop`, `kill` and `start`. They end with the thread that
    started them, by ``kill -9`` of this process too. Topics are not created by themselves.

    Args:
        nodes: each is broker and controller; 1 or 3 are usual.
        properties: server properties over ours, for every node.
        heap: of each node's JVM.
    """

    def __init__(
        self,
        *,
        nodes: int = 1,
        properties: Mapping[str, object] | None = None,
        heap: str = "350m",
        start_timeout_s: float = 60.0,
    ) -> None:
        if nodes < 1:
            raise ConfigError(f"a Kafka cluster needs at least one node, not {nodes}")
        self._count = nodes
        self._properties = dict(properties or {})
        self._heap = heap
        self._start_timeout_s = start_timeout_s
        self._root = Path()
        self._jars = Path()
        self._nodes: dict[int, _Node] = {}

    @property
    def bootstrap(self) -> str:
        return ",".join(f"{_HOST}:{node.port}" for node in self._nodes.values())

    def pid(self, node: int = 1) -> int | None:
        process = self._node(node).process
        return None if process is None or process.poll() is not None else process.pid

    def log_path(self, node: int = 1) -> Path:
        return self._node(node).log_path

    def __enter__(self) -> KafkaCluster:
        try:
            self._prepare()
            self._spawn_all()
            self._await_all()
        except BaseException:
            self._end_all()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end_all()

    async def __aenter__(self) -> KafkaCluster:
        try:
            await asyncio.to_thread(self._prepare)
            self._spawn_all()  # Here and not in a pool's thread: the nodes end with the thread that starts them.
            await asyncio.to_thread(self._await_all)
        except BaseException:
            await asyncio.to_thread(self._end_all)
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._end_all)

    async def stop(self, node: int = 1) -> None:
        """Ends the node in order; by force when that takes too long."""
        await asyncio.to_thread(self._end, [self._node(node)])

    async def kill(self, node: int = 1) -> None:
        """SIGKILL, as in a crash."""
        process = self._node(node).process
        if process is not None:
            process.kill()
            await asyncio.to_thread(process.wait, _STOP_S)

    async def start(self, node: int = 1) -> None:
        """Starts a node that was stopped or killed, on its own data, and waits until the others see it."""
        wanted = self._node(node)
        if wanted.running:
            return
        self._spawn(wanted)
        await asyncio.to_thread(self._await, [one for one in self._nodes.values() if one.running])

    def _node(self, node: int) -> _Node:
        found = self._nodes.get(node)
        if found is None:
            raise ConfigError(f"there is no node {node}; this cluster has {sorted(self._nodes) or 'not started'}")
        return found

    def _prepare(self) -> None:
        self._jars = kafka_jars()
        java = program("java", "install a JDK, 17 or newer, to run Apache Kafka")
        self._root = Path(tempfile.mkdtemp(prefix="headrace-kafka-"))
        ports = free_ports(2 * self._count)
        for number in range(1, self._count + 1):
            self._nodes[number] = _Node(number, ports.pop(), ports.pop(), self._root / str(number))
        cluster_id = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        formatting = []
        for node in self._nodes.values():
            node.folder.mkdir()
            self._write_files(node)
            command = [java, "-cp", f"{self._jars}/*", "-Xmx128m", "-XX:TieredStopAtLevel=1", "kafka.tools.StorageTool"]
            command += ["format", "-t", cluster_id, "-c", str(node.folder / "server.properties")]
            formatting.append((node, self._run(command, node.folder / "format.log")))
        for node, process in formatting:
            if process.wait(self._start_timeout_s) != 0:
                raise Unavailable(f"Kafka could not format its storage:\n{log_tail(node.folder / 'format.log')}")

    def _write_files(self, node: _Node) -> None:
        replication = min(3, self._count)
        listeners = f"PLAINTEXT://{_HOST}:{node.port}"
        properties: dict[str, object] = {
            "process.roles": "broker,controller",
            "node.id": node.id,
            "controller.quorum.voters": ",".join(
                f"{one.id}@{_HOST}:{one.controller_port}" for one in self._nodes.values()
            ),
            "listeners": f"{listeners},CONTROLLER://{_HOST}:{node.controller_port}",
            "advertised.listeners": listeners,
            "controller.listener.names": "CONTROLLER",
            "listener.security.protocol.map": "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT",
            "log.dirs": node.folder / "data",
            "auto.create.topics.enable": "false",
            "default.replication.factor": replication,
            "min.insync.replicas": max(1, replication - 1),
            # Internal topics default to 50 partitions on three nodes: seconds of start-up that nobody needs here.
            "offsets.topic.num.partitions": 4,
            "offsets.topic.replication.factor": replication,
            "transaction.state.log.num.partitions": 4,
            "transaction.state.log.replication.factor": replication,
            "transaction.state.log.min.isr": max(1, replication - 1),
            "share.coordinator.state.topic.replication.factor": replication,
            "share.coordinator.state.topic.min.isr": max(1, replication - 1),
            "group.initial.rebalance.delay.ms": 0,
            # A killed node may register again only when its old session is over, by default after 9 s.
            "broker.session.timeout.ms": 3000,
            "broker.heartbeat.interval.ms": 500,
            "group.min.session.timeout.ms": 500,
            # By default a third of this small heap.
            "log.cleaner.dedupe.buffer.size": 4 << 20,
            **self._properties,
        }
        lines = "".join(f"{name}={value}\n" for name, value in properties.items())
        (node.folder / "server.properties").write_text(lines)
        (node.folder / "log4j2.properties").write_text(_LOG4J.format(path=node.log_path))

    def _spawn_all(self) -> None:
        for node in self._nodes.values():
            self._spawn(node)

    def _spawn(self, node: _Node) -> None:
        java = program("java", "install a JDK, 17 or newer, to run Apache Kafka")
        command = [java, "-cp", f"{self._jars}/*", f"-Xmx{self._heap}", "-Xms64m"]
        command += [f"-Dlog4j2.configurationFile={node.folder / 'log4j2.properties'}", "-XX:+UseSerialGC"]
        command += ["kafka.Kafka", str(node.folder / "server.properties")]
        node.process = self._run(command, node.folder / "console.log")

    @staticmethod
    def _run(command: list[str], output: Path) -> subprocess.Popen[bytes]:
        with output.open("ab") as log:
            return subprocess.Popen(  # noqa: S603 - the command is ours
                bound_to_parent(command), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _await_all(self) -> None:
        self._await(list(self._nodes.values()))

    def _await(self, nodes: list[_Node]) -> None:
        """Waits until each of ``nodes`` knows all of them."""
        deadline = Deadline(self._start_timeout_s)
        wanted = {node.id for node in nodes}
        for node in nodes:
            while not wanted <= known_nodes(_HOST, node.port, timeout_s=1.0):
                if not node.running or deadline.passed:
                    happened = "ended" if not node.running else f"was not up within {self._start_timeout_s:g} s"
                    raise Unavailable(
                        f"Kafka node {node.id} {happened}; the end of its logs:\n"
                        f"{log_tail(node.folder / 'console.log')}\n{log_tail(node.log_path)}"
                    )
                time.sleep(_POLL_S)

    def _end(self, nodes: list[_Node]) -> None:
        for node in nodes:
            if node.process is not None and node.running:
                node.process.terminate()
        deadline = Deadline(_STOP_S)
        for node in nodes:
            if node.process is None:
                continue
            try:
                node.process.wait(deadline.remaining_s)
            except subprocess.TimeoutExpired:
                node.process.kill()
                node.process.wait(_STOP_S)

    def _end_all(self) -> None:
        """By force: the data goes anyway, and an orderly end takes seconds."""
        for node in self._nodes.values():
            if node.process is not None:
                node.process.kill()
                node.process.wait(_STOP_S)
        if self._root != Path():
            shutil.rmtree(self._root, ignore_errors=True)
