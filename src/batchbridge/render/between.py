"""The output of `diff`, `convert`, `scale` and `doctor` for people: stable text, safe to print."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from shlex import quote
from typing import TYPE_CHECKING, Any

from batchbridge.comparing.outside import FILES, in_words, plain_text
from batchbridge.frozen import dataclass
from batchbridge.render.findings import kind_of, shortened
from batchbridge.render.text import (
    NO_UNITS,
    PHASES,
    TableRenderer,
    clean,
    count,
    number,
    one_line,
    plain_table,
    who,
    wrapped,
)
from batchbridge.render.words import folded, listed, say

if TYPE_CHECKING:
    from batchbridge.comparing.comparison import Comparison, Difference
    from batchbridge.comparing.convert import Conversion, FieldReport
    from batchbridge.comparing.edit_file import EditedFile, KeyChange
    from batchbridge.comparing.legal_choices import Choice
    from batchbridge.comparing.scale import Scaling
    from batchbridge.contract.reading import Reading, Written
    from batchbridge.diagnosis import Diagnosis
    from batchbridge.meaning.findings import Fix


def comparison(names: tuple[str, str], found: Comparison) -> str:
    """A comparison: verdict, ranked differences with their reasons, and what is not a difference in meaning."""
    sides = list(zip("AB", names, (found.a, found.b), strict=True))
    lines = [f"{side}  {one_line(name)}: {listed((who(one), say(one.verdict)))}" for side, name, one in sides]
    told: dict[str, list[str]] = {}  # what both sides say is one line
    for side, _, reading in sides:
        for line in (*_taken_for_granted(reading), *(_problems(reading) if reading.verdict != "valid" else ())):
            told.setdefault(line, []).append(side)
    lines += [f"  {', '.join(who_says)} {line}" for line, who_says in told.items()]
    lines += ["", verdict(found)]
    if found.differences:
        title = "Different settings" if found.missing else "Differences, the largest effect first"
        lines += ["", say(title)]
        lines += [line for rank, one in enumerate(found.differences, 1) for line in _difference(f"{rank}", one)]
    if found.cannot_tell:
        lines += ["", say("Cannot tell"), *(line for one in found.cannot_tell for line in _difference("?", one))]
    same = ((f"{one.field}: {_values(one)}", f"   {one_line(one.reason)}") for one in found.no_difference)
    lines += _listed(say("No difference in meaning"), chain.from_iterable(same))
    numbers = (f"{name}: {number(a)} | {number(b)} {unit}" for name, unit, a, b in found.derived)
    lines += _listed(say("Numbers that follow"), numbers)
    for side, keys in zip("AB", found.not_compared, strict=True):
        if keys:
            lines += [say("settings outside the schema, not compared, {side}:", side=side)]
            lines += [f"  {line}" for line in wrapped(keys)]
    for side, points in zip("AB", found.left_open, strict=True):
        lines += [
            say("not fixed by the configuration, {side}: {text}", side=side, text=one_line(one)) for one in points
        ]
    return clean("\n".join(lines))


def _taken_for_granted(reading: Reading) -> Iterator[str]:
    """The version that was taken where nobody named one, and whose trainer is supposed to run."""
    yield from (one_line(finding.message) for finding in reading.findings if finding.code == UNNAMED)
    if reading.condition is not None:
        yield one_line(f"if {reading.condition.supposed}: {reading.condition.why}")


UNNAMED = "BB044"
"""The note about the version that was taken where nobody named one."""


def _listed(title: str, lines: Iterable[str]) -> list[str]:
    """A title with lines below it; nothing where there is no line."""
    below = [f"  {line}" for line in lines]
    return ["", title, *below] if below else []


def verdict(found: Comparison) -> str:
    """`not equivalent: 2 differences`."""
    different, left_open = len(found.differences), len(found.cannot_tell)
    what = "different setting" if found.missing else "difference"
    counts = [count(different, what)] if different else []
    if left_open:
        counts.append(say("{fields} that one side leaves open", fields=count(left_open, "field")))
    said = listed(counts)
    if found.differences and all(difference.aspect == "outside" for difference in found.differences):
        said = say("same batches, but not the same run: {differences} outside the schema", differences=said)
    if found.example_devices is not None:
        devices = count(found.example_devices, "device")
        said = say("{said} on {devices}, for example", said=said or say("equivalent"), devices=devices)
    return say("{verdict}: {said}", verdict=say(found.verdict), said=said) if said else say(found.verdict)


def _difference(rank: str, difference: Difference) -> Iterator[str]:
    yield f"{rank:>3}  {difference.aspect:<9}  {difference.subject}: {_values(difference)}"
    yield say("       why: {text}", text=one_line(difference.reason))
    for side, origin in (("A", difference.from_a), ("B", difference.from_b)):
        if origin:
            yield f"       {side}: {one_line(origin)}"


def _values(difference: Difference) -> str:
    unit = "" if difference.unit in NO_UNITS else f" {difference.unit}"
    a, b = _value(difference.a), _value(difference.b)
    if difference.aspect == "outside":
        a, b = shortened(a), shortened(b)
    return f"{a} | {b}{unit}"


def _value(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool):
        return number(value)
    return one_line(value)


def _problems(reading: Reading) -> Iterator[str]:
    """One line for each finding that makes a reading invalid or undecided, with its nearest fix."""
    for finding in reading.wrong:
        fix = say("; fix: {fix}", fix=finding.fixes[0].text) if finding.fixes else ""
        yield f"{finding.code} {say(kind_of(finding))}  {one_line(f'{finding.message}{fix}')}"


_STATUS_TITLES = {
    "inexpressible": "Lost: {framework} cannot say it",
    "approximate": "Approximate",
    "rare": "Different in rare steps only (--strict refuses that)",
    "patched": "Patched: the configuration cannot say it, wrap brings it about",
    "filled": "Open in the source, filled by {framework}'s default",
    "equivalent": "Equivalent: another value, the same meaning",
}
_WITH_VERBOSE = ("equivalent",)


@dataclass(frozen=True, kw_only=True)
class ConversionUse:
    """The use that a command makes of a conversion. version: where the target's version comes from, for a person. file:
    what is written, None for standard output. form: its form. written: whether it is; refused: whether it would have
    been, had nothing been lost. source: the options that name the source again for `batchbridge diff`, None where no
    file is the whole of it."""

    version: str = ""
    file: str | None = None
    form: str = ""
    written: bool = False
    refused: bool = False
    source: tuple[str, ...] | None = None
    verbose: bool = False


def conversion(name: str, found: Conversion, how: ConversionUse | None = None) -> str:
    """The account of a conversion: what a person has to do, every field that is not exact, what comes next."""
    how = how or ConversionUse(verbose=True)
    target = one_line(f"{found.framework} {found.framework_version or ''}".rstrip())
    version = f" ({say(how.version)})" if how.version else ""
    told = {"file": one_line(name), "source": who(found.source), "target": f"{target}{version}"}
    lines = [say("{file}: {source} to {target}: {verdict}", **told, verdict=say(found.verdict))]
    lines += [f"  {line}" for line in _taken_for_granted(found.source)]
    if found.example_devices is not None:
        said = "lossy" if found.lossy else "complete"
        lines.append(
            f"  {said} on {count(found.example_devices, 'device')}, for example: nothing says how many there are"
        )
    for reading in (found.source, found.back):
        if reading is not None and reading.verdict != "valid":
            lines += [f"  {line}" for line in _problems(reading)]
    lines += _to_do(found, how)
    for status, title in _STATUS_TITLES.items():
        fields = [field for field in found.fields if _group(field, found) == status]
        if status == "filled" and not how.verbose:
            below = wrapped(f"{field.field} = {_value(field.target)}" for field in fields)
        else:
            below = [line for field in fields for line in _field(field)]
        if status not in _WITH_VERBOSE or how.verbose:
            lines += _listed(say(title, framework=found.framework), below)
    if found.written is None:
        title = say("{framework} cannot express it", framework=one_line(found.framework))
        lines += _listed(title, (one_line(one.reason) for one in found.refused))
    title = say("What {framework} does on its own with the result (wrap repairs what it can)", framework=target)
    lines += _listed(title, map(one_line, found.natively))
    lines += _all_fields(found) if how.verbose else _counts(found)
    lines += _next(name, found, how)
    return clean("\n".join(lines))


def _group(field: FieldReport, found: Conversion) -> str:
    return "rare" if field.rare and not found.strict else field.status


def _to_do(found: Conversion, how: ConversionUse) -> Iterator[str]:
    """The tasks of a person, in the order in which they are done."""
    if found.verdict in ("invalid", "undecided"):
        of_source = found.source.verdict == found.verdict
        sentence = "  nothing was written: the source is {verdict}"
        yield say(
            sentence if of_source else "  nothing was written: the result is {verdict}", verdict=say(found.verdict)
        )
        return
    if found.written is None:
        return
    if how.refused:
        many = count(len(found.lost), "field")
        sentence = "  nothing was written: {fields} would mean something else, see below; --allow-lossy accepts that"
        yield say(sentence, fields=many)
        return
    steps = []
    if found.lost:
        steps.append(say("look at what is lost ({fields}, below)", fields=count(len(found.lost), "field")))
    names = [report.variable for report in found.variables]
    command = how.form not in FILES
    if names:
        shown = ", ".join(names if command else (f"<{name}>" for name in names))
        steps.append(say("fill in {variables}:", variables=shown))
        steps += [f"     {report.variable:<{max(map(len, names))}}  {in_words(report)}" for report in found.variables]
    if command:
        given = " ".join(f"{name}=..." for name in names)
        command_line = f"{given + ' ' if given else ''}bash {quote(how.file or 'FILE')}"
        steps.append(say("start it with: {command}", command=command_line))
    elif how.file is not None and names:
        steps.append(say("write them into {file}; its first lines say how it is started", file=one_line(how.file)))
    unmatched = [report for report in found.outside if report.matters and report.value is not None]
    if unmatched:
        keys = ", ".join(f"{one_line(report.keys[0])} = {plain_text(report.value)}" for report in unmatched)
        sentence = "look at these settings, for which {framework} has none that fits: {settings}"
        steps.append(say(sentence, framework=one_line(found.framework), settings=keys))
    number = 0
    for step in steps:
        number += not step.startswith("     ")
        yield from _hanging(step if step.startswith("     ") else f"  {number}. {step}")


def _hanging(text: str) -> list[str]:
    return [*folded(text, 118, " " * 7)]


def _all_fields(found: Conversion) -> Iterator[str]:
    """The lists of -v: exact fields, settings outside the schema that were written, and those that were not."""
    exact = [field for field in found.fields if field.status == "exact" and field.target not in (None, ())]
    yield from _listed(say("Exact"), wrapped(f"{field.field} = {_value(field.target)}" for field in exact))
    mapped = [report for report in found.outside if report.status == "mapped"]
    written = (
        f"{one_line(one.keys[0]) if one.keys else 'unsaid'} -> {one_line(one.target_key)} = {plain_text(one.target)}"
        for one in mapped
    )
    yield from _listed(say("Carried over: settings outside the schema"), written)
    if found.left_behind and found.written is not None:
        items = (one_line(f"{key} = {plain_text(value)}") for key, value in found.left_behind.items())
        yield from _listed(say("Left behind: nothing was made of these keys"), wrapped(items))


def _counts(found: Conversion) -> Iterator[str]:
    idle = sum(report.status == "left" and not report.matters for report in found.outside)
    said = [
        (sum(field.status == "exact" for field in found.fields), "{number} exact"),
        (sum(field.status == "equivalent" for field in found.fields), "{number} the same in other words"),
        (sum(report.status == "mapped" for report in found.outside), "{number} carried over from outside the schema"),
        (idle, "{number} left behind, without effect on what is trained"),
    ]
    shown = [say(text, number=many) for many, text in said if many]
    if shown and found.written is not None:
        yield ""
        yield from _hanging(say("Settings (-v lists them): {counts}", counts=listed(shown)))


def _next(name: str, found: Conversion, how: ConversionUse) -> Iterator[str]:
    """The commands that come next."""
    if not how.written or found.written is None or found.back is None or found.back.spec is None:
        return
    file = "FILE" if how.file is None else quote(how.file)
    framework = [] if how.form not in FILES else ["--framework", found.framework]
    version = found.framework_version or ""
    world = found.back.spec.topology.world_size
    said = _says_its_devices(found.written, found.back)
    devices = [] if said else ["--world-size", str(world)]
    yield from ("", say("Next"))
    yield f"  batchbridge check {' '.join([file, *framework, '--framework-version', version, *devices])}"
    if how.source is not None:
        b = [*(["--framework-b", found.framework] if framework else ()), "--version-b", version]
        b += [] if said else ["--world-size-b", str(world)]
        size = found.source.dataset_size
        both = [] if size is None else ["--dataset-size", str(size)]
        yield f"  batchbridge diff {' '.join([quote(name), file, *map(quote, how.source), *b, *both])}"


def _says_its_devices(written: Written, back: Reading) -> bool:
    """Whether the written configuration says on how many devices it trains."""
    origin = back.provenance.get("topology.world_size")
    return origin is not None and any(key in written.values for key in origin.keys)


def edits(found: EditedFile, done: str) -> str:
    """The changes in an edited file, key by key, and what was done with it."""
    if found.problems:
        return clean(
            "\n".join(
                _listed(say("{file} is not edited", file=one_line(found.path)), map(one_line, found.problems))[1:]
            )
        )
    changed = {"keys": count(len(found.changes), "key"), "number": found.kept}
    lines = [say("{done}: {keys} changed, {number} kept", done=one_line(done), **changed)]
    lines += [f"  {line}" for change in found.changes for line in _change(change)]
    lines += _listed(say("The file's own settings stand against the conversion in"), map(one_line, found.against))
    return clean("\n".join(lines))


def applied(name: str, output: str, found: Scaling, number: int, changes: Sequence[KeyChange]) -> str:
    """The changes of a choice of `scale` in a file, and the commands that come next."""
    choice = found.choices[number - 1]
    where = say("written to {file}", file=one_line(output))
    if output != name:
        where += say("; {file} stays as it is", file=one_line(name))
    which = listed((str(number), say(choice.title), count(choice.spec.topology.world_size, "device")))
    settings = count(len(changes), "setting")
    lines = [say("{choice}: {where}; {settings} changed", choice=which, where=where, settings=settings)]
    lines += [f"  {line}" for change in changes for line in _change(change)]
    lines += [line for line in _choice(number, choice) if line.startswith(say("   not kept"))]
    version = found.reading.framework_version
    told = ["--framework", found.reading.framework, *(["--framework-version", version] if version else ())]
    if not _says_its_devices(choice.written, choice.reading):
        told += ["--world-size", str(choice.spec.topology.world_size)]
    return clean("\n".join([*lines, "", say("Next"), f"  batchbridge check {quote(output)} {' '.join(told)}"]))


def _change(change: KeyChange) -> Iterator[str]:
    if change.action == "removed":
        yield f"{change.key}: {_shown(change.old)} -> {listed((say('removed'), one_line(change.reason)))}"
    elif change.action == "added":
        yield f"{change.key}: {_shown(change.new)}{say(' (new)')}"
    else:
        yield f"{change.key}: {_shown(change.old)} -> {_shown(change.new)}"


def _shown(value: Any) -> str:
    return "null" if value is None else one_line(value)


def _field(field: FieldReport) -> Iterator[str]:
    unit = "" if field.unit in NO_UNITS else f" {field.unit}"
    factor = "" if field.factor is None else say(" (factor {number})", number=f"{field.factor:.4g}")
    yield f"{field.field}: {_value(field.source)} -> {_value(field.target)}{unit}{factor}"
    if field.reason:
        yield f"   {one_line(field.reason)}"


def diagnoses(found: Sequence[Diagnosis], config: str | None = None, *, versioned: bool = True) -> str:
    """Every recognised text: rule, meaning, legal neighbours, what is still asked, source; and where `config` breaks
    the rule. versioned: its version is known; else it was held against every known one."""
    return clean("\n\n".join("\n".join([*_diagnosis(one), *_in_config(one, config, versioned)]) for one in found))


_NO_RULE = "breaks no rule with this text; is it the run's framework, version, devices?"
_FIRST = 3


def _without_the_rule(found: Diagnosis) -> Iterator[str]:
    """The words about a configuration that breaks no rule with a text: what fills the memory, where the text is about
    that; other rules that it breaks."""
    reading = found.reading
    assert reading is not None, "asked by the caller"
    from batchbridge.render.sentences import micro_batch

    if found.text.of_memory and reading.spec is not None and (sizes := [*micro_batch(reading.spec)]):
        yield from sizes
        return
    broken = [one for one in reading.findings if one.severity == "error"]
    if not broken:
        yield say("breaks no rule with this text" if found.differs else _NO_RULE)
    for finding in broken[:_FIRST]:
        broken_rule = f"{finding.code}  {one_line(finding.message)}"
        yield say("breaks no rule with this text, but {finding}", finding=broken_rule)


def _in_config(found: Diagnosis, config: str | None, versioned: bool) -> Iterator[str]:
    if found.reading is None:
        return
    name, framework = one_line(config or say("the configuration in the text")), found.reading.framework
    yield from (f"  {one_line(one.message)}" for one in found.reading.findings if one.code == "BB024")
    if not versioned and found.findings:
        sentence = "  no version of {framework} was named: one that says this is taken; --framework-version names yours"
        yield say(sentence, framework=framework)
    if not found.reading.native:
        yield from (say("  {file} is not read: {problem}", file=name, problem=one) for one in _problems(found.reading))
    yield from (f"  {one_line(sentence)}" for sentence in found.differs)
    if found.reading.native and not found.findings:
        every = say("{framework} of every known version", framework=framework)
        read_as = who(found.reading) if versioned else every
        yield from (say(_AS, place=name, framework=read_as, said=line) for line in _without_the_rule(found))
    for finding in found.findings:
        places = [f"{one_line(where.file or name)}{f':{where.line}' if where.line else ''}" for where in finding.where]
        keys = ", ".join(dict.fromkeys(one_line(where.key) for where in finding.where if where.key))
        place = places[0] if places else name
        said = f"{finding.code}  {one_line(finding.message)}"
        yield say(_AS, place=place, framework=who(found.reading), said=said)
        yield say("    settings: {keys}", keys=keys)
        if finding.fixes:
            yield f"  {_fixes(finding.fixes)}"


_AS = "  {place}, as {framework}: {said}"


def _fixes(fixes: Iterable[Fix]) -> str:
    return say("  fix: {fixes}", fixes=say(", or ").join(one_line(fix.text) for fix in fixes))


def _diagnosis(found: Diagnosis) -> Iterator[str]:
    text = found.text
    named = {"name": text.name, "framework": text.framework, "versions": text.versions, "line": found.line}
    yield say("{name}  {framework} ({versions}), line {line}", **named)
    yield say("  said: {text}", text=one_line(found.said))
    yield say("  rule: {text}", text=text.rule)
    yield say("  means: {text}; noticed {when}", text=text.meaning, when=say(PHASES[text.phase]))
    if found.fixes:
        yield _fixes(found.fixes)
    if found.codes:
        yield say("  more: {commands}", commands=listed(f"batchbridge rule {code}" for code in found.codes))
    for ask in found.asks:
        yield say("  asks: {question}? --with {name}=NUMBER", question=ask.question, name=ask.name)
    yield say("  source: {text}", text=text.source)


def scaling(name: str, found: Scaling, table: TableRenderer = plain_table) -> str:
    """The choices side by side, then what each one sets and what it cannot keep."""
    before = found.reading
    told = {"file": one_line(name), "framework": who(before), "devices": count(found.world_size, "device")}
    lines = [say("{file}: {framework} on {devices}: {verdict}", **told, verdict=say(found.verdict))]
    lines += [f"  {line}" for line in _taken_for_granted(before)]
    if found.example_devices is not None:
        now = count(found.example_devices, "device")
        sentence = "  nothing says the devices that it is written for; now: {devices}, for example"
        lines.append(say(sentence, devices=now))
    elif found.verdict in ("invalid", "undecided"):
        return clean("\n".join([*lines, *(f"  {line}" for line in _problems(before))]))
    held = before.spec is None or found.world_size % before.spec.topology.replica_size == 0
    if found.problems and (not held or not found.choices):
        lines += [f"  {one_line(problem)}" for problem in found.problems]
    if not found.choices:
        lines += [] if found.problems else [say("  no legal configuration was found nearby")]
        return clean("\n".join(lines))
    headers = ["", say("now"), *(str(index) for index, _ in enumerate(found.choices, 1))]
    readings = [before, *(choice.reading for choice in found.choices)]
    lines += ["", table(headers, [[say(label), *(_cell(one, name) for one in readings)] for label, name in _ROWS])]
    for index, choice in enumerate(found.choices, 1):
        lines += ["", *_choice(index, choice)]
    return clean("\n".join(lines))


def _cell(reading: Reading, name: str) -> str:
    """A field of the specification, by its path, or a derived number."""
    assert reading.spec is not None
    return _value(reading.spec.values[name]) if "." in name else number(reading.derived.get(name))


_ROWS = (
    ("devices", "topology.world_size"),
    ("completions per micro-batch", "micro_batch.completions_per_device"),
    ("micro-batches per step", "gradient_accumulation_steps"),
    ("completions per optimizer step", "completions_per_step"),
    ("completions per prompt", "rollout.completions_per_prompt"),
    ("prompts per rollout", "rollout.prompts_per_rollout"),
    ("optimizer steps per rollout", "optimizer_steps_per_rollout"),
    ("optimizer steps in all", "total_optimizer_steps"),
)
"""The rows that are shown side by side: label, and the name of a field or derived number."""


def _choice(index: int, choice: Choice) -> Iterator[str]:
    yield f"{index}  {listed((say(choice.title), count(choice.spec.topology.world_size, 'device')))}"
    changed = [
        say(
            "{key} (was {old})",
            key=f"{key} {say('removed') if new is None else f'= {one_line(new)}'}",
            old=one_line(old),
        )
        for key, (old, new) in choice.settings.items()
    ]
    yield say("   set: {settings}", settings=listed(changed) or say("nothing"))
    if not choice.lost:
        yield say("   keeps everything")
    for difference in choice.lost:
        if difference.field == "topology.world_size" and difference.reason:  # the devices are what was asked for
            yield f"{say('   not kept')}: token weights: {difference.reason}"
        else:
            yield f"{say('   not kept')}: {difference.subject}: {_values(difference)}{_percent(difference)}"


def _percent(difference: Difference) -> str:
    a, b = difference.a, difference.b
    if difference.field == "order.seed" or any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in (a, b)):
        return ""
    return f" ({100 * (b - a) / a:+,.1f} %)" if a else ""
