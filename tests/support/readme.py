"""The fenced blocks of README.md, and a newcomer who works through them with one shell a terminal.

What a block is for stands after its language, where no reader sees it:

- ``sh run``: commands that must succeed. ``until="text"`` runs them again until their output holds it.
- ``sh background ready="text"``: a command that goes on; the next block waits until its output holds the text.
- ``sh make``: targets of the Makefile, which are looked for and not run.
- ``terminal=N``: which terminal, 1 when it is not said. A new terminal begins in the clone.
- ``python file=PATH``, ``yaml file=PATH``: a file to be saved, from where terminal 1 is.
- ``text output``: what the block before printed, ids and times apart. ``output=begins``: its beginning.
  ``output=shape``: numbers apart, too.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infra.child import free_port
from tests.support.waiting import eventually_sync

__all__ = ["Block", "Newcomer", "blocks", "same"]

_FENCE = re.compile(r"^```(\w+)([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_WAIT_S = 30.0


@dataclass(frozen=True)
class Block:
    language: str
    marks: Mapping[str, str]
    text: str
    line: int

    @property
    def terminal(self) -> int:
        return int(self.marks.get("terminal", "1"))


def blocks(text: str) -> Iterator[Block]:
    for match in _FENCE.finditer(text):
        words = (word.partition("=") for word in shlex.split(match[2]))
        marks = {name: value for name, _, value in words}
        yield Block(match[1], marks, match[3], text.count("\n", 0, match.start()) + 1)


def same(text: str, *, shape: bool = False) -> list[str]:
    """The lines of an output without what differs from run to run."""
    text = re.sub(r"\b[0-9a-f]{32}\b", "ID", text)
    text = re.sub(r"\b\d{13}\b", "TIME", text)
    text = re.sub(r'"partition":\d+,"offset":\d+', "PLACE", text)
    text = re.sub(r"(partition|offset) \d+|(headrace\.models\.\w+):\d+:\d+", r"\1\2 N", text)
    if shape:
        text = re.sub(r"^\S+-\d+(?= +headrace )", "NODE", text, flags=re.MULTILINE)
        text = re.sub(r"(?<![\w.])\d+(\.\d+)?[%smh]?(?!\w)", "N", text)
    return [" ".join(line.split()) for line in text.strip().splitlines()]


@dataclass
class Newcomer:
    """A clone's folder in which blocks are run, on ports of its own in place of those that the README shows."""

    clone: Path
    ports: dict[str, str] = field(default_factory=lambda: {port: str(free_port()) for port in ("9092", "9400", "9401")})
    folders: dict[int, Path] = field(default_factory=dict)
    started: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    said: str = ""

    def folder(self, terminal: int) -> Path:
        return self.folders.setdefault(terminal, self.clone)

    def follow(self, block: Block) -> None:
        """Does what the block asks for; ``said`` is then what it printed."""
        if "file" in block.marks:
            path = self.folder(1) / block.marks["file"]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(self._on_own_ports(block.text))
        elif "run" in block.marks:
            self.said = self._run(block)
        elif "background" in block.marks:
            self.said = self._start(block)

    def check(self, block: Block) -> None:
        """Compares what was said last with what the block shows."""
        kind = block.marks["output"]
        shown, said = (same(text, shape=kind == "shape") for text in (block.text, self.said))
        assert (said[: len(shown)] if kind == "begins" else said) == shown, f"README.md:{block.line}"

    def leave(self) -> None:
        """Ctrl-C in every terminal, the newest first; the embedded broker goes last."""
        for _, process in sorted(self.started.items(), reverse=True):
            os.killpg(process.pid, signal.SIGINT)
            process.wait(_WAIT_S)

    def _run(self, block: Block) -> str:
        wanted = block.marks.get("until", "")

        def once() -> tuple[str] | None:
            said = self._shell(block)
            return (said,) if wanted in said else None

        (said,) = eventually_sync(once, _WAIT_S, every_s=0.2, why=f"{wanted!r} from README.md:{block.line}") or ("",)
        return said

    def _shell(self, block: Block) -> str:
        where = self.clone / f".terminal-{block.terminal}"
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", f"{self._on_own_ports(block.text)}\npwd >{shlex.quote(str(where))}"],
            cwd=self.folder(block.terminal),
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_WAIT_S,
        )
        assert done.returncode == 0, f"README.md:{block.line} ended with {done.returncode}: {done.stderr}{done.stdout}"
        self.folders[block.terminal] = Path(where.read_text().strip())
        return self._on_shown_ports(done.stdout)

    def _start(self, block: Block) -> str:
        output = self.clone / f".output-{block.terminal}"
        script = self._on_own_ports(block.text).replace(
            "headrace up ", f"headrace up --broker-port {self.ports['9092']} --ops-port {self.ports['9400']} "
        )
        with output.open("w") as out, output.with_suffix(".err").open("w") as err:
            process = subprocess.Popen(
                # A session of its own, so that Ctrl-C reaches what the shell started and nothing else.
                ["bash", "-euo", "pipefail", "-c", script],
                cwd=self.folder(block.terminal),
                env=self._environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.started[block.terminal] = process

        def ready() -> bool:
            both = output.read_text() + output.with_suffix(".err").read_text()
            assert process.poll() is None, f"README.md:{block.line} ended with {process.returncode}: {both}"
            return block.marks["ready"] in both

        eventually_sync(ready, _WAIT_S, why=f"{block.marks['ready']!r} from README.md:{block.line}")
        return self._on_shown_ports(output.read_text())

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        commands = Path(sys.executable).parent
        return {
            **kept,
            "PATH": f"{commands}:{kept['PATH']}",
            "HEADRACE_STATE_DIR": str(self.clone),
            "PYTHONUNBUFFERED": "1",
        }

    def _on_own_ports(self, text: str) -> str:
        for shown, own in self.ports.items():
            text = text.replace(shown, own)
        return text

    def _on_shown_ports(self, text: str) -> str:
        for shown, own in self.ports.items():
            text = text.replace(own, shown)
        return text
