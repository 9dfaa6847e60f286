"""Settings that lie outside the schema, carried from one framework's configuration to another's: model, data, rewards,
logs.

Adapters' tables say which settings share a word (`batchbridge.contract.outside`). What the target takes is written;
what it needs and nobody can write for the user becomes a named variable; everything else is listed.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Literal

from batchbridge.contract.adapter import Adapter
from batchbridge.contract.outside import SHARED, SharedSetting
from batchbridge.contract.reading import Reading, Written
from batchbridge.frozen import dataclass
from batchbridge.kit.versions import includes
from batchbridge.reading.yaml_json import groups

OutsideStatus = Literal["mapped", "fill in", "left"]
"""The outcome for a setting outside the schema. mapped: the target has such a setting, and it is written. fill in: a
variable stands there. left: it is in the source alone."""
MOST_READ = 150
"""Most configurations that are read back to find the settings that the target takes."""
WIDEST = 60
"""Characters of a value in a comment."""
FILES = ("yaml", "json", "toml", "python", "argv")
"""Forms that are no command in a shell script: a variable stands there as `<DATA>`."""
WITHOUT_COMMENTS = ("json", "argv")


@dataclass(frozen=True)
class OutsideReport:
    """The outcome of a conversion for one setting outside the schema. keys: of the source, the first being `value`'s;
    none where the source does not say it. target_key: of the target; `target` its value. variable: what a person fills
    in, and `wanted` what that is. also: settings of the target that come with it. decides: as `Adapter.decides` of the
    source's framework."""

    keys: tuple[str, ...]
    value: Any
    status: OutsideStatus
    decides: str | None = ""
    shared: str = ""
    target_key: str = ""
    target: Any = None
    variable: str = ""
    wanted: str = ""
    also: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def matters(self) -> bool:
        """Whether it is left and yet changes what is trained, may do so, or is one of the settings that are shared."""
        return self.status == "left" and (self.decides != "" or bool(self.shared))

    def to_dict(self) -> dict[str, Any]:
        """JSON types."""
        return dataclasses.asdict(self)


ReadBack = Callable[[Mapping[str, Any]], Reading]


def carry_over(
    source: Reading,
    left: Mapping[str, Any],
    own: Adapter | None,
    adapter: Adapter,
    written: Written,
    back: Reading,
    read: ReadBack,
) -> tuple[Written, tuple[OutsideReport, ...]]:
    """`written` with the settings that `adapter` shares with the source's framework, and what became of each.

    left: given native keys of `source` that no canonical field came from; own: its adapter; back: what `written` means;
    read: what other values of the target mean. Where `adapter` has no forms or shares nothing, `written` stays, and
    everything is left.
    """
    said = shared_values(source, left, own)
    rows = _rows(adapter, written)
    if not rows or back.spec is None or not _forms(adapter, written, back, {}):
        return written, all_left(source, left, own)
    same_words = own is not None and own.outside == adapter.outside
    if same_words and own is not None:
        offers = [
            [_as_it_stands(key, value, own)]
            for key, value in _as_given(left, source).items()
            if key not in written.values and _sayable(value) and _shown_as_it_is(value)
        ]
        missing = dict.fromkeys(row.name for row in rows.values() if row.needed)
        there = {said_as.row.name for said_as in said}
        offers += [list(_blanks(rows, name, said)) for name in missing if name not in there]
    else:
        said += _unsaid(said, own)
        offers = [list(_offers(rows, name, said, back)) for name in SHARED]
    reports = _accepted([offer for offer in offers if offer], written, back, read)
    told = {key for report in reports for key in report.keys}
    reports += _left(source, left, own, told | (set(written.values) if same_words else set()), same_words)
    return _with_settings(adapter, written, back, reports), tuple(reports)


def all_left(source: Reading, left: Mapping[str, Any], own: Adapter | None) -> tuple[OutsideReport, ...]:
    """Reports of settings of which nothing is written."""
    return tuple(_left(source, left, own, set()))


# ---- the source


@dataclass(frozen=True)
class SharedValue:
    """A shared setting as a configuration says it; `value` is None where no other framework could take it."""

    row: SharedSetting
    key: str
    raw: Any
    value: Any


def shared_values(source: Reading, left: Mapping[str, Any], own: Adapter | None) -> list[SharedValue]:
    """Shared settings that a reading's configuration gives. left: native values as they were given, where they are
    known; a reading alone has them cut for messages."""
    found = []
    for key, row in own.shared_settings().items() if own is not None else ():
        spellings = (key, f"+{key}", f"++{key}")
        given = next((left[one] for one in spellings if one in left), None)
        if given is None and key in source.given and source.given[key].value is not None:
            given = source.given[key].value
        if given is not None:
            found.append(SharedValue(row, key, given, None if _open(given) else row.read(given, source)))
    return found


def _unsaid(said: list[SharedValue], own: Adapter | None) -> list[SharedValue]:
    """The values of shared settings that nobody gave and that other frameworks need to be told."""
    given = {one.row.name for one in said}
    rows = () if own is None else own.unsaid_settings()
    return [SharedValue(row, "", None, row.unsaid) for row in rows if row.name not in given]


def _open(value: Any) -> bool:
    """Whether a value depends on what only running a script would tell, or another setting; or is cut for messages."""
    return isinstance(value, str) and ("$" in value or value.endswith("..."))


# ---- the target


def _rows(adapter: Adapter, written: Written) -> Mapping[str, SharedSetting]:
    """The shared settings of the version that is written for."""
    version = written.framework_version
    rows = adapter.shared_settings()
    return {} if version is None else {key: row for key, row in rows.items() if includes(row.versions, version)}


def _as_given(left: Mapping[str, Any], source: Reading) -> dict[str, Any]:
    """Settings as the source gave them: one that is a mapping is whole again."""
    found: dict[str, Any] = {}
    for key, value in left.items():
        group = next((group for group in groups(key) if group in source.given), None)
        if group is None:
            found[key] = value
            continue
        *parents, leaf = key[len(group) + 1 :].split(".")
        at = found.setdefault(group, {})
        for parent in parents:
            at = at.setdefault(parent, {}) if isinstance(at, dict) else None
        if isinstance(at, dict):  # a hostile file has a key and keys below it
            at[leaf] = value
    return found


def _sayable(value: Any) -> bool:
    """Whether a value can be written in any form: no number of more digits than Python writes, no half a character."""
    try:
        json.dumps(value, allow_nan=False, ensure_ascii=False).encode()
    except (ValueError, TypeError, RecursionError):
        return False
    return True


def _shown_as_it_is(value: Any) -> bool:
    """Whether no text in a value has control characters but the ends of lines, and tabs: a command is written with
    them, and a terminal would follow them instead of showing them."""
    if isinstance(value, str):
        return value.replace("\n", "").replace("\t", "").isprintable()
    if isinstance(value, Mapping):
        return all(map(_shown_as_it_is, value)) and all(map(_shown_as_it_is, value.values()))
    return not isinstance(value, (list, tuple)) or all(map(_shown_as_it_is, value))


def _as_it_stands(key: str, value: Any, own: Adapter) -> OutsideReport:
    """A setting of a framework that has the same words."""
    return OutsideReport((key,), value, "mapped", own.decides(key), target_key=key.lstrip("+~"), target=value)


def _offers(
    rows: Mapping[str, SharedSetting], name: str, said: list[SharedValue], back: Reading
) -> Iterator[OutsideReport]:
    """Reports of the target's settings that could carry the word `name`, the best first, and last of the blanks that a
    person fills in. The caller keeps the first that the target's reader accepts.

    rows: the target's settings. said: the source's values for the word. back: what the target says so far, for units.
    """
    for one in said:
        for key, row in rows.items():
            known = not one.key and row.unsaid == one.value  # both have it without a word
            if row.name == one.row.name == name and one.value is not None and not known:
                target = row.write(one.value, back)
                # What is written goes into a shell's words, and to a terminal.
                if target is not None and _sayable(target) and str(target).isprintable():
                    keys = (one.key, *one.row.beside) if one.key else ()
                    also = row.also(back)
                    yield OutsideReport(keys, one.raw, "mapped", one.row.decides, name, key, target, also=also)
    yield from _blanks(rows, name, said)


def _blanks(rows: Mapping[str, SharedSetting], name: str, said: list[SharedValue]) -> Iterator[OutsideReport]:
    """Variables for settings that the target needs."""
    source = next((one for one in said if one.row.name == name), None)
    keys = () if source is None else (source.key, *source.row.beside)
    value = None if source is None else source.raw if source.value is None else source.value
    variable = SHARED[name].variable
    for key, row in rows.items():
        if row.name == name and row.needed:
            blank = row.blank(f"<{variable}>")
            yield OutsideReport(keys, value, "fill in", row.decides, name, key, blank, variable, row.needed)


def _accepted(
    offers: list[list[OutsideReport]], written: Written, back: Reading, read: ReadBack
) -> list[OutsideReport]:
    """The first offer of each list that the target reads without a new error, the specification being the same."""
    before = [finding for finding in back.findings if finding.severity == "error"]
    found: dict[int, OutsideReport] = {}
    reads = iter(range(MOST_READ))

    def taken(more: dict[int, OutsideReport]) -> set[str | None] | None:
        """Takes offers, by place, where the target does not object; else the keys that it objects to."""
        if next(reads, None) is None:
            return set()
        settings = _settings((found | more).values())
        again = read({**settings, **written.values})
        new = [one for one in again.findings if one.severity == "error" and not any(map(one.same_as, before))]
        if new or again.spec != back.spec:
            return {place.key for one in new for place in one.where}
        found.update(more)
        return None

    def settle(places: list[int]) -> None:
        """The settling of offers: all; then what is objected to apart from the rest, or halves; then one by one."""
        refused = taken({place: offers[place][0] for place in places})
        if refused is not None and len(places) > 1:
            apart = [place for place in places if offers[place][0].target_key in refused]
            if len(apart) in (0, len(places)):
                apart = places[len(places) // 2 :]
            settle([place for place in places if place not in apart])
            settle(apart)
        elif refused is not None:
            any(taken({place: other}) is None for place in places for other in offers[place][1:])

    settle(list(range(len(offers))))
    return [found[place] for place in sorted(found)]


# ---- the account and the text


def _settings(reports: Iterable[OutsideReport]) -> dict[str, Any]:
    """The settings that reports write, with those that come along."""
    found: dict[str, Any] = {}
    for report in reports:
        found |= {report.target_key: report.target, **report.also}
    return found


def _left(
    source: Reading, left: Mapping[str, Any], own: Adapter | None, told: set[str], same_words: bool = False
) -> Iterator[OutsideReport]:
    """Settings that nothing was made of. What the adapter reads stands in the specification, and is no such one; but
    a framework with the same words could have had it."""
    said = shared_values(source, left, own)
    shared = {one.key: one.row.name for one in said if not SHARED[one.row.name].silent}
    for key, value in left.items():
        plain = key.lstrip("+~")
        if {key, plain, *groups(key)} & told:
            continue
        decides = None if own is None else own.decides(plain)
        of_copy = source.copy is not None and plain in source.copy.own  # nobody here knows what it does
        if decides is None and plain in source.native and not same_words and not of_copy:  # the adapter reads it
            decides = ""
        yield OutsideReport((key,), value, "left", decides, shared.get(plain, ""))


def _forms(adapter: Adapter, written: Written, back: Reading, settings: Mapping[str, Any]) -> Mapping[str, str]:
    world = 1 if back.spec is None else back.spec.topology.world_size
    return adapter.forms({**settings, **written.values}, written.framework_version or "", world)


def _with_settings(adapter: Adapter, written: Written, back: Reading, reports: list[OutsideReport]) -> Written:
    """`written` with what `reports` say, in every form."""
    settings = _settings(report for report in reports if report.status != "left")
    if not settings:
        return written
    blanks = [report for report in reports if report.variable]
    rows = adapter.shared_settings()
    tokens = {report.variable: f"BATCHBRIDGE_FILLS_IN_{report.variable}" for report in blanks}
    in_shell = {report.target_key: rows[report.target_key].blank(tokens[report.variable]) for report in blanks}
    files = _forms(adapter, written, back, settings)
    commands = _forms(adapter, written, back, {**settings, **in_shell})
    remarks = [_remark(report, blanks) for report in blanks]
    text = {}
    for form in written.text:
        shown = files[form]
        if form not in FILES:
            shown = commands[form]
            for variable, token in tokens.items():
                shown = shown.replace(token, f'"${{{variable}:?}}"')
        text[form] = shown if form in WITHOUT_COMMENTS else _headed(shown, remarks)
    return dataclasses.replace(written, values={**settings, **written.values}, text=text)


def _headed(text: str, remarks: list[str]) -> str:
    """`text` with comment lines behind those that it begins with."""
    lines = text.splitlines(keepends=True)
    head = next((place for place, line in enumerate(lines) if not line.startswith("#")), len(lines))
    return "".join([*lines[:head], *(f"# {remark}\n" for remark in remarks), *lines[head:]])


def _remark(report: OutsideReport, blanks: list[OutsideReport]) -> str:
    width = max(len(one.variable) for one in blanks)
    return f"fill in: {report.variable:<{width}}  {in_words(report)}"


def in_words(report: OutsideReport) -> str:
    """The words for a variable that a person fills in: what the source says, what the target wants, where it stood."""
    if not report.keys:
        return f"{report.wanted} (the source does not say it)"
    return f"{plain_text(report.value)} as {report.wanted} ({report.keys[0]})"


def plain_text(value: Any) -> str:
    """A value on one line, without control characters, of at most `WIDEST` characters."""
    listed = isinstance(value, (list, tuple))
    try:
        text = ", ".join(map(str, value)) if listed else str(value)
    except ValueError:
        text = "a number of too many digits"
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text).split())
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 3]}..."
