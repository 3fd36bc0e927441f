"""Options that several commands share, and the step from flags to settings."""

from __future__ import annotations

import logging
import re
from collections.abc import Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

if TYPE_CHECKING:
    from headrace.kafka_clients import Broker
    from headrace.settings import Settings

__all__ = [
    "AnnounceInterval",
    "Bootstrap",
    "Config",
    "Grace",
    "Group",
    "LogFormat",
    "LogLevel",
    "Model",
    "Models",
    "Namespace",
    "OpsHost",
    "OpsPort",
    "Partitions",
    "Replication",
    "RevokeGrace",
    "StuckAfter",
    "Tombstones",
    "Tracing",
    "client_settings",
    "required_models",
    "run",
    "seconds",
    "server_settings",
]

Bootstrap = Annotated[
    str | None,
    typer.Option("--bootstrap", metavar="HOST:PORT", help="Kafka brokers."),
]
Namespace = Annotated[str | None, typer.Option("--namespace", metavar="NAME", help="First part of every topic name.")]
Config = Annotated[
    Path | None, typer.Option("--config", metavar="FILE", help="YAML file with settings, below flags and variables.")
]
Models = Annotated[
    Path | None, typer.Option("--models", metavar="DIR", help="Model repository: a folder with one folder a model.")
]
OpsPort = Annotated[
    int | None, typer.Option("--ops-port", metavar="PORT", help="Port of /live, /ready and /metrics; 0: any free one.")
]
Group = Annotated[
    str | None, typer.Option("--group", metavar="NAME", help="Consumer group; nodes of one group share the work.")
]
Partitions = Annotated[
    int | None, typer.Option("--partitions", metavar="N", help="Partitions of topics that have to be created.")
]
Replication = Annotated[
    int | None,
    typer.Option(
        "--replication", metavar="N", help="Replicas of topics that have to be created; -1: broker's default."
    ),
]
Grace = Annotated[
    float | None,
    typer.Option("--shutdown-grace-s", metavar="S", help="Seconds a stopping node may take to finish its records."),
]
RevokeGrace = Annotated[
    float | None,
    typer.Option("--revoke-grace-s", metavar="S", help="Seconds a rebalance may wait for running batches."),
]
StuckAfter = Annotated[
    float | None,
    typer.Option("--stuck-after-s", metavar="S", help="/live fails when a loop has not turned for so many seconds."),
]
AnnounceInterval = Annotated[
    float | None,
    typer.Option("--announce-interval-s", metavar="S", help="Seconds between a node's entries in the registry."),
]
Tombstones = Annotated[
    str | None,
    typer.Option("--tombstones", metavar="skip|forward", help="What becomes of records without a value."),
]
OpsHost = Annotated[
    str | None, typer.Option("--ops-host", metavar="HOST", help="Address of /live, /ready and /metrics.")
]
LogFormat = Annotated[str | None, typer.Option("--log-format", metavar="text|json", help="How log lines are written.")]
LogLevel = Annotated[
    str | None,
    typer.Option("--log-level", metavar="debug|info|warning|error", help="Least severe line shown."),
]
Tracing = Annotated[
    bool | None,
    typer.Option("--tracing/--no-tracing", help="Spans a record and a batch, to where the OTEL_* variables say."),
]
Model = Annotated[str, typer.Argument(metavar="MODEL", help="Name of the model.", show_default=False)]

T = TypeVar("T")

_UNITS = {"ms": 0.001, "s": 1.0, "": 1.0, "m": 60.0, "h": 3600.0}


def seconds(text: str) -> float:
    """``2s``, ``500ms``, ``1.5m`` or a plain number of seconds.

    Raises:
        typer.BadParameter: it is none of these, or not above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|)", text.strip())
    if match is None or float(match[1]) == 0:
        raise typer.BadParameter(f"{text!r} is no duration; write 500ms, 2s, 1m or a number of seconds above 0")
    return float(match[1]) * _UNITS[match[2]]


def _settings_from(config: Path | None, **flags: object) -> Settings:
    """
    Raises:
        ConfigError: see `headrace.settings.load_settings`.
    """
    from headrace.settings import load_settings

    return load_settings(flags, config=config)


def server_settings(ctx: typer.Context, config: Path | None) -> Settings:
    """Settings of a server's command: each of its parameters that bears the name of a setting is that setting's flag.

    Raises:
        ConfigError: see `headrace.settings.load_settings`.
    """
    from headrace.settings import Settings

    flags = {name: value for name, value in ctx.params.items() if name in Settings.model_fields}
    return _settings_from(config, **flags)


def client_settings(config: Path | None, bootstrap: str | None, namespace: str | None) -> tuple[Broker, str]:
    """Broker and namespace for the commands that talk to a running Headrace; its log lines stay out of their output."""
    from headrace.kafka_clients import Broker
    from headrace.running_broker import default_bootstrap

    # What goes wrong reaches the user as one typed error; aiokafka's own lines would only stand before it.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    settings = _settings_from(config, bootstrap=bootstrap, namespace=namespace)
    return Broker(settings.bootstrap or default_bootstrap(), settings.kafka), settings.namespace


def group_setting(config: Path | None) -> str:
    """The consumer group that nodes with these settings would join."""
    return _settings_from(config).group


def required_models(settings: Settings) -> Path:
    """
    Raises:
        typer.BadParameter: no model repository was named.
    """
    if settings.models is None:
        raise typer.BadParameter("name the model repository here or in HEADRACE_MODELS", param_hint="--models")
    return settings.models


def run(work: Coroutine[object, object, T]) -> T:
    """Runs a command's coroutine. Ctrl-C cancels it, lets it clean up, and ends in exit code 130."""
    import asyncio

    return asyncio.run(work)
