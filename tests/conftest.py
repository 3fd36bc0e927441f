"""What holds for every test: those that need a device skip with the reason, those on real Kafka share one worker."""

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


# Before xdist, which reads the groups in the same hook.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason: str | None = None
    asked = False
    for item in items:
        if item.get_closest_marker("kafka") is not None:
            item.add_marker(pytest.mark.xdist_group("kafka"))
        if item.get_closest_marker("gpu") is not None:
            if not asked:
                asked, reason = True, _no_device()
            if reason is not None:
                item.add_marker(pytest.mark.skip(reason=reason))
