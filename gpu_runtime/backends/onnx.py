"""ONNX models on ONNX Runtime: CPU, and CUDA or TensorRT where the installed onnxruntime has them.

Strings: BYTES tensors must hold UTF-8, as ONNX strings do; rows that do not fail alone. A file name other than
``model.onnx`` comes from ``default_filename``; a folder of that name holds ``model.onnx`` and its external data.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np

from gpu_runtime.backend import LoadContext
from gpu_runtime.backends.arena import ArenaShrink
from gpu_runtime.backends.cuda_memory import CudaHostMemory, CudaRuntime, free_device_bytes, try_cuda_runtime
from gpu_runtime.backends.onnx_errors import device_is_dead, run_error
from gpu_runtime.backends.onnx_options import SessionPlan, plan_session
from gpu_runtime.backends.onnx_runs import BoundRun, PlainRun, Run, Staging, Target
from gpu_runtime.backends.onnx_session import ORT_TYPES, NodeArg, RunOptions, Session
from gpu_runtime.backends.onnx_signature import check_signature
from gpu_runtime.backends.shapes import declared_shape, model_shape
from gpu_runtime.request import Parameters
from schemas.errors import DeviceError, ModelLoadError, RowErrors, ValidationError
from schemas.model import TensorSpec
from schemas.tensors import Array, Tensors

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["OnnxBackend", "load_onnx", "onnx_file"]

_log = logging.getLogger("headrace.gpu_runtime.onnx")
_SHRINK = "memory.enable_memory_arena_shrinkage"
_FATAL = 4  # onnxruntime would print what it also raises


def load_onnx(context: LoadContext) -> OnnxBackend:
    """Loads one session. See `BackendFactory`."""
    ort = _onnxruntime()
    path = onnx_file(context.path, context.config.default_filename)
    plan = plan_session(
        context.parameters,
        path=context.path,
        device=context.device,
        threads=context.threads,
        available=ort.get_available_providers(),
    )
    if plan.unknown:
        _log.warning("model %s: parameters unknown to onnx are ignored: %s", context.config.name, plan.unknown)
    cuda = None if context.device == "cpu" else try_cuda_runtime(context.device)
    free_before = None if cuda is None else free_device_bytes(cuda)
    session = _open_session(ort, path, plan, context)
    check_signature(session, context.config, path)
    return OnnxBackend(
        context,
        session=session,
        options=(_run_options(ort, ""), _run_options(ort, plan.shrink_arenas)),
        shrink=ArenaShrink(patience=1 if plan.shrink_always else 16) if plan.shrink_arenas else None,
        shrink_always=plan.shrink_always,
        memory_bytes=max(_stored_bytes(path), _taken_bytes(cuda, free_before)),
        cuda=cuda,
    )


class OnnxBackend:
    """One session and one thread's use of it.

    ``memory_bytes`` is the size of the model's files; on CUDA, what loading took from the device when that is more
    (loads that run at the same moment may be counted in).
    """

    def __init__(
        self,
        context: LoadContext,
        *,
        session: Session,
        options: tuple[RunOptions, RunOptions],
        memory_bytes: int,
        shrink: ArenaShrink | None = None,
        shrink_always: bool = False,
        cuda: CudaRuntime | None = None,
    ) -> None:
        config = context.config
        self._config = config
        self._device = context.device
        self._inputs = {spec.name: spec for spec in config.inputs}
        self._required = {node.name for node in session.get_inputs()}
        self._options = options
        self._shrink = shrink
        self._shrink_always = shrink_always
        self._memory_bytes = max(1, memory_bytes)
        self._run = _choose_run(context, session, cuda)

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    def infer(self, batch: Tensors, parameters: Sequence[Parameters] | None) -> Tensors:
        missing = self._required - batch.keys()
        if missing:
            raise ValidationError(
                f"model {self._config.name!r}: input {min(missing)!r} is missing and its ONNX graph has no default "
                "for it; send it, or export the model with an initializer of that name"
            )
        lead = next(iter(batch.values())).shape[:1] if self._config.batched and batch else ()
        bad_rows: dict[int, str] = {}
        feeds = {name: self._feed(array, self._inputs[name], bad_rows) for name, array in batch.items()}
        outputs = self._outputs(self._execute(feeds, lead))
        if bad_rows:
            raise RowErrors(bad_rows, dict(outputs))
        return outputs

    def close(self) -> None:
        self._run.close()

    def _feed(self, array: Array, spec: TensorSpec, bad_rows: dict[int, str]) -> Array:
        if spec.datatype == "BYTES":
            array = _to_strings(array, spec.name, bad_rows, batched=self._config.batched)
        return model_shape(array, spec, batched=self._config.batched)

    def _execute(self, feeds: Tensors, lead: tuple[int, ...]) -> list[Array]:
        try:
            return self._run(feeds, lead, self._options[self._shrinks(feeds)])
        except Exception as error:
            raise run_error(error, model=self._config.name, device=self._device) from error

    def _shrinks(self, feeds: Mapping[str, Array]) -> bool:
        if self._shrink is None or self._shrink_always:
            return self._shrink_always and self._shrink is not None
        return self._shrink.due(sum(array.nbytes for array in feeds.values()))

    def _outputs(self, arrays: list[Array]) -> Tensors:
        outputs: Tensors = {}
        for spec, array in zip(self._config.outputs, arrays, strict=True):
            values = _to_bytes(array) if spec.datatype == "BYTES" else array
            outputs[spec.name] = declared_shape(values, spec, batched=self._config.batched)
        return outputs


def onnx_file(folder: Path, filename: str | None) -> Path:
    """The file to open in a version folder.

    Raises:
        ModelLoadError: it is not there.
    """
    path = folder / (filename or "model.onnx")
    if path.is_dir():
        path = path / "model.onnx"
    if not path.is_file():
        raise ModelLoadError(f"{path} is not there; put the ONNX file there, or name it in default_filename")
    return path


def _onnxruntime() -> ModuleType:
    try:
        import onnxruntime
    except ImportError as error:
        raise ModelLoadError(
            f"the onnx backend needs onnxruntime ({error}); install it: pip install 'headrace[node]'"
        ) from error
    onnxruntime.disable_telemetry_events()
    return cast("ModuleType", onnxruntime)


def _open_session(ort: ModuleType, path: Path, plan: SessionPlan, context: LoadContext) -> Session:
    options = ort.SessionOptions()
    for name, number in plan.attributes.items():
        setattr(options, name, number)
    for key, value in plan.config_entries.items():
        options.add_session_config_entry(key, value)
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, plan.graph_optimization_level)
    options.execution_mode = getattr(ort.ExecutionMode, plan.execution_mode)
    options.log_severity_level = _FATAL
    try:
        for library in plan.op_libraries:
            options.register_custom_ops_library(str(library))
        session = cast(Session, ort.InferenceSession(str(path), options, providers=list(plan.providers)))
    except Exception as error:
        if context.device != "cpu" and device_is_dead(str(error)):
            raise DeviceError(f"device {context.device} cannot be used: {error}; see nvidia-smi") from error
        raise ModelLoadError(f"{path} cannot be loaded on {context.device}: {error}") from error
    # ONNX Runtime goes on without a provider whose libraries are missing, and would later rebuild the session
    # without one that failed: a GPU model that quietly runs on the CPU is worse than one that does not load.
    wanted = plan.providers[0][0]
    if wanted not in session.get_providers():
        raise ModelLoadError(
            f"{path}: {wanted} did not start on {context.device}, only {', '.join(session.get_providers())} did; "
            "check the driver and the CUDA and cuDNN libraries, or set the model's device to cpu"
        )
    session.disable_fallback()
    return session


def _run_options(ort: ModuleType, shrink_arenas: str) -> RunOptions:
    options = ort.RunOptions()
    options.log_severity_level = _FATAL
    if shrink_arenas:
        options.add_run_config_entry(_SHRINK, shrink_arenas)
    return cast(RunOptions, options)


def _choose_run(context: LoadContext, session: Session, cuda: CudaRuntime | None) -> Run:
    nodes = {node.name: node for node in session.get_outputs()}
    batched = context.config.batched
    targets = [
        Target(spec.name, spec.datatype, _fixed_sizes(nodes[spec.name], batched)) for spec in context.config.outputs
    ]
    inputs = {node.name: ORT_TYPES[node.type] for node in session.get_inputs()}
    inputs |= {spec.name: spec.datatype for spec in context.config.inputs}
    datatypes = {*inputs.values(), *(target.datatype for target in targets)}
    if "BYTES" in datatypes:
        if "BF16" in datatypes:
            raise ModelLoadError(
                f"model {context.config.name!r} has both BYTES and BF16 tensors, which onnxruntime cannot pass "
                "together from Python; export the BF16 tensors as FP32 or FP16"
            )
        return PlainRun(session, targets)
    if context.device == "cpu" and "BF16" not in datatypes:
        return PlainRun(session, targets)
    staging = None if cuda is None else Staging(CudaHostMemory(cuda))
    return BoundRun(session, inputs=inputs, targets=targets, staging=staging)


def _fixed_sizes(node: NodeArg, batched: bool) -> tuple[int, ...] | None:
    sizes = list(node.shape)[1:] if batched else list(node.shape)
    fixed = tuple(size for size in sizes if isinstance(size, int) and size >= 0)
    return fixed if len(fixed) == len(sizes) else None


def _stored_bytes(path: Path) -> int:
    # External data lies beside the model, and its names are only known from inside the file.
    return sum(file.stat().st_size for file in path.parent.iterdir() if file.is_file())


def _taken_bytes(cuda: CudaRuntime | None, free_before: int | None) -> int:
    free_now = None if cuda is None else free_device_bytes(cuda)
    return 0 if free_before is None or free_now is None else max(0, free_before - free_now)


def _to_strings(array: Array, name: str, bad_rows: dict[int, str], *, batched: bool) -> Array:
    """``bytes`` -> ``str``; the rows of values that are not UTF-8 are noted and run as empty strings."""
    texts = np.empty(array.size, dtype=np.object_)
    per_row = array.size // array.shape[0] if batched and array.shape[0] else max(1, array.size)
    for index, value in enumerate(array.reshape(-1).tolist()):
        try:
            texts[index] = value.decode()
        except UnicodeDecodeError as error:
            texts[index] = ""
            bad_rows[index // per_row] = f"input {name!r} is not UTF-8 ({error.reason} at byte {error.start})"
    return texts.reshape(array.shape)


def _to_bytes(array: Array) -> Array:
    encoded = np.empty(array.size, dtype=np.object_)
    for index, value in enumerate(array.reshape(-1).tolist()):
        encoded[index] = value.encode()
    return encoded.reshape(array.shape)
