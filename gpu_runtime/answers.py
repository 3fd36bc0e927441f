"""Rows that came back: cutting a batch's answer into its requests' and joining the parts of a split request.

Arrays are cut by views; they are copied only where an answer comes from more than one execution.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from gpu_runtime.request import Outcome, Request
from schemas.errors import HeadraceError, ModelError
from schemas.tensors import Array, Tensors

__all__ = ["Assembly", "Piece", "cut", "failed", "join"]


@dataclass(slots=True)
class Piece:
    """The answer to ``rows`` consecutive rows; ``outputs`` is None when all of them failed."""

    rows: int
    outputs: Tensors | None
    errors: dict[int, HeadraceError] = field(default_factory=dict)

    def slice(self, start: int, stop: int) -> Piece:
        if start == 0 and stop == self.rows:
            return self
        errors = (
            {row - start: error for row, error in self.errors.items() if start <= row < stop} if self.errors else {}
        )
        if self.outputs is None or len(errors) == stop - start:
            return Piece(stop - start, None, errors)
        return Piece(stop - start, {name: array[start:stop] for name, array in self.outputs.items()}, errors)


def failed(rows: int, error: HeadraceError) -> Piece:
    """All of ``rows`` failed for one reason."""
    return Piece(rows, None, dict.fromkeys(range(rows), error))


def cut(pieces: Sequence[Piece], sizes: Sequence[int]) -> list[Piece]:
    """The answer to a batch, cut into consecutive answers of ``sizes`` rows."""
    if len(pieces) == 1:
        whole = pieces[0]
        if len(sizes) == 1:
            return [whole]
        cuts = []
        at = 0
        outputs = whole.outputs
        for size in sizes:
            stop = at + size
            if whole.errors or outputs is None:
                cuts.append(whole.slice(at, stop))
            else:
                cuts.append(Piece(size, {name: array[at:stop] for name, array in outputs.items()}))
            at = stop
        return cuts
    result: list[Piece] = []
    rest = [*reversed(pieces)]
    for size in sizes:
        found: list[Piece] = []
        while size:
            piece = rest.pop()
            if piece.rows > size:
                rest.append(piece.slice(size, piece.rows))
                piece = piece.slice(0, size)
            found.append(piece)
            size -= piece.rows
        result.append(join(found))
    return result


def join(pieces: Sequence[Piece]) -> Piece:
    """Consecutive answers as one. Where outputs differ in shape they cannot be one tensor, and every row fails."""
    if len(pieces) == 1:
        return pieces[0]
    errors: dict[int, HeadraceError] = {}
    rows = 0
    for piece in pieces:
        errors.update({rows + row: error for row, error in piece.errors.items()})
        rows += piece.rows
    first = next((piece.outputs for piece in pieces if piece.outputs is not None), None)
    if first is None:
        return Piece(rows, None, errors)
    outputs: Tensors = {}
    for name, like in first.items():
        arrays = [_blank(piece.rows, like) if piece.outputs is None else piece.outputs[name] for piece in pieces]
        shapes = {array.shape[1:] for array in arrays}
        if len(shapes) > 1:
            text = f"output {name!r} came back with row shapes {sorted(shapes)} for rows of one request"
            return failed(rows, ModelError(f"{text}; send those rows one by one"))
        outputs[name] = np.concatenate(arrays)
    return Piece(rows, outputs, errors)


def _blank(rows: int, like: Array) -> Array:
    shape = (rows, *like.shape[1:])
    return np.full(shape, b"", dtype=np.object_) if like.dtype.kind == "O" else np.zeros(shape, dtype=like.dtype)


class Assembly:
    """The parts of one request that ran in several batches; answered once, when the last is in or it is cut short."""

    __slots__ = ("_batch_rows", "_compute_s", "_pieces", "_queue_s", "_request", "_rows")

    def __init__(self, request: Request) -> None:
        self._request = request
        self._pieces: dict[int, Piece] = {}
        self._rows = 0
        self._queue_s = 0.0
        self._compute_s = 0.0
        self._batch_rows = 0

    def add(self, start: int, piece: Piece, *, queue_s: float, compute_s: float, batch_rows: int) -> None:
        """The rows from ``start`` came back. Parts may come in any order."""
        self._pieces[start] = piece
        self._rows += piece.rows
        self._queue_s = max(self._queue_s, queue_s)
        self._compute_s += compute_s
        self._batch_rows = max(self._batch_rows, batch_rows)

    @property
    def complete(self) -> bool:
        return self._rows == self._request.rows

    def outcome(self, missing: HeadraceError | None = None) -> Outcome:
        """The answer, in the order of the rows; rows that never came back have ``missing``."""
        pieces: list[Piece] = []
        at = 0
        for start, piece in sorted(self._pieces.items()):
            if start > at and missing is not None:
                pieces.append(failed(start - at, missing))
            pieces.append(piece)
            at = start + piece.rows
        if at < self._request.rows and missing is not None:
            pieces.append(failed(self._request.rows - at, missing))
        whole = join(pieces)
        return Outcome(whole.outputs, whole.errors, self._queue_s, self._compute_s, self._batch_rows)
