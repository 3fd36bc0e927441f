"""``headrace publish``: send records to a model, and print their answers where asked to."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.options import Bootstrap, Config, Model, Namespace, client_settings, run, seconds

if TYPE_CHECKING:
    from headrace.kafka_clients import Broker
    from headrace.publish_sources import Draft
    from headrace.records import Result
    from schemas.errors import HeadraceError

__all__ = ["publish"]

_SHOWN_FAILURES = 10


def publish(
    model: Model,
    json_text: Annotated[str | None, typer.Option("--json", metavar="TEXT", help="One record: a JSON object.")] = None,
    jsonl: Annotated[
        Path | None, typer.Option("--jsonl", metavar="FILE", help="One record a line; - is standard input.")
    ] = None,
    raw: Annotated[
        list[Path] | None, typer.Option("--raw", metavar="FILE", help="One record a file, its bytes as they are.")
    ] = None,
    more: Annotated[
        list[Path] | None, typer.Argument(metavar="[FILE]...", help="More files for --raw.", show_default=False)
    ] = None,
    key: Annotated[str | None, typer.Option("--key", metavar="K", help="Key of every record.")] = None,
    header: Annotated[
        list[str] | None, typer.Option("--header", metavar="K=V", help="A header of every record; may be repeated.")
    ] = None,
    deadline: Annotated[
        float | None,
        typer.Option("--deadline", metavar="TIME", parser=seconds, help="Not to be run later than this: 500ms, 2s."),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Print each answer as a JSON line, in the input's order.")
    ] = False,
    content_type: Annotated[
        str | None, typer.Option("--content-type", metavar="TYPE", help="In place of the one that fits the flag.")
    ] = None,
    bootstrap: Bootstrap = None,
    namespace: Namespace = None,
    config: Config = None,
) -> None:
    """Publish records to a model.

    The records are on the broker, on all its replicas in sync, when the command returns. With --wait it prints the
    answers; without it they go to the model's results topic (headrace tail MODEL).

    Example: headrace publish echo --json '{"x": [1, 2, 3]}' --wait
    """
    from headrace.publishing import Order
    from headrace.publishing import publish as publish_all

    files = [*(raw or []), *(more or [])]
    if more and not raw:
        raise typer.BadParameter("files go with --raw", param_hint="[FILE]...")
    if sum(given is not None for given in (json_text, jsonl, raw or None)) != 1:
        raise typer.BadParameter("give exactly one of them", param_hint="--json, --jsonl or --raw")
    order = Order(
        key=None if key is None else key.encode(),
        headers=[_header(text) for text in header or ()],
        deadline_s=deadline,
        content_type=content_type,
        wait=wait,
    )
    broker, space = client_settings(config, bootstrap, namespace)
    drafts, total = _drafts(broker, json_text, jsonl, files)
    report = _Report(wait=wait)
    with _progress(total) as on_read:
        totals = run(publish_all(broker, space, model, drafts=drafts, order=order, on_end=report.end, on_read=on_read))
    if not wait:
        tail = f", id {totals.last_id}" if totals.sent == 1 else ""
        typer.echo(f"published {totals.sent - totals.failed} of {totals.sent} to {totals.topic}{tail}", err=True)
    if totals.failed:
        typer.echo(f"{totals.failed} of {totals.sent} records failed", err=True)
        raise typer.Exit(3 if totals.failed == totals.expired else 1)


class _Report:
    """Writes answers to stdout; failures of a publish without --wait to stderr, the first few of them."""

    def __init__(self, *, wait: bool) -> None:
        self._wait = wait
        self._failures = 0

    def end(self, source: str, end: Result | HeadraceError | None) -> None:
        import orjson

        from schemas.errors import HeadraceError

        if end is None:
            return
        failure = end if isinstance(end, HeadraceError) else end.error
        if not self._wait:
            self._failures += 1
            if failure is not None and self._failures <= _SHOWN_FAILURES:
                typer.echo(f"{source}: {failure.code}: {failure.message}", err=True)
            return
        line: object
        if failure is not None:
            line = {"error": failure.code, "message": failure.message, "source": source}
        else:
            line = None if isinstance(end, HeadraceError) else end.for_json()
        sys.stdout.write(orjson.dumps(line).decode() + "\n")
        sys.stdout.flush()


def _header(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not sign or not name:
        raise typer.BadParameter(f"{text!r} is no header; write name=value", param_hint="--header")
    return name, value


def _drafts(
    broker: Broker, json_text: str | None, jsonl: Path | None, files: list[Path]
) -> tuple[Iterator[Draft], int | None]:
    """The records, and how much there is to read: in bytes for JSON Lines, in files for raw ones, None when unknown."""
    from headrace import publish_sources as sources

    if json_text is not None:
        return sources.json_text(json_text), None
    if jsonl is not None:
        size = jsonl.stat().st_size if jsonl.is_file() else None
        return sources.jsonl_file(jsonl, broker.max_request_bytes), size
    return sources.raw_files(files, broker.max_request_bytes), len(files)


@contextmanager
def _progress(total: int | None) -> Iterator[Callable[[int], None]]:
    """A bar on the terminal, and only there."""
    if total is None or total < 2 or not sys.stderr.isatty():
        yield lambda consumed: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    columns = (TextColumn("publishing"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("publishing", total=total)
        yield lambda consumed: bar.update(task, completed=consumed)
