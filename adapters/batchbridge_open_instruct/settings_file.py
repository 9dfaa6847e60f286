"""The YAML file that is the first argument of a script: `python open_instruct/ppo_vllm_thread_ray_gtrl.py run.yaml`.

Source: open-instruct e6c3044aa open_instruct/utils.py ArgumentParserPlus.parse, parse_yaml_and_args: the file holds
settings, and every word behind it is `--key=value`, which wins over the file. The PPO script calls `parse`. The GRPO
scripts of all known checkouts call `parse_args_into_dataclasses`, which takes no file; those of copies may do either.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, NamedTuple

from batchbridge import Finding, Fix, Source, Where
from batchbridge.kit import load_source, near_file
from batchbridge.kit.command_line import CommandLine
from batchbridge.kit.values import shown
from batchbridge_open_instruct.settings import PPO

if TYPE_CHECKING:
    from batchbridge.kit.own_copy import OwnCopy


class FileBehindScript(NamedTuple):
    """The settings that a command gives by a file. source: the command without the file's name. recipe: the file, where
    it is found. findings: what is wrong with either."""

    source: Source
    recipe: Source | None
    findings: tuple[Finding, ...]

    def under(self, line: CommandLine) -> CommandLine:
        """`line` with the file's settings beneath its own."""
        if self.recipe is not None:
            file = str(self.recipe.path)
            for key, value in self.recipe.values.items():
                if key not in line.values:
                    line.values[key] = value
                    line.places[key] = Where(key, shown(value), file, self.recipe.lines.get(key))
        return line


def file_behind_script(source: Source, script: int | None, name: str, copy: OwnCopy | None) -> FileBehindScript:
    """The file of a command. script: the place of the script's name among the words; None: there is none. name: of the
    script that is read. copy: the user's, which the script stands in."""
    words = () if script is None else source.argv[script + 1 :]
    if script is None or not words or not words[0].endswith(".yaml") or not _takes_a_file(name, copy):
        return FileBehindScript(source, None, ())
    rest = dataclasses.replace(source, argv=(*source.argv[: script + 1], *words[1:]))
    found = [_no_value(word) for word in words[1:] if "=" not in word]
    path = near_file(words[0], source.path)
    if path is None:
        return FileBehindScript(rest, None, (*found, _not_found(words[0])))
    recipe = load_source(path)
    return FileBehindScript(rest, recipe, (*found, *recipe.problems))


def _takes_a_file(name: str, copy: OwnCopy | None) -> bool:
    """Whether a script's parser is asked by `parse`."""
    if copy is None:
        return name == PPO
    file = copy.folder / name
    return file.is_file() and "parser.parse()" in file.read_text(encoding="utf-8", errors="replace")


def _not_found(name: str) -> Finding:
    message = f"the file {name} is not found from here, and holds settings"
    fix = Fix("run from the folder where the command would run, or check the file itself")
    return Finding("BB-OI-009", "error", "config", message, (Where(None, name),), (fix,), undecided=True)


def _no_value(word: str) -> Finding:
    message = f"behind a YAML file every argument is --KEY=VALUE, in one word: {word}"
    native = "IndexError: list index out of range"
    source = "open-instruct e6c3044aa utils.ArgumentParserPlus.parse_yaml_and_args"
    place, fix = Where(word.lstrip("-") or None, word), Fix("write --KEY=VALUE")
    return Finding("BB-OI-003", "error", "config", message, (place,), (fix,), native=native, source=source)
