"""Files that a command writes: whole or not at all, and no file of the user's is replaced unasked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

overwrite_option = click.option("--overwrite", is_flag=True, help="Replace the output FILE if it exists.")
html_option = click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Also write an HTML page to FILE; it loads nothing.",
)
_OF_THE_EXTRA = {"vl_convert": "vl-convert-python"}


def keep(option: str, file: Path, overwrite: bool) -> None:
    """Refusal (`click.UsageError`) of a `file` that exists and may not be replaced. option: as it is called, `-o`."""
    if file.exists() and not overwrite:
        raise click.UsageError(f"{option} {file}: the file exists; --overwrite replaces it")


@contextmanager
def writing(file: object) -> Iterator[None]:
    """The span in which `file` is written; where that fails, `click.UsageError` is raised."""
    try:
        yield
    except OSError as error:
        raise click.UsageError(f"{file}: cannot be written: {error.strerror}") from None


def say(text: str, *, err: bool = False) -> None:
    """Prints one line, whatever is in it. err: on standard error."""
    from batchbridge.render.text import clean, one_line

    click.echo(clean(one_line(text)), err=err)


def wrong(message: str) -> NoReturn:
    """Refusal (`click.UsageError`) in one line, whatever is in it."""
    from batchbridge.render.text import clean, one_line

    raise click.UsageError(clean(one_line(message))) from None


def replace_own(option: str, file: str, begins: str, text: Callable[[], str]) -> None:
    """Makes a text and writes it. begins: how every text of its kind begins; a file that is there and begins otherwise
    is a user's own, and stays. Raises `click.UsageError`, then and where it cannot be written."""
    from batchbridge.comparing.edit_file import save

    path = Path(file)
    try:
        if path.is_file() and not _begins(path, begins):
            raise click.UsageError(f"{option} {file}: the file exists, and was not written by {option} has written")
        made = text()
        if path.exists() and not path.is_file():
            path.write_text(made, encoding="utf-8")  # a terminal, a pipe
        else:
            save(made, path)
    except (OSError, ValueError) as error:  # ValueError: a NUL character
        raise click.UsageError(f"{option} {file}: {getattr(error, 'strerror', None) or error}") from None


def _begins(path: Path, begins: str) -> bool:
    with path.open("rb") as stream:
        head = stream.read(len(begins))
    return head in (b"", begins.encode())


def write_page(file: str, page: Callable[[], str]) -> None:
    """Makes the page and writes it, in place of an older page only. Raises `click.UsageError` where a library of the
    extra is missing, or it cannot be written."""
    try:
        replace_own("--html", file, "<!doctype html>\n", page)
    except ModuleNotFoundError as error:
        if error.name not in _OF_THE_EXTRA:
            raise
        library = _OF_THE_EXTRA[error.name]
        raise click.UsageError(f"--html needs {library}: pip install 'batchbridge[html]'") from None
