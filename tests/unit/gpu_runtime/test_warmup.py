from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from gpu_runtime.warmup import warmup_batches
from schemas.errors import ModelLoadError
from schemas.model import Datatype, ModelConfig, TensorSpec, WarmupInput, WarmupSample

X = TensorSpec(name="x", datatype="FP32", shape=(-1, 2))
TEXT = TensorSpec(name="t", datatype="BYTES", shape=(2,))


def config(*inputs: TensorSpec, samples: tuple[WarmupSample, ...] = (), max_batch_size: int = 4) -> ModelConfig:
    return ModelConfig(
        name="m", backend="onnx", max_batch_size=max_batch_size, inputs=inputs, outputs=(), warmup=samples
    )


def of(name: str, given: WarmupInput, *, rows: int = 1, count: int = 1) -> WarmupSample:
    return WarmupSample(name="s", rows=rows, count=count, inputs={name: given})


def one(datatype: Datatype, shape: tuple[int, ...], **more: str) -> WarmupInput:
    return WarmupInput.model_validate({"datatype": datatype, "shape": shape, **more})


def test_without_samples_one_row_and_a_full_batch_of_zeros_are_run(tmp_path: Path) -> None:
    batches = warmup_batches(config(X, TEXT), tmp_path / "1")
    assert [rows for _, rows in batches] == [1, 4]
    assert [tensors["x"].shape for tensors, _ in batches] == [(1, 1, 2), (4, 1, 2)]
    assert batches[1][0]["t"].tolist() == [[b"", b""]] * 4
    assert batches[0][0]["x"].dtype == np.float32


def test_a_large_full_batch_is_left_out_and_a_model_without_batches_gets_its_own_shape(tmp_path: Path) -> None:
    large = TensorSpec(name="x", datatype="FP32", shape=(1024, 1024))
    assert [rows for _, rows in warmup_batches(config(large, max_batch_size=32), tmp_path)] == [1]
    [(tensors, rows)] = warmup_batches(config(X, max_batch_size=0), tmp_path)
    assert (tensors["x"].shape, rows) == ((1, 2), 1)


def test_samples_are_made_for_all_their_rows_as_often_as_they_say(tmp_path: Path) -> None:
    samples = (of("x", one("FP32", (3, 2)), rows=2, count=3), of("x", one("FP32", (1, 2)), rows=0))
    batches = warmup_batches(config(X, samples=samples), tmp_path)
    assert [(tensors["x"].shape, rows) for tensors, rows in batches] == [((2, 3, 2), 2)] * 3
    assert len(warmup_batches(config(X, samples=(of("x", one("FP32", (1, 2)), count=0),)), tmp_path)) == 1


@pytest.mark.parametrize("datatype", ["BOOL", "INT64", "FP16", "BF16", "BYTES"])
def test_random_values_are_the_same_each_time_and_legal(tmp_path: Path, datatype: Datatype) -> None:
    spec = TensorSpec(name="x", datatype=datatype, shape=(50,))
    cfg = config(spec, samples=(of("x", one(datatype, (50,), data="random")),))
    first, second = (warmup_batches(cfg, tmp_path)[0][0]["x"] for _ in range(2))
    assert first.tolist() == second.tolist()
    assert all(value == b"" if datatype == "BYTES" else 0 <= value <= 1 for value in first.reshape(-1).tolist())
    assert datatype == "BYTES" or len(set(first.reshape(-1).tolist())) > 1


def test_files_hold_one_row_in_the_v2_binary_form(tmp_path: Path) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "x").write_bytes(np.arange(4, dtype="<f4").tobytes())
    (tmp_path / "warmup" / "t").write_bytes(struct.pack("<I2sI", 2, b"ab", 0)[:6] + struct.pack("<I", 0))
    inputs = {"x": one("FP32", (2, 2), data="file", file="x"), "t": one("BYTES", (2,), data="file", file="t")}
    sample = WarmupSample(rows=2, inputs=inputs)
    [(tensors, _)] = warmup_batches(config(X, TEXT, samples=(sample,)), tmp_path / "1")
    assert tensors["x"].tolist() == [[[0, 1], [2, 3]]] * 2
    assert tensors["t"].tolist() == [[b"ab", b""]] * 2


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (one("FP32", (1, 2), data="file", file="../1/x"), "lies outside"),
        (one("FP32", (1, 2), data="file", file="/etc/passwd"), "lies outside"),
        (one("FP32", (1, 2), data="file", file="absent"), "cannot be read: No such file"),
        (one("FP32", (1, 2), data="file"), "names none"),
        (one("FP32", (1, 2), data="file", file="short"), r"has 3 bytes, but FP32 \[1, 2\] takes 8"),
        (one("FP64", (1, 2)), "is FP64, declared FP32"),
        (one("FP32", (1, 3)), r"has shape \[1, 3\], declared \[-1, 2\]"),
    ],
)
def test_a_sample_that_does_not_fit_is_refused(tmp_path: Path, given: WarmupInput, message: str) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "short").write_bytes(b"abc")
    with pytest.raises(ModelLoadError, match=message):
        warmup_batches(config(X, samples=(of("x", given),)), tmp_path / "1")


@pytest.mark.parametrize(("value", "message"), [(b"\x05\0\0\0ab", "ends within"), (b"\0" * 9, "1 bytes after")])
def test_a_file_of_bytes_that_does_not_add_up_is_refused(tmp_path: Path, value: bytes, message: str) -> None:
    (tmp_path / "warmup").mkdir()
    (tmp_path / "warmup" / "t").write_bytes(value)
    sample = of("t", one("BYTES", (2,), data="file", file="t"))
    with pytest.raises(ModelLoadError, match=message):
        warmup_batches(config(TEXT, samples=(sample,)), tmp_path / "1")


def test_a_sample_names_declared_inputs_all_of_them_and_no_more_rows_than_fit(tmp_path: Path) -> None:
    for sample, message in (
        (of("z", one("FP32", (1,))), "lacks input 'x'"),
        (WarmupSample(inputs={"x": one("FP32", (1, 2)), "z": one("FP32", (1,))}), "names input 'z'"),
        (of("x", one("FP32", (1, 2)), rows=5), "5 rows, above max_batch_size 4"),
    ):
        with pytest.raises(ModelLoadError, match=message):
            warmup_batches(config(X, samples=(sample,)), tmp_path)
