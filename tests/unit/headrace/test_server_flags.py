"""Every setting in its three places, through the servers' own command lines: flag, variable, file."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from headrace.cli import app
from headrace.settings import Settings

VALUES: dict[str, tuple[object, object, object]] = {
    "models": (Path("a"), Path("b"), Path("c")),
    "bootstrap": ("a:1", "b:2", "c:3"),
    "group": ("a", "b", "c"),
    "namespace": ("a", "b", "c"),
    "partitions": (1, 2, 3),
    "replication": (1, 2, 3),
    "shutdown_grace_s": (1.5, 2.5, 3.5),
    "revoke_grace_s": (1.5, 2.5, 3.5),
    "stuck_after_s": (1.5, 2.5, 3.5),
    "announce_interval_s": (1.5, 2.5, 3.5),
    "tombstones": ("forward", "skip", "forward"),
    "ops_host": ("a", "b", "c"),
    "ops_port": (1, 2, 3),
    "log_format": ("json", "text", "json"),
    "log_level": ("debug", "warning", "error"),
    "tracing": (True, False, True),
}
"""By flag, by variable, in the file."""

Load = Callable[..., Settings]


@pytest.fixture(params=["node", "up"])
def load(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Load:
    """Runs the command as far as its settings, and gives them."""
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        monkeypatch.delenv(name)
    found: list[Settings] = []

    async def serve(settings: Settings, *others: object) -> None:
        found.append(settings)

    monkeypatch.setattr(f"headrace.commands.{request.param}._serve", serve)

    def once(flags: list[str], variables: dict[str, str], config: Path) -> Settings:
        line = [request.param, "--models", ".", "--bootstrap", "any:1", *flags, "--config", str(config)]
        if "--models" in flags or "HEADRACE_MODELS" in variables:
            del line[1:3]
        if "--bootstrap" in flags or "HEADRACE_BOOTSTRAP" in variables:
            line.remove("--bootstrap")
            line.remove("any:1")
        result = CliRunner().invoke(app, line, env=variables)
        assert result.exit_code == 0, result.output
        return found[-1]

    return once


def flag(name: str, value: object) -> list[str]:
    dashed = f"--{name.replace('_', '-')}"
    return [dashed] if value is True else [dashed, str(value)]


def test_the_list_of_this_test_is_that_of_the_settings() -> None:
    assert [*VALUES, "kafka"] == list(Settings.model_fields)


@pytest.mark.parametrize("name", VALUES)
def test_a_flag_outranks_its_variable_and_the_variable_its_line_in_the_file(
    load: Load, tmp_path: Path, name: str
) -> None:
    by_flag, by_variable, in_file = VALUES[name]
    config = tmp_path / "settings.yaml"
    config.write_text(yaml.safe_dump({name: str(in_file) if isinstance(in_file, Path) else in_file}))
    variables = {f"HEADRACE_{name.upper()}": str(by_variable)}
    assert getattr(load(flag(name, by_flag), variables, config), name) == by_flag
    assert getattr(load([], variables, config), name) == by_variable
    if name not in ("models", "bootstrap"):  # which the command must be given in any case
        assert getattr(load([], {}, config), name) == in_file


@pytest.mark.parametrize("command", ["node", "up", "publish", "tail", "status", "broker", "demo"])
def test_no_flag_takes_a_secret(command: str) -> None:
    said = CliRunner().invoke(app, [command, "--help"]).output.lower()
    assert "example: headrace" in said
    assert not [word for word in ("password", "secret", "sasl", "token") if word in said]
