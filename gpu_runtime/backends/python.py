"""Models written in Python: the class ``Model`` of ``<version>/model.py``, called with a batch of numpy arrays.

``__init__(self, context)`` gets a `LoadContext` (``context.path``, ``.config``, ``.device``, ``.parameters``).
``infer(self, batch)`` or ``infer(self, batch, parameters)`` (one dict a row) gives every declared output.
``close(self)`` is optional, and so is an attribute ``memory_bytes`` for models that know their size.
How the file is imported, and what it may import, is `gpu_runtime.backends.user_code`'s matter.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import cast

import numpy as np

from gpu_runtime.backend import LoadContext
from gpu_runtime.backends.shapes import declared_shape, model_shape
from gpu_runtime.backends.user_code import UserModule, failing_line, load_user_module
from gpu_runtime.request import Parameters
from schemas.errors import DeviceError, ModelError, ModelLoadError, OutOfMemoryError, RowErrors
from schemas.model import ModelConfig, TensorSpec
from schemas.tensors import Array, Tensors, dtype_of

__all__ = ["PythonBackend", "load_python"]

Infer = Callable[..., object]

_NOT_FOR_A_MODEL = (SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError)
"""What a model may raise that is no `Exception`: no way to end this process, nor this thread."""


def load_python(context: LoadContext) -> PythonBackend:
    """Imports the file and makes one ``Model``. See `BackendFactory`.

    Python models load one after another in a process, as imports are shared by all of it.
    """
    path = context.path / (context.config.default_filename or "model.py")
    if not path.is_file():
        raise ModelLoadError(f"{path} is not there; put the model's Python file there, or name it in default_filename")
    with load_user_module(path, label=f"{context.config.name}_{context.config.version}") as module:
        try:
            return PythonBackend(context, module, _make_model(module, context, path))
        except BaseException:
            module.close()
            raise


def _make_model(module: UserModule, context: LoadContext, path: Path) -> object:
    made = getattr(module.module, "Model", None)
    if not inspect.isclass(made):
        raise ModelLoadError(
            f"{path} defines no class Model; define it with __init__(self, context) and infer(self, batch)"
        )
    infer = getattr(made, "infer", None)
    if not callable(infer):
        raise ModelLoadError(f"{path}: class Model has no method infer; define infer(self, batch)")
    if inspect.iscoroutinefunction(infer) or inspect.isgeneratorfunction(infer) or inspect.isasyncgenfunction(infer):
        raise ModelLoadError(
            f"{path}: Model.infer must be a plain method that returns its outputs, not async, no yield"
        )
    try:
        return cast("Callable[[LoadContext], object]", made)(context)
    except DeviceError:
        raise
    except (Exception, SystemExit) as error:
        raise ModelLoadError(
            f"{failing_line(error, path.parent) or path}: Model.__init__ raised {type(error).__name__}: {error}"
        ) from error


class PythonBackend:
    """One object of the user's class.

    Outputs are brought to their declared datatypes where numpy calls that the same kind (float64 to FP32, but not
    float to integer); text becomes BYTES. ``memory_bytes`` is the model's own attribute of that name, else the
    size of the version folder's files.
    """

    def __init__(self, context: LoadContext, module: UserModule, model: object) -> None:
        self._config = context.config
        self._inputs = {spec.name: spec for spec in context.config.inputs}
        self._module = module
        self._model: object = model
        self._infer = cast("Infer", model.infer)  # type: ignore[attr-defined]  # looked for at load
        self._takes_parameters = _takes_parameters(self._infer, context.path)
        self._memory_bytes = _memory_bytes(model, context.path)

    @property
    def memory_bytes(self) -> int:
        return self._memory_bytes

    def infer(self, batch: Tensors, parameters: Sequence[Parameters] | None) -> Tensors:
        feeds = {
            name: model_shape(array, self._inputs[name], batched=self._config.batched) for name, array in batch.items()
        }
        try:
            given = (
                self._infer(feeds, _each_row(batch, parameters, self._config))
                if self._takes_parameters
                else (self._infer(feeds))
            )
        except RowErrors as failed:
            outputs: dict[str, object] = dict(_outputs(failed.outputs, self._config, partial=True))
            raise RowErrors(failed.rows, outputs) from failed
        except _NOT_FOR_A_MODEL as error:
            # Past here they would end the instance, and with it the requests that share the batch.
            raise ModelError(f"model {self._config.name!r} raised {type(error).__name__}: {error}") from error
        except Exception as error:
            if _is_out_of_memory(error):
                raise OutOfMemoryError(f"model {self._config.name!r} ran out of memory: {error}") from error
            raise
        return _outputs(given, self._config, partial=False)

    def close(self) -> None:
        close = getattr(self._model, "close", None)
        # The object goes before its module, whose globals its methods use.
        try:
            if callable(close):
                close()
        finally:
            del self._infer, self._model
            self._module.close()


def _takes_parameters(infer: Infer, path: Path) -> bool:
    kinds = [parameter.kind for parameter in inspect.signature(infer).parameters.values()]
    if inspect.Parameter.VAR_POSITIONAL in kinds:
        return True
    positional = sum(
        kind in (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD) for kind in kinds
    )
    if positional == 0:
        raise ModelLoadError(f"{path}: Model.infer takes no batch; define infer(self, batch)")
    return positional > 1


def _each_row(batch: Tensors, parameters: Sequence[Parameters] | None, config: ModelConfig) -> list[dict[str, object]]:
    if parameters is not None:
        return [dict(row) for row in parameters]
    rows = len(next(iter(batch.values()))) if config.batched and batch else 1
    return [{} for _ in range(rows)]


def _outputs(given: object, config: ModelConfig, *, partial: bool) -> Tensors:
    if not isinstance(given, Mapping):
        raise ModelError(
            f"model {config.name!r} returned {type(given).__name__}; return a dict of output name -> array"
        )
    outputs: Tensors = {}
    for spec in config.outputs:
        if spec.name in given:
            values = _to_declared(given[spec.name], spec, config.name)
            outputs[spec.name] = declared_shape(values, spec, batched=config.batched)
        elif not partial:
            names = ", ".join(map(str, given)) or "nothing"
            raise ModelError(f"model {config.name!r} returned no output {spec.name!r}, only {names}; return it too")
    return outputs


def _to_declared(values: object, spec: TensorSpec, model: str) -> Array:
    if spec.datatype == "BYTES":
        return _to_bytes(values, spec, model)
    array: Array = np.asarray(values)
    dtype = dtype_of(spec.datatype)
    if array.dtype == dtype:
        return array
    # ml_dtypes' bfloat16 is of no numpy kind, so a float that becomes BF16 is let through by name.
    if np.can_cast(array.dtype, dtype, "same_kind") or (spec.datatype == "BF16" and array.dtype.kind == "f"):
        return array.astype(dtype)
    raise ModelError(
        f"model {model!r} returned output {spec.name!r} as {array.dtype}, declared {spec.datatype}; "
        "convert it in infer, or declare what it returns"
    )


def _to_bytes(values: object, spec: TensorSpec, model: str) -> Array:
    array = np.asarray(values, dtype=np.object_)
    flat = array.reshape(-1).tolist()
    for index, value in enumerate(flat):
        if isinstance(value, str):
            flat[index] = value.encode()
        elif not isinstance(value, bytes):
            raise ModelError(
                f"model {model!r} returned a {type(value).__name__} in BYTES output {spec.name!r}; return bytes or str"
            )
    encoded = np.empty(len(flat), dtype=np.object_)
    encoded[:] = flat
    return encoded.reshape(array.shape)


def _is_out_of_memory(error: Exception) -> bool:
    # torch.cuda.OutOfMemoryError, torch.OutOfMemoryError and CuPy's go by this name; neither is imported for it.
    return isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__)


def _memory_bytes(model: object, path: Path) -> int:
    own = getattr(model, "memory_bytes", None)
    if isinstance(own, int) and own > 0:
        return own
    return max(1, sum(file.stat().st_size for file in path.rglob("*") if file.is_file()))
