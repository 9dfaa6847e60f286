"""What TRL never notices about single settings: they have no effect, or another one than their name says."""

from __future__ import annotations

from batchbridge.kit.rule_table import NOTE, SILENT
from batchbridge_trl.meaning import UNCARRIED
from batchbridge_trl.rules.facts import ALL, POST_INIT, Facts, Rule
from batchbridge_trl.rules.fixes import setting
from batchbridge_trl.settings import TRL_GROUPS
from batchbridge_trl.tables import settings_of


def _data_seed(facts: Facts) -> str | None:
    seed = facts.native["data_seed"]
    return f"data_seed = {seed} has no effect in GRPO: seed orders the prompts" if seed is not None else None


def _low_delta(facts: Facts) -> str | None:
    native = facts.native
    high = native["epsilon"] if native["epsilon_high"] is None else native["epsilon_high"]
    if native["delta"] is None or facts.loss is None or facts.loss.surrogate != "ppo" or native["delta"] >= 1 + high:
        return None
    return f"delta = {native['delta']} is below 1 + {high}, so it also bounds the ratio of positive advantages"


def _deprecated_cap(facts: Facts) -> str | None:
    cap = facts.native["vllm_importance_sampling_cap"]
    return (
        f"vllm_importance_sampling_cap = {cap} is deprecated and wins over the upper bound" if cap is not None else None
    )


def _uncarried(facts: Facts) -> str | None:
    rows = settings_of(TRL_GROUPS, facts.version)
    surrogate = facts.loss.surrogate if facts.loss else None
    set_ones = []
    for key, topic in UNCARRIED.items():
        if topic.startswith("surrogate ") and topic.removeprefix("surrogate ") != surrogate:
            continue
        if key == "ref_model_mixup_alpha" and not facts.native["sync_ref_model"]:
            continue
        if key in rows and facts.native[key] != rows[key].default:
            set_ones.append(f"{key} = {facts.native[key]} ({topic})")
    if not set_ones:
        return None
    return f"the schema has no field for {', '.join(set_ones)}: two runs that differ in it do not agree"


def _untempered_loss(facts: Facts) -> str | None:
    temperature = facts.native["temperature"]
    return (
        f"completions are sampled at temperature {temperature}, and the loss takes their log-probabilities at 1"
        if temperature != 1
        else None
    )


def _evaluation_trains(facts: Facts) -> str | None:
    on = bool(facts.native["eval_on_start"]) and facts.evaluates
    return "eval_on_start is taken for training: it moves the count that says when to generate" if on else None


def _counts_masked(facts: Facts) -> str | None:
    if facts.loss is None or not facts.loss.rollout_denominator or not facts.native["mask_truncated_completions"]:
        return None
    return f"loss_type = {facts.loss.name} counts the tokens of masked, truncated completions in its denominator"


def _auto_find_silently(facts: Facts) -> str | None:
    if not facts.native["auto_find_batch_size"]:
        return None
    return (
        "auto_find_batch_size halves the micro-batch when memory runs out; rollouts and groups are cut for the old one"
    )


def _ignored_prompt_length(facts: Facts) -> str | None:
    limit = facts.native["max_prompt_length"]
    return f"max_prompt_length = {limit} has no effect: prompts are not cut" if limit is not None else None


IGNORED: tuple[Rule, ...] = (
    NOTE(
        "BB-TRL-072",
        _data_seed,
        ("data_seed",),
        "ignored",
        "trl 0.15.0 to 1.16.0 GRPOTrainer._get_train_sampler uses args.seed",
        setting("data_seed", None),
    ),
    SILENT(
        "BB-TRL-073",
        _low_delta,
        ("delta", "epsilon_high", "epsilon"),
        "the ratio is clamped at delta before the minimum is taken",
        f"{ALL} GRPOTrainer._compute_loss",
        setting("delta", None),
    ),
    NOTE(
        "BB-TRL-074",
        _deprecated_cap,
        ("vllm_importance_sampling_cap",),
        "FutureWarning",
        f"trl 1.6.0 to 1.16.0 {POST_INIT}",
        versions=">=1.6",
    ),
    NOTE("BB-TRL-075", _uncarried, tuple(UNCARRIED), "used as given", f"{ALL} GRPOTrainer"),
    SILENT(
        "BB-TRL-076",
        _untempered_loss,
        ("temperature",),
        "used for sampling only",
        "trl 0.15.0 to 0.15.2 GRPOTrainer._get_per_token_logps; mended in 0.16.0",
        setting("temperature", 1.0),
        "<0.16",
    ),
    SILENT(
        "BB-TRL-077",
        _evaluation_trains,
        ("eval_on_start", "eval_strategy"),
        "training goes on with the rollout of an evaluation, or generates at other micro-batches",
        "trl 0.16.0 to 0.17.0 GRPOTrainer._prepare_inputs (control.should_evaluate); mended in 0.18.0",
        setting("eval_on_start", False),
        ">=0.16,<0.18",
    ),
    SILENT(
        "BB-TRL-078",
        _counts_masked,
        ("mask_truncated_completions", "loss_type"),
        "num_items_in_batch counts them",
        "trl 0.22.0 to 1.8.0 GRPOTrainer (num_items_in_batch before the mask); mended in 1.9.0",
        versions=">=0.22,<1.9",
    ),
    SILENT(
        "BB-TRL-079",
        _auto_find_silently,
        ("auto_find_batch_size",),
        "accepted",
        f"trl 0.15.0 to 1.8.0 {POST_INIT} (no check); refused since 1.9.0",
        setting("auto_find_batch_size", False),
        "<1.9",
    ),
    NOTE(
        "BB-TRL-080",
        _ignored_prompt_length,
        ("max_prompt_length",),
        "FutureWarning",
        f"trl 0.26.0 to 0.27.2 {POST_INIT}",
        setting("max_prompt_length", None),
        ">=0.26,<0.28",
    ),
)
