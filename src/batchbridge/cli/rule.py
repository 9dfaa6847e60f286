"""`batchbridge rule`: the page of one rule.

Its own file: one file per command.
"""

from __future__ import annotations

import click

from batchbridge.cli._tables import show
from batchbridge.cli.main import FINE, tip


def _codes(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    from batchbridge.rule_page import known_codes

    return [code for code in known_codes() if code.startswith(incomplete.upper())]


@click.command("rule", short_help="Explain a rule by its code.")
@click.argument("code", shell_complete=_codes)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(code: str, as_json: bool) -> int:
    """Explain the rule with this CODE: what is wrong, why it matters, versions, an example and ways out."""
    from batchbridge.rule_page import known_codes, rule

    page = rule(code)
    if page is None:
        raise click.UsageError(f"no rule with a page has the code {code}{tip(code, known_codes(), 'code')}")
    if as_json:
        from batchbridge.cli._json import print_json

        return print_json([page.to_dict()], FINE)
    from batchbridge.render.rule import page as shown

    show(shown(page).rstrip("\n"))
    return FINE
