"""`batchbridge adapters`: who reads what, and what is wrong with plugins."""

from __future__ import annotations

from typing import Any

import click

from batchbridge.cli import FINE, INVALID
from batchbridge.commands._tables import table_for_stdout


def _rows() -> list[dict[str, Any]]:
    from batchbridge import plugins

    return [
        {
            "framework": name,
            "reads": adapter.versions,
            "enforces": adapter.enforced_versions or None,
            "distribution": adapter.distribution,
            "installed": _installed_version(adapter.distribution),
            "provided_by": plugins.provider(name),
        }
        for name, adapter in plugins.adapters().items()
    ]


def _installed_version(distribution: str | None) -> str | None:
    from importlib.metadata import PackageNotFoundError, version

    if distribution is None:
        return None
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


@click.command("adapters", short_help="List adapters and plugin problems.")
@click.option("--json", "as_json", is_flag=True, help="For programs.")
def command(as_json: bool) -> int:
    """List the installed adapters: framework, versions read and enforced, and who provides each.

    Problems of plugins follow, and make the exit code 2.
    """
    from batchbridge import plugins
    from batchbridge.render import json, text

    rows, problems = _rows(), plugins.problems()
    if as_json:
        click.echo(json.dumps({"adapters": rows, "problems": [problem.to_dict() for problem in problems]}))
    else:
        cells = [
            [text.clean(text.one_line(value if value is not None else "-")) for value in row.values()] for row in rows
        ]
        if cells:
            click.echo(table_for_stdout()([key.replace("_", " ") for key in rows[0]], cells))
        else:
            click.echo("no adapters are installed")
        for problem in problems:
            click.echo(text.clean(f"{problem.code} {problem.severity}  {text.one_line(problem.message)}"))
    return INVALID if problems else FINE
