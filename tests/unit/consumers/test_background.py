"""Work beside a block ends with it, and its failure ends the block."""

from __future__ import annotations

import asyncio

import pytest

from consumers.background import Background
from tests.support.loop_turns import turns


class Worker:
    def __init__(self) -> None:
        self.state = "new"

    async def work(self) -> None:
        self.state = "working"
        try:
            await asyncio.Event().wait()
        finally:
            self.state = "ended"


async def fail(error: Exception) -> None:
    raise error


async def test_the_end_of_the_block_ends_the_work() -> None:
    worker = Worker()
    async with Background(worker.work()):
        await turns(2)
        assert worker.state == "working"
    assert worker.state == "ended"


async def test_work_that_fails_ends_the_block_and_the_other_work_with_its_own_error() -> None:
    worker = Worker()
    with pytest.raises(ValueError, match="first"):
        async with Background(worker.work(), fail(ValueError("first"))):
            await asyncio.Event().wait()
    assert worker.state == "ended"


async def test_a_block_that_fails_ends_the_work_with_its_own_error() -> None:
    worker = Worker()

    async def block() -> None:
        async with Background(worker.work()):
            await turns(2)
            raise KeyError("block")

    with pytest.raises(KeyError):
        await block()
    assert worker.state == "ended"


async def test_of_several_errors_the_first_is_raised_alone() -> None:
    with pytest.raises(ValueError, match="first"):
        async with Background(fail(ValueError("first")), fail(KeyError("second"))):
            await asyncio.Event().wait()


async def test_cancelling_the_block_ends_the_work() -> None:
    worker = Worker()

    async def block() -> None:
        async with Background(worker.work()):
            await asyncio.Event().wait()

    task = asyncio.create_task(block())
    await turns(3)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert worker.state == "ended"
