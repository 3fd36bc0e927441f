"""What signals do to a process that serves."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from headrace.stopping import stop_on_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name)
async def test_the_first_signal_asks_to_stop(number: signal.Signals) -> None:
    stop = asyncio.Event()
    before = signal.signal(number, signal.SIG_DFL)  # it is ignored where the tests run under nohup
    try:
        with stop_on_signals(stop):
            os.kill(os.getpid(), number)
            async with asyncio.timeout(5.0):
                await stop.wait()
    finally:
        signal.signal(number, before)


async def test_a_hang_up_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        stop = asyncio.Event()
        with stop_on_signals(stop):
            os.kill(os.getpid(), signal.SIGHUP)
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
            await asyncio.sleep(0)
            assert not stop.is_set()
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
