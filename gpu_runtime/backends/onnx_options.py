"""Session options and execution providers from a model's parameters. Pure: imports no onnxruntime, opens no file.

Accepted parameters (all optional; values may be text, as in ``config.pbtxt``): ``enable_mem_arena``,
``enable_mem_pattern``, ``memory.enable_memory_arena_shrinkage`` (``cpu:0;gpu:0`` for every run, ``off`` for never;
by default after large inputs have stopped), ``execution_mode`` (0 sequential, 1 parallel), ``intra_op_thread_count``,
``inter_op_thread_count``, ``session.use_device_allocator_for_initializers``, ``graph_optimization_level`` (disable,
basic, extended, all); with CUDA ``gpu_mem_limit`` (bytes), ``arena_extend_strategy`` (0/kNextPowerOfTwo or
1/kSameAsRequested, the default), ``cudnn_conv_algo_search``, ``do_copy_in_default_stream``; ``tensorrt`` (true asks
for TensorRT before CUDA) with ``precision_mode``, ``max_workspace_size_bytes``, ``trt_engine_cache_enable`` and
``trt_engine_cache_path`` (relative to the version folder); ``op_library_filename`` with ``trust``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

from gpu_runtime.threads import thread_override
from schemas.errors import ModelLoadError

__all__ = ["SessionPlan", "plan_session"]

_CUDA: Final = "CUDAExecutionProvider"
_TENSORRT: Final = "TensorrtExecutionProvider"
_CPU: Final = "CPUExecutionProvider"

_T = TypeVar("_T")

_FLAGS: Final = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}
_LEVELS: Final = {
    "disable": "ORT_DISABLE_ALL",
    "basic": "ORT_ENABLE_BASIC",
    "extended": "ORT_ENABLE_EXTENDED",
    "all": "ORT_ENABLE_ALL",
    # Triton's numbers of optimization.graph.level.
    "-1": "ORT_ENABLE_BASIC",
    "0": "ORT_ENABLE_ALL",
    "1": "ORT_ENABLE_EXTENDED",
    "2": "ORT_DISABLE_ALL",
}
_MODES: Final = {"0": "ORT_SEQUENTIAL", "1": "ORT_PARALLEL"}
_EXTEND: Final = {
    "0": "kNextPowerOfTwo",
    "1": "kSameAsRequested",
    "knextpoweroftwo": "kNextPowerOfTwo",
    "ksameasrequested": "kSameAsRequested",
}
_CONV: Final = {
    "0": "EXHAUSTIVE",
    "1": "HEURISTIC",
    "2": "DEFAULT",
    "exhaustive": "EXHAUSTIVE",
    "heuristic": "HEURISTIC",
    "default": "DEFAULT",
}
_PRECISION: Final = {"fp32": "fp32", "fp16": "fp16", "int8": "int8"}

_KNOWN: Final = frozenset(
    {
        "arena_extend_strategy",
        "cudnn_conv_algo_search",
        "do_copy_in_default_stream",
        "enable_mem_arena",
        "enable_mem_pattern",
        "execution_mode",
        "gpu_mem_limit",
        "graph_optimization_level",
        "inter_op_thread_count",
        "intra_op_thread_count",
        "max_workspace_size_bytes",
        "memory.enable_memory_arena_shrinkage",
        "op_library_filename",
        "precision_mode",
        "session.use_device_allocator_for_initializers",
        "tensorrt",
        "trt_engine_cache_enable",
        "trt_engine_cache_path",
        "trust",
    }
)


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """How a session is to be made.

    Attributes:
        providers: execution providers in the order of preference, with their options.
        config_entries: for ``SessionOptions.add_session_config_entry``.
        attributes: number- and flag-valued attributes of ``SessionOptions``.
        graph_optimization_level / execution_mode: member names of onnxruntime's enums.
        op_libraries: custom-op libraries to register, already allowed.
        shrink_arenas: arenas to shrink (``cpu:0;gpu:0``), "" for none.
        shrink_always: shrink at the end of every run, not only after large inputs have stopped.
        unknown: parameters that mean nothing here.
    """

    providers: tuple[tuple[str, dict[str, str]], ...]
    config_entries: dict[str, str]
    attributes: dict[str, int | bool]
    graph_optimization_level: str
    execution_mode: str
    op_libraries: tuple[Path, ...]
    shrink_arenas: str
    shrink_always: bool
    unknown: tuple[str, ...]


def plan_session(
    parameters: Mapping[str, object], *, path: Path, device: str, threads: int, available: Sequence[str]
) -> SessionPlan:
    """
    Args:
        path: the version folder, for relative paths.
        available: execution providers of the installed onnxruntime.

    Raises:
        ModelLoadError: a parameter has a wrong value, asks for what is not installed, or is not allowed.
    """
    read = _Parameters(parameters)
    arena = read.flag("enable_mem_arena", default=True)
    shrink = read.text("memory.enable_memory_arena_shrinkage")
    automatic = [*(["cpu:0"] if arena else []), *([f"gpu:{_ordinal(device)}"] if device != "cpu" else [])]
    attributes: dict[str, int | bool] = {
        "intra_op_num_threads": thread_override(parameters) or threads,
        "inter_op_num_threads": read.count("inter_op_thread_count") or 1,
        "enable_cpu_mem_arena": arena,
        "enable_mem_pattern": read.flag("enable_mem_pattern", default=True),
    }
    entries = {
        # Workers that spin between batches take the CPU from the instances that have work.
        "session.intra_op.allow_spinning": "0",
        "session.inter_op.allow_spinning": "0",
    }
    if read.flag("session.use_device_allocator_for_initializers", default=False):
        entries["session.use_device_allocator_for_initializers"] = "1"
    return SessionPlan(
        providers=_providers(read, path=path, device=device, available=available),
        config_entries=entries,
        attributes=attributes,
        graph_optimization_level=read.choice("graph_optimization_level", _LEVELS, default="all"),
        execution_mode=read.choice("execution_mode", _MODES, default="0"),
        op_libraries=_op_libraries(read, parameters, path),
        shrink_arenas=";".join(automatic) if shrink is None else "" if shrink in ("off", "") else shrink,
        shrink_always=shrink is not None,
        unknown=tuple(sorted(set(parameters) - _KNOWN)),
    )


def _ordinal(device: str) -> str:
    return device.partition(":")[2] or "0"


def _providers(
    read: _Parameters, *, path: Path, device: str, available: Sequence[str]
) -> tuple[tuple[str, dict[str, str]], ...]:
    if device == "cpu":
        return ((_CPU, {}),)
    wanted: list[tuple[str, dict[str, str]]] = []
    if read.flag("tensorrt", default=False):
        wanted.append((_TENSORRT, _tensorrt_options(read, path, device)))
    wanted.append((_CUDA, _cuda_options(read, device)))
    for name, _ in wanted:
        if name not in available:
            raise ModelLoadError(
                f"device {device} needs {name}, which the installed onnxruntime lacks (it has {', '.join(available)}); "
                "install headrace[gpu], or set the model's device to cpu"
            )
    return (*wanted, (_CPU, {}))


def _cuda_options(read: _Parameters, device: str) -> dict[str, str]:
    options = {
        "device_id": _ordinal(device),
        "arena_extend_strategy": read.choice("arena_extend_strategy", _EXTEND, default="1"),
        "cudnn_conv_algo_search": read.choice("cudnn_conv_algo_search", _CONV, default="1"),
        "do_copy_in_default_stream": "1" if read.flag("do_copy_in_default_stream", default=True) else "0",
    }
    if (limit := read.count("gpu_mem_limit")) is not None:
        options["gpu_mem_limit"] = str(limit)
    return options


def _tensorrt_options(read: _Parameters, path: Path, device: str) -> dict[str, str]:
    precision = read.choice("precision_mode", _PRECISION, default="fp32")
    options = {
        "device_id": _ordinal(device),
        "trt_fp16_enable": "1" if precision == "fp16" else "0",
        "trt_int8_enable": "1" if precision == "int8" else "0",
        "trt_engine_cache_enable": "1" if read.flag("trt_engine_cache_enable", default=False) else "0",
    }
    if (size := read.count("max_workspace_size_bytes")) is not None:
        options["trt_max_workspace_size"] = str(size)
    if (cache := read.text("trt_engine_cache_path")) is not None:
        options["trt_engine_cache_path"] = str(path / cache)
    return options


def _op_libraries(read: _Parameters, parameters: Mapping[str, object], path: Path) -> tuple[Path, ...]:
    value = parameters.get("op_library_filename")
    if value is None:
        return ()
    names = [str(name) for name in value] if isinstance(value, list | tuple) else [str(value)]
    if not read.flag("trust", default=False):
        raise ModelLoadError(
            f"parameter op_library_filename ({', '.join(names)}) loads native code into this process; "
            "set the parameter trust to true if you trust it"
        )
    return tuple(path / name for name in names)


class _Parameters:
    """Typed reading of free parameters; a wrong value names the parameter and what it may be."""

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values

    def text(self, name: str) -> str | None:
        value = self._values.get(name)
        return None if value is None else str(value).strip()

    def flag(self, name: str, *, default: bool) -> bool:
        return self._lookup(name, _FLAGS, default)

    def choice(self, name: str, choices: Mapping[str, str], *, default: str) -> str:
        return self._lookup(name, choices, choices[default])

    def count(self, name: str) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isdecimal():
            raise ModelLoadError(f"parameter {name} is {text!r}; set a whole number that is not negative")
        return int(text)

    def _lookup(self, name: str, choices: Mapping[str, _T], default: _T) -> _T:
        text = self.text(name)
        if text is None:
            return default
        found = choices.get(text.lower())
        if found is None:
            raise ModelLoadError(f"parameter {name} is {text!r}; set one of {', '.join(choices)}")
        return found
