"""``headrace tail``: print a model's results as they come."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.options import Bootstrap, Config, Model, Namespace, client_settings, run, seconds

if TYPE_CHECKING:
    from headrace.kafka_clients import Broker
    from headrace.records import Result

__all__ = ["result_line", "tail"]

_QUIET_S = 3600.0


def tail(
    model: Model,
    from_beginning: Annotated[bool, typer.Option("--from-beginning", help="Also what is there already.")] = False,
    most: Annotated[int | None, typer.Option("--max", metavar="N", min=1, help="Stop after so many results.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "--timeout", metavar="TIME", parser=seconds, help="Stop when nothing has come for so long: 5s, 1m."
        ),
    ] = None,
    bootstrap: Bootstrap = None,
    namespace: Namespace = None,
    config: Config = None,
) -> None:
    """Print a model's results, one JSON line each.

    A record that failed for good is not among them: it is a dead letter (headrace dead list MODEL).

    Ends at Ctrl-C, after --max results, or after --timeout without one; with both, it ends in exit code 3 when fewer
    than --max came.

    Example: headrace tail echo --from-beginning --max 10
    """
    broker, space = client_settings(config, bootstrap, namespace)
    printed = run(_print_results(broker, space, model, from_beginning=from_beginning, most=most, timeout_s=timeout))
    if most is not None and printed < most:
        raise typer.Exit(3)


async def _print_results(
    broker: Broker, namespace: str, model: str, *, from_beginning: bool, most: int | None, timeout_s: float | None
) -> int:
    from headrace.directory import Directory
    from headrace.result_stream import ResultStream

    printed = 0
    async with ResultStream(broker, Directory(broker, namespace), model, from_beginning=from_beginning) as results:
        while most is None or printed < most:
            result = await results.next(timeout_s=timeout_s or _QUIET_S)
            if result is not None:
                sys.stdout.write(result_line(result) + "\n")
                sys.stdout.flush()
                printed += 1
            elif timeout_s is not None:
                break
    return printed


def result_line(result: Result) -> str:
    """One result as a line of JSON."""
    import orjson

    from headrace.records import readable, text
    from schemas.errors import HeadraceError

    line: dict[str, object] = {
        "id": result.id,
        "key": text(result.key),
        "partition": result.partition,
        "offset": result.offset,
        "timestamp_ms": result.timestamp_ms,
        "headers": [[name, text(value)] for name, value in result.headers],
    }
    if (error := result.error) is not None:
        line["error"] = {"code": result.error_code, "message": error.message}
    try:
        line["value"] = result.for_json()
    except HeadraceError as undecodable:
        line["value"] = readable(result.value)
        line["undecodable"] = undecodable.message
    return orjson.dumps(line).decode()
