"""The part of ``onnxruntime.InferenceSession`` that we call, as protocols, and its names for datatypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from schemas.model import Datatype
from schemas.tensors import Array

__all__ = ["ELEMENT_TYPES", "ORT_TYPES", "Binding", "NodeArg", "OrtValue", "RunOptions", "Session"]

ORT_TYPES: Final[dict[str, Datatype]] = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(bfloat16)": "BF16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}

ELEMENT_TYPES: Final[dict[Datatype, int]] = {
    "FP32": 1,
    "UINT8": 2,
    "INT8": 3,
    "UINT16": 4,
    "INT16": 5,
    "INT32": 6,
    "INT64": 7,
    "BOOL": 9,
    "FP16": 10,
    "FP64": 11,
    "UINT32": 12,
    "UINT64": 13,
    "BF16": 16,
}
"""Numbers of ``onnx.TensorProto.DataType`` (onnx.proto); strings cannot be bound."""


class NodeArg(Protocol):
    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def shape(self) -> Sequence[int | str | None]: ...


class RunOptions(Protocol):
    def add_run_config_entry(self, key: str, value: str, /) -> None: ...


class OrtValue(Protocol):
    def numpy(self) -> Array: ...
    def data_ptr(self) -> int: ...
    def shape(self) -> Sequence[int]: ...


class Binding(Protocol):
    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: int, shape: Sequence[int], buffer_ptr: int
    ) -> None: ...
    def bind_output(
        self,
        name: str,
        device_type: str = ...,
        device_id: int = ...,
        element_type: int | None = ...,
        shape: Sequence[int] | None = ...,
        buffer_ptr: int | None = ...,
    ) -> None: ...
    def clear_binding_inputs(self) -> None: ...
    def clear_binding_outputs(self) -> None: ...
    def synchronize_inputs(self) -> None: ...
    def synchronize_outputs(self) -> None: ...
    def get_outputs(self) -> Sequence[OrtValue]: ...


class Session(Protocol):
    def get_inputs(self) -> Sequence[NodeArg]: ...
    def get_outputs(self) -> Sequence[NodeArg]: ...
    def get_overridable_initializers(self) -> Sequence[NodeArg]: ...
    def get_providers(self) -> Sequence[str]: ...
    def disable_fallback(self) -> None: ...
    def run(self, names: Sequence[str], feeds: dict[str, Array], options: RunOptions, /) -> list[Array]: ...
    def io_binding(self) -> Binding: ...
    def run_with_iobinding(self, binding: Binding, options: RunOptions, /) -> None: ...
