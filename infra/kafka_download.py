"""Apache Kafka's jars from Maven Central, once, into a cache that processes may share. It starts no broker."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from schemas.clock import Deadline
from schemas.errors import ConfigError, Unavailable

__all__ = ["KAFKA_VERSION", "kafka_jars", "program"]

KAFKA_VERSION: Final = "4.4.0"
_DOWNLOAD_S: Final = 600.0

# The server logs through slf4j 1 and brings log4j without the piece between them.
_POM: Final = f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>headrace</groupId>
  <artifactId>kafka-runtime</artifactId>
  <version>1</version>
  <packaging>pom</packaging>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka_2.13</artifactId><version>{KAFKA_VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.apache.logging.log4j</groupId><artifactId>log4j-slf4j-impl</artifactId><version>2.25.5</version>
    </dependency>
  </dependencies>
</project>
"""


def program(name: str, remedy: str) -> str:
    """Path of ``name``.

    Raises:
        ConfigError: it is not installed.
    """
    path = shutil.which(name)
    if path is None:
        raise ConfigError(f"{name} is not on the PATH; {remedy}")
    return path


def kafka_jars() -> Path:
    """Folder of jars, downloaded when it is not there yet (about 43 MB). Blocks; safe from many processes at once.

    Raises:
        ConfigError: Maven is missing.
        Unavailable: the download failed or took too long.
    """
    cache = Path(os.environ.get("HEADRACE_CACHE") or Path.home() / ".cache" / "headrace")
    jars = cache / f"kafka-{KAFKA_VERSION}"
    if jars.is_dir():
        return jars
    cache.mkdir(parents=True, exist_ok=True)
    with _locked(cache / f"kafka-{KAFKA_VERSION}.lock", Deadline(_DOWNLOAD_S)):
        if not jars.is_dir():
            with tempfile.TemporaryDirectory(dir=cache, prefix="download-") as folder:
                _download(Path(folder))
                # Appears whole or not at all.
                (Path(folder) / "jars").rename(jars)
    return jars


def _download(folder: Path) -> None:
    maven = program("mvn", "install Maven to fetch Apache Kafka")
    (folder / "pom.xml").write_text(_POM)
    command = [maven, "-q", "-B", "dependency:copy-dependencies", "-DincludeScope=runtime"]
    command.append(f"-DoutputDirectory={folder / 'jars'}")
    try:
        done = subprocess.run(  # noqa: S603 - the command is ours
            command, cwd=folder, capture_output=True, text=True, timeout=_DOWNLOAD_S, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        raise Unavailable(f"Maven did not fetch Apache Kafka {KAFKA_VERSION} within {_DOWNLOAD_S:g} s") from None
    if done.returncode != 0:
        raise Unavailable(
            f"Maven could not fetch Apache Kafka {KAFKA_VERSION} (status {done.returncode}); check its repository "
            f"settings and the network:\n{(done.stdout + done.stderr)[-2000:]}"
        )


@contextmanager
def _locked(path: Path, deadline: Deadline) -> Iterator[None]:
    with path.open("w") as lock:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if deadline.passed:
                    raise Unavailable(f"another process has held {path} for too long; end it, or remove it") from None
                time.sleep(0.1)
        yield  # Closing the file gives the lock back, also when this process dies.
