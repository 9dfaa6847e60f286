"""The arguments that a Python program gives TRL's own trainer, held against the constructor of its release.

The constructor's parameters stand in `declared.json`, table `GRPOTrainer`; those of a user's own copy in its own file.
Importing Unsloth replaces the constructor by one that renames arguments, and nothing is said of it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace

from batchbridge import Finding, Fix, Where
from batchbridge.kit import BuiltTrainer
from batchbridge.kit.declared_settings import ANY_NAME, BY_NAME, REQUIRED, declared_parameters
from batchbridge.kit.near_names import near_names
from batchbridge.kit.own_copy import OwnCopy
from batchbridge.kit.shipped_settings import ShippedTable, shipped
from batchbridge.kit.versions import holds
from batchbridge_trl.copies import TRAINER_FILE
from batchbridge_trl.starting import is_trls

CODE = "BB-TRL-099"
_RENAMED = {"tokenizer": "processing_class", "config": "args", "training_args": "args", "dataset": "train_dataset"}
"""Names that other trainers, or older ones, have for an argument."""
_SOURCE = "trl 0.15.0 to 1.16.0 GRPOTrainer.__init__"
_NO_REWARD = "ValueError: No reward source provided. Pass `reward_funcs`, or an `environment_factory`"
_NEAR = 0.75


def refused_arguments(
    trainers: Collection[BuiltTrainer], version: str, settings: Collection[str], copy: OwnCopy | None
) -> Iterator[Finding]:
    """The findings of what the constructor refuses in the calls of a program.

    settings: the names that `GRPOConfig` takes. copy: the user's own, whose trainer is the one that is called.
    """
    table = shipped("batchbridge_trl")["GRPOTrainer"]
    takes = _parameters(table, version) if copy is None else declared_parameters(copy.folder / TRAINER_FILE, _CLASS)
    who = f"trl {version}" if copy is None else f"your copy of trl in {copy.place}"
    for one in trainers:
        if not takes or ANY_NAME in takes or not _is_stock(one):
            continue
        for finding in _refused(one, takes, who, settings, table if copy is None else None):
            yield _as_certain(finding, one, alone=len(trainers) == 1)


_CLASS = "GRPOTrainer"


def _parameters(table: ShippedTable, version: str) -> dict[str, str]:
    release = [one for one in table.releases if holds(f">={one}", version)][-1:]
    return {name: str(row[0]) for one in release for name, row in table.of(one).items()}


def _is_stock(built: BuiltTrainer) -> bool:
    """Whether a call certainly comes to the constructor of TRL's own class: also that of a class which is derived from
    it alone, and has no constructor of its own."""
    if built.given.changed or built.given.modules & {"unsloth", "unsloth_zoo"}:
        return False
    others = [name for name in built.bases if "." in name]
    return is_trls(built.name) or (
        len(others) == 1 and is_trls(others[0]) and not built.methods & {"__init__", "__new__"}
    )


def _refused(
    built: BuiltTrainer, takes: Mapping[str, str], who: str, settings: Collection[str], table: ShippedTable | None
) -> Iterator[Finding]:
    given, first = built.given, [name for name, kind in takes.items() if kind != BY_NAME]
    unknown = [name for name in given.named if name not in takes]
    near = near_names([name for name in unknown if name not in {*_RENAMED, *settings}], takes, _NEAR)
    for name in unknown:
        text = f"{name} is not an argument of {_CLASS} in {who}"
        if elsewhere := _elsewhere(table, name):
            text += f"; trl {elsewhere} has it"
        if name in settings:
            ways = [f"give it to GRPOConfig: args=GRPOConfig({name}=...)"]
        else:
            ways = [f"write {other}" for other in ([_RENAMED[name]] if name in _RENAMED else near.get(name, ()))]
        native = f"TypeError: {_CLASS}.__init__() got an unexpected keyword argument '{name}'"
        yield _finding(given.named[name], text, [*ways, f"remove {name}"], native)
    if given.open:
        return
    by_place = set(first[: given.positional])
    if given.positional > len(first):
        text = f"{_CLASS} takes {len(first)} arguments by position in {who}, and the call gives {given.positional}"
        native = f"TypeError: {_CLASS}.__init__() takes from ... positional arguments but more were given"
        yield _finding(built.place, text, ["give them by name"], native)
    for name in (one for one in given.named if one in by_place):
        text = f"{name} is given twice: by position and by name"
        native = f"TypeError: {_CLASS}.__init__() got multiple values for argument '{name}'"
        yield _finding(given.named[name], text, [f"remove {name}=..."], native)
    have = {*by_place, *given.named}
    for name in (one for one, kind in takes.items() if kind == REQUIRED and one not in have):
        instead = next((old for old in unknown if _RENAMED.get(old) == name or name in near.get(old, ())), None)
        if instead is not None:
            continue  # it is there, by a wrong name
        native = f"TypeError: {_CLASS}.__init__() missing 1 required positional argument: '{name}'"
        yield _missing(built, name, who, native)
    rewarded = have & {_REWARDS, "environment_factory"} or any(_REWARDS in near.get(old, ()) for old in unknown)
    if takes.get(_REWARDS) not in (None, REQUIRED) and not rewarded:
        yield _missing(built, _REWARDS, who, _NO_REWARD)


_REWARDS = "reward_funcs"


def _elsewhere(table: ShippedTable | None, name: str) -> str:
    rows = table.settings.get(name, ()) if table is not None else ()
    return " or ".join(table.range_of(row[0], row[1]) for row in rows) if table is not None else ""


def _missing(built: BuiltTrainer, name: str, who: str, native: str) -> Finding:
    place = replace(built.place, key=name)
    return _finding(place, f"{name} is missing: {_CLASS} needs it in {who}", [f"give {name}=..."], native)


def _finding(place: Where, message: str, ways: Collection[str], native: str) -> Finding:
    fixes = tuple(map(Fix, ways))
    return Finding(CODE, "error", "construction", message, (place,), fixes, native, _SOURCE)


def _as_certain(finding: Finding, built: BuiltTrainer, *, alone: bool) -> Finding:
    """A finding that holds where the call is reached, and ends the run where nothing catches the error."""
    if built.given.caught:
        return replace(finding, severity="warning", message=f"{finding.message}; the program catches the error")
    if built.given.only_if:
        finding = replace(finding, message=f"{finding.message}; the call depends on {built.given.only_if[0]}")
    return replace(finding, undecided=bool(built.given.only_if) or not alone)
