"""`--html FILE`: what a command says as a page as well, where the extra `html` is installed."""

from __future__ import annotations

from collections.abc import Callable

import click

from batchbridge.cli._output import replace_own

html_option = click.option(
    "--html",
    "html_file",
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="Write it as a page as well: one file, that loads nothing. Needs batchbridge[html].",
)
_OF_THE_EXTRA = {"jinja2": "Jinja2", "markupsafe": "Jinja2", "vl_convert": "vl-convert-python"}


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
