"""One Apache Kafka for all test processes of a run: the first to ask starts it, and ends it when nobody uses it."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra.apache_kafka import KafkaCluster
from infra.kafka_ping import known_nodes

__all__ = ["shared_kafka"]

_OTHERS_S = 900.0


@contextmanager
def shared_kafka(folder: Path) -> Iterator[str]:
    """Bootstrap of a broker that every process with the same ``folder`` shares.

    It belongs to the process that started it, which therefore stays until the last of the others has left.
    """
    address, door, users = folder / "kafka.address", folder / "kafka.door", folder / "kafka.users"
    with users.open("w") as seat:
        cluster: KafkaCluster | None = None
        with _locked(door):
            bootstrap = address.read_text() if address.exists() else ""
            if not _answers(bootstrap):
                cluster = KafkaCluster()
                cluster.__enter__()
                bootstrap = cluster.bootstrap
                address.write_text(bootstrap)
            fcntl.flock(seat, fcntl.LOCK_SH)
        try:
            yield bootstrap
        finally:
            fcntl.flock(seat, fcntl.LOCK_UN)
            if cluster is not None:
                _close(cluster, door, users, address)


def _close(cluster: KafkaCluster, door: Path, users: Path, address: Path) -> None:
    end = time.monotonic() + _OTHERS_S
    while True:
        with _locked(door), users.open("w") as seat:
            if _taken(seat.fileno()) and time.monotonic() < end:
                pass
            else:
                if address.exists() and address.read_text() == cluster.bootstrap:
                    address.unlink()
                cluster.__exit__(None, None, None)
                return
        time.sleep(0.1)


def _taken(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    return False


def _answers(bootstrap: str) -> bool:
    host, _, port = bootstrap.partition(":")
    return bool(port) and bool(known_nodes(host, int(port), timeout_s=2.0))


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
