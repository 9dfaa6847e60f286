"""The options that every command with a configuration shares, and the reading that they ask for."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from batchbridge.cli._project import ProjectSettings, project
from batchbridge.cli.main import tip
from batchbridge.render.words import LANGUAGES, language_of

if TYPE_CHECKING:
    from batchbridge.contract.reading import Reading, Source

_F = TypeVar("_F", bound=Callable[..., Any])

CODE = re.compile(r"BB(-[A-Z][A-Z0-9_]*-)?\d{3}")
"""The pattern of a finding's code."""

ARGUMENTS, COMMAND, STANDARD_INPUT = "arguments", "command", "standard input"
"""The names of a configuration that options alone say, that stands behind `--`, and that is piped in."""

MOST_NAMES = 1000
"""Names of a folder among which one is looked for that a wrong one is near to."""

SIZE = click.IntRange(min=1)


def frameworks_for_completion(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Installed frameworks, as a shell completes them."""
    from batchbridge.contract import plugins

    return [name for name in plugins.adapters() if name.startswith(incomplete)]


def versions_for_completion(context: click.Context, option: click.Parameter, incomplete: str) -> list[str]:
    """Known releases of the framework that the line names, the newest first; of every framework where it names none."""
    from batchbridge.contract import plugins

    own = {"version_a": "framework_a", "version_b": "framework_b", "to_version": "to"}.get(option.name or "")
    said = (context.params.get(own) if own else None) or context.params.get("framework") or ""
    adapters = plugins.adapters()
    known = [adapters[said]] if said in adapters else [*adapters.values()]
    found = [version for adapter in known for version in reversed(adapter.releases) if version.startswith(incomplete)]
    return [*dict.fromkeys(found)]


_FILE = click.argument("file", required=False, type=click.Path(path_type=str))

_OPTIONS = (
    click.option(
        "--framework",
        metavar="NAME",
        shell_complete=frameworks_for_completion,
        help="Framework of the configuration; detected from FILE by default.",
    ),
    click.option(
        "--set",
        "settings",
        metavar="KEY=VALUE",
        multiple=True,
        help="A setting in the framework's own spelling; repeat.",
    ),
    click.option(
        "--framework-version",
        metavar="VERSION",
        shell_complete=versions_for_completion,
        help="Default: the project's setting, what is installed, or what the repository pins.",
    ),
    click.option("-w", "--world-size", type=SIZE, metavar="DEVICES", help="Devices that train the policy."),
    click.option(
        "-n",
        "--nodes",
        type=SIZE,
        metavar="NODES",
        help="With --gpus, instead of --world-size; alone for a launch script.",
    ),
    click.option("-g", "--gpus", type=SIZE, metavar="DEVICES", help="Devices per node; with --nodes (default 1)."),
    click.option("-d", "--dataset-size", type=SIZE, metavar="PROMPTS", help="Prompts in the dataset."),
    click.option(
        "--env",
        "env",
        metavar="NAME=VALUE",
        multiple=True,
        help="An environment variable of a launch script, or its argument by number (1=VALUE); repeat.",
    ),
    click.option(
        "--command",
        "command_number",
        type=SIZE,
        metavar="NUMBER",
        help="Number of the command in a launch script, from 1.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print JSON."),
)


class InputCommand(click.Command):
    """A command with `input_options`; what stands behind `--` is a command of its own, and no option."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Takes it off, and hands it to the body as `words`."""
        place = args.index("--") if "--" in args else len(args)
        left = super().parse_args(ctx, args[:place])
        ctx.params["words"] = tuple(args[place + 1 :])
        return left


def input_options(function: _F) -> _F:
    """Adds FILE, --framework, --set, the sizes and --json."""
    return _FILE(reading_options(function))


def reading_options(function: _F) -> _F:
    """The options of `input_options`, without FILE."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


verbose_option = click.option(
    "-v", "--verbose", is_flag=True, help="Show notes, whole values and sources, and what `run` and `wrap` refuse."
)


def _language(context: click.Context, option: click.Parameter, said: str | None) -> str:
    """The language of a command's text: English where standard output cannot print Chinese."""
    language = said or language_of(os.environ)
    if language == "zh":
        try:
            VERDICT.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
        except UnicodeEncodeError:
            return "en"
    return language


VERDICT = "\u6709\u6548"
"""A word of Chinese texts: "valid"."""

language_option = click.option(
    "--lang",
    type=click.Choice(LANGUAGES),
    callback=_language,
    help="Language of the text: English or Chinese; default: as LC_ALL, LC_MESSAGES or LANG say.",
)


def reading_from(**said: Any) -> tuple[str, Source, Reading]:
    """(what was read, for a person; it; the reading), from the options: where nobody names a version, under the release
    that declares the most of its keys; where nothing certain is known of its trainer, as if it were the framework's.
    Raises `click.UsageError`."""
    from batchbridge import read

    asked = asked_for(**said)
    name, source = asked.pop("name"), asked["source"]
    sizes = {key: asked[key] for key in ("world_size", "dataset_size")}
    reading = read(**asked)
    if reading.framework_version is None or reading.spec is None:
        from batchbridge.comparing.releases import settled

        reading = settled(source, reading, **sizes)
    return name, source, reading.supposed


def asked_for(
    *,
    file: str | None,
    framework: str | None,
    settings: tuple[str, ...],
    framework_version: str | None,
    world_size: int | None,
    dataset_size: int | None,
    nodes: int | None = None,
    gpus: int | None = None,
    env: tuple[str, ...] = (),
    command_number: int | None = None,
    words: tuple[str, ...] = (),
    own: ProjectSettings | None = None,
) -> dict[str, Any]:
    """The options as arguments of `batchbridge.explain` and `batchbridge.check`; where one says nothing, what the
    project says of FILE (own: its settings, where they are read already). words: what stands behind `--`, a command, or
    the arguments of the launch script FILE. Raises `click.UsageError`."""
    from batchbridge.contract.reading import Source
    from batchbridge.reading import files

    of_file = (own or project(file)).of(file)
    framework = framework or of_file.get("framework")
    if file is None and not framework and not words:
        raise click.UsageError("give a FILE, a command behind --, or --framework NAME with --set KEY=VALUE")
    if framework is not None:
        framework = named_framework("--framework", framework)
    if file is not None and CODE.fullmatch(file) and not os.path.lexists(file):
        raise click.UsageError(f"{file}: there is no such file; tip: a rule has a page: batchbridge rule {file}")
    in_script = file is not None and Path(file).suffix.lower() in files.SCRIPTS  # which may say the devices of a node
    counted = devices(world_size, None if in_script and gpus is None else nodes, gpus)
    world_size = counted or of_file.get("world_size")
    overrides = dict(_setting(text) for text in settings)
    said = {"--nodes": nodes if gpus is None else nodes or 1, "--gpus": gpus}
    variables = {name: str(number) for name, number in said.items() if number is not None}
    variables |= dict(_variable(text) for text in env)
    if file is not None:
        variables |= {str(place): word for place, word in enumerate(words, 1)}
        source = files.load_source(
            file,
            overrides=overrides,
            env=variables,
            framework=framework,
            command=command_number,
            world_size=world_size,
        )
        source = _with_near_name(source, Path(file))
    elif words:
        source = files.load_source(words, overrides=overrides, env=variables)
    else:
        # The settings are a command line's words: adapters read text there as their framework's parser does.
        source = Source(values=overrides, argv=settings, env=variables)
    return {
        "source": source,
        "framework": framework,
        "version": framework_version or of_file.get("framework_version"),
        "world_size": world_size,
        "dataset_size": dataset_size or of_file.get("dataset_size"),
        "name": STANDARD_INPUT if file == "-" else file or (COMMAND if words else ARGUMENTS),
    }


def _with_near_name(source: Source, file: Path) -> Source:
    """`source`; where there is no such file, with the name of one beside it that is spelled nearly so. Of the file that
    a person names alone: a file's own words are no reason to look into folders."""
    if not any(problem.code == "BB001" for problem in source.problems) or file.exists():
        return source
    from difflib import get_close_matches

    from batchbridge.meaning.findings import Fix

    with suppress(OSError, ValueError):
        if set(file.name) & set("*?[") and (matched := sum(1 for _ in islice(file.parent.glob(file.name), MOST_NAMES))):
            files = f"{matched} files" if matched > 1 else "one file"
            fix = Fix(f"give the pattern without quotes, so that the shell puts {files} in its place")
            problems = tuple(replace(one, fixes=(fix,)) for one in source.problems)
            return replace(source, problems=problems)
        beside = [one.name for one in islice(file.parent.iterdir(), MOST_NAMES) if one.suffix == file.suffix]
        if near := get_close_matches(file.name, beside, 1, 0.7):
            fix = Fix(f"name {file.with_name(near[0])}, which is there")
            return replace(source, problems=tuple(replace(problem, fixes=(fix,)) for problem in source.problems))
    return source


def named_framework(option: str, name: str) -> str:
    """The framework that `name` means. option: where it was given. Raises `click.UsageError`."""
    from batchbridge.contract import plugins

    if (known_as := plugins.named(name)) is not None:
        return known_as
    broken = "".join(f"\n  {problem.message}" for problem in plugins.problems())
    known = tip(name, plugins.adapters(), "framework")
    known = known or f"; installed: {', '.join(plugins.adapters()) or 'none'}"
    raise click.UsageError(f"{option} {name}: no such adapter{known}{broken}")


def devices(world_size: int | None, nodes: int | None, gpus: int | None) -> int | None:
    """The number of devices, however it was given; None: it was not. Raises `click.UsageError`."""
    if world_size is not None and (nodes is not None or gpus is not None):
        raise click.UsageError("give --world-size, or --nodes and --gpus, not both")
    if nodes is not None and gpus is None:
        raise click.UsageError("--nodes needs --gpus (devices per node)")
    return world_size if gpus is None else (nodes or 1) * gpus


def _setting(text: str) -> tuple[str, Any]:
    from batchbridge.reading import arguments

    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise click.UsageError(f"--set {text}: expected KEY=VALUE")
    try:
        return key.strip(), arguments.parse_scalar(value)
    except ValueError as error:
        raise click.UsageError(f"--set {text}: {error}") from None


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name or "\0" in value:
        raise click.UsageError(f"--env {text}: expected NAME=VALUE")
    return name, value
