"""Error texts of TRL beside those that `batchbridge doctor` itself knows; see `Adapter.error_texts`."""

from __future__ import annotations

from collections.abc import Iterator

from batchbridge.between.doctor import Ask, ErrorText, Numbers, divisors, pattern, setting
from batchbridge.findings import Fix


def _evaluation(n: Numbers) -> Iterator[Fix]:
    yield from setting("per_device_eval_batch_size", max(n["group"], 2))
    if "one" in n and "other" in n:
        yield from setting("num_generations", *divisors(n["one"] * n["other"], n["group"], least=2))


TEXTS: tuple[ErrorText, ...] = (
    ErrorText(
        name="trl-evaluation-batch",
        framework="trl",
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
        asks=(Ask(name="group", question="num_generations (completions per prompt)"),),
    ),
    ErrorText(
        name="trl-two-generations",
        framework="trl",
        versions=">=0.17",
        pattern=r"GRPO requires at least 2 generations per prompt",
        rule="num_generations (completions per prompt) is at least 2",
        meaning="advantages compare the completions of a group; one completion has nothing to be compared with",
        phase="config",
        source="trl 0.17.0 GRPOTrainer.__init__, 0.18.0 to 1.16.0 GRPOConfig.__post_init__",
        neighbours=lambda n: setting("num_generations", 2),
    ),
    ErrorText(
        name="trl-two-rollout-sizes",
        framework="trl",
        versions=">=0.18",
        pattern=r"'generation_batch_size' and 'steps_per_generation' can not be both configured",
        rule="a rollout's size is said once: generation_batch_size (completions) or steps_per_generation (micro-steps)",
        meaning="either gives the other: generation_batch_size = per_device_train_batch_size x devices x "
        "steps_per_generation",
        phase="config",
        source="trl 0.18.0 to 1.16.0 GRPOConfig.__post_init__",
        neighbours=lambda n: (Fix(f"leave out {key}") for key in ("generation_batch_size", "steps_per_generation")),
    ),
)
