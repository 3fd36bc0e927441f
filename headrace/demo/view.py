"""The demo on the screen: a live table on a terminal, plain lines elsewhere, and the summary."""

from __future__ import annotations

from collections import Counter, deque
from types import TracebackType
from typing import TYPE_CHECKING, Final

from rich.console import Console
from rich.live import Live
from rich.table import Table

if TYPE_CHECKING:
    from headrace.demo.filetype import Answered, Outcome

__all__ = ["View", "summary"]

_SHOWN_ROWS: Final = 15
_SHOWN_TYPES: Final = 12


class View:
    """``with View(...) as view: view.show(answered)``"""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._done = 0
        self._last: deque[Answered] = deque(maxlen=_SHOWN_ROWS)
        self._live = Live(console=console, refresh_per_second=12) if console.is_terminal else None

    def __enter__(self) -> View:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update(self._table(), refresh=True)
            self._live.stop()

    def show(self, answered: Answered) -> None:
        self._done += 1
        self._last.append(answered)
        if self._live is not None:
            self._live.update(self._table())
        else:
            print(" ".join(_columns(answered)))

    def _table(self) -> Table:
        table = Table(title=f"{self._done} of {self._total} files", box=None, pad_edge=False)
        table.add_column("file", no_wrap=True, overflow="ellipsis", width=48)
        table.add_column("type", no_wrap=True, width=14)
        for name in ("score", "latency", "batch"):
            table.add_column(name, justify="right")
        for answered in self._last:
            table.add_row(*_columns(answered))
        return table


def _columns(answered: Answered) -> tuple[str, ...]:
    return (
        str(answered.sample.path),
        answered.label,
        f"{answered.score:.3f}",
        f"{answered.latency_s * 1000:.0f} ms",
        str(answered.batch_rows),
    )


def summary(outcome: Outcome) -> str:
    """Plain text, for any output."""
    latencies = sorted(answered.latency_s * 1000 for answered in outcome.answers)
    count = len(latencies)
    types = Counter(answered.label for answered in outcome.answers)
    widest = max((len(label) for label, _ in types.most_common(_SHOWN_TYPES)), default=0)
    most = types.most_common(1)[0][1] if types else 1
    lines = [
        f"{label:<{widest}}  {number:>4}  {'#' * max(1, round(30 * number / most))}"
        for label, number in types.most_common(_SHOWN_TYPES)
    ]
    if len(types) > _SHOWN_TYPES:
        lines.append(f"and {len(types) - _SHOWN_TYPES} more types")
    lines += [
        "",
        f"records    {count} in {outcome.wall_s:.2f} s, {count / max(outcome.wall_s, 1e-9):.0f} records/s",
        f"batches    {outcome.batches}, {outcome.rows / max(1, outcome.batches):.1f} rows each on average",
    ]
    if latencies:
        p50, p99 = latencies[count // 2], latencies[min(count - 1, count * 99 // 100)]
        lines.append(f"latency    p50 {p50:.0f} ms, p99 {p99:.0f} ms, through Kafka and back")
    return "\n".join(lines)
