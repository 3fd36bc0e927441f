"""Writes model folders for the tests beside it."""

from __future__ import annotations

from pathlib import Path
from typing import TypeAlias

from onnx import TensorProto, ValueInfoProto, helper

Shape: TypeAlias = list[int | str | None]


def value(name: str, shape: Shape, element: int = TensorProto.FLOAT) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, element, shape)


def onnx_bytes(inputs: list[ValueInfoProto], outputs: list[ValueInfoProto]) -> bytes:
    nodes = [helper.make_node("Identity", [inputs[0].name], [output.name]) for output in outputs]
    content: bytes = helper.make_model(helper.make_graph(nodes, "g", inputs, outputs)).SerializeToString()
    return content


BATCHABLE = onnx_bytes([value("x", ["n", 4])], [value("y", ["n", 4])])
FIXED = onnx_bytes([value("x", [1, 4])], [value("y", [1, 4])])
PYTHON_TENSORS = "inputs: [{name: x, datatype: FP32, shape: [4]}]\noutputs: [{name: y, datatype: FP32, shape: [4]}]\n"


def model_folder(root: Path, name: str = "m", files: dict[str, str | bytes] | None = None) -> Path:
    """Makes ``root/name`` with the files, given by path within it."""
    folder = root / name
    folder.mkdir(parents=True, exist_ok=True)
    for path, content in (files or {}).items():
        file = folder / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return folder


def onnx_model(root: Path, name: str = "m", *, content: bytes = BATCHABLE, **configs: str) -> Path:
    """A folder with ``1/model.onnx``; ``yaml`` and ``pbtxt`` are its configuration's text."""
    files: dict[str, str | bytes] = {"1/model.onnx": content}
    names = {"yaml": "headrace.yaml", "pbtxt": "config.pbtxt"}
    files |= {names[kind]: text for kind, text in configs.items()}
    return model_folder(root, name, files)


def python_model(root: Path, name: str = "m", yaml: str = "") -> Path:
    return model_folder(root, name, {"1/model.py": "class Model: ...", "headrace.yaml": PYTHON_TENSORS + yaml})
