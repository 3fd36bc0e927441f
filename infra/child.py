"""Child processes that cannot outlive this one, and reading the end of their logs.

It starts nothing by itself and restarts nothing.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
from pathlib import Path

__all__ = ["bound_to_parent", "free_port", "free_ports", "log_tail"]

# PR_SET_PDEATHSIG is 1. It survives execv, so the small Python is gone once the child runs. The parent may have died
# before prctl was called: then nobody would send the signal, and the child must not start.
_STUB = (
    "import ctypes,os,sys;"
    "ctypes.CDLL(None).prctl(1,int(sys.argv[1]));"
    "os.getppid()==int(sys.argv[2]) or os._exit(1);"
    "os.execv(sys.argv[3],sys.argv[3:])"
)


def bound_to_parent(command: list[str], *, death_signal: signal.Signals = signal.SIGKILL) -> list[str]:
    """``command`` wrapped so that the kernel sends it ``death_signal`` when the thread that starts it ends.

    That thread is the one that forks, so start it from a thread that lives as long as the child should.
    ``command[0]`` must be a path. A fork hook in this process would do the same, and may deadlock beside threads.
    """
    return [sys.executable, "-I", "-S", "-c", _STUB, str(int(death_signal)), str(os.getpid()), *command]


def free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """So many different ports that are free now. Asked for one by one, the same port may come twice."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket(socket.AF_INET)) for _ in range(count)]
        for one in sockets:
            one.bind((host, 0))
        return [one.getsockname()[1] for one in sockets]


def free_port(host: str = "127.0.0.1", *, port: int = 0) -> int:
    """A port that is free now: ``port``, or any. Another process may take it before it is used.

    Raises:
        OSError: ``port`` is taken, or ``host`` is not an address of this machine.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # As servers do: closed connections may linger.
        probe.bind((host, port))
        found: int = probe.getsockname()[1]
        return found


def log_tail(path: Path, *, lines: int = 8) -> str:
    """The last lines of a log, for an error message; a note in their place when there is none."""
    try:
        with path.open("rb") as log:
            log.seek(max(0, path.stat().st_size - 8192))
            text = log.read().decode(errors="replace").strip()
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join(text.splitlines()[-lines:]) or "(the log is empty)"
