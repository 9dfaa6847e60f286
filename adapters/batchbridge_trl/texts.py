"""Error texts of TRL; see `Adapter.error_texts`."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from batchbridge import Fix
from batchbridge.kit import Ask, ErrorText, Numbers
from batchbridge.kit.error_texts import devices, divisors, multiples, pattern, setting, smallest_factor

_GROUP = Ask(name="group", question="num_generations (completions per prompt)")


_OTHER_KEY = (
    Fix("leave the key out"),
    Fix("the nearest key, or the versions that have it: batchbridge check FILE names them"),
)


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


_text = partial(ErrorText, framework="trl")
TEXTS: tuple[ErrorText, ...] = (
    _text(
        name="trl-global-batch",
        versions=">=0.15,<0.17",
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
        phase="construction",
        source="huggingface/open-r1 issues 217 and 249, huggingface/trl issues 2858 and 2876; trl 0.15 GRPOTrainer",
        neighbours=_trl_groups,
        asks=(_GROUP,),
    ),
    _text(
        name="trl-effective-batch",
        versions=">=0.17,<0.20",
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
        phase="construction",
        source="huggingface/trl pull request 3283; trl 0.17.0 GRPOTrainer.__init__, 0.18.0 to 0.19.1 GRPOConfig",
        neighbours=_trl_groups,
        asks=(_GROUP,),
    ),
    _text(
        name="trl-generation-batch",
        versions=">=0.20",
        pattern=pattern(r"generation_batch_size \(#\) must be divisible by num_generations \(#\)", "batch", "group"),
        rule="generation_batch_size (completions per rollout; by default per_device_train_batch_size x devices x "
        "steps_per_generation) is a multiple of num_generations (completions per prompt)",
        meaning="a rollout would cut a group",
        phase="construction",
        source="trl 0.20.0 to 1.16.0 GRPOConfig.__post_init__",
        neighbours=_trl_batch,
    ),
    _text(
        name="trl-generation-micro-steps",
        versions=">=0.18",
        pattern=pattern(
            r"generation_batch_size \(#\) must be divisible by the global batch size \(#\)", "batch", "global"
        ),
        rule="generation_batch_size (completions per rollout) is a multiple of per_device_train_batch_size x devices",
        meaning="a rollout would cut a micro-step",
        phase="construction",
        source="trl 0.18 to 1.16.0 GRPOConfig.__post_init__",
        neighbours=_trl_micro_steps,
    ),
    _text(
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
        phase="construction",
        source="trl 0.15.0 to 0.17.0 GRPOTrainer.__init__, 0.18.0 to 0.19.1 and 0.22.0 to 1.16.0 GRPOConfig",
        neighbours=_evaluation,
        asks=(_GROUP,),
    ),
    _text(
        name="trl-two-generations",
        versions=">=0.17",
        pattern=r"GRPO requires at least 2 generations per prompt",
        rule="num_generations (completions per prompt) is at least 2",
        meaning="advantages compare the completions of a group; one completion has nothing to be compared with",
        phase="config",
        source="trl 0.17.0 GRPOTrainer.__init__, 0.18.0 to 1.16.0 GRPOConfig.__post_init__",
        neighbours=lambda n: setting("num_generations", 2),
    ),
    _text(
        name="trl-two-rollout-sizes",
        versions=">=0.18",
        pattern=r"'generation_batch_size' and 'steps_per_generation' can not be both configured",
        rule="a rollout's size is said once: generation_batch_size (completions) or steps_per_generation (micro-steps)",
        meaning="either gives the other: generation_batch_size = per_device_train_batch_size x devices x "
        "steps_per_generation",
        phase="config",
        source="trl 0.18.0 to 1.16.0 GRPOConfig.__post_init__",
        neighbours=lambda n: (Fix(f"leave out {key}") for key in ("generation_batch_size", "steps_per_generation")),
    ),
    _text(
        name="trl-unknown-argument",
        versions=">=0.15",
        pattern=r"Unknown arguments from config file(?:: \[[^]]{1,400}\])?",
        rule="every key of the recipe is a setting of the script, of GRPOConfig or of ModelConfig in this TRL",
        meaning="the recipe has keys that this version lacks: misspelt, or of another version of TRL or transformers",
        phase="config",
        source="trl TrlParser.parse_args_and_config, BB-TRL-003",
        neighbours=lambda n: _OTHER_KEY,
    ),
    _text(
        name="trl-unexpected-keyword",
        versions=">=0.15",
        pattern=r"GRPOConfig\.__init__\(\) got an unexpected keyword argument '\w{1,100}'",
        rule="every argument of GRPOConfig is one of its settings in this version of TRL",
        meaning="the argument is misspelt, or of another version of TRL or transformers",
        phase="config",
        source="Python's own message about a dataclass, BB-TRL-003",
        neighbours=lambda n: _OTHER_KEY,
    ),
)
