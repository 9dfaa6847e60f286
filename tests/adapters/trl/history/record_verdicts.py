"""Random configurations through one TRL release's own construction: `python record_verdicts.py OUT.jsonl [DRAWS]`.

Run in an environment of that release. Each line of OUT: the release, the settings, the processes, and the first error
(type and the start of its text) or null. Before 0.18 the rules about sizes sit in `GRPOTrainer.__init__`, so a trainer
is built there. DRAWS configurations are tried and held against our own verdict; of each outcome a few are kept.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path

import transformers
from near_legal import sizes
from tiny_trainer import FIELDS, VERSION, config, processes, trainer
from trl_verdicts import our_rule, retired_rule_of_text, rule_of_text

KEPT_PER_OUTCOME = 6
BUILDS_TRAINERS = "steps_per_generation" not in FIELDS


def draw(rng: random.Random) -> tuple[dict[str, object], int]:
    """Sizes near legal ones, and now and then a setting that some release refuses."""
    settings, world = sizes(rng)
    settings["bf16"] = False
    for share, more in (
        (0.05, {"auto_find_batch_size": True}),
        (0.03, {"fp16": True, "bf16": True}),
        (0.04, {"warmup_steps": rng.choice([-1, 10])}),
        (0.04, {"warmup_ratio": rng.choice([-0.1, 0.1, 1.5])}),
        (0.04, {"log_completions_hub_repo": "someone/something"}),
        (0.04, {"dataloader_prefetch_factor": 2}),
        (0.04, {"logging_steps": 0}),
        (0.05, {"delta": 2.0, rng.choice(["use_liger_loss", "use_liger_kernel"]): True}),
        (0.05, {"vllm_importance_sampling_clip_min": rng.choice([0.5, 3.0, 4.0])}),
        (0.05, {"vllm_importance_sampling_clip_max": None, "vllm_importance_sampling_mode": "token_truncate"}),
        (0.05, {"scale_rewards": rng.choice([True, False])}),
    ):
        if rng.random() < share:
            settings |= more
    known = FIELDS - ({"use_liger_kernel", "use_liger_loss"} if BUILDS_TRAINERS else set())  # it is not installed
    return {key: value for key, value in settings.items() if key in known}, world


def first_error(settings: dict[str, object], world: int) -> str | None:
    """What this release raises at construction; None where it does not."""
    try:
        with processes(world):
            made = config(**settings)
            if BUILDS_TRAINERS:
                trainer(made, 4, lambda completions, **columns: [0.0] * len(completions))
    except (ValueError, ZeroDivisionError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"[:110]
    return None


def main(path: str, draws: int) -> None:
    rng, kept, wrong = random.Random(0), {}, []
    for _ in range(draws):
        settings, world = draw(rng)
        error = first_error(settings, world)
        rule = retired_rule_of_text(error) or rule_of_text(error, settings)
        if retired_rule_of_text(error) is None and our_rule(settings, world, VERSION) != rule:
            wrong.append((settings, world, error, our_rule(settings, world, VERSION)))
        outcome = kept.setdefault(rule, [])
        if len(outcome) < KEPT_PER_OUTCOME * (3 if rule is None else 1):
            outcome.append({"settings": settings, "world": world, "error": error})
    with Path(path).open("a", encoding="utf-8") as out:
        for verdict in (verdict for outcome in kept.values() for verdict in outcome):
            out.write(json.dumps({"trl": VERSION, "transformers": transformers.__version__, **verdict}) + "\n")
    print(VERSION, "drawn", draws, "kept", {rule: len(outcome) for rule, outcome in kept.items()}, "wrong", len(wrong))
    for settings, world, error, ours in wrong[:8]:
        print("  ", settings, "world", world, "\n      native", error, "\n      ours", ours)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]) if len(sys.argv) > 2 else 2000)
