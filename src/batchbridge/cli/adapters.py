"""`batchbridge adapters`: who reads what, and what is wrong with plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from batchbridge.cli._output import say
from batchbridge.cli._tables import table_for_stdout
from batchbridge.cli.main import FINE, INVALID

if TYPE_CHECKING:
    from batchbridge.contract.adapter import Adapter


def _rows() -> list[dict[str, Any]]:
    from batchbridge.contract import plugins
    from batchbridge.distributions import installed

    return [
        {
            "framework": name,
            "reads": adapter.versions,
            "tables_to": adapter.newest_version or None,
            "enforces": adapter.enforced_versions or None,
            "distribution": adapter.distribution,
            "installed": adapter.distribution and installed(adapter.distribution),
            "code": _code_of(adapter),
            "compared_with": _compared_with(adapter),
            "provided_by": plugins.provider(name),
        }
        for name, adapter in plugins.adapters().items()
    ]


def _code_of(adapter: Adapter) -> str | None:
    """The grade of the installed framework's code, and the recorded releases that it is; nothing is imported."""
    from batchbridge.kit import proven

    code = adapter.code()
    if code is None or proven.package_folder(code.packages[0]) is None:
        return None
    found = proven.evidence_here(code.used())
    return f"{found.grade}: {found.label}" if found.label else found.text()


def _compared_with(adapter: Adapter) -> dict[str, Any] | None:
    """The framework's own functions that the adapter's meaning was compared with; None: its author alone says it."""
    held = adapter.held()
    if held is None:
        return None
    return {"version": held.version, "digest": held.digest, "laws": list(held.laws), "said_alone": list(held.said)}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        every = len(value["laws"]) + len(value["said_alone"])
        return f"{value['version']}, {len(value['laws'])} of {every} laws ({value['digest']})"
    return "-" if value is None else str(value)


@click.command("adapters", short_help="List adapters and plugin problems.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(as_json: bool) -> int:
    """List the installed adapters: framework, versions read and enforced, how the installed code is graded, the
    release whose own functions their meaning was compared with (-: it is their author's word), and who provides each.

    Problems of plugins follow, and make the exit code 2.
    """
    from batchbridge.contract import plugins
    from batchbridge.render import text

    rows, problems = _rows(), plugins.problems()
    code = INVALID if problems else FINE
    if as_json:
        from batchbridge.cli._json import print_json

        return print_json(rows, code, problems=[problem.to_dict() for problem in problems])
    cells = [[text.clean(text.one_line(_shown(value))) for value in row.values()] for row in rows]
    if cells:
        click.echo(table_for_stdout()([key.replace("_", " ") for key in rows[0]], cells))
    else:
        click.echo("no adapters are installed")
    for problem in problems:
        say(f"{problem.code} {problem.severity}  {problem.message}")
    return code
