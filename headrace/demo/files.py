"""Finds a few hundred files of many kinds on this machine and reads what fits of each. Writes nothing."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Final

__all__ = ["Sample", "sample_files"]

MAX_BYTES: Final = 900_000
"""What fits into a record under Kafka's default limit, with room for headers."""
_TOTAL_BYTES: Final = 64 * 1024 * 1024
_VISITED: Final = 6_000
"""Files looked at below each root: enough for variety, and quick on a slow disk."""


@dataclass(frozen=True, slots=True)
class Sample:
    """``content`` is the beginning of the file where it is larger than a record."""

    path: Path
    content: bytes


def _roots() -> list[Path]:
    wanted = [Path(sysconfig.get_paths()["purelib"]), Path("/usr/share"), Path(sysconfig.get_paths()["stdlib"])]
    wanted += [Path("/etc"), Path("/usr/bin"), Path(sys.prefix)]
    return [root for root in dict.fromkeys(wanted) if root.is_dir()]


def sample_files(count: int, roots: list[Path] | None = None) -> list[Sample]:
    """Up to ``count`` files, as many different suffixes as there are. The same machine gives the same files. Blocks."""
    by_kind: dict[tuple[str, str], deque[Path]] = defaultdict(deque)
    for root in _roots() if roots is None else roots:
        for path in islice(_files_below(root), _VISITED):
            by_kind[str(root), path.suffix.lower()].append(path)
    samples: list[Sample] = []
    left = _TOTAL_BYTES
    waiting = deque(by_kind[kind] for kind in sorted(by_kind))
    while waiting and len(samples) < count:
        paths = waiting.popleft()
        content = _read(paths.popleft(), left)
        if paths:
            waiting.append(paths)
        if content is not None:
            left -= len(content.content)
            samples.append(content)
    return samples


def _files_below(root: Path) -> Iterator[Path]:
    for folder, folders, names in os.walk(root):  # passes over folders that it may not read
        folders[:] = sorted(name for name in folders if name != "__pycache__")
        for name in sorted(names):
            path = Path(folder, name)
            if path.is_file() and not path.is_symlink():
                yield path


def _read(path: Path, left: int) -> Sample | None:
    """None for a file that may not be read, or is more than is left to send."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES)
    except OSError:
        return None
    return Sample(path, content) if len(content) <= left else None
