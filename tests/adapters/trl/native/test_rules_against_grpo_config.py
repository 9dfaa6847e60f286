"""10,000 random configurations: our verdict, and the rule that we name, are those of GRPOConfig's own construction."""

from __future__ import annotations

import random
import warnings

import pytest
import trl
from near_legal import sizes
from trl import GRPOConfig

from batchbridge.contract.reading import Context, Source
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.rules import RULES

NATIVE_RULES = {
    "can not be both configured": "BB-TRL-017",
    "must be divisible by the global batch size": "BB-TRL-019",
    "The global eval batch size": "BB-TRL-020",
    "must be divisible by num_generations": "BB-TRL-021",
    "requires at least 2 generations": "BB-TRL-022",
    "must be less than vllm_importance_sampling_clip_max": "BB-TRL-023",
    "auto_find_batch_size is not supported": "BB-TRL-016",
    "can be True, but not both": "BB-TRL-011",
    "can be True for full eval": "BB-TRL-089",
    "Expected value warmup_steps": "BB-TRL-012",
    "log_completions_hub_repo is set": "BB-TRL-015",
    "dataloader_prefetch_factor can only": "BB-TRL-013",
    "logging strategy": "BB-TRL-010",
    "`torch_empty_cache_steps` must be": "BB-TRL-082",
    "evaluation strategy": "BB-TRL-083",
    "must be an integer if bigger than 1": "BB-TRL-084",
    "--load_best_model_at_end requires": "BB-TRL-085",
    "requires an eval strategy": "BB-TRL-086",
    "Unknown `fsdp` option": "BB-TRL-088",
    "is only available with FSDP1": "BB-TRL-088",
}
"""A piece of TRL's own message -> our code."""

RETIRED = {rule.code for rule in RULES if rule.retired}


def native_rule(settings, classes, world_size):
    """The code of the rule by which GRPOConfig refuses `settings`; None if it takes them."""
    if world_size not in classes:
        fake = {"world_size": property(lambda self: world_size)}
        classes[world_size] = type("GRPOConfigOfWorld", (GRPOConfig,), fake)
    try:
        classes[world_size](**settings, output_dir="unused", report_to=[], use_cpu=True)
    except ZeroDivisionError:
        batch = settings.get("generation_batch_size")
        zero_step = batch is not None and settings["per_device_train_batch_size"] == 0
        return "BB-TRL-018" if zero_step else "BB-TRL-024"
    except (TypeError, AttributeError) as error:
        return "BB-TRL-014" if "cp_enabled" in str(error) else "BB-TRL-087"
    except ValueError as error:
        return next(code for text, code in NATIVE_RULES.items() if text in str(error))
    return None


def draw(rng):
    """Sizes near legal ones, and now and then another setting that GRPOConfig refuses."""
    settings, world = sizes(rng)
    settings["bf16"] = rng.random() < 0.1
    if rng.random() < 0.05:
        settings["auto_find_batch_size"] = True
    if rng.random() < 0.05:
        settings["fp16"] = True
    if rng.random() < 0.02:
        settings |= {"fp16_full_eval": True, "bf16_full_eval": rng.random() < 0.5}
    if rng.random() < 0.05:
        settings["warmup_steps"] = rng.choice([-1, 0.1, 10])
    if rng.random() < 0.05:
        settings["log_completions_hub_repo"] = "someone/something"
    if rng.random() < 0.05:
        settings["dataloader_prefetch_factor"] = 2
    if rng.random() < 0.1:
        settings |= {f"{name}_strategy": rng.choice(["no", "steps", "epoch"]) for name in ("eval", "logging", "save")}
        counts = {"eval": (None, 0, 0.2, 2.5, 5, 7), "logging": (0, 0.1, 2.5, 5), "save": (0.4, 0.5, 7.5, 10)}
        settings |= {f"{name}_steps": rng.choice(values) for name, values in counts.items()}
        settings["load_best_model_at_end"] = rng.random() < 0.5
        settings["save_strategy"] = "best" if rng.random() < 0.1 else settings["save_strategy"]
    if rng.random() < 0.05:
        settings["lr_scheduler_type"] = rng.choice(["reduce_lr_on_plateau", "greedy", "cosine"])
    if rng.random() < 0.05:
        settings["torch_empty_cache_steps"] = rng.choice([-1, 0, 1])
    if rng.random() < 0.05:
        settings["accelerator_config"] = rng.choice([{}, {"even_batches": True}, {"batches": 1}])
    if rng.random() < 0.02:
        settings["fsdp"] = rng.choice(["", "full_shard auto_wrap", "hybrid_shard", "full", True])
        settings["fsdp_config"] = rng.choice([None, {"version": 1}, {"fsdp_version": 2}])
    if rng.random() < 0.02:
        settings["parallelism_config"] = rng.choice([None, {}, {"cp_size": 2}])
    if rng.random() < 0.1:
        settings["vllm_importance_sampling_clip_min"] = rng.choice([0.5, 3.0, 4.0])
        settings["vllm_importance_sampling_clip_max"] = rng.choice([None, 2.0, 3.0])
    return settings, world


@pytest.fixture(scope="module")
def disagreements():
    rng, classes, adapter, wrong, outcomes = random.Random(0), {}, TrlAdapter(), [], {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(10_000):
            settings, world = draw(rng)
            native = native_rule(settings, classes, world)
            reading = adapter.read(
                Source(values=settings), Context(framework_version=trl.__version__, world_size=world)
            )
            ours = [f.code for f in adapter.check(reading) if f.severity == "error" and f.phase == "config"]
            outcomes[native] = outcomes.get(native, 0) + 1
            if native in RETIRED:  # says what no rule of ours repeats, and may hide a later one
                continue
            if reading.findings or native != (ours[0] if ours else None):
                wrong.append((settings, world, native, ours, reading.findings))
    return wrong, outcomes


def test_verdict_and_rule_agree_with_construction_on_ten_thousand_random_configurations(disagreements):
    wrong, _ = disagreements
    assert wrong == []


def test_the_random_configurations_reach_every_rule_and_thousands_of_legal_ones(disagreements):
    _, outcomes = disagreements
    assert {*NATIVE_RULES.values(), *(f"BB-TRL-0{number}" for number in (14, 18, 24, 87)), None} == set(outcomes)
    assert outcomes[None] > 2000
