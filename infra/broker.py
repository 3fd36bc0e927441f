"""An embedded Kafka-compatible broker (noida-db) as a supervised child, for trying things out and for tests.

It keeps nothing safe: see `DATA_LOSS_WARNING`. Where records matter, use Apache Kafka. Four more things differ from it
(0.2.3): a consumer that was killed keeps its partitions, and blocks every rebalance, until the broker is restarted; a
fetch returns all there is, whatever limit the consumer asks for; and an empty fetch is answered at once, whatever
``max_wait`` says, so an idle consumer that does not pause asks over and over; and what a producer
commits after an aborted transaction counts as aborted too. So tests of crashes and
of memory, and figures of any kind, need Apache Kafka.
"""

from __future__ import annotations

import asyncio
import importlib.resources
import logging
import shutil
import signal
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Final

from infra.child import bound_to_parent, free_port, log_tail
from infra.kafka_ping import known_nodes
from schemas.clock import Clock, Deadline, monotonic
from schemas.errors import ConfigError, Unavailable

__all__ = ["DATA_LOSS_WARNING", "EmbeddedBroker"]

DATA_LOSS_WARNING: Final = (
    "The embedded broker is for trying things out: it holds records in memory, saves them from time to time, "
    "and LOSES records and committed offsets when it or this machine crashes. A consumer that is killed keeps its "
    "partitions until the broker is restarted. Use Apache Kafka for real work."
)

_STOP_S: Final = 5.0
"""From SIGTERM, on which the broker saves its data, to SIGKILL."""
_PORT_ATTEMPTS: Final = 3
_FIRST_PAUSE_S: Final = 0.1
_LONGEST_PAUSE_S: Final = 5.0
_STEADY_S: Final = 30.0
"""A broker that lived so long has earned a fresh budget of restarts."""

log = logging.getLogger("headrace.broker")


class EmbeddedBroker:
    """``async with EmbeddedBroker() as broker: broker.bootstrap``

    Starting -> running -> (died -> restarted with back-off, on the same port and data)* -> stopped | given up. It is
    given up after ``max_restarts`` deaths in quick succession; `wait` then raises, and so does every later one.

    The broker ends with this process, ``kill -9`` included: the kernel sees to it. More exactly it ends with the
    thread that entered, so enter from one that lives as long. Its log is ``<data_dir>/broker.log``.

    Args:
        port: 0 picks a free one, which `bootstrap` then names.
        data_dir: kept after the end; None uses a temporary one and removes it.
        start_timeout_s: how long one start may take until the broker answers.
    """

    def __init__(
        self,
        *,
        port: int = 0,
        data_dir: Path | None = None,
        host: str = "127.0.0.1",
        start_timeout_s: float = 15.0,
        max_restarts: int = 5,
        clock: Clock = monotonic,
    ) -> None:
        self._port = port
        self._any_port = port == 0
        self._kept_dir = data_dir
        self._host = host
        self._start_timeout_s = start_timeout_s
        self._max_restarts = max_restarts
        self._clock = clock
        self._data_dir = Path()
        self._process: asyncio.subprocess.Process | None = None
        self._supervisor: asyncio.Task[None] | None = None
        self.restarts = 0

    @property
    def bootstrap(self) -> str:
        return f"{self._host}:{self._port}"

    @property
    def data_dir(self) -> Path:
        return self._data_dir

    @property
    def log_path(self) -> Path:
        return self._data_dir / "broker.log"

    @property
    def pid(self) -> int | None:
        """Of the running broker; None between a death and the restart."""
        process = self._process
        return None if process is None or process.returncode is not None else process.pid

    async def __aenter__(self) -> EmbeddedBroker:
        binary = _binary()
        try:
            if self._kept_dir is None:
                self._data_dir = Path(tempfile.mkdtemp(prefix="headrace-broker-"))
            else:
                self._data_dir = self._kept_dir
                self._data_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(
                f"cannot make the broker's data directory {self._data_dir}: {error}; name another one"
            ) from None
        try:
            await self._first_start(binary)
        except BaseException:
            await self._stop()
            raise
        self._supervisor = asyncio.create_task(self._supervise(binary), name="broker supervisor")
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._supervisor is not None:
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
            if not self._supervisor.cancelled():
                self._supervisor.exception()  # Seen: whoever needs it had it from `wait`.
        await self._stop()

    async def wait(self) -> None:
        """Returns never.

        Raises:
            Unavailable: the broker was given up; the message ends with its log.
        """
        if self._supervisor is None:
            raise Unavailable("the embedded broker is not started; enter it with 'async with' first")
        await asyncio.shield(self._supervisor)

    async def _first_start(self, binary: Path) -> None:
        if not self._any_port:
            # Asked beforehand: whoever holds the port may be a broker too, and would answer in ours' place.
            try:
                free_port(self._host, port=self._port)
            except OSError as error:
                raise ConfigError(
                    f"the broker cannot listen on {self.bootstrap}: {error.strerror}; give another port, or 0 for any"
                ) from None
            await self._start(binary)
            return
        for attempt in range(1, _PORT_ATTEMPTS + 1):
            self._port = free_port(self._host)
            try:
                await self._start(binary)
                return
            except Unavailable:
                # Between finding a free port and using it another process may have taken it.
                if attempt == _PORT_ATTEMPTS or "already in use" not in log_tail(self.log_path):
                    raise

    async def _start(self, binary: Path) -> None:
        """Starts the process and waits until it answers.

        Raises:
            Unavailable: it ended or did not answer in time.
        """
        command = [str(binary), "start", "--only", "kafka", "--kafka-port", str(self._port)]
        command += ["--host", self._host, "--data-dir", str(self._data_dir)]
        with self.log_path.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                # SIGTERM, so that a parent's death still lets it save.
                *bound_to_parent(command, death_signal=signal.SIGTERM),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the parent, which then stops this in order.
            )
        self._process = process
        deadline = Deadline(self._start_timeout_s, self._clock)
        exited = asyncio.create_task(process.wait())
        try:
            while True:
                done, _ = await asyncio.wait([exited], timeout=0.02)
                if done:
                    raise Unavailable(
                        f"the embedded broker ended with status {process.returncode} at its start; "
                        f"the end of {self.log_path}:\n{log_tail(self.log_path)}"
                    )
                if await asyncio.to_thread(known_nodes, self._host, self._port, timeout_s=1.0):
                    return
                if deadline.passed:
                    raise Unavailable(
                        f"the embedded broker did not answer on {self.bootstrap} within {self._start_timeout_s:g} s; "
                        f"the end of {self.log_path}:\n{log_tail(self.log_path)}"
                    )
        finally:
            exited.cancel()

    async def _supervise(self, binary: Path) -> None:
        quick_deaths, born = 0, self._clock()
        while True:
            process = self._process
            if process is not None:
                status = await process.wait()
                log.warning("the embedded broker ended with status %s and may have lost records; restarting it", status)
            if self._clock() - born > _STEADY_S:
                quick_deaths = 0
            quick_deaths += 1
            if quick_deaths > self._max_restarts:
                raise Unavailable(
                    f"the embedded broker died {quick_deaths} times in a row and is given up; "
                    f"the end of {self.log_path}:\n{log_tail(self.log_path)}"
                )
            await asyncio.sleep(min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (quick_deaths - 1)))
            born = self._clock()
            self.restarts += 1
            try:
                await self._start(binary)
            except Unavailable as error:
                log.warning("%s", error)
                await self._end_process()

    async def _stop(self) -> None:
        await self._end_process()
        if self._kept_dir is None:
            await asyncio.to_thread(shutil.rmtree, self._data_dir, ignore_errors=True)

    async def _end_process(self) -> None:
        process, self._process = self._process, None
        if process is None or process.returncode is not None:
            return
        process.terminate()
        try:
            await asyncio.wait_for(process.wait(), _STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def _binary() -> Path:
    try:
        binary = Path(str(importlib.resources.files("noida_db"))) / "noida-db"
    except ModuleNotFoundError:
        raise ConfigError("the embedded broker is not installed; run: pip install 'headrace[embedded]'") from None
    if not binary.is_file():
        raise ConfigError(f"the embedded broker has no program at {binary}; run: pip install 'headrace[embedded]'")
    if not binary.stat().st_mode & 0o100:
        binary.chmod(0o755)
    return binary
