"""Signals as a request to stop: the first asks, the second ends the process at once."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

__all__ = ["stop_on_signals"]

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
"""SIGHUP is a terminal that closes; where it is ignored (``nohup``) it stays so."""

log = logging.getLogger("headrace.process")


@contextmanager
def stop_on_signals(stop: asyncio.Event) -> Iterator[None]:
    """For the time of the block SIGTERM, SIGINT and SIGHUP set ``stop``; a second one ends in 143, 130 or 129 with no
    clean-up."""
    loop = asyncio.get_running_loop()

    def received(number: signal.Signals) -> None:
        if stop.is_set():
            print(
                f"{number.name} again: ending at once; what was unfinished is read again", file=sys.stderr, flush=True
            )
            os._exit(128 + number)
        log.info("%s: finishing what is under way; a second signal ends at once", number.name)
        stop.set()

    heard = [each for each in _SIGNALS if each is not signal.SIGHUP or signal.getsignal(each) is not signal.SIG_IGN]
    for number in heard:
        loop.add_signal_handler(number, received, number)
    try:
        yield
    finally:
        for number in heard:
            loop.remove_signal_handler(number)
