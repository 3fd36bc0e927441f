"""The command line: which commands there are, and how an error ends them.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 a deadline passed, 130 Ctrl-C. An error is one line on stderr,
``error[code]: message``; ``HEADRACE_DEBUG=1`` shows where it came from.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from headrace.commands.broker import broker
from headrace.commands.dead import app as dead
from headrace.commands.demo import demo
from headrace.commands.node import node
from headrace.commands.publish import publish
from headrace.commands.status import status
from headrace.commands.tail import tail
from headrace.commands.up import up
from headrace.commands.validate import validate
from headrace.version import __version__
from schemas.errors import Expired, HeadraceError

__all__ = ["app", "main"]

app = typer.Typer(
    name="headrace",
    help="Event-driven model inference on Kafka.",
    epilog="Start here: headrace demo · then: headrace up --models DIR",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.command()(up)
app.command()(node)
app.command()(broker)
app.command()(publish)
app.command()(tail)
app.add_typer(dead, name="dead")
app.command()(status)
app.command()(validate)
app.command()(demo)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"headrace {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one command and ends the process with its exit code."""
    try:
        app(arguments)
    except HeadraceError as error:
        if os.environ.get("HEADRACE_DEBUG") == "1":
            raise
        _print_error(error)
        sys.exit(3 if isinstance(error, Expired) else 1)


def _print_error(error: HeadraceError) -> None:
    line = f"error[{error.code}]: {error.message}"
    coloured = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    print(f"\033[31m{line}\033[0m" if coloured else line, file=sys.stderr)
