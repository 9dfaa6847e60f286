"""`batchbridge report`: one text to paste into an issue: versions, configuration, verdict; no secrets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from batchbridge.cli._input import InputCommand, asked_for, input_options
from batchbridge.cli._project import project
from batchbridge.cli.main import FINE


@click.command("report", cls=InputCommand, short_help="Print a reading to paste into an issue, without secrets.")
@input_options
def command(**said: Any) -> int:
    """Print versions, the configuration, its findings and verdict as Markdown, to paste into an issue.

    Only settings that BatchBridge's tables know are shown, with numbers and with words of its own code for values:
    names, paths, addresses, tokens and comments are left out. Nothing is sent anywhere. The exit code is 0 where a
    report could be printed, whatever the verdict.
    """
    from batchbridge import check
    from batchbridge.cli._shareable import report

    if said["file"] is not None and Path(said["file"]).is_dir():
        raise click.UsageError("a report is about one run: name one file of the folder")
    asked = asked_for(**said, own=project(said["file"]))
    click.echo(report(check(**asked), asked["source"], {**said, **asked}))
    return FINE


command.params = [option for option in command.params if option.name != "as_json"]  # it is Markdown, for people
