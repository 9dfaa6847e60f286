"""Settings that a user said to a program of Hydra's: overrides in a command, a primary configuration with its
defaults list, or a mapping. Nothing is composed."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from batchbridge.contract.reading import Source
from batchbridge.frozen import dataclass
from batchbridge.kit.hydra_overrides import NoOverride, NotRead, Override, parse_override
from batchbridge.kit.omegaconf_settings import OmegaConfSettings, as_given, place_of
from batchbridge.kit.values import shown
from batchbridge.meaning.findings import Finding, Fix, Where
from batchbridge.reading.files import load_source, near_file

_TAKES_VALUE = {"--config-path": "path", "-cp": "path", "--config-name": "name", "-cn": "name", "--config-dir": "path"}


@dataclass
class HydraSettings(OmegaConfSettings):
    """Settings that are said, the entry point, and the configuration that a command line names.

    from_file: a file was read. entry_from_words: the keys come from a command line, where Hydra wants `+` for keys that
    the configuration lacks. configured: keys of a file that a command line names as its configuration, and those that a
    word sets and a later one takes out. config_is_read: False where that file is not found. own_program: the module,
    where it is not one of the framework's. groups: parts of the configuration for which a word names another one
    (`actor@a.b=mine`), which is not read.
    """

    entry: str | None = None
    own_program: str | None = None
    groups: tuple[str, ...] = ()
    config: str | None = None
    folder: str | None = None
    from_file: bool = False
    config_is_read: bool = True
    configured: frozenset[str] = frozenset()
    entry_from_words: bool = False


@dataclass(frozen=True)
class HydraProgram:
    """A framework's programs.

    title: its name in sentences. entries: module that starts one to the program's name, the first being meant where
    none is named, and where a user's own starts. others: beginnings of its modules that do something else, and what.
    unread: of those that train by rollouts in a way of their own, and how. configs: its own configurations. group: a
    key that its defaults list may override. codes: of a program or configuration that is not read, of an override that
    is not, of a key that is given twice, of a program that is a user's own, and of one that does something else.
    """

    title: str
    entries: Mapping[str, str]
    others: Mapping[str, str]
    unread: Mapping[str, str]
    configs: Collection[str]
    group: str
    codes: tuple[str, str, str, str, str]

    def settings_of(self, source: Source, composed: bool = False) -> HydraSettings:
        """Settings that `source` says. composed: whether the configuration that its command names is composed already,
        as its defaults."""
        usual = next(iter(self.entries.values()))
        if not source.argv:
            result = HydraSettings(entry=usual, from_file=source.path is not None, unknown=dict(source.unknown))
            self._from_mapping(source.values, source.lines, source.path, result)
            return result
        module, words = self.words_after_entry(source.argv)
        result = HydraSettings(entry=self.entries.get(module or "", usual), entry_from_words=True)
        if module is None:
            words = [word for word in words if "=" in word or word.startswith("~")]
        elif what := _of(self.others, module) or _of(self.unread, module):
            result.entry = None
            code = self.codes[4 if _of(self.others, module) else 0]
            text = f"{module} {what}; BatchBridge reads {', '.join(self.entries)}, and custom programs like them"
            result.findings.append(Finding(code, "error", "config", text, (Where(module),), undecided=True))
        elif module not in self.entries:
            first = next(iter(self.entries))
            text = (
                f"{module} is not a {self.title} program: BatchBridge reads it as {first}, and does not see what "
                "it changes"
            )
            result.own_program = module
            result.findings.append(Finding(self.codes[3], "warning", "config", text, (Where(module),)))
        overrides = _without_flags(words, result)
        if not composed:
            self._base_file(source, result, module)
        seen: set[str] = set()
        for word in overrides:
            if (override := self._override(word, source, result)) is not None:
                self._put(override, source, result, twice=override.key in seen)
                seen.add(override.key)
        result.put_on_top(source)
        result.unknown = {key.lstrip("+~"): tuple(names) for key, names in source.unknown.items()}
        return result

    def words_after_entry(self, argv: Sequence[str]) -> tuple[str | None, list[str]]:
        """The module or script that starts training, and the words after it; (None, all words) where there is none."""
        for index, word in enumerate(argv):
            if "=" in word:
                break
            if word.endswith(".py") or word in self.entries or (index and argv[index - 1] == "-m"):
                module = word.removesuffix(".py").replace("/", ".").lstrip(".")
                if (handed := self._handed_on(module, argv[index + 1 :])) is not None:
                    return handed, list(argv[index + 2 :])
                inside = [module[module.find(name) :] for name in self.entries if f".{name}" in f".{module}"]
                return inside[0] if inside else module, list(argv[index + 1 :])
        return None, list(argv)

    def _handed_on(self, module: str, words: Sequence[str]) -> str | None:
        """The module that a custom launcher gets as its first argument, if BatchBridge does not
        read that module; the launcher itself, a custom program, if the argument is the usual entry."""
        first = words[0] if words else ""
        if module in self.entries or self.is_not_read(module):
            return None
        if self.is_not_read(first):
            return first
        return module if first == next(iter(self.entries)) else None

    def is_not_read(self, module: str) -> bool:
        """Whether a module of the framework's does something else, or trains in a way of its own."""
        return _of(self.others, module) is not None or _of(self.unread, module) is not None

    def _override(self, word: str, source: Source, result: HydraSettings) -> Override | None:
        key, _, value = word.partition("=")
        unknown = key in source.unknown  # bash writes something else in its place before Hydra sees it
        try:
            read = parse_override(f"{key}=null" if unknown else word)
            return read._replace(value=value, word=word) if unknown else read
        except NotRead as error:
            if source.lines and key not in source.lines:
                return None  # --set says another value
            if "@" in key:
                result.groups += (key.partition("@")[2],)
            text, native = f"this override is not read: {error}", "hydra: OverrideParseException, or a sweep"
            code, place, grammar = self.codes[1], Where(word[:60]), "hydra-core 1.3.2 OverrideParser.g4"
            refused = isinstance(error, NoOverride) and "<" not in value  # <path> is yet to be filled in
            found = Finding(
                code, "error", "config", text, (place,), native=native, source=grammar, undecided=not refused
            )
            result.findings.append(found)
            return None

    def _put(self, override: Override, source: Source, result: HydraSettings, *, twice: bool) -> None:
        key, value, line = override.key, override.value, source.lines.get(override.word.partition("=")[0])
        place = place_of(key, value, line, source.path)
        operation, earlier = override.operation, result.operations.get(key) if twice else None
        if earlier not in (None, "delete") and operation != "delete" and (before := result.values.get(key)) != value:
            text = f"{key} is given twice, as {as_given(before)} and as {as_given(value)}; the last one counts"
            found = Finding(self.codes[2], "warning", "config", text, (place,))
            if operation == "add" and before is not None and not isinstance(value, list | dict):
                text, native = f"+{key}: an earlier word says it already", "hydra: Could not append to config"
                found = Finding(self.codes[1], "error", "config", text, (place,), native=native)
            result.findings.append(found)
        if operation == "add" and (isinstance(value, list | dict) or earlier == "delete"):
            operation = "force"  # Hydra merges these into what is there; what was taken out may be added again
        elif key == self.group and operation == "force":
            operation = "add"  # which Hydra refuses of a group as well
        if operation == "set" and earlier in ("add", "force", "delete"):
            operation = earlier  # what an earlier word added, a later one without + may set; what it took out, not
        if operation == "delete" and earlier == "add":  # as if neither had been said
            for told in (result.values, result.places, result.operations):
                told.pop(key)
            return
        if operation == "delete" and earlier:
            result.configured |= {key}
        result.put(key, value, place, operation)

    def _base_file(self, source: Source, result: HydraSettings, module: str | None) -> None:
        """The configuration that `--config-path` and `--config-name` name, where it is not the framework's own."""
        if result.config is None or result.config in self.configs:
            return
        file = str(Path(result.folder or ".", f"{result.config}.yaml"))
        loaded = load_source(near_file(file, source.path) or _beside(module, source.path, result) or file)
        if loaded.values:
            result.findings += loaded.problems
            self._from_mapping(loaded.values, loaded.lines, loaded.path, result)
            result.configured = frozenset(result.values)
            return
        result.config_is_read = False
        text = f"the configuration {result.config} is not one that {self.title} ships, and there is no file {file}"
        fix = Fix("run the check in the folder that the script is started in, or name the variables in it with --env")
        self._not_read(result, text, Where("--config-name", result.config), fix)

    def _from_mapping(
        self, values: Mapping[Any, Any], lines: Mapping[str, int], path: Path | None, result: HydraSettings
    ) -> None:
        listed = values.get("defaults")
        if isinstance(listed, list):
            for entry in listed:
                self._default(entry, place_of("defaults", entry, lines.get("defaults"), path), result)
            values = {key: value for key, value in values.items() if key != "defaults"}
        result.put_mapping(values, lines, path)

    def _default(self, entry: Any, place: Where, result: HydraSettings) -> None:
        """An entry of the defaults list."""
        override = f"override {self.group}"
        if isinstance(entry, str) and entry in self.configs:
            result.config = entry
        elif isinstance(entry, Mapping) and list(entry) == [override]:
            result.put(self.group, entry[override], Where(override, shown(entry[override]), place.file, place.line))
        elif entry != "_self_":
            known = ", ".join(self.configs)
            text = f"the defaults list names {shown(entry)}, which is not followed; {self.title}'s own are {known}"
            self._not_read(result, text, place)

    def _not_read(self, result: HydraSettings, text: str, place: Where, *fixes: Fix) -> None:
        result.findings.append(Finding(self.codes[0], "error", "config", text, (place,), fixes, undecided=True))


def flag_of(argv: Sequence[str], kind: str) -> str | None:
    """The "name" or "path" of the configuration that Hydra's own flags among words say; None where they say none."""
    found = None
    for at, word in enumerate(argv):
        flag, equals, value = word.partition("=")
        if _TAKES_VALUE.get(flag) == kind:
            found = value if equals else next(iter(argv[at + 1 : at + 2]), None)
    return found.removesuffix(".yaml") if found is not None and kind == "name" else found


def _beside(module: str | None, script: Path | None, result: HydraSettings) -> Path | None:
    """The configuration beside the program, where Hydra looks for it; None where the program is not near, or has none.
    `hydra.main` says the folder, which is nearly always `config`: the program is not read for it."""
    program = None if module is None else near_file(f"{module.replace('.', '/')}.py", script)
    if program is None:
        return None
    return near_file(str(program.parent / (result.folder or "config") / f"{result.config}.yaml"), None)


def _of(table: Mapping[str, str], module: str) -> str | None:
    return next((what for name, what in table.items() if module.startswith(name)), None)


def _without_flags(words: list[str], result: HydraSettings) -> list[str]:
    """The overrides among the words; Hydra's own flags go to `result`."""
    overrides: list[str] = []
    while words:
        word = words.pop(0)
        if not word.startswith("-"):
            overrides.append(word)
            continue
        flag, equals, value = word.partition("=")
        kind = _TAKES_VALUE.get(flag)
        if kind is None:
            continue
        value = value if equals else words.pop(0) if words else ""
        if kind == "name":
            result.config = value.removesuffix(".yaml")
        else:
            result.folder = value
    return overrides
