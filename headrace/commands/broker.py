"""``headrace broker``: the embedded broker alone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.commands.options import run

__all__ = ["DataDir", "broker"]

DataDir = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Where the broker keeps its data; without it they go at the end."),
]


def broker(
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="P", min=0, max=65535, help="Default 9092, another if that is taken; 0: any."),
    ] = None,
    data_dir: DataDir = None,
) -> None:
    """Run an embedded Kafka-compatible broker, for trying things out.

    It holds records in memory and may lose them on a crash. Ctrl-C stops it.

    Example: headrace broker --port 9092 --data-dir ./broker-data
    """
    run(_serve(port, data_dir))


async def _serve(port: int | None, data_dir: Path | None) -> None:
    import asyncio

    from headrace.embedded import embedded_broker, while_broker_lives
    from headrace.running_broker import announced
    from headrace.stopping import stop_on_signals
    from infra.broker import DATA_LOSS_WARNING
    from infra.telemetry.logs import set_up_logging

    set_up_logging()
    stop = asyncio.Event()
    with stop_on_signals(stop):
        async with embedded_broker(port, data_dir) as running:
            with announced(running.bootstrap) as found_by_others:
                typer.echo(f"broker on {running.bootstrap}")
                typer.echo(f"warning: {DATA_LOSS_WARNING}", err=True)
                if not found_by_others:
                    typer.echo(f"other commands need --bootstrap {running.bootstrap}", err=True)
                await while_broker_lives(running, asyncio.create_task(stop.wait(), name="until stopped"))
