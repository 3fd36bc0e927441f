"""Kafka options: names, types, secrets, TLS."""

from __future__ import annotations

import inspect
import ssl
from pathlib import Path

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from consumers.kafka import FIXED
from headrace.kafka_options import SECRETS, kafka_names, parse_kafka
from schemas.errors import ConfigError


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("linger_ms", "5", 5),
        ("linger_ms", 5, 5),
        ("check_crcs", "no", False),
        ("check_crcs", "TRUE", True),
        ("check_crcs", True, True),
        ("security_protocol", "SASL_PLAINTEXT", "SASL_PLAINTEXT"),
        ("client_id", "me", "me"),
        ("group_instance_id", 7, "7"),
        ("rebalance_timeout_ms", "1000", 1000),
        ("compression_type", "gzip", "gzip"),
    ],
)
def test_values_take_the_type_of_the_option(name: str, given: object, expected: object) -> None:
    assert parse_kafka({name: given}, {})[name] == expected


@pytest.mark.parametrize(
    ("name", "given"),
    [("linger_ms", "soon"), ("linger_ms", 1.5), ("linger_ms", True), ("check_crcs", "maybe"), ("client_id", ["a"])],
)
def test_a_value_of_another_type_is_refused_by_name(name: str, given: object) -> None:
    with pytest.raises(ConfigError, match=r"^MY_SOURCE must be of type \w+, got "):
        parse_kafka({name: given}, {name: "MY_SOURCE"})


def test_every_option_is_a_parameter_of_a_client_or_part_of_tls() -> None:
    known = {*inspect.signature(AIOKafkaConsumer).parameters, *inspect.signature(AIOKafkaProducer).parameters}
    assert {name for name in kafka_names() if name not in known} == {
        "ssl_cafile",
        "ssl_certfile",
        "ssl_keyfile",
        "ssl_password",
        "ssl_check_hostname",
    }
    assert set(kafka_names()) >= SECRETS


@pytest.mark.parametrize("name", sorted(FIXED | {"ssl_context", "sasl_oauth_token_provider", "topics"}))
def test_what_the_guarantees_rest_on_cannot_be_set(name: str) -> None:
    with pytest.raises(ConfigError, match=r"not yours to set|takes a Python object"):
        parse_kafka({name: "x"}, {})


def test_a_secret_may_come_from_a_file_without_its_last_line_break(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("hunter2 \n")
    assert parse_kafka({"sasl_plain_password_file": str(secret)}, {})["sasl_plain_password"] == "hunter2 "


def test_a_secret_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"names '.*nowhere', which cannot be read"):
        parse_kafka({"sasl_plain_password_file": str(tmp_path / "nowhere")}, {})


def test_a_wrong_secret_is_not_shown() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_kafka({"sasl_plain_password": ["hunter2"]}, {})
    assert "hunter2" not in str(caught.value)


def test_an_encrypted_protocol_gets_a_context_that_checks_the_broker() -> None:
    options = parse_kafka({"security_protocol": "SASL_SSL"}, {})
    context = options["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_the_host_name_check_can_be_left_out_and_the_certificate_is_still_checked() -> None:
    context = parse_kafka({"security_protocol": "SSL", "ssl_check_hostname": "false"}, {})["ssl_context"]
    assert isinstance(context, ssl.SSLContext)
    assert not context.check_hostname
    assert context.verify_mode is ssl.CERT_REQUIRED


def test_tls_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("no certificate")
    with pytest.raises(ConfigError, match=r"TLS files cannot be used .*ca.pem"):
        parse_kafka({"security_protocol": "SSL", "ssl_cafile": str(authority)}, {})


def test_tls_files_without_an_encrypted_protocol_are_refused() -> None:
    with pytest.raises(ConfigError, match="ssl_cafile need security_protocol SSL or SASL_SSL, which is PLAINTEXT"):
        parse_kafka({"ssl_cafile": "/ca.pem"}, {})


def test_a_key_without_its_certificate_is_refused() -> None:
    with pytest.raises(ConfigError, match="ssl_keyfile needs ssl_certfile"):
        parse_kafka({"security_protocol": "SSL", "ssl_keyfile": "/key.pem"}, {})


def test_no_plain_option_is_left_of_tls() -> None:
    options = parse_kafka({"security_protocol": "SSL", "ssl_check_hostname": True, "linger_ms": 1}, {})
    assert set(options) == {"security_protocol", "ssl_context", "linger_ms"}
