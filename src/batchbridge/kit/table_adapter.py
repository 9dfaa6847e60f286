"""An adapter that is mostly a table: `TableAdapter` reads and writes what its rows say.

An author gives the rows (`keys`), what the framework's code fixes (`constants`), and three functions for what no single
row says: `derive` (native settings to canonical values), `restate` (a specification back to those settings) and
`behaviour_of` (what the framework does). Versions, unknown keys, kinds of values, devices, places, provenance, rules
and reading back are here.
"""

from __future__ import annotations

import dataclasses
import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from operator import mul
from typing import Any, ClassVar

from batchbridge.contract.error_text import RuleRow
from batchbridge.contract.reading import Behaviour, Context, Reading, Source
from batchbridge.kit.config_texts import nested_yaml
from batchbridge.kit.frame import FramedAdapter, RunReading, origins
from batchbridge.kit.key_table import (
    Key,
    NativeSettings,
    Together,
    Unsayable,
    field_values,
    keys_of,
    read_values,
    settings_in,
)
from batchbridge.kit.rule_table import Rule, checked, defects, findings
from batchbridge.kit.values import FieldValue, shown, spec_of
from batchbridge.kit.writing import Problems
from batchbridge.meaning.fields import leaves
from batchbridge.meaning.findings import Finding, Fix, Where
from batchbridge.meaning.spec import Spec

WORLD = "topology.world_size"


class TableAdapter(FramedAdapter):
    """An adapter made of tables. Where no setting says the devices, `topology.world_size` is the context's."""

    keys: ClassVar[Sequence[Key]]
    """Every setting, in the order in which they are written."""
    declared: ClassVar[Sequence[Key]] = ()
    """Settings that the framework declares and that decide nothing here: they are known by their names, their values
    are held to their kinds, and nothing else sees them. What one decides, `outside` may say."""
    together: ClassVar[Sequence[Together]] = ()
    """Settings that only together say canonical fields."""
    constants: ClassVar[Mapping[str, Any]] = {}
    """Canonical fields that the framework's code fixes, with their values."""
    follows: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Settings that follow another where nobody gives them, or null: each with the key of that one, or of those whose
    product it is. A setting that follows others stands behind them."""
    rules: ClassVar[Sequence[Rule[Any]]] = ()
    """The framework's rules and defects, over native settings, with devices and prompts as `derive` has them."""
    devices: ClassVar[int | None] = None
    """The devices that it always trains on; None: any number."""
    strict: ClassVar[Sequence[str] | None] = None
    """Groups of settings in which a key without a row is refused, for an editor ("grpo."); None: everywhere."""
    interpolates: ClassVar[bool] = False
    """Whether settings are read as OmegaConf reads them: `${...}` may stand for a value, and 1e-6 is a number."""

    def rows(self) -> Sequence[RuleRow]:
        """`rules`."""
        return self.rules

    def settings_of(self, source: Source, rows: Mapping[str, Key]) -> Source:
        """The source with its settings as `values`; what is wrong with them is added to its `problems`.

        Default: as it is, or what its interpolations lead to (`interpolates`). Where the framework reads a command line
        in a way of its own, the adapter does here.
        """
        if not self.interpolates:
            return source
        from batchbridge.kit.omegaconf import Resolver
        from batchbridge.kit.omegaconf_settings import followed

        said = dict(settings_in(source.values, rows))
        all_of_them = {**{key: row.default for key, row in rows.items()}, **said}
        resolver = Resolver(all_of_them, source.env, source.unknown)
        texts = [key for key, row in rows.items() if not row.fields and row.kind.takes("${}")]
        return followed(source, said, resolver, self.codes.wrong_value, texts)

    def filled(self, native: Mapping[str, Any]) -> Mapping[str, Any]:
        """Settings that follow others in a way that `follows` has no words for, by native key."""
        return {}

    def alone(self, world: int) -> Mapping[str, Any]:
        """Settings by native key that a run on so many devices needs where nothing at all is said, None as in
        `restate`: so there are defaults for any number."""
        return {}

    def apart(self, native: Mapping[str, Any]) -> int:
        """Devices among those of the settings that do not train: where others generate."""
        return 0

    def derive(self, native: NativeSettings) -> Mapping[str, FieldValue]:
        """Canonical values that several settings say together, or they and the devices (`native.devices`) or the
        dataset's prompts (`native.dataset_size`, None where nobody says it). Raises `ValueError` naming what is left
        open."""
        return {}

    def restate(self, spec: Spec) -> Mapping[str, Any]:
        """The settings behind `derive`, by native key, None where the default will do, whatever a row says. Raises
        `Unsayable`."""
        return {}

    @abstractmethod
    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        """The framework's behaviour with these settings; its `defects` are added."""

    def settings_schema(self, version: str) -> dict[str, Any]:
        """JSON Schema of the rows, with null for a group; a key that is a row in other versions only is refused with
        these."""
        from batchbridge.kit.file_schema import changed, elsewhere, nested, setting

        rows = keys_of((*self.declared, *self.keys), version)
        leaves = {
            key: setting(row, decides=self.decides(key), interpolates=self.interpolates) for key, row in rows.items()
        }
        leaves |= dict(elsewhere((*self.declared, *self.keys), rows, f"{self.name} {version}", self.name))
        may_be_null = {"type": ["object", "null"]}
        return changed(nested(leaves, strict=self.strict), lambda group: {**group, **may_be_null}, lambda leaf: leaf)

    def detect(self, source: Source) -> float:
        """The share of a source's keys that are settings; half of the certainty where there are few."""
        said = {key for key in source.values if isinstance(key, str)}
        known = {row.key for row in (*self.declared, *self.keys)}
        heads = {key.partition(".")[0] for key in known} | known
        return len(said & heads) / len(source.values) if source.values else 0.0

    def read_settings(self, source: Source, context: Context, version: str, found: list[Finding]) -> RunReading:
        """The reading of a source, see `FramedAdapter.read`."""
        already = len(source.problems)
        rows = keys_of(self.keys, version)
        known = {**keys_of(self.declared, version), **rows}
        if context.world_size and not source.values and not source.argv:
            needed = self.alone(context.world_size).items()
            source = dataclasses.replace(source, values={key: value for key, value in needed if value is not None})
        source = self.settings_of(source, known)
        given = read_values(source, known, self.framework, self.codes)
        for key in known.keys() - rows.keys():
            del given.native[key]
        found += [*source.problems[already:], *given.findings]
        for key, others in self.follows.items():
            if key not in rows:
                continue
            values = [given.native[other] for other in others]
            if None not in values:
                given.fill(key, reduce(mul, values))
        for key, value in self.filled(given.native).items():
            given.fill(key, value)
        devices = self._devices(rows, given.native, given.places, context, found)
        native = NativeSettings(given.native, devices=devices, dataset_size=context.dataset_size)
        found += self._left_open(rows.values(), native, given.places)
        reading = dataclasses.replace(
            self.unread(version, found, context),
            native=native,
            given=given.places,
            findings=tuple(found),
            run=native,
        )
        if devices is None or any(finding.severity == "error" or finding.undecided for finding in found):
            return reading
        broken = findings(self.rules, native, version, lambda keys: ())
        if any(finding.severity == "error" for finding in broken):  # `check` says it; there is no run to mean anything
            return reading
        try:
            fields = {
                path: FieldValue(value, None, f"so in the code of {self.framework}")
                for path, value in self.constants.items()
            }
            fields |= field_values(rows.values(), native)
            if len(worlds := _worlds(rows)) > 1:
                fields[WORLD] = FieldValue(devices, None, " x ".join(worlds), tuple(worlds))
            for several in self.together:
                fields |= several.field_values(native)
            fields |= self.derive(native)
            fields = {path: self._following(entry, given.places) for path, entry in fields.items()}
        except ValueError as left_open:
            finding = Finding(self.codes.undecided, "error", "config", str(left_open), undecided=True)
            return dataclasses.replace(reading, findings=(*found, finding))
        if WORLD not in fields or fields[WORLD].value is None:
            fields[WORLD] = FieldValue(devices, None, "the world size that was asked for")
        behaviour = self.behaviour_of(native, version)
        known_defects = defects(self.rules, native, version)
        return dataclasses.replace(
            reading,
            spec=spec_of(fields),
            provenance=origins(fields, native, given.places, f"default of {self.framework} {version}"),
            behaviour=dataclasses.replace(behaviour, defects=(*behaviour.defects, *known_defects)),
        )

    def _left_open(
        self, rows: Iterable[Key], native: Mapping[str, Any], places: Mapping[str, Where]
    ) -> Iterator[Finding]:
        """A finding of each setting whose value leaves something of the run open, as its row says. Raises `TypeError`
        where that is no field of the schema, and no group of them."""
        for row in rows:
            if fields := row.leaves_open(native[row.key]):
                known = [place.path for place in leaves(Spec)]
                strange = [
                    one for one in fields if not any(path == one or path.startswith(f"{one}.") for path in known)
                ]
                if strange:
                    raise TypeError(f"{row.key} opens {', '.join(strange)}: the schema has no such field")
                text = f"{row.key} = {shown(native[row.key])}: what it makes of {', '.join(fields)} is not known"
                place = places.get(row.key, Where(row.key, native[row.key]))
                ways = (Fix(f"leave {row.key} out", {row.key: None}),) if row.key in places else ()
                yield Finding(self.codes.undecided, "error", "config", text, (place,), ways, undecided=True)

    def _following(self, value: FieldValue, places: Mapping[str, Where]) -> FieldValue:
        """The value, with every setting that decides it: a setting that the user leaves out may follow other
        settings."""
        others, own = list(value.others), [key for key in (value.key, *value.others) if key]
        for key in own:  # grows: what is followed may follow others
            more = self.follows.get(key, ()) if key not in places else ()
            others += more
            own += more
        return value._replace(others=tuple(others))

    def check(self, reading: Reading) -> Sequence[Finding]:
        """The rules of the table, and rows that plugins add about its version, over native settings."""
        version, places = reading.framework_version, lambda keys: reading.where(*keys)
        if not reading.native or version is None:
            return []
        devices = getattr(getattr(reading, "run", None), "devices", None)
        native = NativeSettings(reading.native, devices=devices, dataset_size=reading.dataset_size)
        return checked(self.framework, self.rules, native, version, places)

    def settings_for(self, spec: Spec, problems: Problems, version: str) -> dict[str, Any]:
        """Native settings of a specification, see `FramedAdapter`: what the rows say, and `restate`."""
        rows = keys_of(self.keys, version)
        said = spec.values
        values: dict[str, Any] = {}
        before = _worlds(rows)[:-1]  # of a product, the last one says it all
        for row in rows.values():
            for path in row.fields:
                value = 1 if row.key in before else said.get(path)
                try:
                    values[row.key] = row.default if value is None and row.default is not None else row.says(value)
                except Unsayable as why:
                    problems.add(f"{path} = {value}: {why}", path, nearest=why.nearest)
        for several in self.together:
            try:
                values |= several.says(said)
            except Unsayable as why:
                problems.add(str(why), *why.fields, nearest=why.nearest)
        try:
            restated = self.restate(spec)
            values = {
                key: value for key, value in {**values, **restated}.items() if key not in restated or value is not None
            }
        except Unsayable as why:
            problems.add(str(why), *why.fields, nearest=why.nearest)
        world = spec.topology.world_size
        if self.devices is not None and world not in (None, self.devices):
            problems.add(
                f"{WORLD} = {world}: {self.framework} trains on {self.devices}", WORLD, nearest=({WORLD: self.devices},)
            )
        return {row.key: values[row.key] for row in rows.values() if row.key in values}

    def context_of(self, spec: Spec, version: str) -> Context:
        """The devices, which the settings may not say."""
        return Context(framework_version=version, world_size=spec.topology.world_size)

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        """The forms in which settings are handed over. Default: a YAML file."""
        return {"yaml": nested_yaml(values)}

    def _devices(
        self,
        rows: Mapping[str, Key],
        native: dict[str, Any],
        places: Mapping[str, Where],
        context: Context,
        found: list[Finding],
    ) -> int | None:
        """The devices that train, or None with a finding: nobody says them, or two do, and not the same number.

        Several settings that say them say a product, such as nodes and devices of a node.
        """
        keys = _worlds(rows)
        name = " x ".join(keys)
        counted: dict[str, Any] = {key: None if native[key] is None else rows[key].means(native[key]) for key in keys}
        open_one = None in counted.values()
        said = self.devices if not keys or open_one else math.prod(counted.values())
        apart = self.apart(native) if keys and not open_one else 0
        asked = None if context.world_size is None else context.world_size + apart
        if said is None and asked is None:
            text = f"the number of devices is not said{f': {name}' if keys else ''}"
            fixes = (Fix("--world-size N"),)
            place = (Where(keys[0] if keys else None),)
            found.append(Finding(self.codes.devices, "warning", "config", text, place, fixes, undecided=True))
            return None
        free = [key for key in keys if key not in places]
        rest = math.prod(value for key, value in counted.items() if key not in free[-1:] and value is not None)
        if said is not None and asked is not None and said != asked and (not free or asked % rest):
            beside = f", {apart} of which do not train" if apart else ""
            text = f"{context.world_size} devices were asked for, and {name or self.framework} has {said}{beside}"
            fix = Fix(f"--world-size {said - apart}")
            given = tuple(places[key] for key in keys if key in places)
            where = given or (Where("world size", asked),)
            found.append(Finding(self.codes.devices, "error", "config", text, where, (fix,)))
            return None
        if asked is not None and free:
            native[free[-1]] = rows[free[-1]].says(asked // rest)
        total = asked if asked is not None else said
        return None if total is None else total - apart


def _worlds(rows: Mapping[str, Key]) -> list[str]:
    """The keys that say the devices: alone, or several their product."""
    return [key for key, row in rows.items() if WORLD in row.fields]
