"""``headrace status``: models and nodes at a glance."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.dead import age
from headrace.commands.options import Bootstrap, Config, Namespace, client_settings, group_setting, run
from headrace.commands.screen import table_console

if TYPE_CHECKING:
    from headrace.overview import Overview

__all__ = ["status"]


def status(
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    bootstrap: Bootstrap = None,
    namespace: Namespace = None,
    config: Config = None,
) -> None:
    """Show models, their lag, rates and batches, and the nodes that hold them.

    Lag is what the consumer group has not finished yet. Rates and failures are what the nodes last announced; each
    failed attempt counts. Dead is how many letters are kept, replayed ones included. A model whose nodes do not all
    have the same configuration is shown as differs, a node that has not announced itself for three intervals as stale.

    Example: headrace status --json
    """
    import orjson

    from headrace.overview import read_overview

    broker, space = client_settings(config, bootstrap, namespace)
    overview = run(read_overview(broker, space, group_setting(config)))
    if as_json:
        typer.echo(orjson.dumps(overview.as_json(), option=orjson.OPT_INDENT_2))
    elif overview.models or overview.nodes:
        _print(overview)
    else:
        typer.echo(f"no node has announced itself on {broker.bootstrap} in namespace {space}", err=True)


def _print(overview: Overview) -> None:
    from rich.table import Table

    models = Table(
        *("model", "version", "state", "nodes", "partitions", "lag", "rate/s", "batch fill", "failed", "dead"),
        box=None,
        pad_edge=False,
    )
    for model in overview.models:
        models.add_row(
            model.name,
            str(model.version),
            model.state,
            str(model.nodes),
            str(model.partitions),
            "?" if model.lag is None else str(model.lag),
            f"{model.rate:.1f}",
            "-" if model.batch_fill is None else f"{model.batch_fill:.0%}",
            str(model.failed),
            str(model.dead),
        )
    nodes = Table(
        "node", "group", "state", "up", "seen", "ops port", "rate/s", "queued", "models", box=None, pad_edge=False
    )
    for node in overview.nodes:
        nodes.add_row(
            node.id,
            node.group,
            "stale" if node.stale else "live",
            age(node.up_s),
            f"{age(node.seen_s)} ago",
            str(node.ops_port),
            f"{node.rate:.1f}",
            str(node.queued_rows),
            ", ".join(node.models),
        )
    console = table_console()
    console.print(models)
    console.print()
    console.print(nodes)
