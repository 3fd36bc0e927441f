from __future__ import annotations

import pytest

from gpu_runtime.threads import cpus_available, thread_override, threads_for, threads_shared
from schemas.errors import ModelLoadError

CASES: dict[str, tuple[dict[str, str], float]] = {
    "no cgroup files": ({}, 8),
    "v2, container with its own namespace": (
        {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "200000 100000\n"},
        2,
    ),
    "v2, no quota": ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
    "v2, a parent is tighter": (
        {
            "/proc/self/cgroup": "0::/a/b\n",
            "/sys/fs/cgroup/a/b/cpu.max": "400000 100000\n",
            "/sys/fs/cgroup/a/cpu.max": "150000 100000\n",
        },
        1.5,
    ),
    "v1, the host's path in the file and only the mount here": (
        {
            "/proc/self/cgroup": "12:memory:/x\n3:cpu,cpuacct:/docker/f00\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_quota_us": "300000\n",
            "/sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
        },
        3,
    ),
    "v1, no quota": (
        {
            "/proc/self/cgroup": "3:cpu,cpuacct:/\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us": "-1\n",
            "/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us": "100000\n",
        },
        8,
    ),
    "unreadable numbers": ({"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "lots\n"}, 8),
}


@pytest.mark.parametrize("case", CASES)
def test_cpus_are_the_least_of_quota_and_affinity(case: str) -> None:
    files, expected = CASES[case]
    assert cpus_available(files.get, affinity=8) == expected
    assert cpus_available(files.get, affinity=1) == 1


def test_E5_a_two_cpu_quota_on_eight_cores_gives_three_models_at_most_two_threads_each() -> None:
    files = {"/proc/self/cgroup": "0::/\n", "/sys/fs/cgroup/cpu.max": "200000 100000\n"}
    cpus = cpus_available(files.get, affinity=8)
    assert [threads_shared(cpus, instances) for instances in (1, 2, 3)] == [2, 1, 1]


def test_threads_are_never_fewer_than_one() -> None:
    assert threads_shared(0.5, 1) == 1
    assert threads_shared(4, 0) == 4


def test_a_parameter_overrides_the_share() -> None:
    assert threads_for(3, {"intra_op_thread_count": "7"}) == 7
    assert thread_override({"intra_op_thread_count": 0}) is None
    assert thread_override({}) is None
    assert threads_for(10_000) == 1


@pytest.mark.parametrize("value", ["many", -1, 1.5])
def test_a_wrong_override_is_refused(value: object) -> None:
    with pytest.raises(ModelLoadError, match="intra_op_thread_count"):
        thread_override({"intra_op_thread_count": value})
