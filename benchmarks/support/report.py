"""One JSON line a case, and a table of them all at the end."""

from __future__ import annotations

import json

from rich.console import Console
from rich.table import Table

__all__ = ["Report"]


class Report:
    """Collects cases of one benchmark. ``ratio`` is ours / reference."""

    def __init__(self, bench: str) -> None:
        self._bench = bench
        self._cases: list[dict[str, object]] = []

    def case(self, name: str, *, ours: float, reference: float, unit: str, against: str) -> float:
        """Prints the case and returns its ratio."""
        ratio = ours / reference
        line: dict[str, object] = {
            "bench": self._bench,
            "case": name,
            "ours": round(ours, 3),
            "reference": round(reference, 3),
            "ratio": round(ratio, 3),
            "unit": unit,
            "against": against,
        }
        self._cases.append(line)
        print(json.dumps(line), flush=True)
        return ratio

    def table(self) -> None:
        table = Table(title=self._bench)
        for column in ("case", "ours", "reference", "ratio", "unit", "against"):
            table.add_column(column, justify="left" if column in ("case", "unit", "against") else "right")
        for case in self._cases:
            table.add_row(
                str(case["case"]),
                f"{case['ours']:,}",
                f"{case['reference']:,}",
                f"{case['ratio']:.2f}",
                str(case["unit"]),
                str(case["against"]),
            )
        Console().print(table)
