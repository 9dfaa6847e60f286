"""`batchbridge report`: a reading to paste into an issue, without anything that is only the user's.

Nothing is looked for and taken out: what is shown is what is known to be harmless. Keys are those that the framework's
tables have; values are numbers of such keys, and words that stand in the adapter's own code; a finding's message is
shown where it consists of such words and of such keys and values alone. Whatever else there is is counted.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import math
import platform
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import click
from packaging.version import InvalidVersion, Version

from batchbridge.cli._input import InputCommand, asked_for, input_options
from batchbridge.cli._project import project
from batchbridge.cli.main import FINE
from batchbridge.contract import plugins
from batchbridge.contract.reading import Reading, Source
from batchbridge.distributions import installed
from batchbridge.meaning.findings import Finding
from batchbridge.meaning.spec import every_field
from batchbridge.reading.read import read
from batchbridge.reports import Check, check

REMOVED = "<removed>"
"""The word for what was left out."""
DISTRIBUTIONS = (
    *("torch", "transformers", "accelerate", "trl", "verl", "openrlhf", "deepspeed", "peft", "vllm", "sglang", "ray"),
    *("tensordict", "TransferQueue", "datasets", "hydra-core", "omegaconf", "liger-kernel", "flash-attn", "numpy"),
    *("click", "pluggy", "pydantic", "pyyaml", "tree-sitter", "tree-sitter-bash"),
)
"""Distributions whose versions matter for what a configuration means, or for how it is read."""
LOCAL = re.compile(r"cpu|cu\d{2,3}|rocm[\d.]+|g[0-9a-f]{7,12}")
"""Local parts of versions that say how something was built; another one may name someone's house."""
PRIVATE = re.compile(r"(^|[._-])(token|key|secret|password|passwd|auth|credentials?|user|email|host|ip|url|uri)$", re.I)
"""Ends of keys whose values are never shown, whatever they are."""
WORD = re.compile(r"[A-Za-z0-9_][\w.+/-]{0,59}")
"""A value of one word: it cannot end a block of code, and has no mark of Markdown that does anything in one."""
NUMBER = re.compile(r"[-+]?[\d,.]+(?:e[-+]?\d+)?%?")
CODE = re.compile(r"BB[A-Z0-9_-]{1,20}")
"""The pattern of a finding's code."""
LARGEST = 10**10
"""Whole numbers from here on are more likely someone's number than a size."""
LONGEST_LIST = 16
WORDS_OF_YAML = ("true", "false", "yes", "no", "on", "off", "null", "none", "~", "0", "1", "")
UNSAID = "its message is left out: it quotes what is not shown here"
SHORTEST = 4
"""Characters of a left-out text that a message must not contain; shorter ones are words of every message."""
SAID = {"framework": "framework", "version": "version", "world_size": "devices", "dataset_size": "prompts"}
"""Names in the report of what was said beside the configuration."""
COUNTED = {"settings": "--set", "env": "--env", "words": "words behind --"}
"""Options that are counted."""


@click.command("report", cls=InputCommand, short_help="Print a reading to paste into an issue, without secrets.")
@input_options
def command(**said: Any) -> int:
    """Print versions, the configuration, its findings and verdict as Markdown, to paste into an issue.

    Only settings that BatchBridge's tables know are shown, with numbers and with words of its own code for values:
    names, paths, addresses, tokens and comments are left out. Nothing is sent anywhere. The exit code is 0 where a
    report could be printed, whatever the verdict.
    """
    if said["file"] is not None and Path(said["file"]).is_dir():
        raise click.UsageError("a report is about one run: name one file of the folder")
    asked = asked_for(**said, own=project(said["file"]))
    click.echo(report(check(**asked), asked["source"], {**said, **asked}))
    return FINE


command.params = [option for option in command.params if option.name != "as_json"]  # it is Markdown, for people


@dataclass(frozen=True)
class KnownWords:
    """The words that may be shown: keys of the framework's tables; texts of BatchBridge's and the adapter's code."""

    keys: frozenset[str] = frozenset()
    texts: frozenset[str] = frozenset()
    words: frozenset[str] = frozenset()

    def value(self, key: str, value: object) -> str:
        """A value of a known key, or its type where it is not known to be harmless."""
        hidden = f"<{_kind(value)}>"
        if PRIVATE.search(key):
            return hidden
        if isinstance(value, list | tuple):
            shown = [self.value(key, each) for each in value]
            plain = len(value) <= LONGEST_LIST and not any(isinstance(each, list | tuple) for each in value)
            return f"[{', '.join(shown)}]" if plain and not any(each.startswith("<") for each in shown) else hidden
        if isinstance(value, bool) or value is None:
            return str(value)
        if isinstance(value, int):
            return str(value) if abs(value) < LARGEST else hidden
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else hidden
        return value if isinstance(value, str) and value in self.texts and WORD.fullmatch(value) else hidden

    def message(self, finding: Finding, shown: Mapping[str, str], left_out: Iterable[str]) -> str | None:
        """A finding's message, where nothing in it could be the user's alone; None otherwise."""
        keys = [where.key for where in finding.where if where.key is not None]
        if any(key not in self.keys or shown.get(key, "").startswith("<") for key in keys):
            return None
        if not finding.message.isprintable() or "```" in finding.message:
            return None
        if any(text in finding.message for text in left_out):
            return None
        harmless = (
            word in self.words or word in self.keys or _is_mark(word) or (keys and NUMBER.fullmatch(word))
            for word in _words([finding.message])
        )
        return finding.message if all(harmless) else None


def report(found: Check, source: Source, said: Mapping[str, Any]) -> str:
    """One Markdown text: versions, what was given, the configuration, findings and verdicts.

    said: what was said beside it, by name; only what `SAID` and `COUNTED` name is looked at.
    """
    reading = found.reading
    known = known_of(reading)
    given = {key: _taken(where.value, reading.native.get(key, where.value)) for key, where in reading.places.items()}
    shown = {key: known.value(key, value) for key, value in given.items() if key in known.keys}
    left_out = {*_texts(given.keys() - shown.keys()), *_texts(source.values), *_texts(source.argv), *_texts(source.env)}
    left_out |= {*_texts(value for key, value in given.items() if shown.get(key, "<").startswith("<"))}
    left_out -= {*known.texts, *known.words, *known.keys, *shown.values()}
    lines = [
        "### BatchBridge report",
        "",
        f"Texts that are not BatchBridge's own were left out ({REMOVED}, <text>). Read it before you paste it.",
        "",
        "```text",
        *versions(),
        "",
        f"input       {', '.join([_form(source), *_told(said)])}",
        f"read as     {_framework(reading)}",
        f"verdict     {found.verdict}",
        f"run, wrap   {found.enforcement.verdict}{_obstacles(found, known)}",
        *_releases(found),
    ]
    lines += ["", *_settings(reading, shown), "", *_findings(found, known, shown, left_out), "```"]
    return "\n".join(lines)


def versions() -> Iterator[str]:
    """A line for each installed distribution that matters; nothing is imported. Other people's adapters are counted."""
    from batchbridge import __version__

    yield f"batchbridge {__version__}"
    yield f"{platform.python_implementation()} {platform.python_version()}, {platform.system()} {platform.machine()}"
    found = [f"{name} {plain_version(version)}" for name in DISTRIBUTIONS if (version := installed(name)) is not None]
    yield f"installed   {', '.join(found)}"
    ours = [name for name, adapter in plugins.adapters().items() if _package(adapter).startswith("batchbridge_")]
    more = len(plugins.adapters()) - len(ours)
    yield f"adapters    {', '.join(ours)}{f'; {more} of other authors' if more else ''}"


def plain_version(text: str) -> str:
    """A version as PEP 440 writes it, where it looks like one, without a local part that could name a house."""
    try:
        version = Version(text)
    except InvalidVersion:
        return REMOVED
    # An address has four numbers, a telephone or account long ones.
    if len(version.release) > 3 or max(version.release) >= 10_000 or len(version.public) > 30:
        return REMOVED
    return version.public + (f"+{version.local}" if version.local and LOCAL.fullmatch(version.local) else "")


def known_of(reading: Reading) -> KnownWords:
    """The words of a reading that may be shown: settings that a reading of nothing in its version has, too."""
    adapter = plugins.adapters().get(reading.framework)
    if adapter is None:
        return KnownWords(words=frozenset(_words(_constants("batchbridge"))))
    nothing = read(Source(), framework=reading.framework, version=reading.framework_version)
    packages = {_package(each) for each in type(adapter).__mro__} - {"abc", "builtins"}
    texts = frozenset().union(*(_constants(name) for name in sorted(packages | {"batchbridge"})))
    words = {*_words(texts), adapter.framework, *adapter.releases}
    keys = {*nothing.native, *(path for path, _ in every_field())}
    return KnownWords(frozenset(keys), texts, frozenset(words))


def _words(texts: Iterable[str]) -> Iterator[str]:
    for text in texts:
        for word in re.findall(r"[^\s\"'`()\[\]{};]+", text):
            yield word.strip(".,:=<>!?")


def _is_mark(word: str) -> bool:
    """Whether it is a mark or two between words."""
    return len(word) <= 2 and not re.search(r"\w", word)


@cache
def _constants(package: str) -> frozenset[str]:
    """Every text in a package's code. Read, not imported: messages are made from them."""
    spec = importlib.util.find_spec(package)
    found: set[str] = set()
    for folder in () if spec is None else spec.submodule_search_locations or ():
        for file in sorted(Path(folder).rglob("*.py")):
            nodes = ast.walk(ast.parse(file.read_text(encoding="utf-8")))
            found |= {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
        for file in sorted(Path(folder).rglob("*.json")):
            found |= set(_leaves(json.loads(file.read_text(encoding="utf-8"))))
    return frozenset(found)


def _leaves(of: object) -> Iterator[str]:
    """Every text of a JSON value, keys too."""
    if isinstance(of, str):
        yield of
    elif isinstance(of, list | dict):
        for each in of:
            yield from _leaves(each)
        if isinstance(of, dict):
            yield from _leaves(list(of.values()))


def _package(thing: object) -> str:
    kind = thing if isinstance(thing, type) else type(thing)
    return kind.__module__.partition(".")[0]


def _texts(of: object) -> Iterator[str]:
    """Every text in a value, in mappings' keys and in numbers too, that a message must not contain."""
    if isinstance(of, Mapping):
        yield from (text for pair in of.items() for each in pair for text in _texts(each))
    elif isinstance(of, str):
        yield from (part for part in {of, *of.split("=", 1)} if len(part) >= SHORTEST)
    elif isinstance(of, Iterable) and not isinstance(of, bytes):
        yield from (text for each in of for text in _texts(each))
    elif of is not None and not isinstance(of, bool) and len(str(of)) >= SHORTEST:
        yield str(of)


def _taken(raw: object, native: object) -> object:
    """The value that the framework takes a setting for; as it was given, where it takes a text for nothing at all."""
    plain = isinstance(raw, str) and raw.lower() not in WORDS_OF_YAML
    return raw if plain and (native is None or isinstance(native, bool)) else native


def _kind(value: object) -> str:
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (bool, "true or false"),
        ((int, float), "number"),
        (str, "text"),
        ((list, tuple), "list"),
        (Mapping, "table"),
    )
    return next((name for kind, name in kinds if isinstance(value, kind)), "value")


def _form(source: Source) -> str:
    if source.argv:
        return "a launch script" if source.path is not None else "a command or settings"
    suffix = "" if source.path is None else source.path.suffix.lower()
    forms = {".yaml": "a YAML file", ".yml": "a YAML file", ".json": "a JSON file", ".toml": "a TOML file"}
    return forms.get(suffix, "a file" if source.path is not None else "settings")


def _told(said: Mapping[str, Any]) -> Iterator[str]:
    """The facts that were said beside the configuration."""
    for name, shown in SAID.items():
        if (value := said.get(name)) is not None:
            text = plain_version(value) if name == "version" else str(value)
            yield f"{shown} {text if name != 'framework' or value in plugins.adapters() else REMOVED}"
    for name, shown in COUNTED.items():
        if said.get(name):
            yield f"{len(said[name])} {shown}"


def _framework(reading: Reading) -> str:
    if reading.framework not in plugins.adapters():
        return "no framework that is installed"
    version = reading.framework_version
    return f"{reading.framework} {'(no version)' if version is None else plain_version(version)}"


def _releases(found: Check) -> Iterator[str]:
    """A line for each range of releases that are judged alike, where no version was named."""
    for span in found.judged.spans if found.judged else ():
        ends = list(dict.fromkeys((span.name.split()[0], span.name.split()[-1])))
        yield f"releases    {' to '.join(map(plain_version, ends))}: {span.verdict}"


def _obstacles(found: Check, known: KnownWords) -> str:
    names = (one.name for one in found.enforcement.obstacles)
    shown = [name if name in known.texts or CODE.fullmatch(name) else REMOVED for name in names]
    return f": {', '.join(dict.fromkeys(shown))}" if shown else ""


def _settings(reading: Reading, shown: Mapping[str, str]) -> Iterator[str]:
    """The settings that were given, in their order, with their lines; what was left out is counted."""
    if not reading.given:
        yield "no settings"
    for key, value in shown.items():
        line = reading.places[key].line
        yield f"{key} = {value}{'' if line is None else f'    line {line}'}"
    if more := len(reading.given) - len(shown):
        yield f"... and {more} settings that are left out: no table of BatchBridge has them"


def _findings(found: Check, known: KnownWords, shown: Mapping[str, str], left_out: Iterable[str]) -> Iterator[str]:
    if not found.findings:
        yield "no findings"
    for finding in found.findings:
        said = [finding.severity, *(["undecided"] if finding.undecided else []), f"noticed: {finding.phase}"]
        about = [str(where.key) for where in finding.where if where.key in known.keys]
        lines = [f"line {where.line}" for where in finding.where if where.line is not None]
        yield "  ".join([finding.code, ", ".join(said), ", ".join(dict.fromkeys([*about, *lines]))]).rstrip()
        yield f"  {known.message(finding, shown, left_out) or UNSAID}"
