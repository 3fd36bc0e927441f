"""The CUDA path: I/O binding and page-locked staging, over a CPU session and a stand-in for cuda-python."""

from __future__ import annotations

import ctypes
import gc
import sys
import weakref
from pathlib import Path

import numpy as np
import onnxruntime
import psutil
import pytest

from gpu_runtime.backend import LoadContext
from gpu_runtime.backends.cuda_memory import CudaHostMemory, free_device_bytes, try_cuda_runtime
from gpu_runtime.backends.onnx import OnnxBackend, load_onnx
from gpu_runtime.backends.onnx_runs import Staging
from gpu_runtime.backends.onnx_session import Session
from schemas.errors import DeviceError, ModelError, OutOfMemoryError
from schemas.model import Datatype, ModelConfig, TensorSpec
from schemas.tensors import Tensors, dtype_of
from tests.contract.backend_suite import DATATYPES, sample
from tests.contract.onnx_models import save_attention, save_identity


class FakeCuda:
    """Counts what is page-locked; refuses above ``limit`` bytes."""

    def __init__(self, limit: int = 1 << 40) -> None:
        self.limit = limit
        self.held: dict[int, ctypes.Array[ctypes.c_char]] = {}
        self.allocations = 0
        self.device_error = 0

    def cudaSetDevice(self, device: int, /) -> tuple[int]:
        return (self.device_error,)

    def cudaMemGetInfo(self) -> tuple[int, int, int]:
        return 0, 1000, 2000

    def cudaHostAlloc(self, size: int, flags: int, /) -> tuple[int, int]:
        if size > self.limit:
            return 2, 0
        self.allocations += 1
        buffer = ctypes.create_string_buffer(size)
        self.held[ctypes.addressof(buffer)] = buffer
        return 0, ctypes.addressof(buffer)

    def cudaFreeHost(self, pointer: int, /) -> tuple[int]:
        del self.held[pointer]
        return (0,)


def bound(folder: Path, cuda: FakeCuda, datatype: Datatype = "FP32", shape: tuple[int, ...] = (2,)) -> OnnxBackend:
    save_identity(folder / "model.onnx", datatype, shape)
    session: Session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    x, y = (TensorSpec(name=name, datatype=datatype, shape=shape) for name in "xy")
    config = ModelConfig(name="m", backend="onnx", max_batch_size=8, inputs=(x,), outputs=(y,))
    options = onnxruntime.RunOptions()
    return OnnxBackend(
        LoadContext(path=folder, config=config, device="cuda:0", threads=1),
        session=session,
        options=(options, options),
        memory_bytes=1,
        cuda=cuda,
    )


@pytest.mark.parametrize("datatype", [name for name in DATATYPES if name != "BYTES"])
@pytest.mark.parametrize("shape", [(2,), (-1,)])
def test_bound_runs_give_the_values_of_every_datatype(
    tmp_path: Path, datatype: Datatype, shape: tuple[int, ...]
) -> None:
    cuda = FakeCuda()
    backend = bound(tmp_path, cuda, datatype, shape)
    given = sample(datatype)
    got = backend.infer({"x": given.copy()}, None)["y"]
    assert (got.dtype, got.tolist()) == (dtype_of(datatype), given.tolist())
    assert len(cuda.held) == (2 if shape == (2,) else 1)  # an output of unknown size is not staged
    backend.close()
    assert not cuda.held


def test_strings_go_past_the_binding(tmp_path: Path) -> None:
    cuda = FakeCuda()
    backend = bound(tmp_path, cuda, "BYTES")
    assert backend.infer({"x": sample("BYTES")}, None)["y"].tolist() == sample("BYTES").tolist()
    assert cuda.allocations == 0


def test_staging_is_reused_and_a_result_is_not_overwritten_by_the_next(tmp_path: Path) -> None:
    cuda = FakeCuda()
    backend = bound(tmp_path, cuda)
    results = [backend.infer({"x": np.full((8, 2), number, np.float32)}, None)["y"] for number in range(5)]
    assert [result[0, 0] for result in results] == [0, 1, 2, 3, 4]
    assert cuda.allocations == 2


def test_E1_staging_never_grows_past_its_limit() -> None:
    cuda = FakeCuda()
    staging = Staging(CudaHostMemory(cuda), limit_bytes=1024)
    dtype = np.dtype(np.float32)
    small = staging.try_take("a", (3,), dtype)
    assert small is not None
    assert staging.held_bytes == 16
    assert staging.try_take("a", (257,), dtype) is None
    assert staging.try_take("a", (256,), dtype) is not None
    assert staging.held_bytes == 1024
    assert staging.try_take("a", (0,), dtype) is None
    staging.close()
    assert not cuda.held


def test_without_page_locked_memory_the_run_goes_through_ordinary_memory(tmp_path: Path) -> None:
    backend = bound(tmp_path, FakeCuda(limit=0))
    assert backend.infer({"x": np.ones((2, 2), np.float32)}, None)["y"].tolist() == [[1, 1], [1, 1]]


def test_a_failed_bound_run_leaves_nothing_bound(tmp_path: Path) -> None:
    backend = bound(tmp_path, FakeCuda())
    with pytest.raises(ModelError):
        backend.infer({"x": np.ones((2, 3), np.float32)}, None)
    assert backend.infer({"x": np.ones((1, 2), np.float32)}, None)["y"].tolist() == [[1, 1]]


def test_a_device_that_cannot_be_set_is_a_device_error(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda()
    cuda.device_error = 101
    monkeypatch.setitem(sys.modules, "cuda.bindings.runtime", cuda)
    with pytest.raises(DeviceError, match="cuda:3 cannot be used"):
        try_cuda_runtime("cuda:3")
    cuda.device_error = 0
    assert try_cuda_runtime("cuda:3") is cuda
    assert free_device_bytes(cuda) == 1000


def attention(folder: Path, **parameters: object) -> OnnxBackend:
    save_attention(folder / "model.onnx")
    x = TensorSpec(name="x", datatype="FP32", shape=(-1, 4))
    y = TensorSpec(name="y", datatype="FP32", shape=())
    config = ModelConfig(
        name="m", backend="onnx", max_batch_size=8, inputs=(x,), outputs=(y,), parameters=dict(parameters)
    )
    return load_onnx(LoadContext(path=folder, config=config, device="cpu", threads=1))


def grown_bytes(backend: OnnxBackend) -> int:
    """What one input of length 4096 leaves behind after 200 of length 64."""
    small: Tensors = {"x": np.ones((1, 64, 4), np.float32)}
    backend.infer(small, None)
    before = psutil.Process().memory_info().rss
    backend.infer({"x": np.ones((1, 4096, 4), np.float32)}, None)
    for _ in range(200):
        backend.infer(small, None)
    return int(psutil.Process().memory_info().rss) - before


def test_E1_one_very_large_input_does_not_keep_its_memory(tmp_path: Path) -> None:
    assert grown_bytes(attention(tmp_path)) < 16 * 1024 * 1024
    kept = grown_bytes(attention(tmp_path, **{"memory.enable_memory_arena_shrinkage": "off"}))
    assert kept > 48 * 1024 * 1024, "the test measures nothing if the arena would not have kept it"


def test_E3_a_batch_too_large_for_memory_is_typed_and_the_next_is_answered(tmp_path: Path) -> None:
    backend = attention(tmp_path)
    # The square of this length is more than an address space holds, so no setting of overcommit lets it through.
    with pytest.raises(OutOfMemoryError, match="ran out of memory on cpu"):
        backend.infer({"x": np.ones((1, 6_200_000, 4), np.float32)}, None)
    assert backend.infer({"x": np.zeros((1, 2, 4), np.float32)}, None)["y"].tolist() == [1]


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
def test_closing_lets_the_session_go(tmp_path: Path, device: str) -> None:
    save_identity(tmp_path / "model.onnx", "FP32", (2,))
    session: Session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    seen = weakref.ref(session)
    x, y = (TensorSpec(name=name, datatype="FP32", shape=(2,)) for name in "xy")
    config = ModelConfig(name="m", backend="onnx", max_batch_size=8, inputs=(x,), outputs=(y,))
    backend = OnnxBackend(
        LoadContext(path=tmp_path, config=config, device=device, threads=1),
        session=session,
        options=(onnxruntime.RunOptions(), onnxruntime.RunOptions()),
        memory_bytes=1,
    )
    backend.infer({"x": np.ones((1, 2), np.float32)}, None)
    del session
    backend.close()
    gc.collect()
    assert seen() is None


@pytest.mark.gpu
@pytest.mark.skipif(
    "CUDAExecutionProvider" not in onnxruntime.get_available_providers(), reason="onnxruntime has no CUDA provider"
)
@pytest.mark.parametrize("datatype", ["FP32", "FP16", "BF16", "INT64", "BYTES"])
def test_a_cuda_device_gives_the_same_values(tmp_path: Path, datatype: Datatype) -> None:
    save_identity(tmp_path / "model.onnx", datatype, (2,))
    x, y = (TensorSpec(name=name, datatype=datatype, shape=(2,)) for name in "xy")
    config = ModelConfig(name="m", backend="onnx", max_batch_size=8, inputs=(x,), outputs=(y,))
    backend = load_onnx(LoadContext(path=tmp_path, config=config, device="cuda:0", threads=1))
    given = sample(datatype)
    assert backend.infer({"x": given.copy()}, None)["y"].tolist() == given.tolist()
    backend.close()
