"""What holds for every test: brokers, each started once and when first asked for, and tests marked ``gpu`` skip, with
the reason, where there is no CUDA device.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from infra.broker import EmbeddedBroker
from tests.support.shared_kafka import shared_kafka


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


@pytest.fixture(autouse=True)
def no_log_to_a_stream_of_an_earlier_test() -> Iterator[None]:
    """A command run in this process sets up logging to the stderr of its test, which is closed afterwards."""
    root = logging.getLogger()
    before = list(root.handlers)
    yield
    for handler in list(root.handlers):
        if type(handler) is logging.StreamHandler and handler not in before:
            root.removeHandler(handler)


def _root(factory: pytest.TempPathFactory) -> Path:
    """A folder that all processes of this run share."""
    base = factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


@pytest.fixture(scope="session")
def noida() -> Iterator[str]:
    """Bootstrap of an embedded broker, one for each test process."""
    ready, end = threading.Event(), threading.Event()
    bootstrap: list[str] = []
    failure: list[BaseException] = []

    async def run() -> None:
        async with EmbeddedBroker() as broker:
            bootstrap.append(broker.bootstrap)
            ready.set()
            await asyncio.to_thread(end.wait)

    def thread() -> None:
        try:
            asyncio.run(run())
        except BaseException as error:  # noqa: BLE001 - raised again below, in the thread that waits
            failure.append(error)
        finally:
            ready.set()

    # Tests have an event loop each; the broker's has to outlive them all.
    keeper = threading.Thread(target=thread, name="noida", daemon=True)
    keeper.start()
    ready.wait(30)
    if failure:
        raise failure[0]
    yield bootstrap[0]
    end.set()
    keeper.join(30)
    if failure:
        raise failure[0]


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Bootstrap of one real Apache Kafka, shared by all test processes of the run. Mark such tests ``kafka``."""
    if shutil.which("java") is None or shutil.which("mvn") is None:
        pytest.skip("real Apache Kafka needs a JDK 17 and Maven")
    with shared_kafka(_root(tmp_path_factory)) as bootstrap:
        yield bootstrap


@pytest.fixture(params=["noida", pytest.param("kafka", marks=pytest.mark.kafka)])
def any_broker(request: pytest.FixtureRequest) -> str:
    """Bootstrap of each broker in turn."""
    bootstrap: str = request.getfixturevalue(request.param)
    return bootstrap
