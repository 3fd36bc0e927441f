"""A process that stands still for good is ended, with its stacks; one that turns is left alone."""

from __future__ import annotations

import subprocess
import sys
import textwrap

PROGRAM = """
import asyncio, time
from headrace.watchdog import ended_when_stuck

async def main():
    async with ended_when_stuck(0.5):
        for _ in range({turns}):
            await asyncio.sleep(0.1)
        {then}
    time.sleep(0.8)  # outside nobody watches
    print("done")

asyncio.run(main())
"""


def run(turns: int, then: str) -> subprocess.CompletedProcess[str]:
    program = textwrap.dedent(PROGRAM).format(turns=turns, then=then)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)


def test_a_process_whose_loop_turns_is_left_alone() -> None:
    ended = run(12, "pass")
    assert (ended.returncode, ended.stdout.strip()) == (0, "done"), ended.stderr


def test_a_process_that_stands_still_is_ended_with_its_stacks() -> None:
    ended = run(1, "time.sleep(30)")
    assert ended.returncode == 1
    assert "Timeout" in ended.stderr
    assert "most recent call first" in ended.stderr
    assert ended.stdout == ""
