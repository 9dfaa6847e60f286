"""Turns what users have (a file, a dict, arguments, an object) into an `adapter.Source`.

Files are data (see `batchbridge.reading.yaml_json` and `toml`), and their size is bounded, so that none costs more than
a few seconds or a few hundred megabytes. Whatever is wrong with a file is a finding with its line; only a wrong Python
type of `source` itself raises.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from batchbridge.contract.reading import Source
from batchbridge.meaning.findings import Finding, Fix, Where
from batchbridge.reading.arguments import near_file as near_file
from batchbridge.reading.documents import MAX_BYTES as MAX_BYTES
from batchbridge.reading.documents import decoded, parse_document, read_text
from batchbridge.reading.yaml_json import RefusedFile, problem, refuse

PYTHON = frozenset({".py", ".ipynb"})
"""Suffixes of Python programs and notebooks; see `batchbridge.reading.python`."""

STANDARD_INPUT = "-"

LOGS = frozenset({".log", ".out", ".err", ".txt"})
"""Suffixes of what a run has printed; see `batchbridge.reading.pasted`. Other texts are looked at for its marks."""
LARGEST_LOG = 64 << 20
"""Largest log that is read (bytes)."""
_OF_RUNS = frozenset({"training_args.bin", "trainer_state.json", ".wandb", ".db"})
"""Names and suffixes of files that a run leaves; see `batchbridge.reading.past_runs`."""
_MARKS = frozenset({"_wandb", "wandb_version", "transformers_version"})
"""Keys of a record of a run, which no recipe has."""

SCRIPTS = frozenset({".sh", ".bash", ".slurm", ".sbatch"})
"""Suffixes of launch scripts; see `batchbridge.reading.scripts`. So is a file whose first line names a shell."""


def load_source(
    source: object,
    *,
    overrides: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    framework: str | None = None,
    command: int | None = None,
    world_size: int | None = None,
) -> Source:
    """The `Source` of a path (str or PathLike), a mapping, a list of arguments, a `Source`, or a native object.

    `overrides` (native key to value, as from `--set`) replace what `source` says; a key that stands in `Source.lines`
    comes from the file, every other one is an argument. `env`: values of environment variables. `framework` and
    `command` (counted from 1) choose among the training commands of a launch script. `world_size`: processes, which a
    Python program may ask its environment for, and a launch script leave open. Raises `TypeError` for None, bytes,
    numbers and the like.
    """
    if isinstance(source, Source):
        loaded = replace(source, env=dict(env)) if env else source
    elif isinstance(source, str) and re.match(r"https?://", source):
        loaded = Source(problems=(_link(source),))
    elif source == "":
        loaded = Source(problems=(problem("BB001", "the name of the file is empty", ""),))
    elif isinstance(source, (str, os.PathLike)):
        loaded = _load_file(Path(source), env, framework, command, world_size)
    elif isinstance(source, Mapping):
        loaded = _load_mapping(source)
    elif isinstance(source, (list, tuple)):
        if wrong := [item for item in source if not isinstance(item, str)]:
            raise TypeError(f"arguments must be strings; {wrong[0]!r} is {type(wrong[0]).__name__}")
        from batchbridge.reading.scripts import load_arguments

        loaded = load_arguments(source)
    elif source is None or isinstance(source, (bytes, bytearray, int, float, complex, set, frozenset)):
        raise TypeError(
            f"source: a path, a mapping, a list of arguments or a config or trainer object; got {type(source).__name__}"
        )
    else:
        loaded = Source(native=source)
    if not loaded.values and any(found.severity == "error" for found in loaded.problems):
        return loaded
    if overrides:
        loaded = _override(loaded, overrides)
    if world_size is not None and loaded.unknown:
        from batchbridge.reading.machine_facts import devices_left_open

        loaded = _override(loaded, devices_left_open(loaded, world_size))
    return loaded


def _link(address: str) -> Finding:
    fix = Fix(f"download it, or pipe it: curl -L {address} | batchbridge check -")
    text = "this is a link, and no network is used"
    return Finding("BB001", "error", "config", text, (Where(file=address),), (fix,))


def _load_file(
    path: Path, env: Mapping[str, str] | None, framework: str | None, command: int | None, world_size: int | None
) -> Source:
    file = str(path)
    try:
        suffix = path.suffix.lower()
        folder = _is_folder(path)
        if folder or suffix in _OF_RUNS or path.name in _OF_RUNS or path.parent.name == ".hydra":
            from batchbridge.reading import past_runs

            recorded = past_runs.load_folder(path, command) if folder else past_runs.load_file(path, command)
            if recorded is not None:
                return replace(recorded, env=dict(env or {}))
        python = suffix in PYTHON
        if python:
            from batchbridge.reading.python import MAX_BYTES as most
        else:
            most = LARGEST_LOG if suffix in LOGS or file == STANDARD_INPUT else MAX_BYTES
        text = read_text(path, file, most) if file != STANDARD_INPUT else decoded(_piped(most), file, most)
    except RefusedFile as refused:
        return Source(path=path, problems=(refused.finding,))
    return load_text(text, path, env=env, framework=framework, command=command, world_size=world_size)


def load_text(
    text: str,
    path: Path,
    *,
    env: Mapping[str, str] | None = None,
    framework: str | None = None,
    command: int | None = None,
    world_size: int | None = None,
) -> Source:
    """The `Source` of a text, as `load_source` has it of a file `path` with this text. Whether there is such a file
    does not matter; files that lie beside it are seen."""
    file, suffix = str(path), path.suffix.lower()
    try:
        if suffix in PYTHON:
            from batchbridge.reading import python

            given, words = _behind(env)
            if world_size is not None:
                given = {"WORLD_SIZE": str(world_size), **given}
            read = python.load_python(
                text, path, env=given, framework=framework, chosen=command, words=words, load_started=_load_started
            )
            its_words = read.argv[:2] == ("python", str(path))  # and not those of a command that it starts
            return replace(load_source(list(read.argv)), env=given) if its_words else read
        first = text.partition("\n")[0]
        if suffix in LOGS or (suffix not in SCRIPTS and _of_run(text)):
            from batchbridge.reading import pasted

            if (found := pasted.read_pasted(text, path)) is not None:
                return replace(found, env=dict(env or {}))
        if len(text) > MAX_BYTES:
            refuse("BB002", f"the text has {len(text):,} characters; settings have at most {MAX_BYTES:,}", file)
        script = suffix in SCRIPTS or re.match(r"#!\s*\S*[/ ](ba|da|z|k)?sh\b", first)
        if script or (not suffix and _runs(text)):
            from batchbridge.reading.scripts import load_script

            return load_script(text, path, env=env, framework=framework, chosen=command)
        if first.startswith("#!"):
            what = "YAML, JSON, TOML, Python, notebooks and shell scripts"
            refuse("BB043", f"this is a script of another language; {what} are read (or --set KEY=VALUE)", file, 1)
        document = parse_document(text, suffix, file)
        if not any(found.severity == "error" for found in document.problems):
            if document.value is None:
                refuse("BB005", "the file is empty; a mapping of settings was expected", file)
            if not isinstance(document.value, dict):
                kind = "a list" if isinstance(document.value, list) else "a single value"
                refuse("BB005", f"the file holds {kind}; a mapping of settings was expected", file, 1)
    except RefusedFile as refused:
        return Source(path=path, problems=(refused.finding,))
    values = document.value if isinstance(document.value, dict) else {}
    if "run" in values or "commands" in values:
        from batchbridge.reading.task_files import load_task

        if (task := load_task(values, text, path, env=env, framework=framework, chosen=command)) is not None:
            return task
    problems = tuple(document.problems)
    read = Source(values=values, lines=document.lines, path=path, problems=problems, env=dict(env or {}))
    wrapped = (isinstance(value, dict) and "value" in value for value in values.values())
    if not values.keys() & _MARKS and not all(wrapped):
        return read
    from batchbridge.reading.past_runs import as_recorded

    return as_recorded(read)


def _load_started(*said: Any, **further: Any) -> Source | None:
    from batchbridge.reading.scripts import load_started

    return load_started(*said, **further)


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):  # a name that is too long, or a NUL character; reading it says so
        return False


def _piped(most: int) -> bytes:
    return sys.stdin.buffer.read(most + 1)


def _of_run(text: str) -> bool:
    """Whether a text without a name that says so is a log, or what a run printed."""
    printed = re.match(r"\s*(\([^()\n]+\) )?\{\s*'", text) is not None
    return printed or "Error executing job with overrides:" in text or "***** Running training *****" in text


def _behind(env: Mapping[str, str] | None) -> tuple[dict[str, str], list[str] | None]:
    """The environment variables, and the words behind a program: its arguments by number; None: they are not known."""
    given = {name: value for name, value in (env or {}).items() if not name.isdigit()}
    words = [value for name, value in sorted((env or {}).items(), key=lambda item: item[0].zfill(9)) if name.isdigit()]
    return given, words or None


def _runs(text: str) -> bool:
    """Whether a text without a name is a shell's: one of its lines starts Python, or a launcher of it."""
    return re.search(r"^\s*(\S*/)?(python[\d.]*|accelerate|torchrun|ray|uv|srun) +\S", text, re.MULTILINE) is not None


def _load_mapping(source: Mapping[Any, Any]) -> Source:
    wrong = [key for key in source if not isinstance(key, str)]
    problems = tuple(problem("BB005", f"key {key!r:.60} is not a string", "", key=str(key)) for key in wrong)
    return Source(values={key: value for key, value in source.items() if isinstance(key, str)}, problems=problems)


def _override(source: Source, overrides: Mapping[str, Any]) -> Source:
    values, lines = dict(source.values), dict(source.lines)
    for key, value in overrides.items():
        for known in [known for known in lines if known == key or known.startswith((f"{key}.", f"{key}["))]:
            del lines[known]
        values = _set(values, key, value)
    from batchbridge.reading.arguments import spellings

    unknown = {key: names for key, names in source.unknown.items() if overrides.keys().isdisjoint(spellings(key))}
    return replace(source, values=values, lines=lines, unknown=unknown)


def _set(values: Mapping[str, Any], key: str, value: Any) -> dict[str, Any]:
    """A copy with `key` set where its mapping stands already (nested or dotted), and dotted otherwise."""
    copy = dict(values)
    if key not in copy:
        parts = key.split(".")
        for cut in range(len(parts) - 1, 0, -1):
            head = ".".join(parts[:cut])
            if isinstance(copy.get(head), Mapping):
                copy[head] = _set(copy[head], ".".join(parts[cut:]), value)
                return copy
    copy[key] = value
    return copy
