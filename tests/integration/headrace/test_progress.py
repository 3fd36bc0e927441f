"""What a person at a terminal sees, and a pipe does not."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.headrace.commands import Home, make_repository

RECORDS = 3000


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    here = Home(tmp_path_factory.mktemp("home"))
    models = make_repository(here.folder / "models")
    with here.server("up", "--models", str(models), "--ops-port", "0", "--broker-port", "0") as up:
        up.says("headrace is up")
        yield here


def on_a_terminal(home: Home, *arguments: str) -> tuple[str, str]:
    """stdout of a command whose stderr is a terminal, and what that terminal shows."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [sys.executable, "-m", "headrace", *arguments],
        env=home.environment({"TERM": "xterm", "COLUMNS": "100"}),
        cwd=home.folder,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=theirs,
    )
    os.close(theirs)
    shown = bytearray()
    with process, os.fdopen(ours, "rb", buffering=0) as terminal:
        assert process.stdout is not None
        try:
            while piece := terminal.read(4096):
                shown += piece
        except OSError:  # how Linux says that the other end of a terminal is closed
            pass
        out = process.stdout.read().decode()
        assert process.wait(60) == 0, shown
    return out, shown.decode()


def write_lines(folder: Path) -> Path:
    file = folder / "in.jsonl"
    file.write_text("".join(f'{{"x": [{number}, 0]}}\n' for number in range(RECORDS)))
    return file


def test_publishing_shows_its_progress_on_a_terminal_and_keeps_stdout_clean(home: Home) -> None:
    file = write_lines(home.folder)
    out, shown = on_a_terminal(home, "publish", "echo", "--jsonl", str(file))
    assert out == ""
    assert "publishing" in shown
    assert "100%" in shown
    assert f"published {RECORDS} of {RECORDS}" in shown


def test_a_pipe_gets_no_progress(home: Home) -> None:
    done = home.run("publish", "echo", "--jsonl", str(write_lines(home.folder)))
    assert done.stdout == ""
    assert done.stderr == f"published {RECORDS} of {RECORDS} to headrace.models.echo\n"
