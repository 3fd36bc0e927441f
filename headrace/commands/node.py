"""``headrace node``: serve a model repository from Kafka."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.options import (
    Bootstrap,
    Config,
    LogFormat,
    Models,
    Namespace,
    OpsPort,
    required_models,
    run,
    settings_from,
)

if TYPE_CHECKING:
    from pathlib import Path

    from headrace.settings import Settings

__all__ = ["Grace", "Group", "node"]

Group = Annotated[
    str | None, typer.Option("--group", metavar="NAME", help="Consumer group; nodes of one group share the work.")
]
Grace = Annotated[
    float | None,
    typer.Option("--shutdown-grace-s", metavar="S", help="Seconds a stopping node may take to finish its records."),
]


def node(
    models: Models = None,
    bootstrap: Bootstrap = None,
    group: Group = None,
    ops_port: OpsPort = None,
    namespace: Namespace = None,
    shutdown_grace_s: Grace = None,
    log_format: LogFormat = None,
    config: Config = None,
) -> None:
    """Serve models from Kafka: records in, micro-batches, records out.

    SIGTERM or Ctrl-C stops the intake, finishes what is under way and commits; a second one ends at once. Start
    more nodes of the same group to share the work.

    Example: headrace node --models ./models --bootstrap broker:9092
    """
    settings = settings_from(
        config,
        models=models,
        bootstrap=bootstrap,
        group=group,
        ops_port=ops_port,
        namespace=namespace,
        shutdown_grace_s=shutdown_grace_s,
        log_format=log_format,
    )
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
