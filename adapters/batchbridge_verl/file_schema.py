"""The JSON Schema of verl's configuration: the composed one, or one's own with a defaults list.

Which keys there are depends on the engine, so that a file is held against the schema of the engine that it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from batchbridge.kit.file_schema import LEAF, ChoiceWords, Schema, choice, has, nested, refused, setting
from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import anything
from batchbridge_verl import CONFIGS
from batchbridge_verl import settings as tables
from batchbridge_verl.programs import OPEN
from batchbridge_verl.run import BUDGET, DYNAMIC, FORWARD_BUDGET, GLOBAL_MICRO, MICRO, MINI
from batchbridge_verl.settings import ACTOR, CRITIC, ENGINE, REFERENCE, ROLLOUT, holds
from batchbridge_verl.terms import ESTIMATORS, LOSS_MODES, aggregations, kl_estimators, names_in

_LOG_PROB = "log_prob_micro_batch_size_per_gpu"
MEANINGS: Mapping[str, tuple[str, str]] = {
    "trainer.nnodes": ("nodes", "Nodes of the run."),
    "trainer.n_gpus_per_node": ("devices", "Devices of a node."),
    MINI: ("prompts", "Prompts of one optimizer step; with the completions of each it is shared out to the devices."),
    f"{CRITIC}ppo_mini_batch_size": ("prompts", "Prompts of one optimizer step of the critic."),
    MICRO: ("completions", "Completions that a device trains at a time."),
    GLOBAL_MICRO: ("completions", "Deprecated: completions trained at a time, over all devices."),
    f"{ROLLOUT}{_LOG_PROB}": ("completions", "Completions whose log-probabilities a device computes at a time."),
    f"{REFERENCE}{_LOG_PROB}": (
        "completions",
        "Completions whose log-probabilities a device computes at a time, with the reference policy.",
    ),
    f"{CRITIC}ppo_micro_batch_size_per_gpu": (
        "completions",
        "Completions that a device trains the critic on at a time.",
    ),
    DYNAMIC: ("", "Whether micro-batches are cut by tokens instead of completions."),
    BUDGET: ("tokens", "Tokens of one micro-batch, where they are cut by tokens."),
    FORWARD_BUDGET: ("tokens", "Tokens whose log-probabilities are computed at a time."),
    f"{ACTOR}ulysses_sequence_parallel_size": ("devices", "Devices that share one sequence."),
    f"{ACTOR}megatron.tensor_model_parallel_size": ("devices", "Devices that share one layer."),
    f"{ACTOR}megatron.pipeline_model_parallel_size": ("devices", "Devices that hold successive layers."),
    f"{ACTOR}megatron.context_parallel_size": ("devices", "Devices that share one sequence."),
    f"{ROLLOUT}tensor_model_parallel_size": ("devices", "Devices that share a layer while completions are generated."),
    "data.gen_batch_size": ("prompts", "Prompts generated at a time; null: data.train_batch_size."),
    "trainer.total_epochs": ("epochs", "Passes over the dataset, where trainer.total_training_steps is null."),
    "trainer.critic_warmup": ("rollouts", "Rollouts that train the critic alone."),
    f"{ACTOR}loss_agg_mode": ("", "What a token of the policy loss weighs: over what the mean or the sum is taken."),
    f"{ACTOR}loss_scale_factor": ("tokens", "The constant that seq-mean-token-sum-norm divides by."),
    "algorithm.adv_estimator": ("", "How advantages are made of rewards; custom code may register others."),
    f"{ACTOR}policy_loss.loss_mode": ("", "The surrogate of the policy loss; custom code may register others."),
    f"{ACTOR}clip_ratio_low": ("", "How far below 1 a probability ratio is clipped."),
    f"{ACTOR}clip_ratio_high": ("", "How far above 1 a probability ratio is clipped."),
    f"{ACTOR}clip_ratio_c": ("", "The bound of dual clipping, where the advantage is negative."),
    f"{ACTOR}kl_loss_coef": ("", "Factor of the KL penalty in the loss."),
    f"{ACTOR}kl_loss_type": ("", "How the KL divergence in the loss is estimated."),
    "algorithm.kl_penalty": ("", "How the KL divergence in the reward is estimated."),
    f"{ACTOR}optim.lr": ("", "Peak learning rate."),
    f"{ACTOR}optim.lr_warmup_steps": ("optimizer steps", "Steps over which the learning rate rises; -1: a share."),
    f"{ACTOR}optim.lr_warmup_steps_ratio": ("share of the steps", "Steps over which the learning rate rises."),
    f"{ACTOR}grad_clip": ("", "The norm that the gradient is clipped to."),
    "trainer.balance_batch": ("", "Whether completions are dealt to devices by their lengths."),
}
"""Unit and meaning of keys that no canonical field alone comes from. Source: verl 0.4.0 to 0.9.1 trainer/config; what
they come to is in `run` and `meaning`."""


def words_of(version: str) -> Mapping[str, ChoiceWords]:
    """The words of settings; verl refuses others of the aggregation alone, in whatever run."""
    kl = ChoiceWords(kl_estimators(version), only=False)
    return {
        f"{ACTOR}loss_agg_mode": ChoiceWords(aggregations(version)),
        "algorithm.adv_estimator": ChoiceWords(names_in(version, ESTIMATORS), only=False),
        f"{ACTOR}policy_loss.loss_mode": ChoiceWords(names_in(version, LOSS_MODES), only=False),
        f"{ACTOR}kl_loss_type": kl,
        "algorithm.kl_penalty": kl,
    }


def settings_schema(version: str, decides: Callable[[str], str | None]) -> dict[str, Any]:
    """A schema for each engine of the version, and which of them a file is held against.

    decides: see `Adapter.decides`.
    """
    engines = tables.engines_of(version)
    made = {engine: _of_engine(version, engine, decides) for engine in engines}
    default = made["fsdp"]
    if len(engines) == 1:
        return default
    options = [(condition, {"$ref": f"#/definitions/{engine}"}) for condition, engine in _chosen(engines)]
    chosen = choice(options, {"$ref": "#/definitions/fsdp"})
    return {"type": "object", **chosen, "definitions": made}


def _chosen(engines: tuple[str, ...]) -> Iterator[tuple[Schema, str]]:
    """The conditions of each engine, in the order in which a file is asked: see `config._engine`."""
    for engine in engines:
        yield has(ENGINE, {"enum": ["fsdp", "dp"] if engine == "fsdp" else [engine]}), engine
    yield has(ENGINE, {"not": {"type": "null"}}), "fsdp"
    for engine in engines:
        named = ["fsdp", "dp"] if engine == "fsdp" else [engine]
        yield has("defaults", {"type": "array", "contains": has(f"override {ENGINE}", {"enum": named})}), engine
        if configs := [name for name, its in CONFIGS.items() if its == engine]:
            yield has("defaults", {"type": "array", "contains": {"enum": configs}}), engine
    for engine in engines:
        yield has(f"{ACTOR}strategy", {"const": engine}), engine
    for engine in engines[1:]:
        others = [has(f"{ACTOR}{other}", {"minProperties": 1}) for other in engines if other != engine]
        own = has(f"{ACTOR}{engine}", {"type": "object", "minProperties": 1})
        yield {"allOf": [own, {"not": {"anyOf": others}}]}, engine


def _of_engine(version: str, engine: str, decides: Callable[[str], str | None]) -> Schema:
    known, words, leaves = tables.defaults_of(version, engine), words_of(version), {}
    others = [row for row in tables.BY_KEY.values() if row.key not in known]
    appended = {row.key: row.default for row in others if tables.reads(row.key, version, engine, known)}
    for key, default in {**known, **appended}.items():
        unit, meaning = MEANINGS.get(key, ("", ""))
        row = tables.BY_KEY.get(key, Key(key, anything))
        row = row._replace(default=default, unit=row.unit or unit, meaning=row.meaning or meaning)
        leaves[key] = setting(row, words.get(key), decides=decides(key), interpolates=True)
        if default == tables.UNRECORDED:
            leaves[key] = {name: part for name, part in leaves[key].items() if name not in ("default", "description")}
        if not row.kind.schema and (key in tables.BY_KEY or default not in (None, {})) and not key.startswith(OPEN):
            leaves[key] |= LEAF
        if known.get(key) == {} and not key.startswith(OPEN):
            leaves[key]["not"] = {"type": "array"}
    for key, (since, instead, _) in tables.GONE.items():
        if key not in leaves and since != "never" and holds(f">={since}", version):
            leaves[key] = refused(f"{key} is gone since verl {since}" + (f"; {instead} says it now" if instead else ""))
    configs = [name for name, its in CONFIGS.items() if its in (None, engine)]
    leaves[ENGINE] = {
        "description": "The engine that trains, where the file says it; dp is FSDP.",
        "enum": ["dp", *tables.engines_of(version)],
    }
    leaves["defaults"] = {
        "description": "Hydra's defaults list: verl's own configuration, then _self_.",
        "items": {"anyOf": [{"enum": [*configs, "_self_"]}, {}]},
    }
    leaves["hydra"] = {"description": "Hydra's own settings."}
    return nested(leaves, [group.rstrip(".") for group in OPEN if group != "hydra."])
