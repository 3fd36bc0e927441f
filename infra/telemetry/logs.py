"""Sets up logging once for a process: text or JSON lines on stderr, with secrets masked. It writes no log itself."""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, Literal, TextIO

import orjson

__all__ = ["LogFormat", "set_up_logging"]

LogFormat = Literal["text", "json"]

_MASK: Final = "***"

# `sasl_plain_password=x`, `'ssl_password': 'x'`, `"password": "x"`: in reprs, settings and messages of libraries. A
# quoted value ends at its quote, a bare one at white space or punctuation.
_BY_NAME: Final = re.compile(
    r"""(?P<name>\b[\w.-]*(?:password|passwd|secret|token)["']?\s*[=:]\s*)"""
    r"""(?:"(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'|[^\s,;)}\]"']+)""",
    re.IGNORECASE,
)
_SHORTEST_SECRET: Final = 3
"""Masking shorter ones wherever they occur would eat the log; they are still masked beside their name."""

_GROUP: Final = "aiokafka.consumer.group_coordinator"
_REPEATING: Final = {"aiokafka.cluster", "aiokafka.consumer.fetcher", _GROUP, "aiokafka.producer.sender"}
_REPEAT_S: Final = 10.0

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class _Masking(logging.Formatter):
    def __init__(self, secrets: Iterable[str]) -> None:
        super().__init__("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
        # The longest first, so that one within another leaves nothing behind.
        known = sorted({secret for secret in secrets if len(secret) >= _SHORTEST_SECRET}, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, known))) if known else None

    def mask(self, text: str) -> str:
        if self._known is not None:
            text = self._known.sub(_MASK, text)
        return _BY_NAME.sub(rf"\g<name>{_MASK}", text)

    def format(self, record: logging.LogRecord) -> str:
        return self.mask(super().format(record))


class _Json(_Masking):
    """One object a line: ``time`` (RFC 3339, UTC), ``level``, ``logger``, ``message``, ``error``, and any extras."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": self.mask(record.getMessage()),
        }
        if record.exc_info:
            line["error"] = self.mask(self.formatException(record.exc_info))
        for name, value in vars(record).items():
            if name not in _STANDARD and name not in line:
                plain = isinstance(value, (int, float, bool)) or value is None
                line[name] = value if plain else self.mask(f"{name}={value}").removeprefix(f"{name}=")
        return orjson.dumps(line, default=str).decode()


class _LessOfTheClient(logging.Filter):
    """Of aiokafka's connections nothing, as the node says in words what they say at every attempt. Of its group nothing
    below an error, as it warns at every ordinary rebalance. Of its loops each line once in `_REPEAT_S`, as without a
    broker they say the same ten times a second."""

    def __init__(self) -> None:
        super().__init__()
        self._spoke: dict[tuple[str, int], float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        if record.name not in _REPEATING:
            return record.name != "aiokafka"
        if record.name == _GROUP and record.levelno < logging.ERROR:
            return False
        place = (record.name, record.lineno)
        if record.created - self._spoke.get(place, 0.0) < _REPEAT_S:
            return False
        self._spoke[place] = record.created
        return True


def set_up_logging(
    log_format: LogFormat = "text",
    *,
    level: int = logging.INFO,
    secrets: Iterable[str] = (),
    stream: TextIO | None = None,
) -> None:
    """Sends ``headrace.*`` at ``level``, and warnings of libraries, to ``stream`` (stderr). A second call replaces.

    Args:
        secrets: values that must not appear; whatever follows a name such as ``sasl_plain_password`` is masked anyway.
    """
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.addFilter(_LessOfTheClient())
    handler.setFormatter(_Json(secrets) if log_format == "json" else _Masking(secrets))
    for name, threshold in (("", logging.WARNING), ("headrace", level)):
        logger = logging.getLogger(name)
        logger.setLevel(threshold)
        for old in [one for one in logger.handlers if isinstance(one.formatter, _Masking)]:
            logger.removeHandler(old)
    logging.getLogger().addHandler(handler)
