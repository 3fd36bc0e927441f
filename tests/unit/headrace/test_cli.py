"""The command line without a broker: help, usage, errors and exit codes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli import app, main
from headrace.commands.options import seconds
from headrace.version import __version__
from schemas.errors import ConfigError

COMMANDS = ("up", "node", "broker", "publish", "tail", "status", "validate", "demo")
DEAD = ("list", "show", "replay")

ECHO = """
backend: python
max_batch_size: 8
inputs: [{name: x, datatype: FP32, shape: [2]}]
outputs: [{name: y, datatype: FP32, shape: [2]}]
"""


@pytest.fixture(autouse=True)
def clean_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HEADRACE_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    version = tmp_path / "models" / "echo" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("class Model: ...")
    (version.parent / "headrace.yaml").write_text(ECHO)
    return tmp_path / "models"


@pytest.fixture
def nobody() -> str:
    """An address where no broker answers."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


def run(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, list(arguments))
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.exit_code, result.stdout, result.stderr


@pytest.mark.parametrize("command", [(name,) for name in COMMANDS] + [("dead", name) for name in DEAD])
def test_each_command_has_help_with_an_example_of_itself(command: tuple[str, ...]) -> None:
    code, out, _ = run(*command, "--help")
    assert code == 0
    assert f"Example: headrace {' '.join(command)}" in out


def test_the_version_is_printed() -> None:
    assert run("--version") == (0, f"headrace {__version__}\n", "")


@pytest.mark.parametrize("command", ["up", "node"])
def test_the_servers_take_the_flags_of_the_design(command: str) -> None:
    out = run(command, "--help")[1]
    for flag in ("--models", "--bootstrap", "--group", "--ops-port", "--namespace", "--config"):
        assert flag in out
    for later in ("--http-port", "--pipelines", "password"):
        assert later not in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["publish", "echo"],
        ["publish", "echo", "--json", "{}", "--jsonl", "f"],
        ["publish", "echo", "--json", "{}", "stray-file"],
        ["publish", "echo", "--json", "{}", "--deadline", "soon"],
        ["publish", "echo", "--json", "{}", "--header", "no-sign"],
        ["tail"],
        ["tail", "echo", "--max", "0"],
        ["dead", "show", "echo"],
        ["node", "--bootstrap", "a:1"],
        ["node", "--models", "."],
        ["up"],
        ["demo", "chess"],
        ["nonsense"],
    ],
)
def test_wrong_usage_ends_in_2_with_nothing_on_stdout(arguments: list[str]) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert "Error" in err


@pytest.mark.parametrize(("text", "expected"), [("2s", 2), ("500ms", 0.5), ("1.5m", 90), ("3", 3), ("1h", 3600)])
def test_durations_are_read_with_their_units(text: str, expected: float) -> None:
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["", "s", "-1s", "0", "1d", "1 2"])
def test_what_is_no_duration_is_refused(text: str) -> None:
    with pytest.raises(typer.BadParameter, match="is no duration"):
        seconds(text)


def test_validate_lists_the_models_of_a_good_repository(repository: Path) -> None:
    code, out, err = run("validate", str(repository))
    assert (code, err) == (0, "")
    assert "echo" in out
    assert "x FP32[2]" in out


def test_validate_says_all_that_is_wrong_and_ends_in_1(repository: Path) -> None:
    for name in ("one", "two"):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text("")
        (repository / name / "headrace.yaml").write_text("max_batch_size: many\n")
    code, out, err = run("validate", str(repository))
    assert code == 1
    assert "echo" in out
    for name in ("one", "two"):
        assert f"{name}/headrace.yaml" in err


def test_validate_of_an_empty_folder_ends_in_1(tmp_path: Path) -> None:
    code, _, err = run("validate", str(tmp_path))
    assert code == 1
    assert "holds no model" in err


def test_an_error_is_one_line_with_its_code_and_no_traceback(
    repository: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HEADRACE_OPS_PROT", "1")
    with pytest.raises(SystemExit) as ended:
        main(["node", "--models", str(repository), "--bootstrap", "a:1"])
    assert ended.value.code == 1
    expected = "error[config]: HEADRACE_OPS_PROT: there is no setting 'ops_prot'; did you mean ops_port?\n"
    assert capsys.readouterr().err == expected


def test_debug_shows_where_an_error_came_from(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_DEBUG", "1")
    with pytest.raises(ConfigError):
        main(["node", "--models", str(repository / "echo" / "1" / "model.py"), "--bootstrap", "a:1"])


def test_a_repository_with_errors_stops_the_start_before_the_broker_is_asked(
    repository: Path, nobody: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "echo" / "headrace.yaml").write_text("max_batch_size: many\n")
    with pytest.raises(SystemExit) as ended:
        main(["node", "--models", str(repository), "--bootstrap", nobody])
    assert ended.value.code == 1
    err = capsys.readouterr().err
    assert err.startswith("error[config]: the model repository")
    assert "max_batch_size" in err


def test_a_broker_that_does_not_answer_is_said_within_the_deadline(
    nobody: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("headrace.kafka_clients.CONNECT_S", 0.3)
    with pytest.raises(SystemExit) as ended:
        main(["publish", "echo", "--json", '{"x": [1]}', "--bootstrap", nobody])
    assert ended.value.code == 1
    err = capsys.readouterr().err
    assert err.startswith(f"error[unavailable]: no Kafka broker answers at {nobody} within 0.3 s")
    assert err.count("\n") == 1


def test_help_is_quick_because_it_imports_no_kafka_and_no_numpy() -> None:
    script = (
        "import sys; sys.argv = ['headrace', '--help']\n"
        "from headrace.cli import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'aiokafka', 'numpy', 'pydantic', 'yaml', 'msgspec', 'onnxruntime'} & set(sys.modules)\n"
        "print('heavy:', sorted(heavy))"
    )
    root = Path(__file__).resolve().parents[3]
    started = time.perf_counter()
    done = subprocess.run([sys.executable, "-c", script], cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "heavy: []"
    assert time.perf_counter() - started < 10  # a busy machine; what is imported says the rest


def test_importing_headrace_is_light_and_its_names_are_there() -> None:
    script = (
        "import sys, headrace\n"
        "heavy = {'aiokafka', 'numpy', 'pydantic'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "assert all(hasattr(headrace, name) for name in headrace.__all__)\n"
        "assert headrace.Client.__name__ == 'Client'\n"
        "assert not hasattr(headrace, 'nonsense')\n"
    )
    root = Path(__file__).resolve().parents[3]
    subprocess.run([sys.executable, "-c", script], cwd=root, check=True)
