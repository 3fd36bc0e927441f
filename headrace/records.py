"""A fetched record as the caller's side sees it: an answer or a dead letter, with its error typed."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import orjson

from schemas import record as contract
from schemas.codecs.client import decode_response
from schemas.errors import HeadraceError, error_from_code
from schemas.record import Headers
from schemas.tensors import Array, Tensors

_ARROW = "arrow"

__all__ = ["Result", "header", "readable", "text"]


def header(headers: Headers, name: str) -> str | None:
    """The last value of a header as text; None when it is absent or null. Bytes that are no UTF-8 are replaced."""
    for key, value in reversed(headers):
        if key == name:
            return None if value is None else value.decode(errors="replace")
    return None


@dataclass(frozen=True)
class Result:
    """One record of a results, reply or dead-letter topic. ``headers`` are all of them, ``timestamp_ms`` is Unix."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: Headers

    @classmethod
    def of(cls, record: Any) -> Result:
        return cls(
            record.topic,
            record.partition,
            record.offset,
            record.timestamp,
            record.key,
            record.value,
            tuple((name, None if value is None else bytes(value)) for name, value in record.headers),
        )

    @property
    def id(self) -> str | None:
        return header(self.headers, contract.ID)

    @property
    def error(self) -> HeadraceError | None:
        """What failed the request; None for an answer."""
        code = header(self.headers, contract.ERROR)
        if code is None:
            return None
        return error_from_code(code, header(self.headers, contract.ERROR_MESSAGE) or f"failed with {code}")

    @property
    def error_code(self) -> str | None:
        return header(self.headers, contract.ERROR)

    @cached_property
    def _decoded(self) -> tuple[Tensors, dict[str, object]]:
        return decode_response(self.value or b"", self.headers)

    def outputs(self) -> Tensors:
        """Output arrays by name.

        Raises:
            HeadraceError: the request failed; the error itself.
            DecodeError: the value is in no form of the record contract.
        """
        if (error := self.error) is not None:
            raise error
        return self._decoded[0]

    def for_json(self) -> object:
        """The value as something JSON can hold: arrays by name where it holds binary tensors, else see `readable`."""
        binary = header(self.headers, contract.JSON_LENGTH) is not None
        if binary or _ARROW in (header(self.headers, contract.CONTENT_TYPE) or ""):
            return {name: _listed(array) for name, array in self._decoded[0].items()}
        return readable(self.value)


def _listed(array: Array) -> object:
    return [readable(value) for value in array.ravel().tolist()] if array.dtype == object else array.tolist()


def readable(value: bytes | None) -> object:
    """Any value in a form that JSON can hold."""
    if value is None:
        return None
    try:
        return orjson.loads(value)
    except orjson.JSONDecodeError:
        pass
    return text(value)


def text(value: bytes | None) -> object:
    """Bytes as text where they are UTF-8, else ``{"base64": ...}``."""
    if value is None:
        return None
    try:
        return value.decode()
    except UnicodeDecodeError:
        return {"base64": b64encode(value).decode()}
