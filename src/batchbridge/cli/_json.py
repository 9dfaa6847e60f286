"""The envelope of everything that a command prints for `--json`; docs/json.md describes it for its readers.

    if as_json:
        return print_json([{"file": name, **found.to_dict()}], code)

A command hands over its results, one for each input, each naming its file, and its exit code, which comes back. Where
there is no result to be had, `error` says why. Results that are many are printed while they are made (`print_lines`).
What a result of the command looks like stands in `render/json_output.json`; a test asks for every command that has
`--json`.

Its own file: every command with --json uses it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import click

from batchbridge import __version__
from batchbridge.cli._exit_codes import EXIT_MEANINGS
from batchbridge.render.json import LAYOUT, dumps, plain
from batchbridge.render.secrets import masked


def print_json(results: Iterable[Mapping[str, Any]], code: int, *, error: str | None = None, **more: Any) -> int:
    """Prints the envelope of the command that runs, and returns its exit code.

    results: JSON types, or what `plain` makes such. error: why there is no result. more: what stands beside the results
    and belongs to none of them.
    """
    shown = [masked(plain(result)) for result in results]
    click.echo(dumps({**_head(), **more, "results": shown, **_end(code, error)}))
    return code


def print_lines(results: Iterable[Mapping[str, Any]], end: Callable[[], tuple[int, str | None]]) -> int:
    """Every result of a `print_json` document on a line of its own, and in memory no longer than that.

    end: the exit code and the error, asked for behind the last result.
    """
    head = ", ".join(_members(_head()))
    click.echo(f'{{{head}, "results": [', nl=False)
    for number, result in enumerate(results):
        click.echo(("," if number else "") + "\n" + _line(result), nl=False)
    code, error = end()
    click.echo(f"\n], {', '.join(_members(_end(code, error)))}}}")
    return code


def _head() -> dict[str, Any]:
    path = click.get_current_context().command_path
    return {"layout": LAYOUT, "tool_version": __version__, "command": path.partition(" ")[2]}


def _end(code: int, error: str | None) -> dict[str, Any]:
    return {"exit_code": code, "exit_meaning": EXIT_MEANINGS[code], "error": error}


def _members(values: Mapping[str, Any]) -> Iterable[str]:
    return (f"{_line(name)}: {_line(value)}" for name, value in values.items())


def _line(value: Any) -> str:
    return json.dumps(masked(plain(value)), allow_nan=False)
