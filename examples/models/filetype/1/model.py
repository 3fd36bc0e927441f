"""Classifies files by content with magika's ONNX model: features of a whole batch, then the network.

Answers what ``magika.Magika().identify_bytes`` does in its default mode, without importing magika. The model, its
sizes, thresholds and labels come from the installed package's model folder. The parameter ``rows_per_call`` bounds
the rows of one ONNX Runtime call; 0 runs the whole batch in one.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime


class Model:
    def __init__(self, context: Any) -> None:
        package = _package_folder()
        folder = _model_folder(package, context.parameters.get("magika_model"))
        settings = json.loads((folder / "config.min.json").read_text())
        if settings["mid_size"] or settings["use_inputs_at_offsets"]:
            raise ValueError(f"{folder} wants features from the middle of files; use a model of the standard_v3 family")
        self._head_size: int = settings["beg_size"]
        self._tail_size: int = settings["end_size"]
        self._block_size: int = settings["block_size"]
        self._padding: int = settings["padding_token"]
        self._smallest: int = settings["min_file_size_for_dl"]
        self._answers = _Answers(settings, json.loads((package / "config/content_types_kb.min.json").read_text()))
        self._rows_per_call = int(str(context.parameters.get("rows_per_call", 0)))
        self._session = _session(folder / "model.onnx", context.threads)

    def infer(self, batch: dict[str, Any]) -> dict[str, Any]:
        files = batch["bytes"].reshape(-1).tolist()
        labels: list[str] = [""] * len(files)
        scores = np.ones(len(files), dtype=np.float32)
        features, rows = self._features(files, labels)
        if rows:
            found = self._scores(features)
            best = found.argmax(axis=1)
            scores[rows] = found[np.arange(len(rows)), best]
            for row, index in zip(rows, best.tolist(), strict=True):
                labels[row] = self._answers.label(index, float(scores[row]))
        return {
            "label": _column([label.encode() for label in labels]),
            "score": scores.reshape(-1, 1),
            "mime": _column([self._answers.mime(label).encode() for label in labels]),
        }

    def _scores(self, features: Any) -> Any:
        step = self._rows_per_call or len(features)
        parts = [features[start : start + step] for start in range(0, len(features), step)]
        return np.concatenate([self._session.run(["target_label"], {"bytes": part})[0] for part in parts])

    def _features(self, files: list[bytes], labels: list[str]) -> tuple[Any, list[int]]:
        """Rows for the network, and which files they are; the rest get their label here."""
        features = np.full((len(files), self._head_size + self._tail_size), self._padding, dtype=np.int32)
        rows: list[int] = []
        for row, content in enumerate(files):
            head = content[: self._block_size].lstrip()[: self._head_size]
            if len(content) < self._smallest or len(head) < self._smallest:
                labels[row] = _label_of_little(content[: self._block_size])
                continue
            line = features[len(rows)]
            line[: len(head)] = np.frombuffer(head, dtype=np.uint8)
            tail = content[-self._block_size :].rstrip()[-self._tail_size :]
            if tail:
                line[-len(tail) :] = np.frombuffer(tail, dtype=np.uint8)
            rows.append(row)
        return features[: len(rows)], rows


class _Answers:
    """From the network's best class and its score to the label that is given out."""

    def __init__(self, settings: dict[str, Any], kinds: dict[str, dict[str, Any]]) -> None:
        self._kinds = kinds
        self._classes: list[str] = settings["target_labels_space"]
        self._renamed: dict[str, str] = settings["overwrite_map"]
        self._least: dict[str, float] = settings["thresholds"]
        self._least_otherwise: float = settings["medium_confidence_threshold"]

    def label(self, index: int, score: float) -> str:
        known = self._classes[index]
        label = self._renamed.get(known, known)
        if score >= self._least.get(known, self._least_otherwise):
            return label
        return "txt" if self._kinds[label]["is_text"] else "unknown"

    def mime(self, label: str) -> str:
        kind = self._kinds[label]
        return kind["mime_type"] or ("text/plain" if kind["is_text"] else "application/octet-stream")


def _label_of_little(content: bytes) -> str:
    """Too few bytes for the network: empty, text or not."""
    if not content:
        return "empty"
    try:
        content.decode()
    except UnicodeDecodeError:
        return "unknown"
    return "txt"


def _column(values: list[bytes]) -> Any:
    column = np.empty((len(values), 1), dtype=object)
    column[:, 0] = values
    return column


def _package_folder() -> Path:
    spec = find_spec("magika")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("the magika package holds the model; install it: pip install 'headrace[demo]'")
    return Path(spec.origin).parent


def _model_folder(package: Path, name: object) -> Path:
    found = sorted(path.parent for path in package.glob("models/*/config.min.json"))
    if name is not None:
        found = [folder for folder in found if folder.name == name]
    if not found:
        raise FileNotFoundError(f"no model {name or ''} in {package / 'models'}; reinstall magika")
    return found[-1]


def _session(path: Path, threads: int) -> onnxruntime.InferenceSession:
    onnxruntime.disable_telemetry_events()
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
