"""`batchbridge convert`: a configuration in another framework's form, and what became of every field."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from batchbridge.cli._input import (
    InputCommand,
    frameworks_for_completion,
    input_options,
    language_option,
    named_framework,
    reading_from,
    versions_for_completion,
)
from batchbridge.cli._output import keep, overwrite_option, writing
from batchbridge.cli.main import EXIT_CODES, FINE, INVALID, NOT_EQUIVALENT
from batchbridge.render.words import say, spoken

if TYPE_CHECKING:
    from batchbridge import Adapter, Reading
    from batchbridge.comparing.convert import Conversion
    from batchbridge.comparing.edit_file import EditedFile


@click.command("convert", cls=InputCommand, short_help="Write a configuration in another framework's form.")
@input_options
@click.option(
    "--to", required=True, metavar="NAME", shell_complete=frameworks_for_completion, help="The framework to write for."
)
@click.option(
    "--to-version",
    metavar="VERSION",
    shell_complete=versions_for_completion,
    help="Its version; default: what the repository pins, or the newest.",
)
@click.option("-o", "--output", type=click.Path(path_type=Path), metavar="FILE", help="Default: standard output.")
@overwrite_option
@click.option("--format", "form", metavar="FORM", help="Form of the output; default: from FILE's name.")
@click.option(
    "--into",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Edit this YAML file of the target framework; with -o, write the edited text there instead.",
)
@click.option("--dry-run", is_flag=True, help="Write no file; show what would happen to every field.")
@click.option(
    "--allow-lossy", is_flag=True, help="Write the configuration although some values are approximate or lost."
)
@click.option("--strict", is_flag=True, help="Also refuse differences that act only in rare steps.")
@click.option("-v", "--verbose", is_flag=True, help="List every field and setting, including exact ones.")
@language_option
def command(
    as_json: bool,
    to: str,
    to_version: str | None,
    output: Path | None,
    overwrite: bool,
    form: str | None,
    into: Path | None,
    dry_run: bool,
    allow_lossy: bool,
    strict: bool,
    verbose: bool,
    lang: str,
    **source: Any,
) -> int:
    """Write a configuration in another framework's form, and say what became of every field.

    The configuration goes to standard output and the account to standard error; with -o the account goes to standard
    output. A conversion that loses something is refused (exit code 3) unless --allow-lossy is given; what differs in
    rare steps only is written, and refused with --strict. Model, data, names and logs are carried over; what has to be
    filled in is a variable.

    With --into an existing file of the target's is edited: only the keys that must change do, and everything else in
    it stays, comments, order and anchors included.
    """
    from batchbridge.comparing.convert import convert, of_example
    from batchbridge.contract import plugins

    to = named_framework("--to", to)
    if output is not None:
        keep("-o", output, overwrite)
    name, read, reading = reading_from(**source)
    target_version, why = _version(plugins.adapters()[to], to_version, [into, output, Path("-"), read.path])
    try:
        sizes = {"world_size": source["world_size"] or source["gpus"], "dataset_size": source["dataset_size"]}
        asked: dict[str, Any] = {"given": read.values, "strict": strict}
        example = of_example(plugins.adapters()[to], read, reading, sizes, version=target_version, **asked)
        found = example or convert(reading, to, target_version=target_version, **asked)
    except ValueError as error:
        raise click.UsageError(f"--to-version {to_version}: {error}") from None
    edited = None
    if into is not None:
        edited = _edited(into, found, form)
        found = edited.conversion
    code = EXIT_CODES[found.verdict]
    if code == NOT_EQUIVALENT and allow_lossy and found.written is not None:
        code = FINE
    if edited is not None and edited.problems and code == FINE:
        code = INVALID
    shown = _form(found, form, output if edited is None else Path("file.yaml"))
    text = None
    if code == FINE and found.written is not None:
        text = found.written.text[shown] if edited is None else edited.text
    target = output or into
    if as_json:
        from batchbridge.cli._json import print_json

        print_json([{"file": name, **found.to_dict(), "into": None if edited is None else edited.to_dict()}], code)
    else:
        from batchbridge.render import between

        how = between.ConversionUse(
            version=why,
            file=None if target is None else str(target),
            form=shown,
            written=text is not None and not dry_run,
            refused=found.verdict == "lossy" and text is None and found.written is not None,
            source=None if source["file"] in (None, "-") else _again(source, reading),
            verbose=verbose,
        )
        with spoken(lang):
            account = between.conversion(name, found, how)
            if edited is not None:
                account = f"{account}\n\n{between.edits(edited, _done(edited, text, output, dry_run))}"
        aside = target is None and not dry_run  # `convert ... > FILE` holds the configuration, or nothing
        if (sys.stderr if aside else sys.stdout).isatty():
            from batchbridge.cli._tables import show

            show(account, err=aside)
        else:  # as it is, and nothing more is imported
            click.echo(account, err=aside)
    if text is not None and not dry_run:
        if target is not None:
            _write(text, target, edited)
        elif not as_json:
            click.echo(text, nl=not text.endswith("\n"))
    return code


def _version(adapter: Adapter, asked: str | None, places: list[Path | None]) -> tuple[str | None, str]:
    """The version to write for, and where it comes from: what is asked for, or what the repository of one of `places`
    pins; None: the newest that can say it."""
    from batchbridge.comparing.convert import unknown_version
    from batchbridge.reading.pins import pinned

    if asked is not None:
        return asked, ""
    newest = "the newest that can say it; --to-version names another"
    for place in places if adapter.distribution else ():
        pin = None if place is None else pinned(place, adapter.distribution or "")
        if pin is not None:
            if unknown_version(adapter, pin.version) is None:
                return pin.version, f"pinned by {pin.place}"
            return None, f"{pin.place} pins {pin.version}, which is not known: {newest}"
    return None, newest


_SUFFIXES = {".yaml": "yaml", ".yml": "yaml", ".json": "json", ".toml": "toml", ".py": "python"}


def _form(found: Conversion, asked: str | None, output: Path | None) -> str:
    """The form that is written: what is asked for, what the name of FILE says, or the target's first."""
    from batchbridge.comparing.outside import FILES
    from batchbridge.reading.files import SCRIPTS

    forms = {} if found.written is None else found.written.text
    if asked is not None:
        if forms and asked not in forms:
            raise click.UsageError(f"--format {asked}: this framework is written as {', '.join(forms)}")
        return asked
    suffix = "" if output is None else output.suffix.lower()
    named = [form for form in forms if form == _SUFFIXES.get(suffix) or (suffix in SCRIPTS and form not in FILES)]
    return next(iter([*named, *forms]), "")


def _again(source: dict[str, Any], reading: Reading) -> tuple[str, ...] | None:
    """The options that read the source again as the first side of `diff`; None where they are more than a few."""
    if source["settings"] or source["env"] or source["words"] or source["command_number"]:
        return None
    world = None if reading.spec is None else str(reading.spec.topology.world_size)
    said = {
        "--framework-a": reading.framework if source["framework"] else None,
        "--version-a": reading.framework_version,
        "--world-size-a": world if source["world_size"] or source["gpus"] else None,
    }
    return tuple(word for option, value in said.items() if value is not None for word in (option, value))


def _edited(into: Path, found: Conversion, form: str | None) -> EditedFile:
    from batchbridge.comparing.edit_file import FORM, convert_into
    from batchbridge.contract import plugins

    if form not in (None, FORM):
        raise click.UsageError(f"--format {form}: with --into a YAML file is edited")
    return convert_into(plugins.adapters()[found.framework], found, into)


def _done(edited: EditedFile, text: str | None, output: Path | None, dry_run: bool) -> str:
    """The sentence on what happens to the edited file, for a person."""
    if text is None or edited.problems:
        return say("nothing was written")
    if dry_run:
        return say("nothing was written (--dry-run)")
    if output is not None:
        return say("written to {file}", file=output) + say("; {file} stays as it is", file=edited.path)
    return say("{file} was edited" if edited.changes else "{file} stays as it is", file=edited.path)


def _write(text: str, target: Path, edited: EditedFile | None) -> None:
    """The whole file or nothing of it."""
    from batchbridge.comparing.edit_file import save

    with writing(target):
        if edited is None:
            save(text, target)
        elif edited.changes or target != edited.path:
            save(text, target, edited.path)
