"""The meaning of a reading in sentences, and what the framework does by itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from batchbridge.render import headline
from batchbridge.render.findings import count, number, one_line
from batchbridge.render.headline import who
from batchbridge.render.words import listed, say

if TYPE_CHECKING:
    from batchbridge.contract.reading import Behaviour, Reading
    from batchbridge.meaning.spec import LossTerm, Spec


def meaning(reading: Reading) -> Iterator[str]:
    """The meaning of a reading in words, a sentence a line; nothing without a specification."""
    from batchbridge.meaning.spec import STEP_SIZES

    if reading.counts_itself:
        yield from headline.own_sizes(reading)
        return
    spec, derived = reading.spec, reading.derived
    if spec is None:
        return
    rollout, step, horizon, t = spec.rollout, spec.optimizer_step, spec.horizon, spec.topology
    group = rollout.completions_per_prompt
    if rollout.prompts_per_rollout is None:
        yield say("Prompts are streamed; each gets {completions}.", completions=count(group, "completion"))
    else:
        yield say(
            "A rollout takes {prompts} and generates {completions} for each: {total}.",
            prompts=count(rollout.prompts_per_rollout, "prompt"),
            completions=count(group, "completion"),
            total=count(spec.completions_per_rollout, "completion"),
        )
    steps = derived.get("optimizer_steps_per_rollout")
    takes_one = steps is not None and 0 < steps < 1 and step.step_may_span in ("none", "rollout")
    if step.completions_per_step is not None and takes_one:
        yield say(
            "An optimizer step has room for {completions}, and trains on the {number} of one rollout.",
            completions=count(step.completions_per_step, "completion"),
            number=number(spec.completions_per_rollout),
        )
    elif step.completions_per_step is not None:
        prompts = derived.get("prompts_per_step")
        several = "each replica of the model" if t.replica_size > 1 else "each of {devices} devices"
        place = several if t.world_size > 1 else "the one device"
        yield say(
            "An optimizer step trains on {completions}, the size of {prompts}: {number} on {place}.",
            completions=count(step.completions_per_step, "completion"),
            prompts="- prompts" if prompts is None else count(prompts, "prompt"),
            number=number(derived.get("completions_per_device_per_step")),
            place=say(place, devices=number(t.world_size)),
        )
    else:
        sized = ((n.replace("_", " "), v) for n in STEP_SIZES if (v := getattr(step, n)) is not None)
        sizes = listed(f"{say(n)} = {number(v)}" for n, v in sized) or say("nothing")
        yield say("An optimizer step is sized by {sizes}.", sizes=sizes)
    parts = say("{steps} per rollout", steps=count(steps, "optimizer step"))
    if takes_one:
        parts = say("a rollout is less than an optimizer step, which takes no second one")
    passes = count(step.passes_per_rollout, "pass", "passes")
    yield say("Each rollout is trained on in {passes}: {steps}.", passes=passes, steps=parts)
    yield from _policy_loss(reading, spec.loss.policy)
    for name, term in (("KL", spec.loss.kl), ("entropy", spec.loss.entropy)):
        if term is not None:
            yield say("{name} loss: {term}.", name=say(name), term=_term(term))
    if spec.critic is not None:
        yield from _critic(spec)
    said = [count(length, name.removesuffix("s").replace("_", " ")) for name, length in horizon.lengths.items()]
    length = say(" or ").join(said) or say("no stated length")
    first = say(", whichever ends first") if len(said) > 1 else ""
    tick = say(horizon.lr_tick.replace("_", " "))
    sentence = "The run has {length}{first}; the learning rate moves after every {tick}."
    yield say(sentence, length=length, first=first, tick=tick)
    if spec.open_terms:
        taken = "wrap refuses them" if spec.unfollowed_terms else "a wrapped run keeps the framework's own advantages"
        yield say(
            "Terms that the schema has no word for: {terms}. What is said here holds beside them; {taken}, and a "
            "conversion keeps only those that its target names alike.",
            terms=one_line(spec.open_terms),
            taken=say(taken),
        )
    yield from micro_batch(spec)
    total, rollouts = derived.get("total_optimizer_steps"), derived.get("total_rollouts")
    if reading.dataset_size is not None:
        dropped = derived.get("prompts_dropped_per_epoch")
        yield say(
            "With {prompts}: {steps} and {rollouts} in all; {dropped} dropped in every epoch.",
            prompts=count(reading.dataset_size, "prompt"),
            steps=count(total, "optimizer step"),
            rollouts=count(rollouts, "rollout"),
            dropped=count(dropped, "prompt"),
        )


def micro_batch(spec: Spec) -> Iterator[str]:
    """The tokens of a device's largest micro-batch, in a sentence; nothing where they are open. Sequences that several
    devices share (context parallelism) are divided by these, rounded up."""
    micro, completion, longest = spec.micro_batch, spec.carried.max_completion_tokens, spec.carried.longest_tokens
    if completion is None or longest is None:
        return
    share, prompt = spec.topology.context_parallel, spec.carried.max_prompt_tokens
    if micro.completions_per_device is not None:
        tokens = -(-micro.completions_per_device * longest // share)
        size = f"{micro.completions_per_device:,} x {longest:,}{f' / {share}' if share > 1 else ''} = {tokens:,}"
        unlimited = "" if prompt is not None else say(", and their prompts, which have no limit")
        many = count(micro.completions_per_device, "completion")
        sentence = "A micro-batch has {completions}: up to {size} tokens per device{prompts}."
        yield say(sentence, completions=many, size=size, prompts=unlimited)
    elif micro.tokens_per_device is not None:
        budget = micro.tokens_per_device
        tokens = max(budget, -(-longest // share)) if micro.cap == "soft" else budget
        whole = (prompt or 0) + completion
        sentence = "A micro-batch has up to {tokens} tokens per device; a completion with its prompt {whole}."
        yield say(sentence, tokens=number(tokens), whole=number(whole))


_SCOPES = {"optimizer_step": "optimizer step", "rollout": "rollout", "rank": "rank", "micro_batch": "micro-batch"}


def _policy_loss(reading: Reading, term: LossTerm) -> Iterator[str]:
    """The loss of the framework's own run first, where it counts otherwise than a run that is followed."""
    own = reading.behaviour
    if own is None or own.denominator_scope == term.denominator_scope:
        yield say("Policy loss: {term}.", term=_term(term))
        return
    depends = say(": the gradient depends on how devices and micro-batches share the completions")
    yield say(
        "Policy loss: {aggregation}, which {framework} on its own counts per {scope} ({formula}){depends}.",
        aggregation=term.aggregation,
        framework=who(reading),
        scope=say(_SCOPES[own.denominator_scope]),
        formula=one_line(own.denominator_formula),
        depends=depends if own.denominator_scope in ("rank", "micro_batch") else "",
    )
    yield say("  Under run or wrap: {term}.", term=_weight(term))


def _critic(spec: Spec) -> Iterator[str]:
    from batchbridge.meaning.critic_run import run_of_critic
    from batchbridge.meaning.derived import derive

    critic, own = spec.critic, run_of_critic(spec)
    assert critic is not None
    steps = derive(own)["optimizer_steps_per_rollout"]
    sized = own.optimizer_step.completions_per_step
    yield say(
        "A critic trains on each rollout in {passes}: {steps}{of}; GAE's gamma is {gamma}, its lambda {gae_lambda}.",
        passes=count(critic.passes_per_rollout, "pass", "passes"),
        steps=count(steps, "optimizer step"),
        of="" if sized is None else say(" of {size}", size=count(sized, "completion")),
        gamma=number(critic.gamma),
        gae_lambda=number(critic.gae_lambda),
    )
    yield say("Value loss: {term}.", term=_term(own.loss.policy))
    if critic.warmup_rollouts:
        rollouts = count(critic.warmup_rollouts, "rollout")
        yield say("The policy does not train on the first {rollouts}.", rollouts=rollouts)


def _term(term: LossTerm) -> str:
    return listed((term.aggregation, _weight(term)))


def _weight(term: LossTerm) -> str:
    from batchbridge.meaning.weights import WEIGHT_FORMULAS

    constant = "" if term.constant is None else say(", c = {number}", number=number(term.constant))
    scope, weight = say(_SCOPES[term.denominator_scope]), WEIGHT_FORMULAS[term.aggregation]
    sentence = "a response token weighs {weight}{constant}, counted per {scope}"
    return say(sentence, weight=weight, constant=constant, scope=scope)


DEFECT = "known defect"


def behaviour(found: Behaviour, *, verbose: bool) -> Iterator[tuple[str, str]]:
    """(word, sentence) pairs about what a framework does by itself; the sources only where `verbose`."""
    yield "order", one_line(found.order)
    yield "membership", one_line(found.membership)
    yield "denominator", one_line(f"{found.denominator_formula}, counted per {_SCOPES[found.denominator_scope]}")
    yield "learning rate", one_line(found.lr_tick)
    yield "resume", one_line(found.resume)
    for open_point in found.undecided:
        yield "not fixed by the configuration", one_line(open_point)
    for defect in found.defects:
        source = f" (source: {defect.source})" if verbose else ""
        yield f"{DEFECT} {defect.code}", one_line(f"{defect.summary}{source}")
    if found.source and verbose:
        yield "source", one_line(found.source)
