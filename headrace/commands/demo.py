"""``headrace demo``: see it work, with nothing to set up."""

from __future__ import annotations

from typing import Annotated

import typer

from headrace.commands.options import run

__all__ = ["demo"]

_CHECKED = 50


def demo(
    name: Annotated[str, typer.Argument(metavar="[NAME]", help="Which demo; there is one: filetype.")] = "filetype",
    files: Annotated[int, typer.Option("--files", metavar="N", min=1, max=5000, help="How many files.")] = 300,
) -> None:
    """Classify files of this machine with a real model, through Kafka.

    Starts an embedded broker and a node, publishes the bytes of a few hundred files, shows the answers as they come,
    and checks some of them against the model's own package. Exit code 1 when one differs.

    Example: headrace demo --files 500
    """
    if name != "filetype":
        raise typer.BadParameter(f"there is no demo {name!r}; there is: filetype", param_hint="NAME")
    _require("magika")
    from rich.console import Console

    from headrace.demo.files import sample_files
    from headrace.demo.filetype import check_against_magika, classify
    from headrace.demo.view import View, summary

    console = Console(highlight=False, markup=False)
    samples = sample_files(files)
    typer.echo(f"{len(samples)} files; starting a broker and a node ...", err=True)
    with View(console, len(samples)) as view:
        outcome = run(classify(samples, view.show))
    typer.echo("")
    typer.echo(summary(outcome))
    differences = check_against_magika(outcome.answers, _CHECKED)
    checked = min(_CHECKED, len(outcome.answers))
    for line in differences:
        typer.echo(f"differs: {line}", err=True)
    typer.echo(f"check      {checked - len(differences)} of {checked} answers are magika's own")
    if differences:
        raise typer.Exit(1)


def _require(package: str) -> None:
    from importlib.util import find_spec

    from schemas.errors import ConfigError

    if find_spec(package) is None:
        raise ConfigError(f"the demo needs the {package} package; run: pip install 'headrace[demo]'")
