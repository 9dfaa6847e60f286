"""Rows of settings that read and write alike.

    Key("grpo.seed", whole(), 42, "order.seed")
    Key("loss", one_of("mean", "sum"), "mean", "loss.policy.aggregation", {"mean": "token_mean", "sum": "token_sum"})
    Key("batch", natural, 512, "optimizer_step.completions_per_step", unit="completions", versions=">=2")

A row says a setting's kind, default and versions, and where the setting alone decides a canonical field, which: then it
is read and written by the row. What several settings decide together is the adapter's `derive` and `restate`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from batchbridge.contract.reading import Source
from batchbridge.errors import BatchBridgeError
from batchbridge.kit.kinds import Kind, WrongValue, named
from batchbridge.kit.values import FieldValue, shown
from batchbridge.kit.versions import holds
from batchbridge.meaning.findings import Finding, Fix, Where
from batchbridge.meaning.spec import Spec
from batchbridge.reading.yaml_json import groups

if TYPE_CHECKING:
    from batchbridge.kit.writing import Problems

MAX_DEPTH = 32
"""Deepest nesting of settings."""
ValueMapping = Mapping[Any, Any] | tuple[Callable[[Any], Any], Callable[[Any], Any]]
"""Native value to canonical value, one to one; or two functions, there and back (which raise `Unsayable`)."""


class Unsayable(BatchBridgeError, ValueError):
    """A canonical value that settings cannot say: why, the canonical `fields` that would have to change, and the ways
    out, as in `Problem.nearest`."""

    def __init__(self, why: str, *fields: str, nearest: Iterable[Mapping[str, Any]] = ()) -> None:
        super().__init__(why)
        self.fields, self.nearest = fields, tuple(nearest)


class Key(NamedTuple):
    """One setting.

    key: its name, dotted where it stands in a mapping. kind: what it takes. default: the framework's own. field: the
    canonical field that it decides alone, or fields. values: what its values mean there, where they are not the
    field's. versions: a PEP 440 range, empty for all. unit, meaning: one line for people and for an editor's schema.
    fixed: these versions have no such key; the framework does what `default` says. opens: canonical fields, or groups
    of them, that cannot be told of a value other than `default`, or, with a mapping `values`, of one that is not in it:
    the run is then undecided.
    """

    key: str
    kind: Kind
    default: Any = None
    field: str | tuple[str, ...] = ()
    values: ValueMapping | None = None
    versions: str = ""
    unit: str = ""
    meaning: str = ""
    fixed: bool = False
    opens: str | tuple[str, ...] = ()

    def leaves_open(self, value: Any) -> tuple[str, ...]:
        """The canonical fields, and groups of them, that a value leaves open."""
        known = self.values if isinstance(self.values, Mapping) else (self.default,)
        if not self.opens or any(value == one for one in known):
            return ()
        return (self.opens,) if isinstance(self.opens, str) else self.opens

    @property
    def fields(self) -> tuple[str, ...]:
        """The canonical fields that it decides alone."""
        return (self.field,) if isinstance(self.field, str) else self.field

    def means(self, value: Any) -> Any:
        """The canonical value of a native one."""
        if self.values is None:
            return value
        return self.values[value] if isinstance(self.values, Mapping) else self.values[0](value)

    def says(self, value: Any) -> Any:
        """The native value of a canonical one. Raises `Unsayable`."""
        if isinstance(self.values, Mapping):
            native = [ours for ours, theirs in self.values.items() if theirs == value]
            if not native:
                has = f"{self.key} has {', '.join(map(str, self.values.values()))}"
                raise Unsayable(has, nearest=(dict.fromkeys(self.fields, word) for word in self.values.values()))
            value = native[0]
        elif self.values is not None:
            value = self.values[1](value)
        try:
            return self.kind.convert(value)
        except WrongValue as wrong:
            raise Unsayable(f"{self.key} is {wrong}") from None


class Together(NamedTuple):
    """Settings that only together say canonical fields.

        Together(("kl_loss", "kl_reward"), ("objective.kl_placement",), {(True, False): ("loss",), ...})

    values: native values, in the order of `keys`, to canonical ones, in that of `fields`; `...` for a setting that does
    not matter there, which is then not written. The first row that fits counts, both ways.
    """

    keys: tuple[str, ...]
    fields: tuple[str, ...]
    values: Mapping[tuple[Any, ...], tuple[Any, ...]]

    def field_values(self, native: Mapping[str, Any]) -> dict[str, FieldValue]:
        """The fields. Raises `ValueError` where no row fits."""
        have = [native[key] for key in self.keys]
        for ours, theirs in self.values.items():
            if all(one is ... or one == value for one, value in zip(ours, have, strict=True)):
                pairs = zip(self.fields, theirs, strict=True)
                return {field: FieldValue(value, self.keys[0], None, self.keys[1:]) for field, value in pairs}
        raise ValueError(f"{', '.join(self.keys)}: what {', '.join(map(repr, have))} mean together is not known")

    def says(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """The settings of canonical values by field; None is any value of a field that may be unknown. Raises
        `Unsayable`."""
        from batchbridge.kit.writing import UNKNOWN

        asked = [(said.get(field), said.get(field) is None and field.startswith(UNKNOWN)) for field in self.fields]
        for ours, theirs in self.values.items():
            if all(free or value == one for (value, free), one in zip(asked, theirs, strict=True)):
                return {key: one for key, one in zip(self.keys, ours, strict=True) if one is not ...}
        values = ", ".join(f"{field} = {said.get(field)}" for field in self.fields)
        ways = sorted(
            (dict(zip(self.fields, theirs, strict=True)) for theirs in self.values.values()),
            key=lambda way: sum(said.get(field) != value for field, value in way.items()),
        )
        raise Unsayable(f"{values}: no values of {', '.join(self.keys)} say that", *self.fields, nearest=ways)


def recorded(table: Mapping[str, Sequence[Any]]) -> Iterator[Key]:
    """Rows of settings from data such as a JSON file: key to (name of its kind, default), and the canonical field where
    it has the setting's own value."""
    return (Key(key, named(kind), default, *field) for key, (kind, default, *field) in table.items())


def recorded_together(table: Iterable[Mapping[str, Any]]) -> Iterator[Together]:
    """Rows of several settings from data: keys, fields, and values as pairs of lists; "*" where any value will do."""
    for row in table:
        values = {tuple(... if one == "*" else one for one in ours): tuple(said) for ours, said in row["values"]}
        yield Together(tuple(row["keys"]), tuple(row["fields"]), values)


def keys_of(table: Iterable[Key], version: str) -> dict[str, Key]:
    """Key to its row in `version`; a later row for one key counts."""
    return {row.key: row for row in table if holds(row.versions, version)}


class Codes(NamedTuple):
    """Codes of an adapter's findings about settings; each is a code like "BB-NAME-004"."""

    no_version: str
    unknown_version: str
    devices: str
    unknown_key: str
    wrong_value: str
    undecided: str

    @classmethod
    def of(cls, prefix: str) -> Codes:
        """`prefix`-001 to 006, in this order."""
        return cls(*(f"{prefix}-{number:03}" for number in range(1, 7)))


class NativeSettings(dict[str, Any]):
    """A framework's settings by native key, and what is said beside them of the run.

    devices: those that train the policy; None: nobody says them. dataset_size: prompts; None: nobody says it.
    """

    def __init__(
        self, settings: Mapping[str, Any] | None = None, *, devices: int | None = None, dataset_size: int | None = None
    ) -> None:
        super().__init__(settings or {})
        self.devices, self.dataset_size = devices, dataset_size


class SourceSettings(NamedTuple):
    """The settings of a source: native values with the defaults, the places of those that were given, and findings."""

    native: dict[str, Any]
    places: dict[str, Where]
    findings: list[Finding]

    def fill(self, key: str, value: Any) -> None:
        """Sets a setting that nobody gave, or null."""
        if key not in self.places or self.native[key] is None:
            self.native[key] = value


class Converted(NamedTuple):
    """The values that were said, converted for a framework: every setting as it would hold it, the others at their
    defaults; findings; and the keys of values that are not of their kind."""

    native: dict[str, Any]
    findings: list[Finding]
    wrong: set[str]


def converted(
    said: Mapping[str, Any],
    rows: Mapping[str, Key],
    unknown: Callable[[str, Sequence[str]], Finding],
    wrong: Callable[[str, WrongValue], Finding],
    convert: Callable[[Key, Any], Any] = lambda row, value: row.kind.convert(value),
    cutoff: float = 0.75,
) -> Converted:
    """The values that were said, by native key, as settings of a framework.

    unknown: the finding of a key that is not a setting; it is told the settings near to it. wrong: the finding of a
    value. convert: raises `WrongValue`. cutoff: see `near_names`.
    """
    found = Converted({key: row.default for key, row in rows.items()}, [], set())
    takes = {key: row for key, row in rows.items() if not row.fixed}
    near: Mapping[str, Sequence[str]] = {}
    if none := [key for key in said if key not in takes]:
        from batchbridge.kit.suggested_keys import suggested_keys

        near = suggested_keys(none, takes, cutoff, taken=said)
    for key, value in said.items():
        if key not in takes:
            found.findings.append(unknown(key, near.get(key, ())))
            continue
        try:
            found.native[key] = convert(takes[key], value)
        except WrongValue as error:
            found.wrong.add(key)
            found.findings.append(wrong(key, error))
    return found


def read_values(source: Source, rows: Mapping[str, Key], framework: str, codes: Codes) -> SourceSettings:
    """The settings of a source. A key that is none, a value that is not of its key's kind, and one in place of a
    group of settings is a finding; an empty or null group says nothing."""
    whole = None if source.path is None else str(source.path)
    files: Mapping[str, str] = getattr(source, "files", {})  # of a `ComposedSource`
    said = gathered(settings_in(source.values, rows), rows)
    above = groups_of(rows)
    said = {key: value for key, value in said.items() if key not in above or value not in (None, {})}

    def place(key: str) -> Where:
        line = source.lines.get(key)
        return Where(key[:60], shown(said[key]), files.get(key, whole) if line else None, line)

    def unknown(key: str, near: Sequence[str]) -> Finding:
        renamed = () if key in above else (Fix(f"write {name}", {key: None, name: said[key]}) for name in near)
        code, message = codes.unknown_key, f"{framework} has no setting {key[:60]}"
        if key in above:
            code, message = codes.wrong_value, f"{key} = {shown(said[key])}: expected a group of settings"
        fixes = (*renamed, Fix(f"remove {key[:60]}", {key: None}))
        return Finding(code, "error", "config", message, (place(key),), fixes)

    def wrong(key: str, error: WrongValue) -> Finding:
        row = rows[key]
        message = f"{key} = {shown(said[key])}: expected {row.kind.expected}"
        fix = Fix(f"{key} = {row.default}, the default", {key: row.default})
        return Finding(codes.wrong_value, "error", "config", message, (place(key),), (fix,))

    found = converted(said, rows, unknown, wrong, cutoff=0.6)
    for key in source.values:
        if not isinstance(key, str):
            message = f"the key {shown(key)} is not text, and every setting's name is"
            found.findings.append(Finding(codes.unknown_key, "error", "config", message, (Where(shown(key)),)))
    places = {key: place(key) for key in said if key in rows and key not in found.wrong}
    return SourceSettings(found.native, places, found.findings)


def groups_of(rows: Collection[str]) -> set[str]:
    """The groups that rows stand in, without those that are rows themselves."""
    return {group for key in rows for group in groups(key)} - set(rows)


def gathered(said: Iterable[tuple[str, Any]], rows: Mapping[str, Key]) -> dict[str, Any]:
    """Settings by key; what a command line gives below a row that takes mappings (`row.a.b=1`) is part of its value."""
    found: dict[str, Any] = {}
    for key, value in said:
        row = None if key in rows or key.count(".") > MAX_DEPTH else _above(key, rows)
        if row is None:
            found[key] = value
            continue
        whole = found[row] = dict(found[row]) if isinstance(found.get(row), Mapping) else {}
        *inside, last = key[len(row) + 1 :].split(".")
        for part in inside:
            whole[part] = dict(whole[part]) if isinstance(whole.get(part), Mapping) else {}
            whole = whole[part]
        whole[last] = value
    return found


def _above(key: str, rows: Mapping[str, Key]) -> str | None:
    """The row that takes mappings and that `key` stands below."""
    while "." in key:
        key = key.rpartition(".")[0]
        if key in rows:
            return key if rows[key].kind.takes({}) else None
    return None


def settings_in(values: Mapping[Any, Any], rows: Collection[str] = (), prefix: str = "") -> Iterator[tuple[str, Any]]:
    """(dotted key, value) of every setting. A mapping stays whole that is one of `rows`, is empty, is nested too deep,
    or has a key that is not text."""
    for key, value in values.items():
        if not isinstance(key, str):
            continue
        path = f"{prefix}{key}"
        group = path not in rows and isinstance(value, Mapping) and value and path.count(".") < MAX_DEPTH
        if group and all(isinstance(name, str) for name in value):
            yield from settings_in(value, rows, f"{path}.")
        else:
            yield path, value


def field_values(rows: Iterable[Key], native: Mapping[str, Any]) -> dict[str, FieldValue]:
    """The canonical values that rows say, each alone."""
    return {field: FieldValue(row.means(native[row.key]), row.key) for row in rows for field in row.fields}


def written_by(rows: Iterable[Key], spec: Spec, problems: Problems) -> dict[str, Any]:
    """The settings that rows write for a specification, each alone: None (open) where the setting takes it, else
    nothing. What a row cannot say goes to `problems`."""
    said = spec.values
    values: dict[str, Any] = {}
    for row in rows:
        for path in row.fields:
            value = said.get(path)
            if value is None and not row.kind.takes(None):
                continue
            try:
                values[row.key] = None if value is None else row.says(value)
            except Unsayable as why:
                problems.add(f"{path} = {value}: {why}", path, nearest=why.nearest)
    return values
