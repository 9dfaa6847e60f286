"""Canonical values, each with what said it: what an adapter makes of native settings, and of which a spec is made."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from batchbridge.contract.reading import Provenance
from batchbridge.meaning.critic import Critic
from batchbridge.meaning.findings import Where
from batchbridge.meaning.spec import Loss, LossTerm, Spec


class FieldValue(NamedTuple):
    """One canonical value: the native key that said it, or the formula that gives it; a key may have a formula, too.

    others: the native keys of the formula, beside `key`.
    """

    value: Any
    key: str | None = None
    formula: str | None = None
    others: tuple[str, ...] = ()

    @property
    def note(self) -> str:
        """The formula as it stands behind a place; empty where there is none."""
        return f" (derived: {self.formula})" if self.formula else ""

    def origin(self, native: Mapping[str, Any], places: Mapping[str, Where], default: str) -> Provenance:
        """The origin of the value; see `batchbridge.kit.frame.origins`."""
        key, note = self.key, self.note
        if key is None:
            return self.derived()
        return Provenance.of(key, native.get(key), places.get(key), default=default, note=note, others=self.others)

    def derived(self) -> Provenance:
        """The origin of a value that no single key said."""
        return Provenance(self.others, self.value, "derived", f"derived: {self.formula}")


def by(value: Any, formula: str, *keys: str) -> FieldValue:
    """A canonical value that a formula gives; `keys`: the native keys in it."""
    return FieldValue(value, None, formula, keys)


def devices(world: int, native: Mapping[str, Any], *keys: str) -> FieldValue:
    """The devices that train (devices): the product of native settings, or as many as were asked for in their place."""
    formula = f"{' x '.join(keys)} = {world}"
    if math.prod(native[key] for key in keys) != world:
        formula = f"asked for {world}, whatever {' x '.join(f'{key} {native[key]}' for key in keys)} says"
    return by(world, formula, *keys)


def spec_of(fields: Mapping[str, FieldValue]) -> Spec:
    """The spec of `fields`, by canonical field (`rollout.prompts_per_rollout`); what is not told is the schema's
    default.

    Raises `TypeError` for a field that the schema does not have, and where one without a default is not told.
    """
    groups: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    terms: defaultdict[str, dict[str, Any]] = defaultdict(dict)
    alone: dict[str, Any] = {}
    for path, entry in fields.items():
        group, _, name = path.partition(".")
        if group == "loss":
            term, _, name = name.partition(".")
            terms[term][name] = entry.value
        elif not name:
            alone[group] = entry.value
        else:
            groups[group][name] = entry.value
    loss = Loss(**{term: LossTerm(**values) for term, values in terms.items()})
    if critic := groups.pop("critic", None):
        alone["critic"] = Critic(**critic)
    kinds = {group: kind for group, kind in Spec.__annotations__.items() if isinstance(kind, type) and group != "loss"}
    if unknown := set(groups) - set(kinds):
        raise TypeError(f"the schema has no group {', '.join(sorted(unknown))}")
    return Spec(loss=loss, **{group: kind(**groups[group]) for group, kind in kinds.items()}, **alone)


def shown(value: Any) -> Any:
    """A value for messages and JSON: plain and short, whatever it is."""
    if value is None or isinstance(value, (bool, float)):
        return value if not isinstance(value, float) or math.isfinite(value) else repr(value)
    if isinstance(value, int) and abs(value) < 1 << 64:
        return value
    try:
        text = value if isinstance(value, str) else repr(value)
    except (ValueError, RecursionError):  # an integer of more digits than Python writes; a list in itself
        text = f"a {type(value).__name__}"
    text = text.encode("utf-8", "replace").decode()
    return text if len(text) <= 60 else f"{text[:57]}..."


if not TYPE_CHECKING:  # a type checker takes the new name
    from batchbridge.renamed import old_names

    __getattr__ = old_names(__name__)
