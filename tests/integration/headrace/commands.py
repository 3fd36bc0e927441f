"""The command as a user runs it: a process, its output and its exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import orjson

from tests.support.waiting import eventually_sync

__all__ = ["ROOT", "Home", "Server", "get", "make_repository"]

ROOT = Path(__file__).resolve().parents[3]

ECHO = """
backend: python
max_batch_size: 32
max_queue_delay_ms: 1
inputs: [{name: x, datatype: FP32, shape: [2]}]
outputs: [{name: y, datatype: FP32, shape: [2]}]
retry: {max_attempts: 2, initial_delay_ms: 10, max_delay_ms: 20}
"""

DOUBLES = """
import pathlib

class Model:
    def __init__(self, context):
        self.mended = pathlib.Path(context.path) / "mended"

    def infer(self, batch):
        if (batch["x"] < 0).any() and not self.mended.exists():
            raise ValueError("negative")
        return {"y": batch["x"] * 2}
"""


def make_repository(folder: Path) -> Path:
    """A model that doubles, and fails on negative numbers until its folder holds a file called ``mended``."""
    version = folder / "echo" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(DOUBLES)
    (version.parent / "headrace.yaml").write_text(ECHO)
    return folder


@dataclass(frozen=True)
class Home:
    """A user's environment: a state folder of their own and no settings but ``settings``."""

    folder: Path

    def environment(self, settings: Mapping[str, str] | None = None) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        return {**kept, "HEADRACE_STATE_DIR": str(self.folder), "PYTHONPATH": str(ROOT), **(settings or {})}

    def run(
        self, *arguments: str, stdin: str = "", settings: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "headrace", *arguments],
            cwd=self.folder,
            env=self.environment(settings),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
        )

    def lines(self, *arguments: str) -> list[dict[str, object]]:
        """Runs a command that must succeed and gives its JSON lines."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        return [orjson.loads(line) for line in done.stdout.splitlines()]

    @contextlib.contextmanager
    def server(self, *arguments: str, settings: Mapping[str, str] | None = None) -> Iterator[Server]:
        out, err = self.folder / f"{arguments[0]}.out", self.folder / f"{arguments[0]}.err"
        with out.open("w") as stdout, err.open("w") as stderr:
            process = subprocess.Popen(
                [sys.executable, "-m", "headrace", *arguments],
                cwd=self.folder,
                env=self.environment({"PYTHONUNBUFFERED": "1", **(settings or {})}),
                stdout=stdout,
                stderr=stderr,
            )
        try:
            yield Server(process, out, err)
        finally:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Server:
    process: subprocess.Popen[bytes]
    out: Path
    err: Path

    def says(self, text: str, *, deadline_s: float = 30.0) -> str:
        """Waits until stdout or stderr holds ``text``; both of them."""

        def both() -> str:
            said = self.out.read_text() + self.err.read_text()
            assert text in said or self.process.poll() is None, f"ended with {self.process.returncode}: {said}"
            return said if text in said else ""

        return eventually_sync(both, deadline_s, why=f"{text!r} in the output")

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(30)


def get(port: int, page: str) -> tuple[int, dict[str, object]]:
    """Status and body of a page of the ops port; 0 while nobody listens."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{page}", timeout=5) as answer:
            return answer.status, orjson.loads(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, orjson.loads(error.read())
    except urllib.error.URLError:
        return 0, {}
