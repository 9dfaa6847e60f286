"""The words of `doctor` about a text that TRL prints and a rule is about, beyond the rule's row; see `Rule.text`."""

from __future__ import annotations

from collections.abc import Iterator

from batchbridge import Fix
from batchbridge.kit import Ask, ErrorText, Numbers
from batchbridge.kit.error_texts import devices, divisors, multiples, pattern, setting, smallest_factor

_GROUP = Ask(name="group", question="num_generations (completions per prompt)")


def _evaluation(n: Numbers) -> Iterator[Fix]:
    yield from setting("per_device_eval_batch_size", max(n["group"], 2))
    if "one" in n and "other" in n:
        yield from setting("num_generations", *divisors(n["one"] * n["other"], n["group"], least=2))


def _trl_groups(n: Numbers) -> Iterator[Fix]:
    """One of the sizes changed so that a rollout holds whole groups of at least two."""
    world, micro, group = n["world"], n["micro"], n["group"]
    accumulation = n.get("accumulation", 1)
    completions = world * micro * accumulation
    if group >= 2:
        sizes = multiples(smallest_factor(group, world * accumulation), micro)
        yield from setting("per_device_train_batch_size", *sizes)
        if "accumulation" in n:
            steps = multiples(smallest_factor(group, world * micro), accumulation)
            yield from setting("gradient_accumulation_steps", *steps)
        yield from devices(*multiples(smallest_factor(group, micro * accumulation), world))
    legal = divisors(completions, group, least=2) if completions >= 2 else []
    yield from setting("num_generations", *legal)
    if not legal:
        yield from setting("per_device_train_batch_size", max(group, 2))


def _trl_batch(n: Numbers) -> Iterator[Fix]:
    yield from setting("generation_batch_size", *multiples(n["group"], n["batch"]))
    yield from setting("num_generations", *divisors(n["batch"], n["group"], least=2))


def _trl_micro_steps(n: Numbers) -> Iterator[Fix]:
    yield from setting("generation_batch_size", *multiples(n["global"], n["batch"]))


GLOBAL_BATCH = ErrorText(
    name="trl-global-batch",
    pattern=pattern(
        r"global train batch size \(# x #\) must be evenly divisible by the number of generations per prompt"
        r"(?: \(#\))?",
        "world",
        "micro",
        "group",
    ),
    rule="devices x per_device_train_batch_size (completions of one micro-step; accumulation does not count) is a "
    "multiple of num_generations (completions per prompt), which is at least 2",
    meaning="a micro-step would cut a group. A device kept for vLLM does not train: 8 devices with one for vLLM "
    "are 7. From 0.17 on accumulation counts, and the same settings may be legal",
    source="huggingface/open-r1 issues 217 and 249, huggingface/trl issues 2858 and 2876",
    neighbours=_trl_groups,
    asks=(_GROUP,),
    counts={"world": "devices"},
)

EFFECTIVE_BATCH = ErrorText(
    name="trl-effective-batch",
    pattern=pattern(
        r"effective train batch size \(# x # x #\) must be evenly divisible by"
        r"(?: the number of generations per prompt(?: \(#\))?)?",
        "world",
        "micro",
        "accumulation",
        "group",
    ),
    rule="devices x per_device_train_batch_size x gradient_accumulation_steps (completions) is a multiple of "
    "num_generations (completions per prompt), which is at least 2",
    meaning="an optimizer step would cut a group",
    source="huggingface/trl pull request 3283",
    neighbours=_trl_groups,
    asks=(_GROUP,),
    counts={"world": "devices"},
)

GENERATION_BATCH = ErrorText(
    name="trl-generation-batch",
    pattern=pattern(r"generation_batch_size \(#\) must be divisible by num_generations \(#\)", "batch", "group"),
    rule="generation_batch_size (completions per rollout; by default per_device_train_batch_size x devices x "
    "steps_per_generation) is a multiple of num_generations (completions per prompt)",
    meaning="a rollout would cut a group",
    neighbours=_trl_batch,
    counts={"batch": "completions_per_rollout"},
)

GENERATION_MICRO_STEPS = ErrorText(
    name="trl-generation-micro-steps",
    pattern=pattern(r"generation_batch_size \(#\) must be divisible by the global batch size \(#\)", "batch", "global"),
    rule="generation_batch_size (completions per rollout) is a multiple of per_device_train_batch_size x devices",
    meaning="a rollout would cut a micro-step",
    neighbours=_trl_micro_steps,
)

EVALUATION_BATCH = ErrorText(
    name="trl-evaluation-batch",
    versions=">=0.15,!=0.20.*,!=0.21.*",
    pattern=pattern(
        r"global eval batch size(?: \(# [x*] #\))? must be (?:evenly )?divisible by the number of generations "
        r"(?:per prompt|used for evaluation)(?: \(#\))?",
        "one",
        "other",
        "group",
    ),
    rule="devices x per_device_eval_batch_size (completions) is a multiple of the generations per prompt of an "
    "evaluation (num_generations_eval, or num_generations)",
    meaning="an evaluation would cut a group; training alone would run, with eval_strategy = no",
    neighbours=_evaluation,
    asks=(_GROUP,),
)

TWO_GENERATIONS = ErrorText(
    name="trl-two-generations",
    rule="num_generations (completions per prompt) is at least 2",
    meaning="advantages compare the completions of a group; one completion has nothing to be compared with",
    neighbours=lambda n: setting("num_generations", 2),
)

TWO_ROLLOUT_SIZES = ErrorText(
    name="trl-two-rollout-sizes",
    rule="a rollout's size is said once: generation_batch_size (completions) or steps_per_generation (micro-steps)",
    meaning="either gives the other: generation_batch_size = per_device_train_batch_size x devices x "
    "steps_per_generation",
    neighbours=lambda n: (Fix(f"leave out {key}") for key in ("generation_batch_size", "steps_per_generation")),
)
