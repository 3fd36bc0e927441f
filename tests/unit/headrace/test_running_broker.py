"""How a second terminal finds the embedded broker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.running_broker import DEFAULT_BOOTSTRAP, announced, default_bootstrap, running_bootstrap, state_dir


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "state"
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(folder))
    return folder


def test_it_is_found_while_it_is_announced_and_not_afterwards() -> None:
    assert default_bootstrap() == DEFAULT_BOOTSTRAP
    with announced("127.0.0.1:4567") as found:
        assert found
        assert default_bootstrap() == "127.0.0.1:4567"
    assert running_bootstrap() is None


def test_a_process_that_has_ended_is_not_believed(folder: Path) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    folder.mkdir()
    (folder / "broker.json").write_text(json.dumps({"bootstrap": "127.0.0.1:1", "pid": ended.pid}))
    assert running_bootstrap() is None


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"bootstrap": "a:1", "pid": "x"}'])
def test_a_file_that_is_no_entry_is_passed_over(folder: Path, content: str) -> None:
    folder.mkdir()
    (folder / "broker.json").write_text(content)
    assert default_bootstrap() == DEFAULT_BOOTSTRAP


def test_a_folder_that_cannot_be_written_is_said_and_stops_nothing(folder: Path) -> None:
    folder.write_text("a file where the folder should be")
    with announced("127.0.0.1:4567") as found:
        assert not found


def test_the_end_of_an_earlier_broker_leaves_the_entry_of_a_later_one() -> None:
    with announced("127.0.0.1:2") as _:
        with announced("127.0.0.1:1"):
            earlier = announced("127.0.0.1:3")
            earlier.__enter__()
        assert running_bootstrap() == "127.0.0.1:3"
        earlier.__exit__(None, None, None)


def test_without_the_variable_the_state_folder_of_the_user_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HEADRACE_STATE_DIR")
    monkeypatch.setenv("XDG_STATE_HOME", "/state")
    assert state_dir() == Path("/state/headrace")
