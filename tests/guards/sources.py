"""The files that the guards look at."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.guard import PACKAGES

__all__ = ["ROOT", "modules", "tracked_files"]

ROOT = Path(__file__).resolve().parents[2]


def modules(*folders: str) -> Iterator[Path]:
    """Python files of the named folders; of our six packages when none is named."""
    for folder in folders or PACKAGES:
        yield from sorted((ROOT / folder).rglob("*.py"))


def tracked_files() -> list[Path]:
    """Files under version control. Skips the test where there is none, as in an unpacked sdist."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git checkout: there is no list of tracked files")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]
