"""What a probe is told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["Health"]


@dataclass(frozen=True, slots=True)
class Health:
    """``reason`` says in words why ``ok`` is False; ``detail`` is for the body of the answer."""

    ok: bool
    reason: str = ""
    detail: Mapping[str, object] = field(default_factory=dict)
