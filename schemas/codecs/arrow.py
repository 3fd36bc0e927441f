"""Arrow IPC streams <-> arrays: a column is a tensor, a row of the table is a row of the batch.

- Shape [1] (or []) is a plain column; one dimension is a list column, of fixed size or with equal lengths; more are
  ``arrow.fixed_shape_tensor`` or lists of lists. Answers use the plain column, the fixed-size list and the tensor.
- BYTES are binary or string columns; BF16 has no Arrow type: inputs of it are refused, outputs are written as FP32.
- A null is NaN in a floating column and refused elsewhere.
- Compressed streams are refused: how much they unpack to is not known before it is allocated.
- For a model with no batch dimension the table has one row.

pyarrow is imported on first use, so that nodes that meet no Arrow need not have it.
"""

from __future__ import annotations

import struct
from typing import Any, Final

import numpy as np

from schemas.codec import Answer, Limits
from schemas.codecs.binary import bytes_array
from schemas.codecs.checks import Parsed, check_inputs, check_shapes, unknown_input
from schemas.codecs.json_data import json_ready
from schemas.codecs.plan import Plan, TensorPlan
from schemas.errors import ConfigError, DecodeError, TooLargeError, ValidationError
from schemas.model import Datatype
from schemas.tensors import Array, Tensors

__all__ = ["ARROW", "parse_arrow", "write_arrow"]

ARROW: Final = Answer(style="arrow")

_TYPES: Final[dict[Datatype, str]] = {
    "BOOL": "bool",
    "UINT8": "uint8",
    "UINT16": "uint16",
    "UINT32": "uint32",
    "UINT64": "uint64",
    "INT8": "int8",
    "INT16": "int16",
    "INT32": "int32",
    "INT64": "int64",
    "FP16": "halffloat",
    "FP32": "float",
    "FP64": "double",
}
"""Arrow's names. BYTES has four."""

_BYTES_TYPES: Final = ("binary", "large_binary", "string", "large_string")
_MOST_DIMENSIONS: Final = 32


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc
    except ImportError:
        raise ConfigError(
            "Arrow values need pyarrow, which is not installed: pip install 'headrace[arrow]', or send JSON"
        ) from None
    return pyarrow


def parse_arrow(plan: Plan, value: bytes, limits: Limits) -> Parsed:
    """
    Raises:
        DecodeError: not an uncompressed Arrow IPC stream.
        ValidationError | TooLargeError: naming the column, the expected and the actual.
        ConfigError: pyarrow is not installed.
    """
    pa = _pyarrow()
    try:
        table = _read(pa, value, plan, limits)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise DecodeError(f"value is not an Arrow IPC stream: {str(error)[:200]}") from None
    names: list[str] = table.column_names
    for name in names:
        if name not in plan.inputs:
            raise unknown_input(plan, name)
        if names.count(name) > 1:
            raise ValidationError(f"{plan.inputs[name].label}: expected one column, got {names.count(name)}")
    check_inputs(plan, names)
    if table.num_rows != 1 and not (plan.batched and table.num_rows):
        wanted = "at least 1 row" if plan.batched else "1 row, as the model has no batch dimension"
        raise ValidationError(f"model {plan.model!r}: expected a table of {wanted}, got {table.num_rows}")
    ordered = [name for name in plan.inputs if name in names]
    try:
        found = {name: _column(pa, table.column(name), plan.inputs[name]) for name in ordered}
    except (pa.ArrowException, NotImplementedError) as error:
        raise DecodeError(f"a column of the Arrow stream cannot be read: {str(error)[:200]}") from None
    shapes = {name: array.shape if plan.batched else array.shape[1:] for name, array in found.items()}
    rows = check_shapes(plan, shapes, limits)
    return Parsed(rows, {name: found[name].reshape(shapes[name]) for name in ordered}, ARROW)


def _read(pa: Any, value: bytes, plan: Plan, limits: Limits) -> Any:
    rows = 0
    for message in pa.ipc.MessageReader.open_stream(pa.py_buffer(value)):
        if message.type == "record batch":
            count = _batch_rows(message.metadata.to_pybytes())
            rows += count
            if not 0 <= count <= limits.max_rows or rows > limits.max_rows:
                raise TooLargeError(
                    f"model {plan.model!r}: expected at most {limits.max_rows} rows in a record, got {max(rows, count)}"
                )
    return pa.ipc.open_stream(pa.py_buffer(value)).read_all()


def _batch_rows(metadata: bytes) -> int:
    """Rows of a record batch message, read from its flatbuffer (Arrow's format/Message.fbs).

    Raises:
        DecodeError: the batch is compressed, or the metadata is damaged.
    """
    try:
        (message,) = struct.unpack_from("<I", metadata)
        header_at = _table_field(metadata, message, 2)
        (header,) = struct.unpack_from("<I", metadata, header_at)
        batch = header_at + header
        if _table_field(metadata, batch, 3):
            raise DecodeError("compressed Arrow streams are not accepted; write the stream without compression")
        length_at = _table_field(metadata, batch, 0)
        return int(struct.unpack_from("<q", metadata, length_at)[0]) if length_at else 0
    except struct.error:
        raise DecodeError("value is not an Arrow IPC stream: damaged metadata") from None


def _table_field(metadata: bytes, table: int, number: int) -> int:
    """Where a flatbuffer table's field is; 0 when it is absent."""
    (back,) = struct.unpack_from("<i", metadata, table)
    vtable = table - back
    size, _ = struct.unpack_from("<HH", metadata, vtable)
    slot = 4 + 2 * number
    if slot + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", metadata, vtable + slot)
    return table + offset if offset else 0


def _column(pa: Any, column: Any, tensor: TensorPlan) -> Array:
    """The column as ``[rows, ...]``; the shape beyond the rows is only found here, not checked."""
    array = column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks)
    shape = [len(array)]
    if isinstance(array.type, pa.FixedShapeTensorType):
        if array.type.permutation not in (None, list(range(len(array.type.shape)))):
            raise ValidationError(f"{tensor.label}: expected a tensor column without permutation")
        shape += array.type.shape
        array = _items(pa, array.storage, tensor)[0]
    else:
        while pa.types.is_fixed_size_list(array.type) or pa.types.is_list(array.type) or _is_large_list(pa, array):
            if len(shape) > _MOST_DIMENSIONS:
                raise ValidationError(f"{tensor.label}: expected at most {_MOST_DIMENSIONS} nested lists, got more")
            array, size = _items(pa, array, tensor)
            shape.append(size)
    if len(shape) == 1 and tensor.dims == (1,):
        shape.append(1)
    return _elements(pa, array, tensor).reshape(shape)


def _is_large_list(pa: Any, array: Any) -> bool:
    return bool(pa.types.is_large_list(array.type))


def _items(pa: Any, array: Any, tensor: TensorPlan) -> tuple[Any, int]:
    """The lists' elements on end, and the length that all lists share."""
    if array.null_count:
        raise ValidationError(f"{tensor.label}: expected no null lists, got {array.null_count}")
    if pa.types.is_fixed_size_list(array.type):
        return array.flatten(), array.type.list_size
    lengths = np.unique(array.value_lengths().to_numpy(zero_copy_only=False))
    if len(lengths) > 1:
        raise ValidationError(
            f"{tensor.label}: expected lists of one length, got lengths from {lengths[0]} to {lengths[-1]}"
        )
    return array.flatten(), int(lengths[0]) if len(lengths) else 0


def _elements(pa: Any, array: Any, tensor: TensorPlan) -> Array:
    got = str(array.type)
    expected = _BYTES_TYPES if tensor.datatype == "BYTES" else (_TYPES.get(tensor.datatype),)
    if None in expected:
        raise ValidationError(f"{tensor.label}: {tensor.datatype} has no Arrow type; send v2 with binary tensors")
    if got not in expected:
        raise ValidationError(
            f"{tensor.label}: expected {tensor.datatype} (Arrow {' or '.join(map(str, expected))}), got Arrow {got}"
        )
    if array.null_count and tensor.dtype.kind != "f":
        raise ValidationError(f"{tensor.label}: expected no nulls, got {array.null_count}")
    if tensor.datatype == "BYTES":
        return bytes_array(array.cast(pa.large_binary()).to_pylist())
    flat: Array = array.to_numpy(zero_copy_only=False)
    return flat


def write_arrow(outputs: Tensors, *, batched: bool) -> bytes:
    """One record's outputs as an IPC stream of one batch."""
    pa = _pyarrow()
    columns = {name: _write_column(pa, array if batched else array[None]) for name, array in outputs.items()}
    batch = pa.RecordBatch.from_arrays(list(columns.values()), list(columns))
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    value: bytes = sink.getvalue().to_pybytes()
    return value


def _write_column(pa: Any, array: Array) -> Any:
    rows, dims = array.shape[0], array.shape[1:]
    if array.dtype == np.object_:
        flat = pa.array(array.reshape(-1).tolist(), pa.binary())
    else:
        flat = pa.array(json_ready(array).reshape(-1) if array.dtype != np.float16 else array.reshape(-1))
    if dims in ((), (1,)):
        return flat
    size = int(np.prod(dims))
    if len(dims) == 1 or not size or array.dtype == np.object_ or array.dtype == np.bool_:
        return _nest(pa, flat, rows, dims)
    storage = pa.FixedSizeListArray.from_buffers(pa.list_(flat.type, size), rows, [None], children=[flat])
    return pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(flat.type, dims), storage)


def _nest(pa: Any, flat: Any, rows: int, dims: tuple[int, ...]) -> Any:
    """Fixed-size lists within each other, for what the tensor type cannot hold."""
    array = flat
    for axis in reversed(range(len(dims))):
        length = rows * int(np.prod(dims[:axis]))
        array = pa.FixedSizeListArray.from_buffers(pa.list_(array.type, dims[axis]), length, [None], children=[array])
    return array
