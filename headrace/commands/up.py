"""``headrace up``: everything on this machine, one command."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.broker import DataDir
from headrace.commands.options import (
    AnnounceInterval,
    Bootstrap,
    Config,
    Grace,
    Group,
    LogFormat,
    LogLevel,
    Models,
    Namespace,
    OpsHost,
    OpsPort,
    Partitions,
    Replication,
    RevokeGrace,
    StuckAfter,
    Tombstones,
    Tracing,
    required_models,
    run,
    server_settings,
)

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.node_process import Started
    from headrace.settings import Settings

__all__ = ["up"]


def up(
    ctx: typer.Context,
    models: Models = None,
    bootstrap: Bootstrap = None,
    broker_port: Annotated[
        int | None,
        typer.Option(
            "--broker-port", metavar="P", min=0, max=65535, help="Default 9092, another if that is taken; 0: any."
        ),
    ] = None,
    data_dir: DataDir = None,
    group: Group = None,
    namespace: Namespace = None,
    partitions: Partitions = None,
    replication: Replication = None,
    shutdown_grace_s: Grace = None,
    revoke_grace_s: RevokeGrace = None,
    stuck_after_s: StuckAfter = None,
    announce_interval_s: AnnounceInterval = None,
    tombstones: Tombstones = None,
    ops_host: OpsHost = None,
    ops_port: OpsPort = None,
    log_format: LogFormat = None,
    log_level: LogLevel = None,
    tracing: Tracing = None,
    config: Config = None,
) -> None:
    """Run a broker and a node on this machine; with --bootstrap, a node on that broker.

    The embedded broker is for trying things out. Other commands on this machine find it with no flags.

    Example: headrace up --models ./models
    """
    settings = server_settings(ctx, config)
    run(_serve(settings, required_models(settings), broker_port, data_dir))


async def _serve(settings: Settings, models: Path, broker_port: int | None, data_dir: Path | None) -> None:
    import asyncio

    from headrace.embedded import embedded_broker, while_broker_lives
    from headrace.node_process import read_repository, run_node, set_up_logs
    from headrace.running_broker import announced
    from headrace.stopping import stop_on_signals

    set_up_logs(settings)
    repository = await asyncio.to_thread(read_repository, models, settings.namespace)
    stop = asyncio.Event()
    with stop_on_signals(stop):
        if settings.bootstrap is not None:
            await run_node(
                settings,
                settings.bootstrap,
                repository,
                stop=stop,
                on_ready=lambda started: _print_panel(settings, started, embedded=False, found=False),
            )
            return
        async with embedded_broker(broker_port, data_dir) as broker:
            with announced(broker.bootstrap) as found:
                serving = run_node(
                    settings,
                    broker.bootstrap,
                    repository,
                    stop=stop,
                    on_ready=lambda started: _print_panel(settings, started, embedded=True, found=found),
                    embedded=True,
                )
                await while_broker_lives(broker, asyncio.create_task(serving, name="node"))


def _print_panel(settings: Settings, started: Started, *, embedded: bool, found: bool) -> None:
    from rich.console import Console
    from rich.panel import Panel

    from consumers.route import route_for
    from infra.broker import DATA_LOSS_WARNING
    from schemas.record import Topics

    console = Console(markup=False, highlight=False)
    flag = "" if found else f" --bootstrap {started.bootstrap}"
    lines = [f"broker   {started.bootstrap}{' (embedded)' if embedded else ''}"]
    lines.append(f"ops      http://127.0.0.1:{started.ops_port}/ready  /live  /metrics  /status")
    for folder in started.repository.models:
        route = route_for(folder.config, Topics(settings.namespace))
        lines.append(f"model    {folder.name}: {route.requests} -> {route.results}")
    first = started.repository.models[0].name
    lines.append(f"try      headrace publish {first} --json '{_sample(started, first)}' --wait{flag}")
    lines.append(f"         headrace status{flag}")
    if embedded:
        lines += ["", DATA_LOSS_WARNING]
    # On a terminal a frame; in a file or a pipe plain lines, which nothing wraps.
    if console.is_terminal:
        console.print(Panel("\n".join(lines), title="headrace is up", expand=False))
    else:
        typer.echo("headrace is up\n" + "\n".join(lines))


def _sample(started: Started, model: str) -> str:
    """A plain JSON value that has the right names, and the right shapes where they are small."""
    import json

    config = next(folder.config for folder in started.repository.models if folder.name == model)
    values: dict[str, object] = {}
    for spec in config.inputs:
        if spec.optional:
            continue
        value: object = {"BYTES": "text", "BOOL": True}.get(spec.datatype, 0)
        for size in reversed(spec.shape):
            value = [value] * (size if 0 < size <= 8 else 1)
        values[spec.name] = value
    return json.dumps(values)
