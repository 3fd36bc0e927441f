"""What is built and installed: our six packages with their types, the extras, and nobody else under our names."""

from __future__ import annotations

import email.message
import email.parser
import os
import re
import subprocess
import sys
import tarfile
import zipfile
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

from headrace.guard import PACKAGES
from tests.guards.sources import ROOT

EXTRAS = {"node", "gpu", "embedded", "arrow", "tracing", "demo", "dev"}


def build(target: str, folder: Path) -> Path:
    """Builds with the hatchling that is installed, so that nothing is fetched."""
    command = [sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    (built,) = folder.iterdir()
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", tmp_path_factory.mktemp("sdist"))


def names_in(wheel: Path) -> list[str]:
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def metadata(text: bytes) -> email.message.Message:
    return email.parser.Parser().parsestr(text.decode())


def test_the_wheel_holds_exactly_our_six_packages(wheel: Path) -> None:
    tops = {name.split("/")[0] for name in names_in(wheel)}
    assert {top for top in tops if not top.endswith(".dist-info")} == set(PACKAGES)


def test_every_package_in_the_wheel_is_typed(wheel: Path) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= set(names_in(wheel))


def test_the_wheel_holds_every_module_and_no_test(wheel: Path) -> None:
    built = {name for name in names_in(wheel) if name.endswith(".py")}
    ours = {str(path.relative_to(ROOT)) for package in PACKAGES for path in (ROOT / package).rglob("*.py")}
    assert ours <= built
    assert not [name for name in built if "test_" in name]


def test_the_wheel_names_the_extras_and_the_command(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (info,) = {name.split("/")[0] for name in archive.namelist() if ".dist-info/" in name}
        about = metadata(archive.read(f"{info}/METADATA"))
        commands = archive.read(f"{info}/entry_points.txt").decode()
    assert set(about.get_all("Provides-Extra", [])) == EXTRAS
    assert about["License-Expression"] == "Apache-2.0"
    assert "headrace = headrace.__main__:main" in commands


CORE = {
    "aiokafka", "cramjam", "ml-dtypes", "msgspec", "numpy", "opentelemetry-api", "orjson", "prometheus-client",
    "pydantic", "pyyaml", "rich", "typer",
}  # fmt: skip
"""What `pip install headrace` asks for: small things with wheels, and neither a runtime nor a broker."""

BY_EXTRA = {
    "node": {"onnxruntime", "protobuf"},
    "gpu": {"onnxruntime-gpu", "cuda-python"},
    "embedded": {"noida-db"},
    "arrow": {"pyarrow"},
    "tracing": {"opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http"},
}


def test_a_producer_installs_no_runtime_and_no_broker_and_each_extra_only_its_own(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        required = metadata(archive.read(name)).get_all("Requires-Dist", [])
    asked: dict[str, set[str]] = {}
    for line in required:
        extra = re.search(r"extra == ['\"]([\w-]+)['\"]", line)
        asked.setdefault(extra[1] if extra else "", set()).add(re.split(r"[^\w-]", line)[0])
    assert asked[""] == CORE
    assert {extra: asked[extra] for extra in BY_EXTRA} == BY_EXTRA


def test_the_sdist_names_the_extras_and_can_be_built_from(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        top = archive.getnames()[0].split("/")[0]
        names = {name.removeprefix(f"{top}/") for name in archive.getnames()}
        member = archive.extractfile(f"{top}/PKG-INFO")
        assert member is not None
        about = metadata(member.read())
    assert set(about.get_all("Provides-Extra", [])) == EXTRAS
    assert {"pyproject.toml", "README.md", "LICENSE", "headrace/version.py"} <= names
    assert not [name for name in names if name.startswith((".venv", ".ci"))]


def test_no_other_installed_distribution_owns_our_names() -> None:
    owners = packages_distributions()
    assert {name: owners[name] for name in PACKAGES if set(owners.get(name, [])) - {"headrace"}} == {}


# What a producer does not have: importing any of these ends the interpreter with its name.
BLOCKED = ("onnxruntime", "noida_db", "magika", "pyarrow", "onnx", "opentelemetry.sdk", "torch")
PRODUCER = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.startswith({BLOCKED!r}):
            sys.exit("a producer's install has no " + name)

sys.meta_path.insert(0, Blocked())
import headrace
for name in headrace.__all__:
    getattr(headrace, name)
print(*sorted({{name.split(".")[0] for name in sys.modules}} & set({PACKAGES!r})))
"""


def test_a_producer_imports_headrace_without_the_extras(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", PRODUCER], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # The client library stands on the contracts alone: this is also what `headrace/__init__.py` has guarded.
    assert set(done.stdout.split()) == {"headrace", "schemas"}
