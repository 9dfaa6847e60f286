"""`batchbridge doctor`: what a pasted error text or traceback means."""

from __future__ import annotations

import sys
from typing import BinaryIO

import click

from batchbridge.cli.main import FINE, UNDECIDED


@click.command("doctor", short_help="Say what an error text or traceback means.")
@click.argument("file", required=False, type=click.File("rb"))
@click.option("--with", "given", metavar="NAME=NUMBER", multiple=True, help="A number that is asked for; repeat.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(file: BinaryIO | None, given: tuple[str, ...], as_json: bool) -> int:
    """Say what an error text or traceback means: the rule, where it holds, and the legal neighbours.

    Reads FILE, or standard input: batchbridge doctor < error.txt. Exit code 4 where no text is known.
    """
    from batchbridge.diagnosis import MAX_CHARACTERS, doctor, known_texts, quoted_texts

    numbers = dict(_number(text) for text in given)
    if file is None and sys.stdin.isatty():
        click.echo("paste the error text, then end the input (Ctrl-D)", err=True)
    data = _end(file or sys.stdin.buffer, 4 * MAX_CHARACTERS)
    found = doctor(data.decode("utf-8", errors="replace"), numbers)
    if as_json:
        from batchbridge.render import json

        click.echo(json.dumps({"diagnoses": [diagnosis.to_dict() for diagnosis in found]}))
    elif found:
        from batchbridge.render import between

        click.echo(between.diagnoses(found))
    else:
        texts = (*known_texts(), *quoted_texts())
        frameworks = ", ".join(dict.fromkeys(text.framework for text in texts))
        click.echo(
            f"no known text was found; {len(texts)} are known, of {frameworks}."
            "\nbatchbridge check FILE says what is wrong with a configuration before it runs."
        )
    return FINE if found else UNDECIDED


def _end(stream: BinaryIO, most: int) -> bytes:
    """The last `most` bytes of a stream, in bounded memory."""
    kept = b""
    while chunk := stream.read(1 << 16):
        kept = (kept + chunk)[-most:] if len(kept) + len(chunk) > 2 * most else kept + chunk
    return kept[-most:]


def _number(text: str) -> tuple[str, int]:
    name, equals, value = text.partition("=")
    if not equals or not value.isdecimal() or not value.isascii() or not 0 < len(value) <= 9 or not int(value):
        raise click.UsageError(f"--with {text}: expected NAME=NUMBER, a whole number from 1 and below 10**9")
    return name, int(value)
