"""Logs: two forms, one line a message in JSON, and secrets never."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator

import pytest

from infra.telemetry.logs import LogFormat, set_up_logging


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    loggers = [logging.getLogger(), logging.getLogger("headrace"), logging.getLogger("aiokafka")]
    before = [(logger.level, list(logger.handlers)) for logger in loggers]
    loggers[2].setLevel(logging.NOTSET)  # a command run by another test in this process silences it
    yield
    for logger, (level, handlers) in zip(loggers, before, strict=True):
        logger.setLevel(level)
        logger.handlers[:] = handlers


def test_text_lines_carry_level_logger_and_message() -> None:
    stream = io.StringIO()
    set_up_logging(stream=stream)
    logging.getLogger("headrace.node").info("model %s is ready", "embed")
    logging.getLogger("headrace.node").debug("not this")
    logging.getLogger("aiokafka").info("nor this")
    assert stream.getvalue().endswith("INFO    headrace.node: model embed is ready\n")
    assert stream.getvalue().count("\n") == 1


def test_json_is_one_object_a_line_with_extras_and_errors() -> None:
    stream = io.StringIO()
    set_up_logging("json", stream=stream)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("headrace.node").exception("failed", extra={"model": "embed", "rows": 3})
    (text,) = stream.getvalue().splitlines()
    line = json.loads(text)
    assert (line["level"], line["logger"], line["message"]) == ("error", "headrace.node", "failed")
    assert (line["model"], line["rows"]) == ("embed", 3)
    assert "ValueError: two\nlines" in line["error"]
    assert line["time"].endswith("+00:00")


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "message",
    [
        "connect with hunter2pass",
        "sasl_plain_password=hunter2pass",
        "{'sasl_plain_password': 'hunter2pass', 'x': 1}",
        '{"ssl_password": "hunter2pass"}',
        "ssl.key.password = hunter2pass, next",
    ],
)
def test_secrets_are_masked_by_value_and_by_name(form: LogFormat, message: str) -> None:
    stream = io.StringIO()
    set_up_logging(form, secrets=["hunter2pass", ""], stream=stream)
    try:
        raise ValueError(message)
    except ValueError:
        logging.getLogger("headrace").exception(message, extra={"detail": message, "ssl_password": "hunter2pass"})
    assert "hunter2pass" not in stream.getvalue()
    assert "***" in stream.getvalue()


@pytest.mark.parametrize(
    "message", ["sasl_plain_password=unlisted1", "{'ssl_password': 'unlisted1 a\\'b'}", '{"password": "unlisted1"}']
)
def test_a_value_that_nobody_listed_is_masked_beside_its_name(message: str) -> None:
    stream = io.StringIO()
    set_up_logging("json", stream=stream)
    logging.getLogger("headrace").warning("settings %s", message)
    assert "unlisted1" not in stream.getvalue()


def test_a_second_call_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    set_up_logging(stream=first)
    set_up_logging(stream=second)
    logging.getLogger("headrace").info("once")
    assert first.getvalue() == ""
    assert second.getvalue().count("once") == 1


def test_the_kafka_client_says_a_thing_once_and_of_its_connections_nothing() -> None:
    stream = io.StringIO()
    set_up_logging(stream=stream)
    for attempt in range(3):
        logging.getLogger("aiokafka").error("no connection, attempt %d", attempt)
        logging.getLogger("aiokafka.consumer.fetcher").error("no leader, attempt %d", attempt)
    logging.getLogger("aiokafka.consumer.fetcher").error("another line")
    logging.getLogger("aiokafka.consumer.group_coordinator").warning("Heartbeat failed because it is rebalancing")
    lines = [line.rpartition(": ")[2] for line in stream.getvalue().splitlines()]
    assert lines == ["no leader, attempt 0", "another line"]
