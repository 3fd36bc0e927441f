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
    "Bootstrap",
    "Config",
    "LogFormat",
    "Model",
    "Models",
    "Namespace",
    "OpsPort",
    "client_settings",
    "required_models",
    "run",
    "seconds",
    "settings_from",
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
LogFormat = Annotated[str | None, typer.Option("--log-format", metavar="text|json", help="How log lines are written.")]
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


def settings_from(config: Path | None, **flags: object) -> Settings:
    """
    Raises:
        ConfigError: see `headrace.settings.load_settings`.
    """
    from headrace.settings import load_settings

    return load_settings(flags, config=config)


def client_settings(config: Path | None, bootstrap: str | None, namespace: str | None) -> tuple[Broker, str]:
    """Broker and namespace for the commands that talk to a running Headrace; its log lines stay out of their output."""
    from headrace.kafka_clients import Broker
    from headrace.running_broker import default_bootstrap

    # What goes wrong reaches the user as one typed error; aiokafka's own lines would only stand before it.
    logging.getLogger("aiokafka").setLevel(logging.CRITICAL)
    settings = settings_from(config, bootstrap=bootstrap, namespace=namespace)
    return Broker(settings.bootstrap or default_bootstrap(), settings.kafka), settings.namespace


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
