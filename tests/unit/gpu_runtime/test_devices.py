"""Which GPUs a machine is said to have: what CUDA counts, and none where CUDA cannot be asked."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from gpu_runtime.devices import usable_gpus


def pretend(monkeypatch: pytest.MonkeyPatch, error: int, count: int) -> None:
    runtime = ModuleType("cuda.bindings.runtime")
    runtime.cudaGetDeviceCount = lambda: (error, count)  # type: ignore[attr-defined] # a stand-in module
    for name in ("cuda", "cuda.bindings"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", runtime)


def test_every_device_that_cuda_counts_is_usable(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 0, 3)
    assert usable_gpus() == (0, 1, 2)


def test_a_driver_that_answers_with_an_error_has_no_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, 100, 0)
    assert usable_gpus() == ()


def test_without_cuda_python_there_are_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", None)
    assert usable_gpus() == ()
