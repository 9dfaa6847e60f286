"""Plain text for people: stable, without colour, safe to print whatever a configuration contains."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from batchbridge.comparing.releases import Judged
    from batchbridge.contract.enforcement import Enforcement
    from batchbridge.contract.reading import Behaviour, Provenance, Reading
    from batchbridge.meaning.findings import Finding, Where
    from batchbridge.meaning.spec import LossTerm, Spec

Table = Callable[[Sequence[str], Sequence[Sequence[str]]], str]
"""Draws (headers, rows); the commands pass rich's on a terminal."""

PHASES = {
    "config": "while reading the configuration",
    "construction": "while building the trainer",
    "worker_start": "while starting the workers",
    "first_rollout": "at the first rollout, after model load",
    "optimizer_step": "at some optimizer step",
    "never": "never",
}
"""When the native framework would notice, in words."""

NO_UNITS = ("", "kind", "1", "see unit", "flag", "seed")
"""Units that say nothing beside a value."""


def plain_table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Left-aligned columns, two spaces apart, no line ends in blanks."""
    lines = [list(headers), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(headers))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def check(
    name: str,
    reading: Reading,
    enforcement: Enforcement | None = None,
    *,
    verbose: bool = False,
    judged: Judged | None = None,
    devices: tuple[int, ...] = (),
) -> str:
    """The findings of a reading, one line that sums them up, and one that says whether its run would be followed."""
    lines = [line for finding in reading.findings for line in _finding(finding)]
    followed = _followed(reading, enforcement, verbose)
    said = [*_releases(name, judged), *lines, summary(name, reading), *_devices(devices), *followed]
    return clean("\n".join([*said, *_pages(reading, verbose)]))


def explain(
    name: str,
    reading: Reading,
    table: Table = plain_table,
    enforcement: Enforcement | None = None,
    *,
    verbose: bool = False,
    judged: Judged | None = None,
    devices: tuple[int, ...] = (),
) -> str:
    """A reading in words: meaning, fields with units and provenance, derived numbers, native behaviour, findings."""
    followed = _followed(reading, enforcement, verbose)
    sections = ["\n".join([*_releases(name, judged), summary(name, reading), *_devices(devices), *followed])]
    if reading.spec is not None:
        sections.append(_section("Meaning", _meaning(reading, reading.spec, reading.derived)))
        sections.append(_section("Specification", _fields(reading.spec, reading.provenance, table)))
        sections.append(_section("Derived", _derived(reading.derived, table)))
    if reading.behaviour is not None:
        title = f"What {reading.framework} {reading.framework_version or ''}".rstrip() + " does on its own"
        sections.append(_section(title, _behaviour(reading.behaviour)))
    if reading.findings:
        lines = [line for finding in reading.findings for line in _finding(finding)]
        sections.append(_section("Findings", [*lines, *_pages(reading, verbose)]))
    return clean("\n\n".join(sections))


def summary(name: str, reading: Reading) -> str:
    """`run.yaml: trl 1.16.0: invalid (1 error, 2 warnings)`."""
    counts = [
        (sum(finding.severity == "error" and not finding.undecided for finding in reading.findings), "error"),
        (sum(finding.undecided for finding in reading.findings), "undecided"),
        (sum(finding.severity == "warning" and not finding.undecided for finding in reading.findings), "warning"),
        (sum(finding.severity == "note" and not finding.undecided for finding in reading.findings), "note"),
    ]
    said = [f"{count} {word}{'s' if count > 1 and word != 'undecided' else ''}" for count, word in counts if count]
    framework = f"{reading.framework} {reading.framework_version or ''}".rstrip()
    framework += "".join(f", with a guess, {one_line(where)}" for where in reading.guessed)
    return f"{one_line(name)}: {framework}: {reading.verdict} ({', '.join(said) or 'no findings'})"


def _releases(name: str, judged: Judged | None) -> Iterator[str]:
    """What every known release says, where no version was named."""
    if judged is not None:
        reading = judged.reading
        yield f"{one_line(name)}: {reading.framework}, no version named: judged under every known one"
        yield from map(one_line, judged.lines())
        hows = {"valid": "the newest in which it is valid", "undecided": "the newest without an error"}
        how = hows.get(reading.verdict, "the newest")
        yield f"Name one with --framework-version. Under {reading.framework_version}, {how}:"
        yield ""


def _devices(devices: tuple[int, ...]) -> Iterator[str]:
    """The numbers of devices on which it would be valid, where that is open."""
    if devices:
        from batchbridge.comparing.releases import MOST_DEVICES

        sizes = "every number" if len(devices) == MOST_DEVICES else one_line(devices)
        yield f"valid on {sizes} of 1 to {MOST_DEVICES} devices (say --world-size)"


_FOLLOWED = {
    "enforced": "enforced",
    "with_allow": "enforced with --allow",
    "refused": "refused",
    "unknown": "not known before it starts",
}


def _followed(reading: Reading, enforcement: Enforcement | None, verbose: bool) -> Iterator[str]:
    """`run and wrap: refused: deepspeed, and 2 more (-v says why, and what to do)`; verbose: each with its remedy.

    Of an invalid configuration, and of one that is not read, the findings say it all.
    """
    if enforcement is None or ((reading.spec is None or reading.verdict == "invalid") and not verbose):
        return
    names = [one.name for one in enforcement.obstacles]
    if enforcement.verdict == "with_allow":
        said, more = f" {', '.join(names)}", "why, and what to do"
    elif names:
        said, more = f": {names[0]}{f', and {len(names) - 1} more' if len(names) > 1 else ''}", "why, and what to do"
    else:
        said, more = f", {enforcement.evidence}", "what is assumed" if enforcement.assumes else ""
    hint = f" (-v says {more})" if more and not verbose else ""
    yield f"run and wrap: {_FOLLOWED[enforcement.verdict]}{one_line(said)}{hint}"
    if verbose:
        for one in enforcement.obstacles:
            yield f"  {one.name}{'' if one.certain else ' (perhaps)'}: {one_line(one.reason)}"
            yield f"    remedy: {one_line(one.remedy)}"
        yield from (f"  assumed: {one_line(one)}" for one in enforcement.assumes)


def clean(text: str) -> str:
    """`text` without control characters (a configuration could hold a terminal's escape codes); line ends stay."""
    return "\n".join(line if line.isprintable() else _escaped(line) for line in text.split("\n"))


def _escaped(line: str) -> str:
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode("ascii")
        for character in line
    )


def one_line(value: object) -> str:
    """A value in one line: numbers short, the ends of lines as blanks."""
    text = f"{value:g}" if isinstance(value, float) else "unset" if value is None else str(value)
    if isinstance(value, tuple):
        text = ", ".join(map(str, value)) or "none"
    return " ".join(text.split("\n"))


def number(value: int | float | None) -> str:
    """A count for a person: `1,234`, `2.5`, or a dash where it is open."""
    if value is None:
        return "-"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.4g}"


def _section(title: str, lines: Iterable[str]) -> str:
    return "\n".join([title, *(f"  {line}" for line in lines)])


def _finding(finding: Finding) -> Iterator[str]:
    kind = "undecided" if finding.undecided else finding.severity
    first = _place(finding.where[0]) if finding.where else None
    place = "" if first is None else f"    {one_line(first)}"
    yield f"{finding.code} {kind}  {one_line(finding.message)}{place}"
    keys = [where for where in finding.where if where.key is not None]
    if keys:
        yield "  at: " + ", ".join(one_line(_key(where, first)) for where in keys)
    if finding.native is not None:
        yield f"  natively: {one_line(finding.native)}; noticed {PHASES[finding.phase]}"
    if finding.fixes:
        yield "  nearest: " + ", or ".join(one_line(fix.text) for fix in finding.fixes)
    if finding.source is not None:
        yield f"  source: {one_line(finding.source)}"


def _pages(reading: Reading, verbose: bool) -> Iterator[str]:
    """Where more is said of each finding's rule."""
    codes = dict.fromkeys(finding.code for finding in reading.findings)
    if verbose and codes:
        yield f"more about a rule: batchbridge rule {next(iter(codes))} (or rules/{next(iter(codes))}.md on the site)"


def _place(where: Where) -> str | None:
    """`file:line`, as far as it is known."""
    if where.file is None or where.line is None:
        return where.file
    return f"{where.file}:{where.line}"


def _key(where: Where, shown: str | None) -> str:
    """`key = value (file:line)`, the place left out where it is already shown."""
    text = str(where.key) if where.value is None else f"{where.key} = {one_line(where.value)}"
    place = _place(where)
    return text if place is None or place == shown else f"{text} ({place})"


def _meaning(reading: Reading, spec: Spec, derived: Mapping[str, Any]) -> Iterator[str]:
    rollout, step, horizon, t = spec.rollout, spec.optimizer_step, spec.horizon, spec.topology
    group = rollout.completions_per_prompt
    if rollout.prompts_per_rollout is None:
        yield f"Prompts are streamed; each gets {_count(group, 'completion')}."
    else:
        yield (
            f"A rollout takes {_count(rollout.prompts_per_rollout, 'prompt')} and generates "
            f"{_count(group, 'completion')} for each: {_count(spec.completions_per_rollout, 'completion')}."
        )
    if step.completions_per_step is not None:
        prompts = derived.get("prompts_per_step")
        shared = t.tensor_parallel * t.pipeline_parallel * t.context_parallel > 1
        sharers = "replica of the model" if shared else f"of {_count(t.world_size, 'device')}"
        yield (
            f"An optimizer step trains on {_count(step.completions_per_step, 'completion')}, the size of "
            f"{number(prompts)} prompt{'' if prompts == 1 else 's'}: "
            f"{number(derived.get('completions_per_device_per_step'))} on each {sharers}."
        )
    else:
        sized = ((n.replace("_", " "), v) for n in _STEP_SIZES if (v := getattr(step, n)) is not None)
        yield "An optimizer step is sized by " + (", ".join(f"{n} = {number(v)}" for n, v in sized) or "nothing") + "."
    yield (
        f"Each rollout is trained on in {_count(step.passes_per_rollout, 'pass', 'passes')}: "
        f"{_count(derived.get('optimizer_steps_per_rollout'), 'optimizer step')} per rollout."
    )
    yield from _policy_loss(reading, spec.loss.policy)
    for name, term in (("KL", spec.loss.kl), ("entropy", spec.loss.entropy)):
        if term is not None:
            yield f"{name} loss: {_term(term)}."
    said = [_count(length, name.removesuffix("s").replace("_", " ")) for name, length in horizon.lengths.items()]
    length = " or ".join(said) or "no stated length"
    first = ", whichever ends first" if len(said) > 1 else ""
    yield f"The run has {length}{first}; the learning rate moves after every {horizon.lr_tick.replace('_', ' ')}."
    if spec.open_terms:
        taken = "wrap refuses them" if spec.unfollowed_terms else "a wrapped run keeps the framework's own advantages"
        yield (
            f"Terms that the schema has no word for: {one_line(spec.open_terms)}. What is said here holds beside them; "
            f"{taken}, and a conversion keeps only those that its target names alike."
        )
    from batchbridge.render import memory

    yield from memory.line(spec)
    total, rollouts = derived.get("total_optimizer_steps"), derived.get("total_rollouts")
    if reading.dataset_size is not None:
        dropped = derived.get("prompts_dropped_per_epoch")
        yield (
            f"With {_count(reading.dataset_size, 'prompt')}: {_count(total, 'optimizer step')} and "
            f"{_count(rollouts, 'rollout')} in all; {_count(dropped, 'prompt')} dropped in every epoch."
        )


_STEP_SIZES = ("tokens_per_step", "parts_per_rollout", "micro_batches_per_step")

_SCOPES = {"optimizer_step": "optimizer step", "rollout": "rollout", "rank": "rank", "micro_batch": "micro-batch"}

_WEIGHTS = {
    "token_mean": "1 / T (T: response tokens)",
    "sequence_mean": "1 / (B L) (B: completions, L: its completion's response tokens)",
    "sequence_sum": "1 / B (B: completions)",
    "sequence_sum_over_constant": "1 / (B c) (B: completions, c: a constant)",
    "token_sum": "1",
    "prompt_mean": "1 / (P T) (P: prompts, T: response tokens of its prompt's completions)",
}


def _policy_loss(reading: Reading, term: LossTerm) -> Iterator[str]:
    """The loss of the framework's own run first, where it counts otherwise than a run that is followed."""
    own = reading.behaviour
    if own is None or own.denominator_scope == term.denominator_scope:
        yield f"Policy loss: {_term(term)}."
        return
    framework = f"{reading.framework} {reading.framework_version or ''}".rstrip()
    share = ": the gradient depends on how devices and micro-batches share the completions"
    yield (
        f"Policy loss: {term.aggregation}, which {framework} on its own counts per {_SCOPES[own.denominator_scope]} "
        f"({one_line(own.denominator_formula)}){share if own.denominator_scope in ('rank', 'micro_batch') else ''}."
    )
    yield f"  Under run or wrap: {_term(term).removeprefix(f'{term.aggregation}, ')}."


def _term(term: LossTerm) -> str:
    constant = "" if term.constant is None else f", c = {number(term.constant)}"
    scope = _SCOPES[term.denominator_scope]
    return f"{term.aggregation}, a response token weighs {_WEIGHTS[term.aggregation]}{constant}, counted per {scope}"


def _count(value: int | float | None, one: str, many: str | None = None) -> str:
    if value is None:
        return f"an open number of {many or one + 's'}"
    return f"{number(value)} {one if value == 1 else many or one + 's'}"


def _fields(spec: Spec, provenance: Mapping[str, Provenance], table: Table) -> Iterator[str]:
    """Every field that the source says or that follows from it, in schema order; then the schema's own defaults."""
    from batchbridge.meaning.spec import walk

    rows, defaults, unset = [], [], []
    for path, value, quantity in walk(spec):
        if path in provenance:
            unit = "" if quantity.unit in NO_UNITS else quantity.unit
            rows.append((path, one_line(value), unit, one_line(_origin(provenance[path]))))
        elif value in (None, ()):
            unset.append(path)
        else:
            defaults.append(f"{path} = {one_line(value)}")
    yield from table(("field", "value", "unit", "from"), rows).splitlines()
    yield from _listing("by the schema's default:", defaults)
    yield from _listing("unknown, unlimited or off:", unset)


def _listing(title: str, items: Sequence[str]) -> Iterator[str]:
    """`title`, then the items, wrapped."""
    if items:
        import textwrap

        yield title
        # No-break spaces keep each item in one line; textwrap breaks at ASCII blanks only.
        text = ", ".join(item.replace(" ", "\u00a0") for item in items)
        for line in textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False):
            yield "  " + line.replace("\u00a0", " ")


_WIDTH = 100
"""Columns of listings; fixed, so that output does not depend on the terminal."""


def _origin(origin: Provenance) -> str:
    """Key, value and place; of the file only its name, which stands in full on the first line."""
    file = origin.file or ""
    detail = origin.detail.replace(file, file.rpartition("/")[2], 1)
    return detail if origin.key is None else f"{origin.key} = {one_line(origin.value)} ({detail})"


def _derived(derived: Mapping[str, Any], table: Table) -> Iterator[str]:
    from batchbridge.meaning.derived import UNITS

    rows = [(name, number(derived.get(name)), unit) for name, unit in UNITS.items()]
    yield from table(("number", "value", "unit"), rows).splitlines()


def _behaviour(behaviour: Behaviour) -> Iterator[str]:
    yield f"order: {one_line(behaviour.order)}"
    yield f"membership: {one_line(behaviour.membership)}"
    scope = _SCOPES[behaviour.denominator_scope]
    yield f"denominator: {one_line(behaviour.denominator_formula)}, counted per {scope}"
    yield f"learning rate: {one_line(behaviour.lr_tick)}"
    yield f"resume: {one_line(behaviour.resume)}"
    for open_point in behaviour.undecided:
        yield f"not fixed by the configuration: {one_line(open_point)}"
    for defect in behaviour.defects:
        yield f"known defect {defect.code}: {one_line(defect.summary)} (source: {one_line(defect.source)})"
    if behaviour.source:
        yield f"source: {one_line(behaviour.source)}"
