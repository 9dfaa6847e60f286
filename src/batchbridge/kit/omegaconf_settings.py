"""Settings that a user said in OmegaConf's way: keys with values and places, and the values that follow from them.

Files and mappings, `key=value` words, what was set on top of these; then interpolations, kinds and what is left open.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field, replace
from pathlib import Path
from typing import Any

from batchbridge.contract.reading import Context, Source
from batchbridge.frozen import dataclass
from batchbridge.kit.hydra_overrides import Operation, primitive
from batchbridge.kit.key_table import Codes, Key, settings_in
from batchbridge.kit.kinds import WrongValue
from batchbridge.kit.omegaconf import Resolver, Unresolved, typed
from batchbridge.kit.values import shown
from batchbridge.meaning.findings import Finding, Fix, Where
from batchbridge.reading.arguments import set_on_top


@dataclass
class OmegaConfSettings:
    """Values, places and operations by dotted key, and what was wrong on the way. unknown: keys whose value a launch
    script leaves open, and the names that it depends on."""

    values: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Where] = field(default_factory=dict)
    operations: dict[str, Operation] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unknown: Mapping[str, Collection[str]] = field(default_factory=dict)

    def put(self, key: str, value: Any, place: Where, operation: Operation = "set") -> None:
        """Sets a key, or every leaf of a mapping."""
        leaves = dict(settings_in({key: value})) if isinstance(value, Mapping) and value else {key: value}
        for path, leaf in leaves.items():
            self.values.pop(path, None)
            self.values[path] = leaf
            self.places[path] = place if path == key else Where(path, shown(leaf), place.file, place.line)
            self.operations[path] = operation

    def put_mapping(self, values: Mapping[Any, Any], lines: Mapping[str, int], path: Path | None) -> None:
        """Sets every leaf of a file or a mapping."""
        for key, value in settings_in(values):
            self.put(key, typed(value), place_of(key, value, lines.get(key), path))

    def put_on_top(self, source: Source) -> None:
        """Settings on top of a command line: they change `values` only."""
        for key, value in set_on_top(source.values, source.argv).items():
            self.put(key, typed(value), Where(key, shown(value)), "force")

    def merged(self, defaults: Mapping[str, Any]) -> dict[str, Any]:
        """These over `defaults`; a mapping that is merged into a group says nothing."""
        merged = dict(defaults)
        for key, value in self.values.items():
            if self.operations[key] == "delete":
                merged.pop(key, None)
                continue
            if not isinstance(value, Mapping) or not any(known.startswith(f"{key}.") for known in merged):
                merged[key] = value
        return merged


def as_given(value: Any) -> Any:
    """`shown`, with quotes around a text that were not text without them."""
    if value is None:
        return "null"
    text = shown(value)
    bare = isinstance(value, str) and value and value[0] not in "[{" and primitive(value) == value
    return f'"{text}"' if isinstance(value, str) and not bare else text


def place_of(key: str, value: Any, line: int | None, path: Path | None) -> Where:
    """The place where a key was given; without its line, the file says nothing."""
    return Where(key, shown(value), None if path is None or not line else str(path), line)


def followed(
    source: Source, said: Mapping[str, Any], resolver: Resolver, code: str, texts: Collection[str] = ()
) -> Source:
    """`source` with the settings `said` as OmegaConf reads them: interpolations followed, 1e-6 a number; those that
    cannot be followed (`${now:%H}`) are problems under `code`, but for `texts`, which stay as they are."""
    values: dict[Any, Any] = {key: value for key, value in source.values.items() if not isinstance(key, str)}
    problems = list(source.problems)
    for key, value in said.items():
        try:
            values[key] = typed(value if key in source.unknown else resolver.get(key))
        except Unresolved as error:
            if key in texts:
                values[key] = value
                continue
            line, file = source.lines.get(key), None if source.path is None else str(source.path)
            file = getattr(source, "files", {}).get(key, file)  # of a `ComposedSource`
            place = Where(key, shown(value), file if line else None, line)
            problems.append(Finding(code, "error", "config", f"{key} = {place.value}: {error}", (place,)))
    return replace(source, values=values, problems=tuple(problems))


@dataclass(frozen=True)
class ValueFindings:
    """The framework's way with a wrong value, for findings, and the codes of these."""

    codes: Codes
    native: str
    source: str

    def wrong(self, place: Where, value: Any, expected: str, native: str = "") -> Finding:
        """A value that is not of its key's kind."""
        text = f"{place.key} = {as_given(value)}: expected {expected}"
        code, native, source = self.codes.wrong_value, native or self.native, self.source
        return Finding(code, "error", "config", text, (place,), native=native, source=source)

    def left_open(
        self, key: str, why: str, said: OmegaConfSettings, variables: Iterable[str], fixes: tuple[Fix, ...]
    ) -> Finding:
        """A value that depends on what nobody said."""
        ways = (*(Fix(f"say what {name} is (--env {name}=VALUE)") for name in variables), *fixes)
        place, text = said.places.get(key) or Where(key), f"{key} is left open: {why}"
        return Finding(self.codes.undecided, "error", "config", text, (place,), ways, undecided=True)

    def values(
        self,
        rows: Collection[Key],
        said: OmegaConfSettings,
        defaults: Mapping[str, Any],
        env: Mapping[str, str],
        *,
        reads: Callable[[str], bool] = lambda key: True,
    ) -> tuple[dict[str, Any], set[str]]:
        """Every setting that is read, resolved and of its kind, and the keys whose value could not be read: a finding
        each, at the key that it stands at. reads: whether anything reads a key; what is not is at its row's default,
        whatever was given."""
        merged, kinds = said.merged(defaults), {row.key: row.kind for row in rows}
        resolver = Resolver(merged, env, said.unknown)
        native: dict[str, Any] = {}
        unread: set[str] = set()
        for row in rows:
            native[row.key] = value = None
            try:
                if row.key in said.unknown:
                    names = tuple(said.unknown[row.key])
                    why = f"it depends on {', '.join(names)}, which the script does not say"
                    found = self.left_open(row.key, why, said, names, ())
                elif row.key not in merged or not reads(row.key):
                    native[row.key] = row.default
                    continue
                elif (value := resolver.get(row.key)) != "???":
                    native[row.key] = row.kind.convert(value)
                    continue
                elif row.kind.takes(None) or merged[row.key] == defaults.get(row.key):
                    continue
                else:
                    raise WrongValue("a value; ??? means that it is missing")
            except Unresolved as error:
                variables = (error.variable,) if error.variable else ()
                plain = (Fix(f"give {row.key} a plain value"),) if value is None else ()
                found = self.left_open(row.key, str(error), said, variables, plain)
            except WrongValue as error:
                place = said.places.get(row.key) or Where(row.key, shown(value))
                found = self.wrong(place, value, error.expected, error.native)
            unread.add(row.key)
            at = row.key if row.key in said.places or row.key in said.unknown else resolver.origin
            if at == row.key or at not in kinds or (found.code == self.codes.wrong_value and kinds[at].takes(value)):
                said.findings.append(found)
        return native, unread

    def devices(
        self, native: Mapping[str, Any], nodes: str, gpus: str, said: OmegaConfSettings, context: Context
    ) -> int:
        """The devices that train: as the context says, else nodes times devices of each."""
        product = int(native[nodes] * native[gpus])
        if context.world_size in (None, product):
            return product
        if given := [key for key in (nodes, gpus) if key in said.places]:
            text = (
                f"{context.world_size} devices are asked about; the configuration says {nodes} {native[nodes]} x "
                f"{gpus} {native[gpus]} = {product}, and starts so many until it is changed"
            )
            where = tuple(said.places[key] for key in given)
            said.findings.append(Finding(self.codes.devices, "warning", "config", text, where))
        for key in given:  # what stands there is not what is judged
            said.places[key] = replace(said.places[key], value=None)
        return int(context.world_size or product)
