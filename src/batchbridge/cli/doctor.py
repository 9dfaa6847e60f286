"""`batchbridge doctor`: what a pasted error text or traceback means."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from batchbridge.cli._input import CODE, asked_for, language_option, reading_options
from batchbridge.cli._tables import show
from batchbridge.cli.main import FINE, UNDECIDED
from batchbridge.render.words import listed, say, spoken

if TYPE_CHECKING:
    from batchbridge.contract.reading import Reading


@click.command("doctor", short_help="Say what an error text or traceback means.")
@click.argument("text", required=False, metavar="[FILE|TEXT]")
@click.option(
    "--with", "given", metavar="NAME=NUMBER", multiple=True, help="Answer to a question that doctor asked; repeat."
)
@click.option(
    "--config", metavar="FILE", help="The run's configuration or launch script, to find the line and the fix."
)
@reading_options
@language_option
def command(
    text: str | None,
    given: tuple[str, ...],
    config: str | None,
    as_json: bool,
    lang: str,
    **source: Any,
) -> int:
    """Say what an error text or traceback means: the rule, where it holds, and the nearest fixes.

    Reads FILE, the TEXT itself, or standard input: batchbridge doctor < error.txt. Most options are about the --config,
    as check has them. Exit code 4 where no text is known.
    """
    from batchbridge.diagnosis import doctor, known_texts, nearest, quoted_texts

    numbers = dict(_number(text) for text in given)
    said, before = _said(text)
    readings, versioned = _in_text(text, said, source) if config is None else _readings(config, source)
    found = [replace(one, line=before + one.line) for one in doctor(said, numbers, readings=readings)]
    if as_json:
        from batchbridge.cli._json import print_json

        results = ({"file": config, **diagnosis.to_dict()} for diagnosis in found)
        return print_json(results, FINE if found else UNDECIDED, error=None if found else "no known text was found")
    if found:
        from batchbridge.render import between

        with spoken(lang):
            show(between.diagnoses(found, config, versioned=versioned))
        return FINE
    texts = (*known_texts(), *quoted_texts())
    with spoken(lang):
        frameworks = listed(dict.fromkeys(text.framework for text in texts))
        known = {"number": len(texts), "frameworks": frameworks}
        click.echo(say("no known text was found; {number} are known, of {frameworks}.", **known))
        for likeness, near in nearest(said):
            alike = {"share": f"{likeness:.0%}", "name": near.name, "framework": near.framework}
            click.echo(say("  {share} like {name} ({framework}): {rule}", **alike, rule=near.rule))
        click.echo(say("batchbridge check FILE says what is wrong with a configuration before it runs."))
    return UNDECIDED


def _said(text: str | None) -> tuple[str, int]:
    """The end of the file that `text` names, or of standard input, and the lines before it; or `text` itself, where it
    is more than a name."""
    from batchbridge.diagnosis import MAX_CHARACTERS

    if text is not None and text != "-" and not os.path.lexists(text):
        if len(text.split()) < _FEW:
            rule = f"; tip: a rule has a page: batchbridge rule {text}" if CODE.fullmatch(text) else ""
            raise click.UsageError(f"{text}: there is no such file; quote a text that is meant as one{rule}")
        return text, 0
    if text is None or text == "-":
        if sys.stdin.isatty():
            click.echo("paste the error text, then end the input (Ctrl-D)", err=True)
        data, before = _end(sys.stdin.buffer, 4 * MAX_CHARACTERS)
    else:
        try:
            with Path(text).open("rb") as file:
                data, before = _end(file, 4 * MAX_CHARACTERS)
        except OSError as error:
            raise click.UsageError(f"{text}: {error.strerror}") from None
    encoding = "utf-16" if data.startswith((b"\xff\xfe", b"\xfe\xff")) else "utf-8"  # as PowerShell's > writes it
    return data.decode(encoding, errors="replace"), before


_FEW = 2
"""Words below which an argument is not text."""


def _readings(config: str, source: dict[str, Any]) -> tuple[list[Reading], bool]:
    """The configuration under the version that `check` takes, and True; where nobody names one, also under every known
    one, newest first, and False."""
    from batchbridge import check, read
    from batchbridge.contract import plugins

    asked = asked_for(file=config, **source)
    first = check(**asked)
    if first.judged is None:
        return [first.reading], True
    asked.pop("name")
    releases = plugins.adapters()[first.reading.framework].releases
    return [first.reading, *(read(**{**asked, "version": version}) for version in reversed(releases))], False


def _in_text(text: str | None, said: str, source: dict[str, Any]) -> tuple[list[Reading], bool]:
    """The configuration that the log itself holds, as `_readings` has that of a file. The end of a long log may lack
    it: of a file the whole is looked at."""
    from batchbridge.diagnosis import readings_in
    from batchbridge.reading.documents import read_text
    from batchbridge.reading.files import LARGEST_LOG
    from batchbridge.reading.yaml_json import RefusedFile

    whole = said
    if text is not None and text != "-" and os.path.lexists(text):
        with suppress(RefusedFile):
            whole = read_text(Path(text), text, LARGEST_LOG)
    asked = asked_for(file=None, **source, words=("-",))
    given = {name: asked[name] for name in ("framework", "version", "world_size", "dataset_size")}
    found = list(readings_in(whole, **given))
    return found, len(found) < 2


def _end(stream: BinaryIO, most: int) -> tuple[bytes, int]:
    """The last bytes of a stream, `most` or more, and the lines before them, in bounded memory."""
    kept, before = b"", 0
    while chunk := stream.read(1 << 16):
        kept += chunk
        if len(kept) > 2 * most:
            before += kept.count(b"\n", 0, -most)
            kept = kept[-most:]
    return kept, before


def _number(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals or not value.isdecimal() or not value.isascii() or not 0 < len(value) <= 9 or not int(value):
        raise click.UsageError(f"--with {text}: expected NAME=NUMBER, a whole number from 1 and below 10**9")
    return name, int(value)
