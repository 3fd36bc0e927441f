"""How many intra-op threads an instance may use: the CPUs this process really has, shared over its instances.

Reads cgroup v2 and v1 quotas and the scheduler's affinity mask. Does not set anything.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from schemas.errors import ModelLoadError

__all__ = ["cpus_available", "thread_override", "threads_for", "threads_shared"]

Reader = Callable[[str], str | None]
"""Path of a file -> its text, or None where there is no such file."""

_OVERRIDE = "intra_op_thread_count"


def threads_for(instances_total: int, parameters: Mapping[str, object] | None = None) -> int:
    """Threads of one instance when ``instances_total`` share this process.

    The model's parameter ``intra_op_thread_count`` overrides the share (0 keeps it). Reads a few small files.

    Raises:
        ModelLoadError: the parameter is no whole number, or negative.
    """
    override = thread_override(parameters or {})
    if override is not None:
        return override
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return threads_shared(cpus_available(_read, affinity=affinity), instances_total)


def threads_shared(cpus: float, instances_total: int) -> int:
    """``cpus`` shared evenly, rounded down, at least 1."""
    return max(1, int(cpus) // max(1, instances_total))


def thread_override(parameters: Mapping[str, object]) -> int | None:
    """The model's own wish, or None when it has none.

    Raises:
        ModelLoadError: it is no whole number, or negative.
    """
    value = parameters.get(_OVERRIDE)
    if value is None:
        return None
    try:
        count = int(str(value))
    except ValueError:
        count = -1
    if count < 0:
        raise ModelLoadError(f"parameter {_OVERRIDE} is {value!r}; set a whole number, or 0 for the automatic share")
    return count or None


def cpus_available(read: Reader, *, affinity: int) -> float:
    """The smallest of the affinity mask's size and every CPU quota from this process' cgroup up to the root.

    Args:
        read: how files are read; tests give a dictionary's ``get``.
        affinity: CPUs the scheduler may use.
    """
    return min([float(affinity), *_quotas(read)])


def _quotas(read: Reader) -> Iterator[float]:
    for line in (read("/proc/self/cgroup") or "").splitlines():
        hierarchy, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if hierarchy == "0" and not controllers:
            for folder in _up_from("/sys/fs/cgroup", path):
                yield from _quota_v2(read(f"{folder}/cpu.max"))
        elif "cpu" in controllers.split(","):
            for mount in ("/sys/fs/cgroup/cpu", f"/sys/fs/cgroup/{controllers}"):
                for folder in _up_from(mount, path):
                    yield from _quota_v1(read(f"{folder}/cpu.cfs_quota_us"), read(f"{folder}/cpu.cfs_period_us"))


def _up_from(mount: str, path: str) -> Iterator[str]:
    # Inside a container without its own cgroup namespace the path is the host's, and only the mount itself exists.
    here = PurePosixPath(path if path.startswith("/") else f"/{path}")
    for folder in (here, *here.parents):
        yield mount if str(folder) == "/" else f"{mount}{folder}"


def _quota_v2(text: str | None) -> Iterator[float]:
    quota, _, period = (text or "max").strip().partition(" ")
    if quota != "max":
        yield from _ratio(quota, period or "100000")


def _quota_v1(quota: str | None, period: str | None) -> Iterator[float]:
    if quota is not None and period is not None:
        yield from _ratio(quota, period)  # -1: no quota


def _ratio(quota: str, period: str) -> Iterator[float]:
    try:
        microseconds, each = int(quota), int(period)
    except ValueError:
        return  # a kernel that writes something else limits nothing that we could honour
    if microseconds > 0 and each > 0:
        yield microseconds / each


def _read(path: str) -> str | None:
    try:
        return Path(path).read_text()
    except OSError:
        return None
