"""`batchbridge demo`: a recipe to try the other commands on, where no checkout is at hand."""

from __future__ import annotations

from pathlib import Path

import click

from batchbridge.cli._tables import show
from batchbridge.cli.main import FINE

RECIPE = Path(__file__).with_name("recipe.yaml")
"""The text of `examples/recipe.yaml`, in every installation."""


@click.command()
@click.argument("file", type=click.Path(path_type=Path), default=Path("examples", "recipe.yaml"))
def command(file: Path) -> int:
    """Writes a recipe for TRL to FILE (default: examples/recipe.yaml, as in a checkout). Nothing is overwritten."""
    text = RECIPE.read_bytes()
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("xb") as made:
            made.write(text)
    except FileExistsError:
        if not file.is_file() or file.read_bytes() != text:
            raise click.UsageError(f"{file} exists already, and is something else; name another FILE") from None
    except OSError as error:
        raise click.UsageError(f"{file}: {error.strerror}") from None
    show(f"{file}: a recipe for TRL, with the batch sizes of a published one")
    show(f"batchbridge explain {file} says what it means; then check, convert, scale, plan")
    return FINE
