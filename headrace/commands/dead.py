"""``headrace dead``: list, show and replay the dead letters of a model."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.options import Bootstrap, Config, Model, Namespace, client_settings, run
from headrace.commands.screen import table_console

if TYPE_CHECKING:
    from headrace.dead_letters import Choice
    from headrace.kafka_clients import Broker
    from headrace.records import Result

__all__ = ["app"]

app = typer.Typer(
    help="Dead letters of a model: list, show, replay.\n\nExample: headrace dead list echo",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)

Id = Annotated[str | None, typer.Option("--id", metavar="ID", help="The letter of the record with this headrace-id.")]
Partition = Annotated[int | None, typer.Option("--partition", metavar="P", min=0, help="Letters of this partition.")]
Offset = Annotated[int | None, typer.Option("--offset", metavar="N", min=0, help="The letter at this offset.")]
Code = Annotated[str | None, typer.Option("--error", metavar="CODE", help="Letters that died of this error.")]

_PREVIEW_BYTES = 2_000


@app.command("list")
def list_letters(
    model: Model,
    error: Code = None,
    partition: Partition = None,
    everything: Annotated[bool, typer.Option("--all", help="Also those that were replayed.")] = False,
    most: Annotated[int, typer.Option("--max", metavar="N", min=1, help="Show so many at most.")] = 100,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON line a letter.")] = False,
    bootstrap: Bootstrap = None,
    namespace: Namespace = None,
    config: Config = None,
) -> None:
    """List the letters that have not been replayed, oldest first within each partition.

    Example: headrace dead list echo --error model
    """
    from headrace.dead_letters import Choice

    broker, space = client_settings(config, bootstrap, namespace)
    choice = Choice(error=error, partition=partition)
    letters = run(_letters(broker, space, model, choice, most=most + 1, replayed=everything))
    if as_json:
        _print_json(letters[:most])
    else:
        _print_table(model, letters[:most], more=len(letters) > most)


@app.command("show")
def show_letter(
    model: Model,
    id: Id = None,  # noqa: A002 - the word of the record contract
    partition: Partition = None,
    offset: Offset = None,
    bootstrap: Bootstrap = None,
    namespace: Namespace = None,
    config: Config = None,
) -> None:
    """Show one letter: why it died, its headers, and the beginning of its value.

    Example: headrace dead show echo --partition 0 --offset 12
    """
    from headrace.dead_letters import Choice

    if id is None and offset is None:
        raise typer.BadParameter("say which letter", param_hint="--id, or --partition and --offset")
    broker, space = client_settings(config, bootstrap, namespace)
    choice = Choice(id=id, partition=partition, offset=offset)
    letters = run(_letters(broker, space, model, choice, most=1, replayed=True))
    if not letters:
        typer.echo(f"{model} has no such dead letter; see headrace dead list {model} --all", err=True)
        raise typer.Exit(1)
    _print_letter(letters[0])


@app.command("replay")
def replay_letters(
    model: Model,
    id: Id = None,  # noqa: A002 - the word of the record contract
    partition: Partition = None,
    offset: Offset = None,
    error: Code = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be replayed, and replay nothing.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    bootstrap: Bootstrap = None,
    namespace: Namespace = None,
    config: Config = None,
) -> None:
    """Give dead letters back to the model, each once, as the records they were.

    Key, value and headers are the original ones, without what the death added and without the deadline, which has
    passed. What was replayed is remembered, so a second replay passes over it.

    Example: headrace dead replay echo --error model --dry-run
    """
    from headrace.dead_letters import Choice

    broker, space = client_settings(config, bootstrap, namespace)
    choice = Choice(id=id, error=error, partition=partition, offset=offset)
    if dry_run or (sys.stdin.isatty() and not yes):
        count = run(_count(broker, space, model, choice))
        typer.echo(f"{number(count)} of {model} would be replayed", err=True)
        if dry_run or count == 0:
            return
        typer.confirm(f"Replay {number(count)} to {model}?", abort=True, err=True)
    with _progress() as on_total_and_letter:
        count = run(_replay(broker, space, model, choice, *on_total_and_letter))
    typer.echo(f"replayed {number(count)} to {model}", err=True)


async def _letters(
    broker: Broker, namespace: str, model: str, choice: Choice, *, most: int, replayed: bool
) -> list[Result]:
    from headrace.dead_letters import open_dead_letters

    found: list[Result] = []
    async with open_dead_letters(broker, namespace, model) as dead:
        async for letter in dead.letters(choice, replayed=replayed):
            found.append(letter)
            if len(found) >= most:
                break
    return found


async def _count(broker: Broker, namespace: str, model: str, choice: Choice) -> int:
    from headrace.dead_letters import open_dead_letters

    count = 0
    async with open_dead_letters(broker, namespace, model) as dead:
        async for _ in dead.letters(choice):
            count += 1
    return count


async def _replay(
    broker: Broker,
    namespace: str,
    model: str,
    choice: Choice,
    on_total: Callable[[int], None],
    on_letter: Callable[[Result], None],
) -> int:
    from headrace.dead_letters import open_dead_letters

    async with open_dead_letters(broker, namespace, model) as dead:
        on_total(dead.total)
        return await dead.replay(choice, on_replayed=on_letter)


@contextmanager
def _progress() -> Iterator[tuple[Callable[[int], None], Callable[[Result], None]]]:
    if not sys.stderr.isatty():
        yield (lambda total: None), (lambda letter: None)
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("replaying", total=None)
        yield (lambda total: bar.update(task, total=total)), (lambda letter: bar.advance(task))


def _why(letter: Result) -> tuple[str, str, str]:
    """Error code, attempts and message."""
    from headrace.records import header
    from schemas import record as contract

    message = header(letter.headers, contract.ERROR_MESSAGE) or ""
    return letter.error_code or "?", header(letter.headers, contract.ATTEMPT) or "?", message


def _print_json(letters: list[Result]) -> None:
    import orjson

    for letter in letters:
        code, attempts, message = _why(letter)
        line = {
            "partition": letter.partition,
            "offset": letter.offset,
            "id": letter.id,
            "error": code,
            "attempts": attempts,
            "timestamp_ms": letter.timestamp_ms,
            "message": message,
        }
        sys.stdout.write(orjson.dumps(line).decode() + "\n")


def _print_table(model: str, letters: list[Result], *, more: bool) -> None:
    from rich.table import Table

    from schemas.record import now_ms

    if not letters:
        typer.echo(f"no dead letters of {model}", err=True)
        return
    table = Table("partition", "offset", "id", "error", "attempts", "age", "message", box=None, pad_edge=False)
    now = now_ms()
    for letter in letters:
        code, attempts, message = _why(letter)
        place = str(letter.partition), str(letter.offset)
        table.add_row(*place, letter.id or "", code, attempts, age((now - letter.timestamp_ms) / 1000), message)
    table_console().print(table)
    if more:
        typer.echo("... and more; --max shows them", err=True)


def _print_letter(letter: Result) -> None:
    from headrace.records import text

    code, attempts, message = _why(letter)
    typer.echo(f"{letter.topic} partition {letter.partition} offset {letter.offset}")
    typer.echo(f"error     {code}: {message}")
    typer.echo(f"attempts  {attempts}")
    typer.echo(f"key       {text(letter.key)}")
    typer.echo("headers")
    for name, value in letter.headers:
        typer.echo(f"  {name}: {text(value)}")
    value = letter.value or b""
    typer.echo(f"value     {len(value)} bytes" + ("" if letter.value is not None else " (null)"))
    preview = value[:_PREVIEW_BYTES].decode(errors="replace")
    typer.echo(preview + (" ..." if len(value) > _PREVIEW_BYTES else ""))


def number(count: int) -> str:
    return "1 letter" if count == 1 else f"{count:,} letters"


def age(age_s: float) -> str:
    """A duration at a glance: ``45s``, ``12m``, ``3h``, ``2d``."""
    left = max(0.0, age_s)
    for size, unit in ((86_400, "d"), (3_600, "h"), (60, "m")):
        if left >= 2 * size:
            return f"{left / size:.0f}{unit}"
    return f"{left:.0f}s"
