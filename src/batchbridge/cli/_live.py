"""`batchbridge explain FILE --live`: the page of the playground for a file of this machine, until Ctrl-C."""

from __future__ import annotations

import webbrowser
from contextlib import suppress
from pathlib import Path
from typing import Any

import click

from batchbridge.cli._input import asked_for
from batchbridge.cli._output import say, wrong
from batchbridge.cli.main import EXIT_CODES


def open_page(file: str | None, **options: Any) -> int:
    """Serves the page and opens it in the person's browser, where there is one. options: of `explain`. Raises
    `click.UsageError`."""
    from batchbridge.playground.serving import LivePage
    from batchbridge.reading.documents import read_text
    from batchbridge.reading.yaml_json import RefusedFile

    if file is None or file == "-":
        raise click.UsageError("--live needs a FILE")
    asked = asked_for(file=file, **options)
    try:
        text = read_text(Path(file), file)
    except RefusedFile as refused:
        wrong(f"--live {file}: {refused.finding.message}")
    state = {"framework": asked["framework"], "version": asked["version"], "devices": asked["world_size"]}
    beside = {"set": {key: value for key, value in asked["source"].values.items() if key in _keys(options)}}
    fixed = {"env": dict(asked["source"].env), "command": options.get("command_number")}
    page = LivePage(text, Path(file), state | beside, fixed)
    say(f"{page.address.partition('#')[0]} answers for {file}; Ctrl-C ends it")
    webbrowser.open(page.address)
    with suppress(KeyboardInterrupt):
        page.serve()
    return EXIT_CODES["valid"]


def _keys(options: dict[str, Any]) -> set[str]:
    """The keys of `--set`."""
    return {str(text).partition("=")[0].strip() for text in options.get("settings", ())}
