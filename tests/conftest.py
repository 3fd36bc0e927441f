"""What holds for every test: those that need a CUDA device skip, with the reason, where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest


def _no_device() -> str | None:
    """Why the tests marked ``gpu`` cannot run here; None when they can."""
    if not Path("/dev/nvidiactl").exists():
        return "no CUDA device: /dev/nvidiactl does not exist"
    import onnxruntime

    if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
        return "onnxruntime here has no CUDA: install the gpu extra in place of node"
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    on_device = [item for item in items if item.get_closest_marker("gpu") is not None]
    if on_device and (reason := _no_device()) is not None:
        for item in on_device:
            item.add_marker(pytest.mark.skip(reason=reason))
