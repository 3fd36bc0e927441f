"""Options, error texts, the arena's policy, the signature check and the registry: what needs no session."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from gpu_runtime.backend import LoadContext
from gpu_runtime.backends.arena import ArenaShrink
from gpu_runtime.backends.onnx_errors import run_error
from gpu_runtime.backends.onnx_options import SessionPlan, plan_session
from gpu_runtime.backends.registry import BACKENDS, backend_named
from schemas.errors import DeviceError, HeadraceError, ModelError, ModelLoadError, OutOfMemoryError
from schemas.model import ModelConfig, TensorSpec
from tests.contract.onnx_models import node, save, save_identity, value

ALL = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")


def plan(parameters: dict[str, object] | None = None, *, device: str = "cpu") -> SessionPlan:
    return plan_session(parameters or {}, path=Path("/m/1"), device=device, threads=3, available=ALL)


def test_idle_workers_do_not_spin_and_threads_are_those_of_the_context() -> None:
    made = plan()
    assert made.config_entries["session.intra_op.allow_spinning"] == "0"
    assert made.attributes["intra_op_num_threads"] == 3
    assert made.providers == (("CPUExecutionProvider", {}),)


def test_the_parameters_that_triton_takes_are_taken_as_text() -> None:
    made = plan(
        {
            "enable_mem_arena": "0",
            "enable_mem_pattern": "false",
            "memory.enable_memory_arena_shrinkage": "cpu:0",
            "execution_mode": "1",
            "intra_op_thread_count": "2",
            "inter_op_thread_count": "4",
            "cudnn_conv_algo_search": "0",
            "arena_extend_strategy": "0",
            "gpu_mem_limit": "1024",
            "do_copy_in_default_stream": "0",
            "session.use_device_allocator_for_initializers": "1",
            "graph_optimization_level": "basic",
        },
        device="cuda:1",
    )
    assert made.unknown == ()
    assert made.attributes == {
        "intra_op_num_threads": 2,
        "inter_op_num_threads": 4,
        "enable_cpu_mem_arena": False,
        "enable_mem_pattern": False,
    }
    assert (made.execution_mode, made.graph_optimization_level) == ("ORT_PARALLEL", "ORT_ENABLE_BASIC")
    assert made.config_entries["session.use_device_allocator_for_initializers"] == "1"
    assert (made.shrink_arenas, made.shrink_always) == ("cpu:0", True)
    assert dict(made.providers)["CUDAExecutionProvider"] == {
        "device_id": "1",
        "arena_extend_strategy": "kNextPowerOfTwo",
        "cudnn_conv_algo_search": "EXHAUSTIVE",
        "do_copy_in_default_stream": "0",
        "gpu_mem_limit": "1024",
    }


def test_E1_on_a_gpu_the_arena_grows_by_what_is_asked_and_shrinks_on_its_own() -> None:
    made = plan(device="cuda:0")
    assert [name for name, _ in made.providers] == ["CUDAExecutionProvider", "CPUExecutionProvider"]
    assert made.providers[0][1]["arena_extend_strategy"] == "kSameAsRequested"
    assert (made.shrink_arenas, made.shrink_always) == ("cpu:0;gpu:0", False)
    assert plan({"enable_mem_arena": False}).shrink_arenas == ""
    assert plan({"memory.enable_memory_arena_shrinkage": "off"}).shrink_arenas == ""


def test_tensorrt_comes_first_when_it_is_asked_for() -> None:
    made = plan(
        {"tensorrt": True, "precision_mode": "FP16", "max_workspace_size_bytes": 5, "trt_engine_cache_path": "cache"},
        device="cuda:0",
    )
    assert [name for name, _ in made.providers] == list(ALL)
    options = made.providers[0][1]
    assert (options["trt_fp16_enable"], options["trt_int8_enable"], options["trt_max_workspace_size"]) == (
        "1",
        "0",
        "5",
    )
    assert options["trt_engine_cache_path"] == "/m/1/cache"


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"enable_mem_arena": "perhaps"}, "enable_mem_arena is 'perhaps'; set one of"),
        ({"gpu_mem_limit": "-1"}, "gpu_mem_limit is '-1'"),
        ({"execution_mode": 7}, "execution_mode is '7'"),
        ({"op_library_filename": "ops.so"}, r"op_library_filename \(ops.so\) loads native code"),
        ({"op_library_filename": ["ops.so"], "trust": "no"}, "trust"),
    ],
)
def test_a_wrong_or_forbidden_parameter_is_refused(parameters: dict[str, object], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        plan(parameters, device="cuda:0")


def test_custom_operators_are_taken_when_trusted_and_unknown_parameters_are_told() -> None:
    made = plan({"op_library_filename": "ops.so", "trust": "true", "owner": "me"})
    assert made.op_libraries == (Path("/m/1/ops.so"),)
    assert made.unknown == ("owner",)


def test_a_gpu_without_its_provider_says_what_to_install() -> None:
    with pytest.raises(ModelLoadError, match=r"CUDAExecutionProvider.*install headrace\[gpu\]"):
        plan_session({}, path=Path("/m/1"), device="cuda:0", threads=1, available=("CPUExecutionProvider",))


@pytest.mark.parametrize(
    ("message", "device", "expected"),
    [
        ("bfc_arena.cc:360 Failed to allocate memory for requested buffer of size 9", "cpu", OutOfMemoryError),
        ("Available memory of 3 is smaller than requested bytes of 4", "cuda:0", OutOfMemoryError),
        ("CUDA failure 2: out of memory ; GPU=0", "cuda:0", OutOfMemoryError),
        ("CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED", "cuda:0", OutOfMemoryError),
        ("CUDA failure 700: an illegal memory access was encountered ; GPU=0", "cuda:0", DeviceError),
        ("CUDA failure 719: unspecified launch failure", "cuda:0", DeviceError),
        ("CUDA failure 214: uncorrectable ECC error encountered", "cuda:0", DeviceError),
        ("CUDA failure 701: too many resources requested for launch", "cuda:0", ModelError),
        ("CUDA failure 1: invalid argument", "cuda:0", ModelError),
        ("Got invalid dimensions for input: x", "cpu", ModelError),
    ],
)
def test_what_onnxruntime_says_decides_what_is_done(message: str, device: str, expected: type[HeadraceError]) -> None:
    error = run_error(RuntimeError(message), model="m", device=device)
    assert type(error) is expected
    assert message in str(error)


def test_E1_the_arena_shrinks_once_large_inputs_have_stopped() -> None:
    shrink = ArenaShrink(patience=4)
    assert not shrink.due(1000)
    assert [shrink.due(10) for _ in range(4)] == [False, False, False, True]
    assert not any(shrink.due(10) for _ in range(50))  # small is now usual


def test_traffic_that_alternates_never_shrinks_the_arena() -> None:
    shrink = ArenaShrink(patience=4)
    assert not any(shrink.due(size) for _ in range(20) for size in (1000, 10, 10, 10))


def context(
    folder: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], max_batch_size: int = 4
) -> LoadContext:
    config = ModelConfig(name="m", backend="onnx", max_batch_size=max_batch_size, inputs=inputs, outputs=outputs)
    return LoadContext(path=folder, config=config, device="cpu", threads=1)


def tensor(name: str, shape: tuple[int, ...] = (2,), datatype: str = "FP32") -> TensorSpec:
    return TensorSpec.model_validate({"name": name, "datatype": datatype, "shape": shape})


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ((tensor("z"),), (tensor("y"),), "no input 'z'; its inputs are x"),
        ((tensor("x"),), (tensor("z"),), "no output 'z'; its outputs are y"),
        ((tensor("x", datatype="INT32"),), (tensor("y"),), "'x' is declared INT32, but the graph has FP32"),
        ((tensor("x", (3,)),), (tensor("y"),), r"'x' is declared as \[-1, 3\] but the graph has \[-1, 2\]"),
        ((tensor("x", (2, 1)),), (tensor("y"),), r"'x' is declared as \[-1, 2, 1\]"),
        ((), (tensor("y"),), "needs input 'x', which the configuration does not declare"),
    ],
)
def test_a_declaration_that_the_graph_does_not_bear_out_is_refused_at_load(
    tmp_path: Path, inputs: tuple[TensorSpec, ...], outputs: tuple[TensorSpec, ...], message: str
) -> None:
    save_identity(tmp_path / "model.onnx", "FP32", (2,))
    with pytest.raises(ModelLoadError, match=message):
        backend_named("onnx")(context(tmp_path, inputs, outputs))


def test_a_graph_of_one_row_only_cannot_be_batched(tmp_path: Path) -> None:
    save(
        tmp_path / "model.onnx",
        [node("Identity", ["x"], ["y"])],
        [value("x", "FP32", [1, 2])],
        [value("y", "FP32", [1, 2])],
    )
    with pytest.raises(ModelLoadError, match="fixed first size 1"):
        backend_named("onnx")(context(tmp_path, (tensor("x"),), (tensor("y"),)))
    backend = backend_named("onnx")(context(tmp_path, (tensor("x"),), (tensor("y"),), max_batch_size=1))
    assert backend.infer({"x": np.ones((1, 2), np.float32)}, None)["y"].shape == (1, 2)


def test_an_unknown_backend_lists_those_there_are() -> None:
    with pytest.raises(ModelLoadError, match="no backend 'tea'; set backend to one of onnx, onnxruntime, python"):
        backend_named("tea")
    assert set(BACKENDS) == {"onnx", "onnxruntime", "python"}


def test_a_missing_onnxruntime_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    save_identity(tmp_path / "model.onnx", "FP32", (2,))
    with pytest.raises(ModelLoadError, match=r"pip install 'headrace\[node\]'"):
        backend_named("onnx")(context(tmp_path, (tensor("x"),), (tensor("y"),)))
