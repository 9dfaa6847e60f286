"""Single settings about which TRL never says anything: they have no effect, or another one than their name says."""

from __future__ import annotations

from batchbridge import Fix
from batchbridge.kit.rule_table import NOTE, OPEN, SILENT, WRONG, Rules, says
from batchbridge_trl.meaning import CAP, MODE, UNCARRIED, loses_correction, samples_with_correction
from batchbridge_trl.rules.facts import ALL, LOSS, POST_INIT, TrlFacts
from batchbridge_trl.rules.fixes import setting
from batchbridge_trl.settings import TRL_GROUPS, holds
from batchbridge_trl.tables import settings_of

RULES = Rules[TrlFacts]()


@RULES.add(NOTE, "BB-TRL-072", "data_seed", fixes=setting("data_seed", None))
@says("ignored", "trl 0.15.0 to 1.16.0 GRPOTrainer._get_train_sampler uses args.seed")
def _data_seed(facts: TrlFacts) -> str | None:
    seed = facts.native["data_seed"]
    return f"data_seed = {seed} has no effect in GRPO: seed orders the prompts" if seed is not None else None


@RULES.add(OPEN, "BB-TRL-103", "per_gpu_train_batch_size", fixes=setting("per_gpu_train_batch_size", None))
@says(
    "the sampler counts with the one size, and the loader with the other",
    "transformers 4.52.3 TrainingArguments.train_batch_size; trl 0.18.0 and 0.23.0 GRPOTrainer: read",
    "<0.29",
)
def _two_micro_batches(facts: TrlFacts) -> str | None:
    size, own = facts.native["per_gpu_train_batch_size"], facts.native["per_device_train_batch_size"]
    if not size or size == own:
        return None
    return (
        f"per_gpu_train_batch_size = {size} is the loader's micro-batch, and per_device_train_batch_size = {own} is "
        "that of all other sizes: which ones a run then has is not known"
    )


@RULES.add(OPEN, "BB-TRL-104", "adafactor", "optim", fixes=setting("adafactor", False))
@says(
    "the optimizer is Adafactor, whatever optim says",
    "transformers 4.52.3 TrainingArguments.__post_init__: read",
    "<0.29",
)
def _adafactor(facts: TrlFacts) -> str | None:
    if not facts.native["adafactor"] or facts.native["optim"] == "adafactor":
        return None
    return f"adafactor = true is transformers' old name of optim = adafactor, and optim = {facts.native['optim']}"


@RULES.add(SILENT, "BB-TRL-073", "delta", "epsilon_high", "epsilon", fixes=setting("delta", None))
@says("the ratio is clamped at delta before the minimum is taken", f"{ALL} {LOSS}")
def _low_delta(facts: TrlFacts) -> str | None:
    native = facts.native
    high = native["epsilon"] if native["epsilon_high"] is None else native["epsilon_high"]
    if native["delta"] is None or facts.loss is None or facts.loss.surrogate != "ppo" or native["delta"] >= 1 + high:
        return None
    return f"delta = {native['delta']} is below 1 + {high}, so it also bounds the ratio of positive advantages"


@RULES.add(NOTE, "BB-TRL-074", CAP)
@says("FutureWarning", f"trl 1.6.0 to 1.16.0 {POST_INIT}", ">=1.6")
def _deprecated_cap(facts: TrlFacts) -> str | None:
    if (cap := facts.native[CAP]) is None:
        return None
    return f"{CAP} = {cap} is deprecated and wins over the upper bound"


def uncarried(facts: TrlFacts) -> list[str]:
    """The settings that act, are not at their defaults, and have no field in the schema."""
    rows = settings_of(TRL_GROUPS, facts.version)
    surrogate = facts.loss.surrogate if facts.loss else None
    found = []
    for key, topic in UNCARRIED.items():
        if topic.startswith("surrogate ") and topic.removeprefix("surrogate ") != surrogate:
            continue
        if key == "ref_model_mixup_alpha" and not facts.native["sync_ref_model"]:
            continue
        if key in rows and facts.native[key] != rows[key].default:
            found.append(key)
    return found


@RULES.add(NOTE, "BB-TRL-075", *UNCARRIED)
@says("used as given", f"{ALL} GRPOTrainer")
def _uncarried(facts: TrlFacts) -> str | None:
    said = ", ".join(f"{key} = {facts.native[key]} ({UNCARRIED[key]})" for key in uncarried(facts))
    return f"the schema has no field for {said}: two runs that differ in it do not agree" if said else None


@RULES.add(SILENT, "BB-TRL-076", "temperature", fixes=setting("temperature", 1.0))
@says("used for sampling only", "trl 0.15.0 to 0.15.2 GRPOTrainer._get_per_token_logps; mended in 0.16.0", "<0.16")
def _untempered_loss(facts: TrlFacts) -> str | None:
    if (temperature := facts.native["temperature"]) == 1:
        return None
    return f"completions are sampled at temperature {temperature}, and the loss takes their log-probabilities at 1"


def _limits(facts: TrlFacts) -> str | None:
    """The limits of sampling (`top_p = 0.9`) after which vLLM renormalises log-probabilities and the trainer does not;
    None where there is none, or no correction compares the two."""
    native = facts.native
    if not samples_with_correction(native) or loses_correction(native, facts.version):
        return None
    if native["vllm_mode"] != "colocate" and holds("<0.28", facts.version):
        return None  # the server of these versions returns log-probabilities of the whole distribution
    limits = [f"top_p = {native['top_p']}"] if native["top_p"] is not None and native["top_p"] < 1 else []
    limits += [f"top_k = {native['top_k']}"] if native["top_k"] is not None and native["top_k"] > 0 else []
    limits += [f"min_p = {native['min_p']}"] if native["min_p"] else []
    return ", ".join(limits) or None


def _no_limits(facts: TrlFacts) -> tuple[Fix, ...]:
    none = {"top_p": 1.0, "top_k": None if holds("<0.27", facts.version) else 0, "min_p": None}
    changes = {key: value for key, value in none.items() if facts.native[key] not in (value, 0, -1)}
    text = ", ".join(f"{key} = {'null' if value is None else value}" for key, value in changes.items())
    return Fix(text, changes), *setting("vllm_importance_sampling_correction", False)(facts)


_RENORMALISED = "vLLM's log-probabilities are those of the tokens that the limit leaves (processed_logprobs)"
_LIMITED = (
    "trl 0.24.0 to 1.16.0 GRPOTrainer and VLLMGeneration: logprobs_mode; from 0.28.0 on vllm_serve, too; the trainer's "
    "are those of all tokens"
)
_LIMITS = ("top_p", "top_k", "min_p", MODE)


@RULES.add(SILENT, "BB-TRL-097", *_LIMITS, fixes=_no_limits)
@says(_RENORMALISED, _LIMITED, ">=0.24")
def _limited_tokens(facts: TrlFacts) -> str | None:
    limits = _limits(facts)
    if limits is None or str(facts.native[MODE]).startswith("sequence"):
        return None
    return f"{limits}: vLLM's correction multiplies each token's loss by the probability that the limit leaves to it"


@RULES.add(WRONG, "BB-TRL-098", *_LIMITS, fixes=_no_limits)
@says(_RENORMALISED, _LIMITED, ">=0.26")
def _limited_sequences(facts: TrlFacts) -> str | None:
    limits = _limits(facts)
    if limits is None or not str(facts.native[MODE]).startswith("sequence"):
        return None
    return (
        f"{limits} with {MODE} = {facts.native[MODE]}: a completion's loss is multiplied by the probability that the "
        f"limit leaves, of each of its tokens: 0.95 in 256 tokens is {0.95**256:.0e}"
    )


@RULES.add(SILENT, "BB-TRL-077", "eval_on_start", "eval_strategy", fixes=setting("eval_on_start", False))
@says(
    "training goes on with the rollout of an evaluation, or generates at other micro-batches",
    "trl 0.16.0 to 0.17.0 GRPOTrainer._prepare_inputs (control.should_evaluate); mended in 0.18.0",
    ">=0.16,<0.18",
)
def _evaluation_trains(facts: TrlFacts) -> str | None:
    on = bool(facts.native["eval_on_start"]) and facts.evaluates
    return "eval_on_start is taken for training: it moves the count that says when to generate" if on else None


@RULES.add(SILENT, "BB-TRL-078", "mask_truncated_completions", "loss_type")
@says(
    "num_items_in_batch counts them",
    "trl 0.22.0 to 1.8.0 GRPOTrainer (num_items_in_batch before the mask); mended in 1.9.0",
    ">=0.22,<1.9",
)
def _counts_masked(facts: TrlFacts) -> str | None:
    if facts.loss is None or not facts.loss.rollout_denominator or not facts.native["mask_truncated_completions"]:
        return None
    return f"loss_type = {facts.loss.name} counts the tokens of masked, truncated completions in its denominator"


@RULES.add(SILENT, "BB-TRL-079", "auto_find_batch_size", fixes=setting("auto_find_batch_size", False))
@says("accepted", f"trl 0.15.0 to 1.8.0 {POST_INIT} (no check); refused since 1.9.0", "<1.9")
def _auto_find_silently(facts: TrlFacts) -> str | None:
    said = "halves the micro-batch when memory runs out; rollouts and groups are cut for the old one"
    return f"auto_find_batch_size {said}" if facts.native["auto_find_batch_size"] else None


@RULES.add(NOTE, "BB-TRL-080", "max_prompt_length", fixes=setting("max_prompt_length", None))
@says("FutureWarning", f"trl 0.26.0 to 0.27.2 {POST_INIT}", ">=0.26,<0.28")
def _ignored_prompt_length(facts: TrlFacts) -> str | None:
    limit = facts.native["max_prompt_length"]
    return f"max_prompt_length = {limit} has no effect: prompts are not cut" if limit is not None else None
