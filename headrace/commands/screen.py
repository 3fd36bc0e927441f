"""The console that tables are printed on: as wide as the terminal, and wide enough for every line elsewhere."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["table_console"]

_WIDE = 500


def table_console() -> Console:
    """On stdout, with no markup: model names and messages are shown as they are."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else _WIDE
    return Console(markup=False, highlight=False, width=width)
