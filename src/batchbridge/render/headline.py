"""The lines under a report's first: the sizes of batches, whose numbers they are, and what nobody has said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from batchbridge.render.findings import count, number, one_line

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
    own = reading.condition is not None and reading.condition.otherwise
    if facts.refused and not own:
        yield from _no_batches(reading, facts.refused)
    elif sizes and not _torn(reading):
        beside = None if own else facts.beside_open
        yield from _batches(beside.reading if beside else reading)
        yield from _like(beside.reading if beside else reading)
        if beside:
            yield one_line(beside.condition)
    yield from _condition(reading)
    yield from _nowhere(reading, facts.nowhere)
    yield from _devices(facts)


def _pinned(reading: Reading, verbose: bool) -> Iterator[str]:
    """`setup.py:72 pins 0.18.0, which is taken`: what decides the rest is said, also where notes are counted."""
    for finding in reading.findings:
        if finding.code == PINNED and not verbose:
            yield one_line(finding.message.partition(": ")[2])


def _no_batches(reading: Reading, refused: tuple[str, ...]) -> Iterator[str]:
    """The line in the place of the sizes, where they would be defaults in the place of keys that were given."""
    keys = ", ".join(refused[:4]) + (f" and {len(refused) - 4} more" if refused[4:] else "")
    verb = "decides" if len(refused) == 1 else "decide"
    yield one_line(
        f"no sizes are shown: {keys}, which {verb} them, {reading.framework} {reading.framework_version} does not have"
    )


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
        said = f"prompts are streamed, {count(group, 'completion')} each"
    else:
        total = count(reading.spec.completions_per_rollout, "completion")
        said = f"{count(rollout.prompts_per_rollout, 'prompt')} x {number(group)} = {total} per rollout"
    sizes = ((getattr(step, name), unit) for name, unit in _STEP_UNITS.items())
    size = next((count(value, unit) for value, unit in sizes if value is not None), None)
    of = "" if size is None else f" of {size}"
    if steps is None:
        yield f"{said}; optimizer steps{of}" if of else said
    elif 0 < steps < 1 and step.step_may_span in ("none", "rollout"):
        yield f"{said}, fewer than an optimizer step{of}, which takes no second rollout"
    elif 0 < steps < 1:
        yield f"{said}; an optimizer step{of} takes {number(1 / steps)} rollouts"
    else:
        passes = f" in {count(step.passes_per_rollout, 'pass', 'passes')}" if step.passes_per_rollout > 1 else ""
        yield f"{said}; {count(steps, 'optimizer step')}{of}{passes}"


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
    said = f"{count(sizes.prompts, 'prompt')} x {number(sizes.per_prompt)} = {count(total, 'completion')} per rollout"
    trained, step = sizes.trained, sizes.step
    if trained is not None and trained != total:
        said += f", of which {number(trained)} are trained on"
    if step is None:
        yield f"{said}; what an optimizer step has is not decided"
    elif trained is not None and step <= trained:
        yield f"{said}; {count(-(-trained // step), 'optimizer step')} of {count(step, 'completion')}"
    else:
        yield f"{said}; optimizer steps of {count(step, 'completion')}"


def _like(reading: Reading) -> Iterator[str]:
    """The release whose sizes those are, where the functions of the user's copy that decide them are others."""
    copy, condition = reading.copy, reading.condition
    if reading.loose and (reading.spec is not None or condition is not None):
        yield one_line(f"so counted, and right if {', '.join(reading.loose[:2])} says nothing of them")
    if copy is None or reading.spec is None or (condition is not None and condition.otherwise):
        return
    if changed := copy.changed(*SIZES_OF_COPIES):
        yield one_line(f"as {reading.framework} {copy.release} would count them; {changed} here")


SIZES_OF_COPIES = ("rollout size", "step size", "passes")
"""The numbers of `OwnCopy.differing` that the line of sizes has."""


def _condition(reading: Reading) -> Iterator[str]:
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
        said = ", ".join(keys[:6]) + (f" and {len(keys) - 6} more" if keys[6:] else "")
        yield one_line(f"no release of {reading.framework} has {said}")


def _devices(facts: HeadlineFacts) -> Iterator[str]:
    """The numbers of devices on which it would be valid, where that is open, and the sizes on one of them."""
    if facts.devices:
        from batchbridge.comparing.releases import MOST_DEVICES

        sizes = "every number" if len(facts.devices) == MOST_DEVICES else one_line(facts.devices)
        yield f"valid on {sizes} of 1 to {MOST_DEVICES} devices (say --world-size)"
    if facts.example is not None and facts.example.spec is not None:
        many = count(facts.example.spec.topology.world_size, "device")
        yield from (f"for example on {many}: {line}" for line in _batches(facts.example))


def releases(judged: ReleaseVerdicts | None, *, verbose: bool) -> Iterator[str]:
    """The judgements under the known releases, where no version was named: one line; verbose: why, too."""
    if judged is None:
        return
    framework, spans = judged.reading.framework, judged.spans
    why = judged.unnamed or "no version was named"
    if len(spans) == 1:
        yield f"{why}: the same under every known {framework}, {spans[0].name}"
        return
    alike = {span.verdict for span in spans}
    told = "; ".join(f"{span.name} {span.verdict}{_codes(span)}" for span in spans)
    if len(alike) == 1:
        every = f"{alike.pop()} under every known {framework}, {spans[0].first} to {spans[-1].last}"
        told = f"{every}, for reasons or with numbers that differ"
    hows = {"valid": "the newest in which it is valid", "undecided": "the newest without an error"}
    how = "the newest" if judged.verdict == "invalid" else hows.get(judged.reading.verdict, "the newest")
    taken = f"{judged.reading.framework_version}, {how}, is shown"
    yield one_line(f"{why}: {told}; {taken} (--framework-version names one{'' if verbose else ', -v says why'})")
    if verbose:
        yield from map(one_line, judged.lines())


def _codes(span: ReleaseSpan) -> str:
    """The rules that a span's releases are broken by."""
    codes = dict.fromkeys(error.partition(" ")[0] for error in span.errors)
    return f" ({', '.join(codes)})" if codes else ""
