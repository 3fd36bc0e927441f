"""Small Python models, written into a model repository by the tests that need them, and what they did.

All of them take ``x`` and give ``y``. Every execution is noted in a file of the version folder, so that tests can read
it also where the model runs in another process; a file ``shut`` there holds executions until it is removed.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import yaml

__all__ = ["BOOM", "DROPPING", "ECHO", "OOM", "PICK", "TELLING", "Model", "tensors", "write_model"]

_HEAD: Final = """\
import json, time
from pathlib import Path
import numpy as np


class Model:
    def __init__(self, context):
        self.path = Path(context.path)
        self.parameters = context.parameters

    def infer(self, batch):
        x = batch["x"]
        note = {"rows": len(x), "shape": list(x.shape), "dtype": str(x.dtype), "at": time.time()}
        if x.dtype != object and x.size < 1000:
            note["x"] = x.tolist()
        with (self.path / "journal.jsonl").open("a") as journal:
            journal.write(json.dumps(note) + "\\n")
        end = time.monotonic() + 15
        while (self.path / "shut").exists() and time.monotonic() < end:
            time.sleep(0.002)
        time.sleep(self.parameters.get("ms", 0) / 1000)
        return {"y": self.answer(x)}

"""

ECHO: Final = (
    _HEAD
    + """\
    def answer(self, x):
        return x
"""
)
"""Identity. Parameter ``ms``: as every model here, after so many milliseconds."""

PICK: Final = (
    _HEAD
    + """\
    def answer(self, x):
        if (np.asarray(x, np.float64) < 0).any():
            raise ValueError("there are rows below 0")
        return x
"""
)
"""Raises for the whole batch when a row is below 0."""

BOOM: Final = (
    _HEAD
    + """\
    def answer(self, x):
        raise RuntimeError("boom")
"""
)
"""Raises always."""

DROPPING: Final = (
    _HEAD
    + """\
    def answer(self, x):
        return x[1:] if len(x) > 1 or self.parameters.get("always") else x
"""
)
"""One row fewer than it was given, the first; with the parameter ``always`` also of a single one."""

OOM: Final = (
    _HEAD
    + """\
    def answer(self, x):
        if len(x) > self.parameters["room"]:
            raise MemoryError(f"{len(x)} rows do not fit")
        return x
"""
)
"""Out of memory above ``room`` rows."""

TELLING: Final = (
    _HEAD
    + """\
    def answer(self, x):
        return np.array([str(x.dtype)] * len(x), object).reshape(len(x), 1)
"""
)
"""Answers with the numpy name of the datatype it was given."""

_DEFAULTS: Final[Mapping[str, object]] = {
    "max_batch_size": 32,
    "max_queue_delay_ms": 0,
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [1]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [1]}],
    "retry": {"max_attempts": 1},
}


@dataclass(frozen=True, slots=True)
class Model:
    """One model in a repository."""

    name: str
    path: Path
    """The version folder."""

    @property
    def journal(self) -> list[dict[str, object]]:
        """Executions in their order: rows, shape, dtype, at (Unix seconds), x (small numbers only)."""
        file = self.path / "journal.jsonl"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    @property
    def executions(self) -> list[int]:
        """Rows of each execution."""
        return [int(str(note["rows"])) for note in self.journal]

    def shut(self) -> None:
        """Executions that begin from now on wait for `open`."""
        (self.path / "shut").touch()

    def open(self) -> None:
        (self.path / "shut").unlink(missing_ok=True)


def write_model(models: Path, name: str, source: str = ECHO, **config: object) -> Model:
    """A model of one FP32 element a row that is tried once, unless ``config`` says otherwise (``headrace.yaml``)."""
    path = models / name / "1"
    path.mkdir(parents=True)
    (path / "model.py").write_text(source)
    stated = {"backend": "python", **_DEFAULTS, **config}
    # A sample of no rows, as made-up ones would stand in the journal.
    (path.parent / "headrace.yaml").write_text(yaml.safe_dump({**stated, "warmup": [_no_rows(stated["inputs"])]}))
    return Model(name, path)


def _no_rows(inputs: object) -> dict[str, object]:
    return {
        "rows": 0,
        "inputs": {
            spec["name"]: {"datatype": spec["datatype"], "shape": [abs(size) for size in spec["shape"]]}
            for spec in cast(list[dict[str, Any]], inputs)
        },
    }


def tensors(datatype: str, shape: Sequence[int]) -> dict[str, object]:
    """``inputs`` and ``outputs`` of the same datatype and shape, for ``write_model(**...)``."""
    return {
        "inputs": [{"name": "x", "datatype": datatype, "shape": list(shape)}],
        "outputs": [{"name": "y", "datatype": datatype, "shape": list(shape)}],
    }
