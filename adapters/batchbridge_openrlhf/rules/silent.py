"""Departures that OpenRLHF never notices: it trains something else than one would think. Last come notes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge import Fix
from batchbridge.kit.rule_table import NOTE, RuleKind, Rules, says
from batchbridge_openrlhf import settings as names
from batchbridge_openrlhf.facts import ALL, PARSER, OpenRlhfFacts, fix_of, fixed, fixes_of, newer
from batchbridge_openrlhf.meaning import ESTIMATORS, sequence_mean
from batchbridge_openrlhf.settings import holds

_INTERVALS, _AGENT, _SAMPLES = ("ckpt.save_steps", "eval.steps"), "train.agent_func_path", "data.max_samples"
_UNCARRIED = {
    "algo.kl.target": "the KL coefficient moves with the KL",
    "train.enable_ema": "moving average of the weights",
    "ds.lora.rank": "LoRA",
    "ds.load_in_4bit": "quantised weights",
    "reward.overlong_buffer_len": "penalty for long completions",
    "reward.stop_properly_penalty_coef": "penalty for truncated completions",
    "reward.normalize_enable": "reward normalisation",
    "data.prompt_probs": "mixed datasets",
    "train.partial_rollout_enable": "weights change inside a completion",
}
"""Options that change training and have no canonical field."""
_SILENT: Mapping[str, Any] = {"data.prompt_probs": "1.0", "reward.stop_properly_penalty_coef": 1.0}
"""Their values that change nothing, where that is not 0 or off."""

RULES = Rules[OpenRlhfFacts]()


@RULES.add(NOTE, "BB-ORL-060", names.ESTIMATOR, names.CLIP_RANGE)
@says("no message", f"{ALL} ExperienceMaker.compute_advantages_and_returns, ActorPPOTrainer, CriticPPOTrainer")
def _uncarried(facts: OpenRlhfFacts) -> str | None:
    said: list[str] = []
    row = next((r for r in ESTIMATORS if r.name == facts[names.ESTIMATOR] and holds(r.versions, facts.version)), None)
    if row is not None and row.scale == "batch" and not facts.has_critic:
        said.append("advantages are centred once more, over the rollout's tokens, and scaled there")
    if facts[names.ESTIMATOR] == "reinforce" and facts["algo.advantage.gamma"] != 1:
        said.append(
            f"{facts.name_and_value('algo.advantage.gamma')} (a completion's earlier tokens get less of its reward)"
        )
    if facts[names.FREEZING] >= 0:  # with a critic or without one
        said.append(f"{facts.name_and_value(names.FREEZING)} (the policy trains later on the rollouts of the warm-up)")
    low, high = facts[names.CLIP_RANGE]
    if row is None or row.baseline in ("group_mean", "leave_one_out"):
        said.append(f"rewards are clipped to [{low:g}, {high:g}] after the baseline is subtracted")
    for identity, meaning in _UNCARRIED.items():
        if identity in facts.names and facts[identity] not in (None, "", _SILENT.get(identity, 0)):
            said.append(f"{facts.name_and_value(identity)} ({meaning})")
    return f"the schema has no field for: {'; '.join(said)}" if said else None


@RULES.add(NOTE, "BB-ORL-061", "actor.lr_warmup_ratio", fixes=fixed(actor__lr_warmup_ratio=0.0))
@says("parameters are unchanged by the first step", "openrlhf 0.11.2 with cosine_with_min_lr, as it runs")
def _idle_first_step(facts: OpenRlhfFacts) -> str | None:
    if facts["actor.lr_warmup_ratio"] <= 0 or facts[names.SCHEDULE] == "constant":
        return None
    return (
        f"{facts.name_and_value('actor.lr_warmup_ratio')}: the first optimizer step has the learning rate 0 and "
        "changes nothing"
    )


def _packing_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    new = "ds.attn_implementation" in facts.names
    flash = {"ds.attn_implementation": "flash_attention_2"} if new else {"flash_attn": True}
    return (fix_of(facts, {names.PACKING: True, **flash}),)


@RULES.add(NOTE, "BB-ORL-062", names.PACKING, names.RING, names.DYNAMIC, fixes=_packing_fixes)
@says("a printed warning", PARSER.format("0.8.4 (ring attention), 0.8.6 (dynamic batches) to 0.11.2"))
def _forced_packing(facts: OpenRlhfFacts) -> str | None:
    if facts[names.PACKING] or not facts.packs:
        return None
    said = f"{facts.name(names.PACKING)} is turned on, by ring attention or dynamic batches"
    attention = facts["ds.attn_implementation"]
    if attention is not None and "flash_attention" not in attention:
        said += f", and with it {facts.name('ds.attn_implementation')} = flash_attention_2 instead of {attention}"
    return said


@RULES.add(NOTE, "BB-ORL-063", _SAMPLES, fixes=lambda facts: fixes_of(facts, _SAMPLES, facts.prompts))
@says("no message", f"{ALL} prepare_datasets")
def _fewer_prompts(facts: OpenRlhfFacts) -> str | None:
    if facts.prompts is None or facts.prompts <= facts[_SAMPLES]:
        return None
    return (
        f"{facts.name_and_value(_SAMPLES)}: the other {facts.prompts - facts[_SAMPLES]} prompts are not seen "
        "(of each mixed dataset, and again of their mixture)"
    )


@RULES.add(NOTE, "BB-ORL-064", "actor.policy_loss_type", fixes=newer("0.8.9"))
@says("no message", "openrlhf 0.8.8 PolicyLoss", ">=0.8.8,<0.8.9")
def _token_gspo(facts: OpenRlhfFacts) -> str | None:
    if facts["actor.policy_loss_type"] != "gspo" or sequence_mean(facts.settings, facts.version):
        return None
    return "gspo is averaged over tokens, and over sequences from 0.8.9 on"


@RULES.add(NOTE, "BB-ORL-065", *_INTERVALS)
@says("global_step grows by 1 per rollout", f"{ALL} PPOTrainer.fit, train_step")
def _intervals(facts: OpenRlhfFacts) -> str | None:
    said = [facts.name_and_value(identity) for identity in _INTERVALS if facts[identity] not in (-1, 0)]
    return f"{' and '.join(said)}: counted in rollouts, not in optimizer steps" if said else None


@RULES.add(NOTE, "BB-ORL-066", names.FILTER, names.GROUP)
@says(
    "a rate above 100 % in the log",
    "openrlhf 0.9.9 to 0.11.2 SamplesGenerator.generate_samples; prompts over prompts before",
    ">=0.9.9",
)
def _pass_rate(facts: OpenRlhfFacts) -> str | None:
    if not facts.sizes.filtered:
        return None
    return (
        f"the logged dynamic_filtering_pass_rate is completions over prompts, up to {facts.sizes.group * 100} % with "
        f"{facts.name(names.GROUP)} = {facts.sizes.group}"
    )


def _token_fixes(facts: OpenRlhfFacts) -> tuple[Fix, ...]:
    return (Fix("return at least one action token for every completion"),)


@RULES.add(RuleKind("note", "optimizer_step"), "BB-ORL-067", _AGENT, names.MICRO, fixes=_token_fixes)
@says(
    "ZeroDivisionError at merged_status[k] = value / denom",
    "openrlhf 0.9.8 to 0.11.2 ActorPPOTrainer.ppo_train",
    ">=0.9.8",
)
def _no_token(facts: OpenRlhfFacts) -> str | None:
    s = facts.sizes
    if not facts[_AGENT]:
        return None
    share = "of dynamic size" if s.dynamic else f"of {s.micro} x {s.replicas} replicas"
    return (
        f"{facts.name_and_value(_AGENT)} may return completions without a token to train: a micro-batch {share} "
        "that has no other ends the run, whose metrics are divided by its tokens"
    )
