"""`batchbridge language-server`: `check` in an editor, over standard input and output."""

from __future__ import annotations

import click

from batchbridge.cli._output import wrong
from batchbridge.cli.main import FINE


@click.command("language-server", short_help="Check in an editor, while one types.")
def command() -> int:
    """Speak the Language Server Protocol over standard input and output, for an editor that starts this command.

    Problems and ways out of YAML files, launch scripts and Python programs, what a setting means under the pointer, and
    the sizes of batches above the text. The project's settings count. Needs pygls: pip install 'batchbridge[editor]'.
    """
    try:
        from batchbridge.cli._language_server import ConfigurationServer
    except ModuleNotFoundError as missing:
        if missing.name not in ("pygls", "lsprotocol"):
            raise
        wrong("language-server needs pygls: pip install 'batchbridge[editor]'")
    ConfigurationServer().start()
    return FINE
