"""Runs one batch on one backend, in the thread that owns it, and recovers what can be recovered.

``stack -> infer -> check -> cut``. What fails, in this order: rows that the model names fail alone; out of memory
halves the batch and remembers the size that fitted; any other exception has the batch tried row by row, so that only
the poison row fails; a dead device is for the caller. Knows no threads and no event loop.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from gpu_runtime.answers import Piece, cut, failed
from gpu_runtime.backend import Backend
from gpu_runtime.batch import Batch, DropCode, Part, why_unwanted
from gpu_runtime.outputs import check_outputs
from gpu_runtime.request import Parameters, Request
from schemas.clock import Clock, monotonic
from schemas.errors import DeviceError, HeadraceError, ModelError, OutOfMemoryError, RowErrors
from schemas.model import ModelConfig
from schemas.tensors import Tensors

__all__ = ["BatchResult", "BatchRunner", "is_out_of_memory"]

_log = logging.getLogger("headrace.runtime")

_SAY_AGAIN_S: Final = 10.0
"""From one failure in the log to the next; every one is in the record's answer."""


@dataclass(slots=True)
class BatchResult:
    """
    Attributes:
        pieces: one a part: its rows' answer, or why it was not wanted any more when its turn came.
        started: when the batch began, on the runtime's clock.
        compute_s: seconds in the model, retries included.
        executed_rows: rows in the largest execution that did not run out of memory; 0 when there was none.
        limit: rows that are known to fit in memory; the maximum until memory has run out once.
    """

    pieces: list[Piece | DropCode]
    started: float
    compute_s: float
    executed_rows: int
    limit: int


def is_out_of_memory(error: BaseException) -> bool:
    """Ours, Python's, and any class of that name (PyTorch's and CuPy's are called so). Backends translate the rest."""
    return isinstance(error, MemoryError | OutOfMemoryError) or type(error).__name__ == "OutOfMemoryError"


class BatchRunner:
    """One backend's batches, one after the other. May block for as long as the model does."""

    def __init__(self, backend: Backend, config: ModelConfig, *, clock: Clock = monotonic) -> None:
        self._backend = backend
        self._config = config
        self._clock = clock
        self._limit = max(1, config.max_batch_size)
        self._compute_s = 0.0
        self._executed_rows = 0
        self._said_at = float("-inf")

    def run(self, batch: Batch) -> BatchResult:
        """Answers every part; expired, cancelled and withdrawn ones are left out of the execution.

        Raises:
            DeviceError: the device is dead; nothing of the batch is answered.
        """
        started = self._clock()
        self._compute_s = 0.0
        self._executed_rows = 0
        verdicts = [_unwanted(part.request, started) for part in batch.parts]
        pieces: list[Piece | DropCode]
        if any(verdicts):
            wanted = [part for part, verdict in zip(batch.parts, verdicts, strict=True) if verdict is None]
            answers = iter(self._answer(wanted))
            pieces = [next(answers) if verdict is None else verdict for verdict in verdicts]
        else:
            pieces = [*self._answer(batch.parts)]
        return BatchResult(pieces, started, self._compute_s, self._executed_rows, self._limit)

    def _answer(self, parts: Sequence[Part]) -> list[Piece]:
        """One piece a part."""
        sizes = [part.stop - part.start for part in parts]
        rows = sum(sizes)
        if not rows:
            return []
        try:
            inputs = _Inputs(_stack(parts), _parameters(parts), rows)
        except ValueError as error:
            return cut([failed(rows, ModelError(f"rows of one signature do not stack: {error}"))], sizes)
        except MemoryError:
            return cut([failed(rows, OutOfMemoryError(f"no memory to stack a batch of {rows} rows"))], sizes)
        return cut(self._fit(inputs), sizes)

    def _fit(self, inputs: _Inputs) -> list[Piece]:
        """In as few executions as memory allows."""
        pieces: list[Piece] = []
        limit = self._limit
        at = 0
        while at < inputs.rows:
            size = min(limit, inputs.rows - at)
            try:
                pieces.extend(self._try(inputs, at, at + size))
            except _OutOfMemory as stop:
                if size > 1:
                    limit = size // 2
                    _log.warning("model %s: out of memory at %d rows, trying %d", self._config.name, size, limit)
                    continue
                # It is this row and not the number of rows: the others get the room they had.
                pieces.append(failed(1, stop.error))
                limit = self._limit
            at += size
        self._limit = limit
        return pieces

    def _try(self, inputs: _Inputs, start: int, stop: int) -> list[Piece]:
        try:
            return [self._execute(inputs, start, stop)]
        except (DeviceError, _OutOfMemory):
            raise
        except Exception as error:  # noqa: BLE001 - whatever user code raises ends as an answer
            self._say(stop - start, error)
            if stop - start == 1:
                return [failed(1, self._row_error(error))]
        return [self._one(inputs, row) for row in range(start, stop)]

    def _say(self, rows: int, error: Exception) -> None:
        """Where the model failed, for its author; not for each of many failures in a row."""
        now = self._clock()
        if now - self._said_at < _SAY_AGAIN_S:
            return
        self._said_at = now
        what = "a row failed" if rows == 1 else f"a batch of {rows} rows failed, trying row by row"
        _log.warning("model %s: %s", self._config.name, what, exc_info=error)

    def _one(self, inputs: _Inputs, row: int) -> Piece:
        try:
            return self._execute(inputs, row, row + 1)
        except DeviceError:
            raise
        except _OutOfMemory as stop:
            return failed(1, stop.error)
        except Exception as error:  # noqa: BLE001 - whatever user code raises ends as an answer
            return failed(1, self._row_error(error))

    def _execute(self, inputs: _Inputs, start: int, stop: int) -> Piece:
        rows = stop - start
        tensors, parameters = inputs.slice(start, stop)
        outputs: Mapping[str, object]
        reasons: Mapping[int, str] = {}
        began = self._clock()
        try:
            outputs = self._backend.infer(tensors, parameters)
        except RowErrors as error:
            reasons, outputs = error.rows, error.outputs
        except Exception as error:
            if is_out_of_memory(error):
                raise _OutOfMemory(self._too_large(rows, error)) from error
            self._executed_rows = max(self._executed_rows, rows)
            raise
        finally:
            self._compute_s += self._clock() - began
        self._executed_rows = max(self._executed_rows, rows)
        strangers = [row for row in reasons if not 0 <= row < rows]
        if strangers:
            raise ModelError(f"RowErrors names rows {strangers} of a batch of {rows}; rows count from 0")
        errors: dict[int, HeadraceError] = {row: ModelError(reason) for row, reason in reasons.items()}
        if len(errors) == rows:
            return Piece(rows, None, errors)
        piece = Piece(rows, check_outputs(outputs, rows, self._config), errors)
        self._executed_rows = max(self._executed_rows if rows > 1 else 0, rows)
        return piece

    def _row_error(self, error: Exception) -> HeadraceError:
        if isinstance(error, HeadraceError):
            return error
        return ModelError(f"{type(error).__name__}: {_words(error)}")

    def _too_large(self, rows: int, error: Exception) -> OutOfMemoryError:
        detail = f"{type(error).__name__}: {_words(error)}"
        return OutOfMemoryError(
            f"model {self._config.name!r} has no memory for {rows} row{'s' * (rows > 1)} ({detail[:300]}); "
            "send smaller rows or give the device more memory"
        )


def _words(error: Exception) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - user code as well
        return "(its text cannot be had: __str__ raised)"


class _OutOfMemory(Exception):
    """Carries the typed error to where the batch is halved."""

    def __init__(self, error: OutOfMemoryError) -> None:
        super().__init__(str(error))
        self.error = error


@dataclass(slots=True)
class _Inputs:
    tensors: Tensors
    parameters: list[Parameters] | None
    rows: int

    def slice(self, start: int, stop: int) -> tuple[Tensors, list[Parameters] | None]:
        if stop - start == self.rows:
            return self.tensors, self.parameters
        parameters = None if self.parameters is None else self.parameters[start:stop]
        return {name: array[start:stop] for name, array in self.tensors.items()}, parameters


def _unwanted(request: Request, now: float) -> DropCode | None:
    if request.deadline is not None and request.deadline <= now:
        return "expired"
    verdict = why_unwanted(request)
    # A suspended scope's rows that were already handed out run: whoever suspended it waits for them.
    return None if verdict == "suspended" else verdict


def _stack(parts: Sequence[Part]) -> Tensors:
    """``{input: [rows, ...]}``; no copy when the batch is one request or a part of one."""
    pieces = [part.request.tensors if part.whole else _rows_of(part) for part in parts]
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _rows_of(part: Part) -> Tensors:
    return {name: array[part.start : part.stop] for name, array in part.request.tensors.items()}


def _parameters(parts: Sequence[Part]) -> list[Parameters] | None:
    if all(part.request.parameters is None for part in parts):
        return None
    found: list[Parameters] = []
    for part in parts:
        given = part.request.parameters
        found.extend(given[part.start : part.stop] if given is not None else ({} for _ in range(part.rows)))
    return found
