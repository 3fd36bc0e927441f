"""``headrace validate``: check a model repository without serving it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.commands.screen import table_console

if TYPE_CHECKING:
    from rich.table import Table

    from schemas.repository import ModelFolder

__all__ = ["models_table", "validate"]


def validate(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Model repository.", show_default=False)],
) -> None:
    """Check a model repository: what would be served, what is not honoured, and everything that is wrong.

    Loads no model. Ends in exit code 1 when there is an error.

    Example: headrace validate ./models
    """
    from gpu_runtime.backends.registry import BACKENDS
    from gpu_runtime.devices import usable_gpus
    from schemas.repository import scan

    repository = scan(directory, gpus=usable_gpus(), backends=BACKENDS)
    if repository.models:
        table_console().print(models_table(repository.models))
    for model in repository.models:
        for warning in model.warnings:
            typer.echo(f"warning: {model.name}: {warning}", err=True)
    for error in repository.errors:
        typer.echo(f"error[{error.code}]: {error.message}", err=True)
    if repository.errors:
        typer.echo(
            f"{len(repository.errors)} error{'s' if len(repository.errors) > 1 else ''} in {directory}", err=True
        )
        raise typer.Exit(1)
    if not repository.models:
        typer.echo(f"error[config]: {directory} holds no model; make one in {directory}/<model>/<version>/", err=True)
        raise typer.Exit(1)


def models_table(models: tuple[ModelFolder, ...]) -> Table:
    from rich.table import Table

    table = Table("model", "version", "backend", "rows", "inputs", "outputs", box=None, pad_edge=False)
    for model in models:
        config = model.config
        inputs, outputs = (
            ", ".join(f"{spec.name} {spec.datatype}{list(spec.shape)}" for spec in specs)
            for specs in (config.inputs, config.outputs)
        )
        rows = str(config.max_batch_size) if config.batched else "no batches"
        table.add_row(model.name, str(config.version), config.backend, rows, inputs, outputs)
    return table
