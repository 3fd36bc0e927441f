"""Settings from three places: a flag, else a ``HEADRACE_*`` variable, else the YAML file named by ``--config``.

One name everywhere: ``--ops-port``, ``HEADRACE_OPS_PORT``, ``ops_port:``. An unknown name stops the start. It decides
nothing about what the values are used for.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from headrace.kafka_options import KafkaOptions, parse_kafka
from schemas.errors import ConfigError, HeadraceError
from schemas.record import DEFAULT_GROUP, DEFAULT_NAMESPACE, check_name

__all__ = ["PREFIX", "Settings", "load_settings", "settings_table"]

PREFIX: Final = "HEADRACE_"
KAFKA_PREFIX: Final = "HEADRACE_KAFKA_"

_NOT_SETTINGS: Final = frozenset({"HEADRACE_CONFIG", "HEADRACE_DEBUG", "HEADRACE_STATE_DIR"})

# Kubernetes sets these for a Service whose name begins with "headrace": HEADRACE_SERVICE_HOST,
# HEADRACE_PORT_9400_TCP_ADDR, and HEADRACE_OPS_PORT=tcp://10.0.0.1:9400 for one called "headrace-ops".
_SERVICE_LINK: Final = re.compile(r"(_SERVICE_HOST|_SERVICE_PORT(_\w+)?|_PORT_\d+_(TCP|UDP|SCTP)(_\w+)?)$")
_SERVICE_URL: Final = re.compile(r"(tcp|udp|sctp)://")

Positive = Annotated[float, Field(gt=0)]


class Settings(BaseModel):
    """Everything a process can be told. Field descriptions are the table of docs/settings.md."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    models: Path | None = Field(None, description="model repository: a folder with one folder a model")
    bootstrap: str | None = Field(None, description="Kafka brokers, `host:port[,host:port]`")
    group: str = Field(DEFAULT_GROUP, min_length=1, description="consumer group; nodes of one group share the work")
    namespace: str = Field(DEFAULT_NAMESPACE, description="first part of every topic name")
    partitions: int = Field(4, ge=1, description="partitions of topics that have to be created")
    replication: int = Field(-1, ge=-1, description="replicas of topics that have to be created; -1: broker's default")
    shutdown_grace_s: Positive = Field(30.0, description="seconds a stopping node may take to finish its records")
    revoke_grace_s: Positive = Field(5.0, description="seconds a rebalance may wait for running batches")
    stuck_after_s: Positive = Field(60.0, description="`/live` fails when a loop has not turned for so many seconds")
    announce_interval_s: Positive = Field(5.0, description="seconds between a node's entries in the registry")
    tombstones: Literal["skip", "forward"] = Field(
        "skip", description="what becomes of records without a value: counted, or repeated on the results topic"
    )
    ops_host: str = Field("0.0.0.0", description="address of `/live`, `/ready` and `/metrics`")  # noqa: S104 - probes come from outside the pod
    ops_port: int = Field(9400, ge=0, le=65535, description="port of `/live`, `/ready`, `/metrics`; 0: any free one")
    log_format: Literal["text", "json"] = Field("text", description="how log lines are written")
    log_level: Literal["debug", "info", "warning", "error"] = Field("info", description="least severe line shown")
    tracing: bool = Field(False, description="spans a record and a batch; where to is for the `OTEL_*` variables")
    kafka: KafkaOptions = Field(
        default_factory=KafkaOptions,
        description="Kafka client settings by aiokafka's names; also `ssl_cafile`, `ssl_certfile`, `ssl_keyfile`, "
        "`ssl_password` and `ssl_check_hostname`; a secret also as `<name>_file`",
    )

    @field_validator("namespace")
    @classmethod
    def _legal(cls, value: str) -> str:
        return check_name("namespace", value)

    @field_validator("replication")
    @classmethod
    def _not_zero(cls, value: int) -> int:
        if value == 0:
            raise ValueError("0 replicas hold nothing; give 1 or more, or -1 for the broker's default")
        return value


@dataclass(slots=True)
class _Found:
    """Values by name, and for each the place where it was written."""

    values: dict[str, object]
    sources: dict[str, str]

    def put(self, name: str, value: object, source: str) -> None:
        if value is not None:
            self.values[name] = value
            self.sources[name] = source


def load_settings(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    config: Path | None = None,
) -> Settings:
    """
    Args:
        flags: by setting name; None stands for "not given".
        config: the YAML file; None takes ``HEADRACE_CONFIG``, and no file when that is unset.

    Raises:
        ConfigError: unknown name, bad value, or a file that cannot be read; names the place and the remedy.
    """
    environ = os.environ if environ is None else environ
    plain, kafka = _Found({}, {}), _Found({}, {})
    file = (
        config if config is not None else Path(environ["HEADRACE_CONFIG"]) if environ.get("HEADRACE_CONFIG") else None
    )
    if file is not None:
        _from_file(file, plain, kafka)
    _from_environ(environ, plain, kafka)
    for name, value in (flags or {}).items():
        plain.put(name, value, f"--{name.replace('_', '-')}")
    options = parse_kafka(kafka.values, kafka.sources)
    try:
        return Settings.model_validate({**plain.values, "kafka": options})
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        name = str(first["loc"][0])
        reason = first["msg"].removeprefix("Value error, ")
        raise ConfigError(f"{plain.sources.get(name, name)}: {reason}, got {first['input']!r}") from None
    except HeadraceError as error:
        raise ConfigError(str(error)) from None


def _from_file(path: Path, plain: _Found, kafka: _Found) -> None:
    try:
        content: object = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"settings file {path} cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"settings file {path} is not YAML: {_one_line(error)}") from None
    if content is None:
        return
    if not isinstance(content, dict):
        raise ConfigError(f"settings file {path} must hold 'name: value' lines, got {type(content).__name__}")
    for name, value in content.items():
        _check_known(str(name), f"{path}: {name}")
        if name != "kafka":
            plain.put(name, value, f"{path}: {name}")
        elif value is not None and not isinstance(value, dict):
            raise ConfigError(f"{path}: kafka must hold 'name: value' lines, got {type(value).__name__}")
        else:
            for option, setting in (value or {}).items():
                kafka.put(str(option), setting, f"{path}: kafka.{option}")


def _from_environ(environ: Mapping[str, str], plain: _Found, kafka: _Found) -> None:
    for variable, text in sorted(environ.items()):
        if not variable.startswith(PREFIX) or variable in _NOT_SETTINGS:
            continue
        if _SERVICE_LINK.search(variable) or (variable.endswith("_PORT") and _SERVICE_URL.match(text)):
            continue
        if variable.startswith(KAFKA_PREFIX):
            kafka.put(variable.removeprefix(KAFKA_PREFIX).lower(), text, variable)
        else:
            name = variable.removeprefix(PREFIX).lower()
            if name == "kafka":
                raise ConfigError(f"{variable} is no setting by itself: write {KAFKA_PREFIX}<NAME>")
            _check_known(name, variable)
            plain.put(name, text, variable)


def _check_known(name: str, where: str) -> None:
    if name in Settings.model_fields:
        return
    close = difflib.get_close_matches(name, Settings.model_fields, n=1)
    hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(Settings.model_fields)}"
    raise ConfigError(f"{where}: there is no setting {name!r}; {hint}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def settings_table() -> str:
    """All settings as a Markdown table, in the order of the class. ``python -m headrace.settings`` prints it."""
    lines = ["| file | variable | default | what it does |", "|---|---|---|---|"]
    for name, field in Settings.model_fields.items():
        variable = f"{PREFIX}{name.upper()}" if name != "kafka" else f"{KAFKA_PREFIX}<NAME>"
        default = "" if name == "kafka" or field.default is None else f"`{field.default}`"
        words = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
        values = f" ({', '.join(f'`{word}`' for word in words)})" if words else ""
        lines.append(f"| `{name}` | `{variable}` | {default} | {field.description}{values} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(settings_table(), end="")
