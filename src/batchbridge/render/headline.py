"""The lines under a report's first: the sizes of batches, whose numbers they are, and what nobody has said."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from batchbridge.render.findings import count, number, one_line
from batchbridge.render.words import listed, say

if TYPE_CHECKING:
    from batchbridge.comparing.beside_open import SizesBesideOpen
    from batchbridge.comparing.releases import ReleaseSpan, ReleaseVerdicts
    from batchbridge.contract.reading import CountedSizes, Reading

PINNED = "BB024"
"""The note about a version that nobody named and the repository pins."""


class HeadlineFacts(NamedTuple):
    """The facts that stand beside a reading, as `batchbridge.Check` has them."""

    judged: ReleaseVerdicts | None = None
    devices: tuple[int, ...] = ()
    example: Reading | None = None
    nowhere: tuple[str, ...] = ()
    refused: tuple[str, ...] = ()
    beside_open: SizesBesideOpen | None = None


NOTHING_BESIDE = HeadlineFacts()


def lines(reading: Reading, facts: HeadlineFacts, *, sizes: bool, verbose: bool) -> Iterator[str]:
    """The lines between the verdict and the findings. sizes: whether those of batches are among them."""
    yield from _pinned(reading, verbose)
    own = reading.counts_itself
    if facts.refused and not own:
        yield from _no_batches(reading, facts.refused)
    elif sizes and not _torn(reading):
        beside = None if own else facts.beside_open
        yield from _batches(beside.reading if beside else reading)
        yield from _like(beside.reading if beside else reading)
        if beside:
            yield one_line(beside.condition)
    yield from condition(reading)
    yield from _nowhere(reading, facts.nowhere)
    yield from _devices(facts, conditional=reading.condition is not None)


def who(reading: Reading) -> str:
    """`trl 1.16.0`, `verl 0.2.0.dev, your copy`; the framework alone where no version is known."""
    if reading.copy is not None:
        return one_line(reading.copy.title(reading.framework))
    return one_line(f"{reading.framework} {reading.framework_version or ''}".rstrip())


def own_sizes(reading: Reading) -> Iterator[str]:
    """The sizes of a program that counts batches itself, and what is known of it."""
    yield from _batches(reading)
    yield from condition(reading)


def _pinned(reading: Reading, verbose: bool) -> Iterator[str]:
    """`setup.py:72 pins 0.18.0, which is taken`: what decides the rest is said, also where notes are counted."""
    for finding in reading.findings:
        if finding.code == PINNED and not verbose:
            yield one_line(finding.message.partition(": ")[2])


def _no_batches(reading: Reading, refused: tuple[str, ...]) -> Iterator[str]:
    """The line in the place of the sizes, where they would be defaults in the place of keys that were given."""
    sentence = "no sizes are shown: {keys}, which decide them, {framework} {version} does not have"
    if len(refused) == 1:
        sentence = "no sizes are shown: {keys}, which decides them, {framework} {version} does not have"
    whose = {"framework": reading.framework, "version": reading.framework_version}
    yield one_line(say(sentence, keys=_first(refused, 4), **whose))


def _first(keys: Sequence[str], most: int) -> str:
    """The first `most` of the keys, and how many more there are."""
    shown = listed(keys[:most])
    return say("{keys} and {number} more", keys=shown, number=len(keys) - most) if keys[most:] else shown


def _torn(reading: Reading) -> bool:
    """Whether an error is about groups that the sizes of batches do not hold whole: the settings say no sizes then."""
    wrong = [one for one in reading.findings if one.severity == "error" and not one.undecided]
    if not wrong or reading.spec is None:
        return False
    from batchbridge.reading.undeclared import deciding
    from batchbridge.render.torn_sizes import torn_size

    sizes = {*deciding(reading)}
    torn = [one for one in wrong if {place.key for place in one.where} <= sizes]  # an evaluation has sizes of its own
    return any((found := torn_size(one)) is not None and found.parts == "groups" for one in torn)


def _batches(reading: Reading) -> Iterator[str]:
    """`1,024 prompts x 5 = 5,120 completions per rollout; 4 optimizer steps of 1,280 completions`."""
    if reading.condition is not None and reading.condition.otherwise:
        yield from _counted(reading.condition.sizes)
        return
    if reading.spec is None:
        return
    rollout, step = reading.spec.rollout, reading.spec.optimizer_step
    group, steps = rollout.completions_per_prompt, reading.derived.get("optimizer_steps_per_rollout")
    if rollout.prompts_per_rollout is None:
        said = say("prompts are streamed, {completions} each", completions=count(group, "completion"))
    else:
        said = _rollout(rollout.prompts_per_rollout, group, reading.spec.completions_per_rollout)
    sizes = ((getattr(step, name), unit) for name, unit in _STEP_UNITS.items())
    size = next((count(value, unit) for value, unit in sizes if value is not None), None)
    of = "" if size is None else say(" of {size}", size=size)
    if steps is None:
        yield say("{rollout}; optimizer steps{of}", rollout=said, of=of) if of else said
    elif 0 < steps < 1 and step.step_may_span in ("none", "rollout"):
        yield say("{rollout}, fewer than an optimizer step{of}, which takes no second rollout", rollout=said, of=of)
    elif 0 < steps < 1:
        rollouts = number(1 / steps)
        yield say("{rollout}; an optimizer step{of} takes {number} rollouts", rollout=said, of=of, number=rollouts)
    else:
        many, passes = count(steps, "optimizer step"), ""
        if step.passes_per_rollout > 1:
            passes = say(" in {passes}", passes=count(step.passes_per_rollout, "pass", "passes"))
        yield say("{rollout}; {steps}{of}{passes}", rollout=said, steps=many, of=of, passes=passes)


def _rollout(prompts: float, group: float, completions: float | None) -> str:
    """`1,024 prompts x 5 = 5,120 completions per rollout`."""
    made, total = count(prompts, "prompt"), count(completions, "completion")
    return say("{prompts} x {group} = {total} per rollout", prompts=made, group=number(group), total=total)


_STEP_UNITS = {
    "completions_per_step": "completion",
    "tokens_per_step": "token",
    "micro_batches_per_step": "micro-batch",
}


def _counted(sizes: CountedSizes | None) -> Iterator[str]:
    """The sizes that a known program counts itself."""
    if sizes is None:
        return
    total = sizes.prompts * sizes.per_prompt
    said = _rollout(sizes.prompts, sizes.per_prompt, total)
    trained, step = sizes.trained, sizes.step
    if trained is not None and trained != total:
        said += say(", of which {number} are trained on", number=number(trained))
    if step is None:
        yield say("{rollout}; what an optimizer step has is not decided", rollout=said)
        return
    of = say(" of {size}", size=count(step, "completion"))
    if trained is not None and step <= trained:
        steps = count(-(-trained // step), "optimizer step")
        yield say("{rollout}; {steps}{of}{passes}", rollout=said, steps=steps, of=of, passes="")
    else:
        yield say("{rollout}; optimizer steps{of}", rollout=said, of=of)


def _like(reading: Reading) -> Iterator[str]:
    """The release whose sizes those are, where the functions of the user's copy that decide them are others."""
    copy = reading.copy
    if reading.loose and (reading.spec is not None or reading.condition is not None):
        named = listed(reading.loose[:2])
        yield one_line(say("so counted, and right if {files} says nothing of them", files=named))
    if copy is None or reading.spec is None or reading.counts_itself:
        return
    if changed := copy.changed(*SIZES_OF_COPIES):
        yield one_line(f"as {reading.framework} {copy.release} would count them; {changed} here")


SIZES_OF_COPIES = ("rollout size", "step size", "passes")
"""The numbers of `OwnCopy.differing` that the line of sizes has."""


def condition(reading: Reading) -> Iterator[str]:
    """Whose numbers are shown, where it is not known that the framework's own trainer runs."""
    said = reading.condition
    if said is None:
        return
    rest = f"the rest is {said.whose}'s, and right if {said.supposed}"
    if not said.otherwise:
        yield one_line(f"numbers of {said.whose}'s, and right if {said.supposed}: {said.why}")
    elif said.sizes is not None:
        yield one_line(f"its own sizes: {said.why}; {rest}")
    else:
        yield one_line(f"no sizes are shown, because {said.why}; {rest}")


def _nowhere(reading: Reading, keys: tuple[str, ...]) -> Iterator[str]:
    """The keys that no release declares, whatever the version does with them."""
    if keys:
        said = _first(keys, 6)
        yield one_line(say("no release of {framework} has {keys}", framework=reading.framework, keys=said))


def _devices(facts: HeadlineFacts, *, conditional: bool) -> Iterator[str]:
    """The numbers of devices on which it would be valid, where that is open, and the sizes on one of them. conditional:
    whether it is said already whose sizes they are."""
    if facts.devices:
        from batchbridge.comparing.releases import MOST_DEVICES

        sizes = say("every number") if len(facts.devices) == MOST_DEVICES else listed(map(str, facts.devices))
        yield say("valid on {sizes} of 1 to {most} devices (say --world-size)", sizes=sizes, most=MOST_DEVICES)
    if facts.example is not None and facts.example.spec is not None:
        many = count(facts.example.spec.topology.world_size, "device")
        yield from (say("for example on {devices}: {sizes}", devices=many, sizes=of) for of in _batches(facts.example))
        if not conditional:
            yield from condition(facts.example)


def releases(judged: ReleaseVerdicts | None, *, verbose: bool) -> Iterator[str]:
    """The judgements under the known releases, where no version was named: one line; verbose: why, too."""
    if judged is None:
        return
    framework, spans = judged.reading.framework, judged.spans
    # The sentence about a commit or a pin has English words alone, and then so has the whole line.
    said = str.format if judged.unnamed else say
    why = judged.unnamed or say("no version was named")
    if judged.required is not None:
        asks = {"places": judged.required.places, "versions": judged.required.versions}
        why = say("no version was named, and {places} asks for {framework} {versions}", framework=framework, **asks)
    if len(spans) == 1:
        yield said(
            "{why}: the same under every known {framework}, {releases}",
            why=why,
            framework=framework,
            releases=_span(spans[0], said),
        )
        return
    alike = {span.verdict for span in spans}
    told = said("; ").join(f"{_span(span, said)} {said(span.verdict)}{_codes(span)}" for span in spans)
    if len(alike) == 1:
        ends = {"first": spans[0].first, "last": spans[-1].last, "verdict": said(alike.pop())}
        every = said("{verdict} under every known {framework}, {first} to {last}", framework=framework, **ends)
        told = said("{every}, for reasons or with numbers that differ", every=every)
    hows = {"valid": "the newest in which it is valid", "undecided": "the newest without an error"}
    how = "the newest" if judged.verdict == "invalid" else hows.get(judged.reading.verdict, "the newest")
    version = judged.reading.framework_version
    taken = said("{version}, {how}, is shown", version=version, how=said(how))
    hint = said("--framework-version names one" if verbose else "--framework-version names one, -v says why")
    yield one_line(said("{why}: {told}; {taken} ({hint})", why=why, told=told, taken=taken, hint=hint))
    if verbose:
        yield from map(one_line, judged.lines())


def _span(span: ReleaseSpan, said: Callable[..., str]) -> str:
    """The releases of a span: its name, in the words of `said`."""
    return span.first if span.first == span.last else said("{first} to {last}", first=span.first, last=span.last)


def _codes(span: ReleaseSpan) -> str:
    """The rules that a span's releases are broken by."""
    codes = dict.fromkeys(error.partition(" ")[0] for error in span.errors)
    return f" ({', '.join(codes)})" if codes else ""
