"""The start-up guard: a stranger's package before one of ours is named, and nothing else is refused."""

from __future__ import annotations

import os
import subprocess
import sys
import types
from pathlib import Path

import pytest

from headrace.guard import PACKAGES, check_packages
from schemas.errors import ConfigError

ROOT = Path(__file__).resolve().parents[3]


def python(code: str, *, path: list[Path], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Runs a fresh interpreter with ``path`` before everything installed."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return subprocess.run([sys.executable, *code.split(" ", 1)], capture_output=True, text=True, env=env, cwd=cwd)


def stranger(folder: Path, name: str) -> Path:
    package = folder / name
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('the guard imported a stranger')\n")
    return package


def hidden(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """Makes the import system look for ``name`` anew."""
    for module in [known for known in sys.modules if known == name or known.startswith(f"{name}.")]:
        monkeypatch.delitem(sys.modules, module)


def test_our_own_packages_pass() -> None:
    check_packages()


@pytest.mark.parametrize("name", ["infra", "consumers", "pipelines", "gpu_runtime"])
def test_a_package_before_ours_is_named_with_its_folder(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = stranger(tmp_path, name)
    hidden(monkeypatch, name)
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=name) as caught:
        check_packages()
    assert str(package) in str(caught.value)
    assert "environment of its own" in str(caught.value)


def test_a_plain_module_before_ours_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pipelines.py").write_text("")
    hidden(monkeypatch, "pipelines")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match=r"pipelines\.py"):
        check_packages()


def test_a_module_already_imported_under_our_name_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pipelines", types.ModuleType("pipelines"))
    with pytest.raises(ConfigError, match="pipelines"):
        check_packages()


def test_a_folder_of_pipeline_files_does_not_count_as_a_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pipelines").mkdir()
    (tmp_path / "pipelines" / "intake.yaml").write_text("name: intake\n")
    hidden(monkeypatch, "pipelines")
    monkeypatch.syspath_prepend(str(tmp_path))
    check_packages()


def test_a_missing_package_is_named_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"'no_such_package' .* missing .* install Headrace again"):
        check_packages(("no_such_package",))


def test_a_distribution_that_owns_the_intruder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stranger(tmp_path, "pipelines")
    info = tmp_path / "acme_flows-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-flows\nVersion: 1.0\n")
    (info / "top_level.txt").write_text("pipelines\n")
    hidden(monkeypatch, "pipelines")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(ConfigError, match="acme-flows"):
        check_packages()


def test_a_strange_schemas_is_named_by_import_headrace(tmp_path: Path) -> None:
    package = stranger(tmp_path, "schemas")
    done = python("-c import headrace", path=[tmp_path, ROOT], cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("_headrace_schemas_errors.ConfigError: the import package 'schemas'")
    assert str(package) in done.stderr


def test_a_callers_own_pipelines_package_does_not_stop_the_client_library(tmp_path: Path) -> None:
    stranger(tmp_path, "pipelines")
    done = python("-c import headrace", path=[tmp_path, ROOT], cwd=tmp_path)
    assert done.returncode == 0, done.stderr


def test_the_command_ends_with_one_line_and_status_2(tmp_path: Path) -> None:
    package = stranger(tmp_path, "consumers")
    done = python("-m headrace", path=[tmp_path, ROOT], cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("headrace: the import package 'consumers' is taken by")
    assert str(package) in done.stderr


def test_the_guard_knows_every_package_of_the_distribution() -> None:
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert sorted(PACKAGES) == sorted(project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
