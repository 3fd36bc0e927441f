"""``headrace node``: serve a model repository from Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer

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

    from headrace.settings import Settings

__all__ = ["node"]


def node(
    ctx: typer.Context,
    models: Models = None,
    bootstrap: Bootstrap = None,
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
    """Serve models from Kafka: records in, micro-batches, records out.

    SIGTERM or Ctrl-C stops the intake, finishes what is under way and commits; a second one ends at once. Start
    more nodes of the same group to share the work.

    Example: headrace node --models ./models --bootstrap broker:9092
    """
    settings = server_settings(ctx, config)
    if settings.bootstrap is None:
        raise typer.BadParameter("a node needs a broker (`headrace up` brings one along)", param_hint="--bootstrap")
    run(_serve(settings, required_models(settings), settings.bootstrap))


async def _serve(settings: Settings, models: Path, bootstrap: str) -> None:
    import asyncio

    from headrace.node_process import read_repository, run_node, set_up_logs
    from headrace.stopping import stop_on_signals

    set_up_logs(settings)
    repository = await asyncio.to_thread(read_repository, models, settings.namespace)
    stop = asyncio.Event()
    with stop_on_signals(stop):
        await run_node(settings, bootstrap, repository, stop=stop)
