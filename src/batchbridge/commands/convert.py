"""`batchbridge convert`: a configuration in another framework's form, and what became of every field."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from batchbridge.cli import FINE, INVALID, NOT_EQUIVALENT, UNDECIDED
from batchbridge.commands._input import input_options, reading_from, source_from

EXIT_CODES = {"complete": FINE, "lossy": NOT_EQUIVALENT, "invalid": INVALID, "undecided": UNDECIDED}


@click.command("convert", short_help="Write a configuration in another framework's form.")
@input_options
@click.option("--to", required=True, metavar="NAME", help="The framework to write for.")
@click.option("--to-version", metavar="VERSION", help="Its version; default: the newest that is known.")
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: standard output.")
@click.option("--overwrite", is_flag=True, help="Replace FILE of -o where it exists.")
@click.option("--format", "form", metavar="FORM", help="One of the target's forms (yaml, python, ...).")
@click.option("--allow-lossy", is_flag=True, help="Write it although something is approximate or lost.")
def command(
    as_json: bool,
    to: str,
    to_version: str | None,
    output: Path | None,
    overwrite: bool,
    form: str | None,
    allow_lossy: bool,
    **source: Any,
) -> int:
    """Write a configuration in another framework's form, and say what became of every field.

    The configuration goes to standard output and the account to standard error; with -o the account goes to standard
    output. A conversion that loses something is refused (exit code 3) unless --allow-lossy is given.
    """
    from batchbridge import plugins
    from batchbridge.between.convert import convert

    if to not in plugins.adapters():
        raise click.UsageError(f"--to {to}: no such adapter; installed: {', '.join(plugins.adapters()) or 'none'}")
    if output is not None and output.exists() and not overwrite:
        raise click.UsageError(f"-o {output}: the file exists; --overwrite replaces it")
    name, reading = reading_from(**source)
    found = convert(reading, to, version=to_version, given=_given(**source))
    code = EXIT_CODES[found.verdict]
    if code == NOT_EQUIVALENT and allow_lossy and found.written is not None:
        code = FINE
    text = None if code != FINE or found.written is None else _text(found.written.text, form)
    if as_json:
        from batchbridge.render import json

        click.echo(json.dumps(found.to_dict()))
    else:
        from batchbridge.render import between

        click.echo(between.conversion(name, found), err=output is None and text is not None)
        if found.verdict == "lossy" and text is None and found.written is not None:
            click.echo("nothing was written: --allow-lossy accepts what is approximate or lost")
    if text is not None:
        if output is not None:
            output.write_text(text, encoding="utf-8")
        elif not as_json:
            click.echo(text, nl=not text.endswith("\n"))
    return code


def _given(
    *,
    file: str | None,
    framework: str | None,
    settings: tuple[str, ...],
    env: tuple[str, ...],
    command_number: int | None,
    **sizes: object,
) -> dict[str, Any]:
    """The native keys that the user gave."""
    source = source_from(file=file, framework=framework, settings=settings, env=env, command_number=command_number)
    return dict(source.values)


def _text(texts: Any, form: str | None) -> str:
    """The text in the form that was asked for; the target's first form by default."""
    if form is not None and form not in texts:
        raise click.UsageError(f"--format {form}: this framework is written as {', '.join(texts)}")
    return str(texts[form or next(iter(texts))])
