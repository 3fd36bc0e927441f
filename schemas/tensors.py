"""Tensors in memory: v2 datatypes and their numpy dtypes.

BYTES tensors are object arrays of ``bytes``. BF16 uses the ``bfloat16`` dtype of ml_dtypes. All else is the numpy
dtype of the same width, little-endian.
"""

from __future__ import annotations

from typing import Final, TypeAlias

import ml_dtypes
import numpy as np
import numpy.typing as npt

from schemas.errors import ValidationError
from schemas.model import Datatype

__all__ = ["Array", "Tensors", "datatype_of", "dtype_of", "item_size"]

Array: TypeAlias = npt.NDArray[np.generic] | npt.NDArray[np.object_]
Tensors: TypeAlias = dict[str, Array]
"""``{name: array of shape [rows, ...]}``."""

_DTYPES: Final[dict[Datatype, np.dtype[np.generic]]] = {
    "BOOL": np.dtype(np.bool_),
    "UINT8": np.dtype("<u1"),
    "UINT16": np.dtype("<u2"),
    "UINT32": np.dtype("<u4"),
    "UINT64": np.dtype("<u8"),
    "INT8": np.dtype("<i1"),
    "INT16": np.dtype("<i2"),
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "FP32": np.dtype("<f4"),
    "FP64": np.dtype("<f8"),
    "BYTES": np.dtype(np.object_),
}
_DATATYPES: Final = {dtype: name for name, dtype in _DTYPES.items()}


def dtype_of(datatype: Datatype) -> np.dtype[np.generic]:
    """The numpy dtype of a v2 datatype."""
    return _DTYPES[datatype]


def datatype_of(dtype: np.dtype[np.generic]) -> Datatype:
    """The v2 datatype of a numpy dtype; text and bytes dtypes are BYTES.

    Raises:
        ValidationError: the dtype has no v2 name (complex, datetime, structured).
    """
    found = _DATATYPES.get(dtype)
    if found is None:
        if dtype.kind in "SUOT":
            return "BYTES"
        found = _DATATYPES.get(dtype.newbyteorder("<"))
    if found is None:
        raise ValidationError(f"numpy dtype {dtype} has no v2 datatype; convert it to one of {', '.join(_DTYPES)}")
    return found


def item_size(datatype: Datatype) -> int | None:
    """Bytes an element takes in binary form; None for BYTES."""
    return None if datatype == "BYTES" else _DTYPES[datatype].itemsize
