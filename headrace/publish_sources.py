"""Records to be published, read from text, JSON Lines or files, a bounded piece at a time. It sends nothing."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import IO, Final

import orjson

from schemas.errors import ConfigError, DecodeError, TooLargeError

__all__ = ["Draft", "in_pieces", "json_text", "jsonl_file", "raw_files"]

JSON: Final = "application/json"
RAW: Final = "application/octet-stream"

_PIECE_RECORDS: Final = 200
"""Read ahead in a thread: enough to spread the cost of the switch, few enough to hold in memory at a megabyte each."""


@dataclass(frozen=True, slots=True)
class Draft:
    """``source`` is what a message calls the record; ``consumed`` is the input read so far, for progress."""

    value: bytes
    content_type: str
    source: str
    consumed: int


def json_text(text: str) -> Iterator[Draft]:
    """
    Raises:
        DecodeError: no JSON object.
    """
    value = text.encode()
    _check_object(value, "--json")
    yield Draft(value, JSON, "--json", 1)


def jsonl_file(path: Path, max_bytes: int) -> Iterator[Draft]:
    """One record a line, blank lines apart; ``-`` is standard input. ``consumed`` counts bytes.

    Raises:
        DecodeError | TooLargeError: a bad line, by file and number.
        ConfigError: the file cannot be read.
    """
    try:
        with _opened(path) as file:
            yield from _lines(file, path, max_bytes)
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


def raw_files(paths: Sequence[Path], max_bytes: int) -> Iterator[Draft]:
    """One record a file. ``consumed`` counts files.

    Raises:
        TooLargeError: a file that cannot fit in a record.
        ConfigError: a file that cannot be read.
    """
    for number, path in enumerate(paths, 1):
        try:
            size = path.stat().st_size
            if size > max_bytes:
                raise _too_large(str(path), size, max_bytes)
            yield Draft(path.read_bytes(), RAW, str(path), number)
        except OSError as error:
            raise ConfigError(f"{path} cannot be read: {error.strerror}") from None


async def in_pieces(drafts: Iterator[Draft]) -> AsyncIterator[list[Draft]]:
    """Reads in a thread, so that a slow disk or pipe does not hold up what is being sent.

    A bad record raises only after those before it have been handed over.
    """
    trouble: list[Exception] = []

    def piece() -> list[Draft]:
        taken: list[Draft] = []
        try:
            for draft in islice(drafts, _PIECE_RECORDS):
                taken.append(draft)  # noqa: PERF402 - what was read before a bad record must be kept
        except (DecodeError, TooLargeError, ConfigError) as error:
            trouble.append(error)
        return taken

    while taken := await asyncio.to_thread(piece):
        yield taken
        if trouble:
            break
    if trouble:
        raise trouble[0]


def _opened(path: Path) -> IO[bytes]:
    return sys.stdin.buffer if str(path) == "-" else path.open("rb")


def _lines(file: IO[bytes], path: Path, max_bytes: int) -> Iterator[Draft]:
    consumed, number = 0, 0
    while line := file.readline(max_bytes + 2):
        number += 1
        consumed += len(line)
        value = line.strip()
        where = f"{path}:{number}"
        if len(value) > max_bytes:
            raise _too_large(where, len(value), max_bytes)
        if value:
            _check_object(value, where)
            yield Draft(value, JSON, where, consumed)


def _check_object(value: bytes, where: str) -> None:
    try:
        parsed = orjson.loads(value)
    except orjson.JSONDecodeError as error:
        raise DecodeError(f"{where} is not JSON: {error}") from None
    if not isinstance(parsed, dict):
        raise DecodeError(f'{where} must be a JSON object such as {{"x": [1, 2]}}, got {type(parsed).__name__}')


def _too_large(where: str, size: int, max_bytes: int) -> TooLargeError:
    return TooLargeError(
        f"{where} has at least {size} bytes and does not fit into a record of {max_bytes}; "
        "split it, or raise the kafka option max_request_size and the topic's max.message.bytes"
    )
