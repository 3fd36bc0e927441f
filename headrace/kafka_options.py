"""Kafka client settings by aiokafka's own names: checked, typed, and with their secrets kept out of sight.

It says what may be passed through and hands each client the part it knows. It opens no connection.
"""

from __future__ import annotations

import difflib
import inspect
import ssl
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from schemas.errors import ConfigError

__all__ = ["SECRETS", "KafkaOptions", "kafka_names", "parse_kafka"]

SECRETS: Final = frozenset({"sasl_plain_password", "ssl_password"})
"""Never shown, never a flag. Each may also be given as the path of a file: ``<name>_file``."""

_TLS: Final[dict[str, type]] = {
    "ssl_cafile": str,
    "ssl_certfile": str,
    "ssl_keyfile": str,
    "ssl_password": str,
    "ssl_check_hostname": bool,
}
"""Ours: they become the ``ssl_context`` that aiokafka asks for."""

_NO_DEFAULT: Final[dict[str, type]] = {
    "client_rack": str,
    "compression_type": str,
    "group_instance_id": str,
    "rebalance_timeout_ms": int,
    "sasl_kerberos_domain_name": str,
    "sasl_plain_password": str,
    "sasl_plain_username": str,
}
"""Types of the parameters whose default, None, does not show one."""

_TEXT_ANYWAY: Final = frozenset({"client_id"})

_OURS: Final[dict[str, str]] = {
    "bootstrap_servers": "set bootstrap",
    "group_id": "set group",
    "enable_auto_commit": "Headrace commits what it has finished, and nothing else",
    "acks": "Headrace waits for all replicas in sync",
    "enable_idempotence": "the delivery of each model decides it",
    "transactional_id": "the delivery of each model decides it",
    "max_poll_records": "a node sizes its fetches itself",
    "exclude_internal_topics": "Headrace names its topics one by one",
}
_OBJECTS: Final = frozenset(
    {
        "self",
        "topics",
        "loop",
        "api_version",
        "key_serializer",
        "value_serializer",
        "key_deserializer",
        "value_deserializer",
        "partitioner",
        "partition_assignment_strategy",
        "auto_commit_interval_ms",
        "consumer_timeout_ms",
        "ssl_context",
        "sasl_oauth_token_provider",
    }
)
"""Python objects, or of no use here: not settings."""


class KafkaOptions(Mapping[str, object]):
    """Checked options. Its ``repr`` hides secrets; a plain ``dict`` made from it does not."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, object] | None = None) -> None:
        self._values = dict(values or {})

    def __getitem__(self, name: str) -> object:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        shown = {name: "***" if name in SECRETS else value for name, value in self._values.items()}
        return f"KafkaOptions({shown})"


@cache
def _client_types() -> dict[str, type]:
    # aiokafka takes a third of a second to import: only those who set a Kafka option wait for it.
    from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
    from aiokafka.admin import AIOKafkaAdminClient

    found: dict[str, type] = {}
    for client in (AIOKafkaConsumer, AIOKafkaProducer, AIOKafkaAdminClient):
        for name, parameter in inspect.signature(client.__init__).parameters.items():
            if name in _OBJECTS or name in _OURS:
                continue
            kind = type(parameter.default) if parameter.default is not None else _NO_DEFAULT.get(name, str)
            found[name] = str if name in _TEXT_ANYWAY else kind
    return found


def kafka_names() -> dict[str, type]:
    """Every accepted option and its type, without the ``_file`` forms of secrets."""
    return dict(sorted({**_client_types(), **_TLS}.items()))


def parse_kafka(given: Mapping[str, object], sources: Mapping[str, str]) -> KafkaOptions:
    """Checks names, coerces values, reads secret files and builds the TLS context.

    Args:
        given: option -> value; text from variables, any YAML scalar from files.
        sources: option -> where it was written, for messages.

    Raises:
        ConfigError: an unknown or reserved name, a value of the wrong type, a file that cannot be read.
    """
    names = kafka_names()
    values: dict[str, object] = {}
    for name, value in given.items():
        where = sources.get(name, f"kafka.{name}")
        secret = name.removesuffix("_file")
        if name.endswith("_file") and secret in SECRETS:
            values[secret] = _read_secret(where, str(value))
        elif name in names:
            values[name] = _coerce(where, value, names[name], secret=name in SECRETS)
        else:
            raise _unknown(name, where, names)
    return KafkaOptions(_with_tls(values))


def _unknown(name: str, where: str, names: Mapping[str, type]) -> ConfigError:
    if name in _OURS:
        return ConfigError(f"{where} is not yours to set: {_OURS[name]}")
    if name in _OBJECTS:
        return ConfigError(f"{where} takes a Python object and cannot be a setting")
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]}?" if close else "see the Kafka client settings of aiokafka"
    return ConfigError(f"{where}: there is no Kafka option {name!r}; {hint}")


def _coerce(where: str, value: object, kind: type, *, secret: bool) -> object:
    text = str(value).strip()
    if kind is str and not isinstance(value, (dict, list)):
        return value if isinstance(value, str) else text
    if kind is bool and text.lower() in {"true", "1", "yes", "on", "false", "0", "no", "off"}:
        return text.lower() in {"true", "1", "yes", "on"}
    try:
        if kind is int and not isinstance(value, (bool, float)):
            return int(text)
        if kind is float and not isinstance(value, bool):
            return float(text)
    except ValueError:
        pass
    shown = "the value given" if secret else repr(value)
    raise ConfigError(f"{where} must be of type {kind.__name__}, got {shown}")


def _read_secret(where: str, path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{where} names {path!r}, which cannot be read: {error}") from None


def _with_tls(values: dict[str, object]) -> dict[str, object]:
    """Replaces the ``ssl_*`` names by a context; the protocol follows when it was left open."""
    tls = {name: values.pop(name) for name in _TLS if name in values}
    protocol = str(values.get("security_protocol", "PLAINTEXT"))
    encrypted = protocol in {"SSL", "SASL_SSL"}
    if tls and not encrypted:
        raise ConfigError(
            f"kafka options {', '.join(sorted(tls))} need security_protocol SSL or SASL_SSL, which is {protocol}"
        )
    if encrypted:
        values["ssl_context"] = _context(tls)
    return values


def _context(tls: Mapping[str, object]) -> ssl.SSLContext:
    def path(name: str) -> str | None:
        return str(tls[name]) if name in tls else None

    if "ssl_keyfile" in tls and "ssl_certfile" not in tls:
        raise ConfigError("kafka option ssl_keyfile needs ssl_certfile beside it")
    try:
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=path("ssl_cafile"))
        if (certificate := path("ssl_certfile")) is not None:
            # An empty password instead of none: OpenSSL would otherwise ask for one on the terminal.
            context.load_cert_chain(certificate, path("ssl_keyfile"), path("ssl_password") or "")
    except (OSError, ssl.SSLError) as error:
        files = ", ".join(f"{name}={tls[name]}" for name in sorted(tls) if name not in SECRETS)
        raise ConfigError(f"the TLS files cannot be used ({files}): {error}") from None
    context.check_hostname = bool(tls.get("ssl_check_hostname", True))
    return context
