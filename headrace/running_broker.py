"""Where the embedded broker of this user is, so that commands in a second terminal find it with no flags.

One small file in the state folder, written by `headrace up` and `headrace broker`, believed while its writer lives.
"""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

__all__ = ["DEFAULT_BOOTSTRAP", "DEFAULT_PORT", "announced", "default_bootstrap", "running_bootstrap", "state_dir"]

DEFAULT_PORT: Final = 9092
DEFAULT_BOOTSTRAP: Final = f"127.0.0.1:{DEFAULT_PORT}"


def state_dir() -> Path:
    """``HEADRACE_STATE_DIR``, else the user's state folder of the XDG base directories."""
    if given := os.environ.get("HEADRACE_STATE_DIR"):
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "headrace"


def _file() -> Path:
    return state_dir() / "broker.json"


def running_bootstrap() -> str | None:
    """Of the embedded broker that runs now for this user; None when none does."""
    try:
        entry = json.loads(_file().read_text(encoding="utf-8"))
        bootstrap, pid = str(entry["bootstrap"]), int(entry["pid"])
        os.kill(pid, 0)
    except PermissionError:
        return None  # the number now belongs to another user's process
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return bootstrap


def default_bootstrap() -> str:
    return running_bootstrap() or DEFAULT_BOOTSTRAP


@contextmanager
def announced(bootstrap: str) -> Iterator[bool]:
    """Writes the file for the time of the block. Yields False where it cannot be written: then flags are needed."""
    path = _file()
    entry = json.dumps({"bootstrap": bootstrap, "pid": os.getpid()})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as draft:
            draft.write(entry)
        Path(draft.name).replace(path)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        # A later broker may have written its own.
        with contextlib.suppress(OSError):
            if path.read_text(encoding="utf-8") == entry:
                path.unlink()
