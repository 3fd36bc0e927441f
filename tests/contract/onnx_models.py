"""Small ONNX files for tests, made with the ``onnx`` package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from schemas.model import Datatype

_TYPES: dict[Datatype, int] = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "UINT16": TensorProto.UINT16,
    "UINT32": TensorProto.UINT32,
    "UINT64": TensorProto.UINT64,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "FP16": TensorProto.FLOAT16,
    "BF16": TensorProto.BFLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}

Shape = Sequence[int | str]


def value(name: str, datatype: Datatype, shape: Shape) -> Any:
    return helper.make_tensor_value_info(name, _TYPES[datatype], list(shape))


def weights(name: str, array: Any) -> Any:
    return numpy_helper.from_array(array, name)


def save(path: Path, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], *held: Any) -> None:
    """Operator set 17 and IR 8: old enough for every onnxruntime that we allow."""
    graph = helper.make_graph(list(nodes), "g", list(inputs), list(outputs), list(held))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    path.write_bytes(model.SerializeToString())


def free(shape: Sequence[int], *lead: str) -> list[int | str]:
    return [*lead, *(f"free{axis}" if size == -1 else size for axis, size in enumerate(shape))]


def save_identity(path: Path, datatype: Datatype, shape: Sequence[int]) -> None:
    dims = free(shape, "rows")
    node = helper.make_node("Identity", ["x"], ["y"])
    save(path, [node], [value("x", datatype, dims)], [value("y", datatype, dims)])


def save_square(path: Path) -> None:
    matrix = np.random.default_rng(1).standard_normal((64, 8)).astype(np.float32)
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    save(
        path, [node], [value("x", "FP32", ["rows", "in"])], [value("y", "FP32", ["rows", "out"])], weights("w", matrix)
    )


def save_attention(path: Path) -> None:
    """Memory grows with the square of the length: ``y[rows] = sum(relu(x @ x.T))`` for ``x`` of [rows, length, 4]."""
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[0, 2, 1]),
        helper.make_node("MatMul", ["x", "t"], ["s"]),
        helper.make_node("Exp", ["s"], ["e"]),
        helper.make_node("ReduceMax", ["e"], ["y"], axes=[1, 2], keepdims=0),
    ]
    save(path, nodes, [value("x", "FP32", ["rows", "length", 4])], [value("y", "FP32", ["rows"])])


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(operator, list(inputs), list(outputs), **attributes)
