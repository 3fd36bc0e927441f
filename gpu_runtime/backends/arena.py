"""When to give an allocator's unused memory back: after large inputs have stopped coming."""

from __future__ import annotations

__all__ = ["ArenaShrink"]


class ArenaShrink:
    """Says, run by run, whether the arena should shrink at that run's end.

    True once ``patience`` runs in a row were smaller than a quarter of the largest input seen since the last
    shrink. Steady traffic, and traffic that alternates within ``patience`` runs, never shrinks and so never pays
    for allocating anew.
    """

    def __init__(self, *, patience: int = 16) -> None:
        self._patience = patience
        self._peak_bytes = 0
        self._recent_peak_bytes = 0
        self._small_runs = 0

    def due(self, input_bytes: int) -> bool:
        """Counts a run of that many input bytes."""
        self._peak_bytes = max(self._peak_bytes, input_bytes)
        if input_bytes * 4 >= self._peak_bytes:
            self._small_runs = self._recent_peak_bytes = 0
            return False
        self._small_runs += 1
        self._recent_peak_bytes = max(self._recent_peak_bytes, input_bytes)
        if self._small_runs < self._patience:
            return False
        self._peak_bytes = self._recent_peak_bytes
        self._small_runs = self._recent_peak_bytes = 0
        return True
