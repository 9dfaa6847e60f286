"""`batchbridge diff`: the differences in meaning between two configurations."""

from __future__ import annotations

from typing import Any

import click

from batchbridge.cli._input import (
    SIZE,
    asked_for,
    frameworks_for_completion,
    language_option,
    versions_for_completion,
)
from batchbridge.cli._output import html_option, write_page
from batchbridge.cli._tables import show
from batchbridge.cli.main import EXIT_CODES
from batchbridge.render.words import spoken


@click.command("diff", short_help="Say how two configurations differ in meaning.")
@click.argument("a", type=click.Path(path_type=str))
@click.argument("b", type=click.Path(path_type=str), required=False)
@click.option("--framework", metavar="NAME", shell_complete=frameworks_for_completion, help="Framework of A and B.")
@click.option("--framework-a", metavar="NAME", shell_complete=frameworks_for_completion, help="The same for A.")
@click.option("--framework-b", metavar="NAME", shell_complete=frameworks_for_completion, help="The same for B.")
@click.option(
    "--framework-version",
    "version",
    metavar="VERSION",
    shell_complete=versions_for_completion,
    help="The framework's version, for A and B.",
)
@click.option("--version-a", metavar="VERSION", shell_complete=versions_for_completion, help="The same for A.")
@click.option("--version-b", metavar="VERSION", shell_complete=versions_for_completion, help="The same for B.")
@click.option("-w", "--world-size", type=SIZE, metavar="DEVICES", help="Devices that train the policy, for A and B.")
@click.option("-n", "--nodes", type=SIZE, metavar="NODES", help="With --gpus, instead of --world-size.")
@click.option("-g", "--gpus", type=SIZE, metavar="DEVICES", help="Devices per node; with --nodes (default 1).")
@click.option("--world-size-a", type=SIZE, metavar="DEVICES", help="The same for A.")
@click.option("--world-size-b", type=SIZE, metavar="DEVICES", help="The same for B.")
@click.option(
    "--set-a", metavar="KEY=VALUE", multiple=True, help="A setting of A in its framework's own spelling; repeat."
)
@click.option(
    "--set-b", metavar="KEY=VALUE", multiple=True, help="A setting of B in its framework's own spelling; repeat."
)
@click.option("-d", "--dataset-size", type=SIZE, metavar="PROMPTS", help="Prompts in the dataset, for A and B.")
@click.option("--env", metavar="NAME=VALUE", multiple=True, help="An environment variable of launch scripts; repeat.")
@click.option("--command-a", type=SIZE, metavar="NUMBER", help="Number of the command in launch script A, from 1.")
@click.option("--command-b", type=SIZE, metavar="NUMBER", help="Number of the command in launch script B, from 1.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@html_option
@language_option
def command(
    a: str,
    b: str | None,
    dataset_size: int | None,
    env: tuple[str, ...],
    as_json: bool,
    html_file: str | None,
    lang: str,
    **sides: Any,
) -> int:
    """Say how configurations A and B differ in meaning, the largest effect first.

    A and B are files in their frameworks' own forms, or launch scripts. Without B, A is compared with itself:
    under another version (--version-b), on other devices (--world-size-b), or with another setting (--set-b).
    """
    from batchbridge import read
    from batchbridge.comparing.diff_sources import compared

    names = (a, a if b is None else b)
    asked = []
    nodes, gpus = sides["nodes"], sides["gpus"]
    for side, file in zip("ab", names, strict=True):
        said = {name: sides[f"{name}_{side}"] or sides[name] for name in ("framework", "version", "world_size")}
        own = asked_for(
            file=file,
            framework=said["framework"],
            settings=sides[f"set_{side}"],
            framework_version=said["version"],
            world_size=said["world_size"],
            nodes=None if said["world_size"] else nodes,
            gpus=None if said["world_size"] else gpus,
            dataset_size=dataset_size,
            env=env,
            command_number=sides[f"command_{side}"],
        )
        sizes = {key: own[key] for key in ("world_size", "dataset_size")}
        asked.append((own["source"], read(**{key: value for key, value in own.items() if key != "name"}), sizes))
    found = compared(asked)
    if html_file is not None:
        from batchbridge.render import html

        write_page(html_file, lambda: html.comparison(names, found))
    if as_json:
        from batchbridge.cli._json import print_json

        files = {"file_a": names[0], "file_b": names[1]}
        return print_json([{**files, **found.to_dict()}], EXIT_CODES[found.verdict])
    from batchbridge.render import between

    with spoken(lang):
        show(between.comparison(names, found))
    return EXIT_CODES[found.verdict]
