"""The ONNX reader, against files that the onnx package writes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from time import perf_counter

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from schemas.errors import ConfigError
from schemas.onnx_signature import OnnxTensor, read_onnx_signature

EXPECTED: dict[int, str] = {
    TensorProto.BOOL: "BOOL",
    TensorProto.UINT8: "UINT8",
    TensorProto.UINT16: "UINT16",
    TensorProto.UINT32: "UINT32",
    TensorProto.UINT64: "UINT64",
    TensorProto.INT8: "INT8",
    TensorProto.INT16: "INT16",
    TensorProto.INT32: "INT32",
    TensorProto.INT64: "INT64",
    TensorProto.FLOAT16: "FP16",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP64",
    TensorProto.STRING: "BYTES",
}


def identity(element: int, shape: list[int | str | None] | None) -> onnx.ModelProto:
    """``y = Identity(x)``."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_tensor_value_info("y", element, shape)],
    )
    return helper.make_model(graph)


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "model.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.mark.parametrize("element", sorted(TensorProto.DataType.values())[1:])
def test_every_element_type_has_its_datatype_or_none_and_a_name(element: int, tmp_path: Path) -> None:
    found = read_onnx_signature(saved(identity(element, [2]), tmp_path)).inputs[0]
    assert found.datatype == EXPECTED.get(element)
    known = element <= TensorProto.FLOAT4E2M1
    assert found.type_name == TensorProto.DataType.Name(element) if known else found.type_name


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (["batch", 3, None], (-1, 3, -1)),
        ([1, 224, 224, 3], (1, 224, 224, 3)),
        ([], ()),
        (None, None),
        ([-1, 1 << 40], (-1, 1 << 40)),
        ([0], (0,)),
    ],
)
def test_shapes_keep_sizes_and_give_minus_one_for_symbols(
    written: list[int | str | None] | None, read: tuple[int, ...] | None, tmp_path: Path
) -> None:
    signature = read_onnx_signature(saved(identity(TensorProto.FLOAT, written), tmp_path))
    assert signature.inputs == (OnnxTensor("x", "FP32", read, "FLOAT"),)
    assert signature.outputs == (OnnxTensor("y", "FP32", read, "FLOAT"),)


def test_initializers_listed_as_inputs_are_overridable_and_not_inputs(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.zeros((4, 2), np.float32), "w")
    sparse = helper.make_sparse_tensor(
        helper.make_tensor("s", TensorProto.FLOAT, [1], [1.0]), helper.make_tensor("", TensorProto.INT64, [1], [0]), [3]
    )
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", 4]) for name in ("w", "x", "s")],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
        initializer=[weight],
        sparse_initializer=[sparse],
    )
    signature = read_onnx_signature(saved(helper.make_model(graph), tmp_path))
    assert [tensor.name for tensor in signature.inputs] == ["x"]
    assert [tensor.name for tensor in signature.overridable] == ["w", "s"]


def test_sequences_and_maps_are_named_as_what_they_are(tmp_path: Path) -> None:
    model = identity(TensorProto.FLOAT, [1])
    sequence = helper.make_tensor_sequence_value_info("probabilities", TensorProto.FLOAT, [1])
    untyped = onnx.ValueInfoProto(name="bare")
    model.graph.output.extend([sequence, untyped])
    outputs = read_onnx_signature(saved(model, tmp_path)).outputs
    assert outputs[1] == OnnxTensor("probabilities", None, None, "sequence")
    assert outputs[2] == OnnxTensor("bare", None, None, "untyped")


def test_weights_in_external_files_are_not_opened(tmp_path: Path) -> None:
    model = identity(TensorProto.FLOAT, ["n", 8])
    model.graph.initializer.append(numpy_helper.from_array(np.ones(4096, np.float32), "w"))
    path = tmp_path / "model.onnx"
    onnx.save_model(model, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    (tmp_path / "weights.bin").unlink()
    assert read_onnx_signature(path).inputs == (OnnxTensor("x", "FP32", (-1, 8), "FLOAT"),)


def test_the_weights_of_a_large_file_are_stepped_over(tmp_path: Path) -> None:
    small = identity(TensorProto.FLOAT, ["n", 8]).SerializeToString()
    hole = 1 << 30
    # Field 100, which ONNX does not know, holds 1 GiB of nothing before the rest.
    tag = bytes([100 << 3 & 0x7F | 0x82, 100 >> 4])
    size = bytes([hole & 0x7F | 0x80, hole >> 7 & 0x7F | 0x80, hole >> 14 & 0x7F | 0x80, hole >> 21 & 0x7F | 0x80])
    path = tmp_path / "model.onnx"
    with path.open("wb") as file:
        file.write(tag + size + bytes([hole >> 28]))
        file.seek(hole, 1)
        file.write(small)
    begun = perf_counter()
    assert read_onnx_signature(path).inputs[0].name == "x"
    assert perf_counter() - begun < 0.5


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"<html><body>404</body></html>", "not an ONNX model"),
        (b"\x80" * 40, "not an ONNX model"),
        (b"\x08\x07", "no graph"),
        (b"\x3a\x00", "no graph|no IR version"),
        (b"\x00\x00\x00\x00", "not an ONNX model"),
    ],
)
def test_what_is_not_onnx_is_refused_with_the_file_and_a_remedy(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=words) as raised:
        read_onnx_signature(path)
    assert str(path) in str(raised.value)


def test_a_file_cut_anywhere_raises_nothing_but_a_config_error(tmp_path: Path) -> None:
    whole = identity(TensorProto.FLOAT, ["n", 3]).SerializeToString()
    path = tmp_path / "model.onnx"
    for length in range(1, len(whole)):
        path.write_bytes(whole[:length])
        with contextlib.suppress(ConfigError):
            read_onnx_signature(path)


def test_a_missing_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        read_onnx_signature(tmp_path / "absent.onnx")
