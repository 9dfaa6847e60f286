"""TRL's rules and known defects: each row fires where it should, only there, and says the way out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.adapter import Context
from batchbridge.sources import load
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.rules import RULES

LEGAL = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 8,
    "num_train_epochs": 1,
    "save_strategy": "no",
    "loss_type": "grpo",
}


def findings(values, *, world=1, version="1.16.0", prompts=None):
    adapter = TrlAdapter()
    reading = adapter.read(load(values), Context(framework_version=version, world_size=world, dataset_size=prompts))
    assert reading.findings == ()
    return list(adapter.check(reading))


def codes(values, **context):
    return [finding.code for finding in findings(values, **context)]


def test_codes_are_unique_and_every_row_cites_a_source():
    assert len({rule.code for rule in RULES}) == len(RULES)
    assert all(rule.source and rule.native for rule in RULES)


def test_a_legal_run_has_no_finding():
    assert codes(LEGAL, prompts=100) == []


def test_seven_devices_with_micro_1_and_8_generations_have_legal_neighbours_in_all_four_settings():
    values = {**LEGAL, "per_device_train_batch_size": 1}
    (finding,) = findings(values, world=7, prompts=8000)
    assert finding.code == "BB-TRL-021"
    assert [dict(fix.changes) for fix in finding.fixes] == [
        {"num_processes": 8},
        {"per_device_train_batch_size": 8},
        {"gradient_accumulation_steps": 8},
        {"num_generations": 7},
    ]


BROKEN = {
    "BB-TRL-010": {"logging_steps": 0},
    "BB-TRL-011": {"fp16": True, "bf16": True},
    "BB-TRL-012": {"warmup_steps": -1},
    "BB-TRL-013": {"dataloader_prefetch_factor": 2},
    "BB-TRL-014": {"parallelism_config": {"cp_size": 2}},
    "BB-TRL-015": {"log_completions_hub_repo": "someone/something"},
    "BB-TRL-016": {"auto_find_batch_size": True},
    "BB-TRL-017": {"generation_batch_size": 16, "steps_per_generation": 1},
    "BB-TRL-018": {"generation_batch_size": 16, "per_device_train_batch_size": 0},
    "BB-TRL-019": {"generation_batch_size": 24, "per_device_train_batch_size": 16},
    "BB-TRL-020": {"eval_strategy": "steps", "per_device_eval_batch_size": 12},
    "BB-TRL-021": {"num_generations": 3},
    "BB-TRL-022": {"num_generations": 1},
    "BB-TRL-023": {"vllm_importance_sampling_clip_min": 4.0},
    "BB-TRL-024": {"num_generations": 0},
    "BB-TRL-030": {"per_device_train_batch_size": 0},
    "BB-TRL-031": {"sync_ref_model": True},
    "BB-TRL-032": {"use_vllm": True, "vllm_tensor_parallel_size": 2},
    "BB-TRL-033": {
        "accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}},
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 2,
    },
    "BB-TRL-034": {"dataset_streaming": True},
    "BB-TRL-035": {"scale_rewards": "rollout"},
    "BB-TRL-036": {"multi_objective_aggregation": "sum"},
    "BB-TRL-037": {"accelerator_config": {"dispatch_batches": True}},
    "BB-TRL-038": {"loss_type": "gspo"},
    "BB-TRL-039": {"importance_sampling_level": "word"},
    "BB-TRL-040": {"loss_type": "dr_grpo", "max_completion_length": None},
    "BB-TRL-051": {"num_iterations": 0},
    "BB-TRL-052": {"num_train_epochs": 0},
    "BB-TRL-061": {"loss_type": "dapo", "steps_per_generation": 2},
    "BB-TRL-062": {"loss_type": "bnpo", "gradient_accumulation_steps": 2},
    "BB-TRL-063": {"gradient_accumulation_steps": 2, "steps_per_generation": 3},
    "BB-TRL-065": {"save_strategy": "steps", "num_train_epochs": 2},
    "BB-TRL-066": {"scale_rewards": "batch", "gradient_accumulation_steps": 2, "steps_per_generation": 1},
    "BB-TRL-067": {"accelerator_config": {"gradient_accumulation_kwargs": {"num_steps": 2}}},
    "BB-TRL-068": {"entropy_coef": 0.1, "gradient_accumulation_steps": 2},
    "BB-TRL-069": {"top_entropy_quantile": 0.2, "gradient_accumulation_steps": 2},
    "BB-TRL-072": {"data_seed": 1},
    "BB-TRL-073": {"delta": 1.1},
    "BB-TRL-074": {"vllm_importance_sampling_cap": 2.0},
    "BB-TRL-075": {"min_p": 0.1},
}


@pytest.mark.parametrize("code", BROKEN)
def test_the_rule_fires_on_a_run_that_breaks_it(code):
    assert code in codes({**LEGAL, **BROKEN[code]})


@pytest.mark.parametrize(
    ("code", "prompts", "values"),
    [
        ("BB-TRL-050", 3, {"gradient_accumulation_steps": 4}),
        ("BB-TRL-060", 7, {"gradient_accumulation_steps": 4}),
        ("BB-TRL-064", 5, {"gradient_accumulation_steps": 4, "steps_per_generation": 1}),
    ],
)
def test_the_rule_fires_on_a_dataset_that_does_not_fit(code, prompts, values):
    assert code in codes({**LEGAL, **values}, prompts=prompts)


def test_split_batches_is_an_error_on_several_devices_only():
    values = {**LEGAL, "accelerator_config": {"split_batches": True}}
    assert [codes(values, world=world) for world in (1, 2)] == [[], ["BB-TRL-053"]]


def test_every_row_of_the_table_is_exercised_here():
    elsewhere = {
        "BB-TRL-050",
        "BB-TRL-053",
        "BB-TRL-054",
        "BB-TRL-060",
        "BB-TRL-064",
        "BB-TRL-070",
        "BB-TRL-071",
    }
    assert {rule.code for rule in RULES} == set(BROKEN) | elsewhere


@pytest.mark.parametrize(("version", "expected"), [("1.9.2", ["BB-TRL-070"]), ("1.10.0", [])])
def test_luspo_averages_over_padding_up_to_1_9_2(version, expected):
    assert codes({**LEGAL, "loss_type": "luspo"}, version=version) == expected


@pytest.mark.parametrize(("version", "expected"), [("1.10.0", ["BB-TRL-071"]), ("1.11.0", [])])
def test_liger_divides_dapo_by_micro_batch_tokens_up_to_1_10(version, expected):
    assert codes({**LEGAL, "loss_type": "dapo", "use_liger_kernel": True}, version=version) == expected


class GRPOConfig:
    """Stands in for a config that was constructed on one device and is read on eight."""

    per_device_train_batch_size, gradient_accumulation_steps, num_generations = 8, 1, 8
    generation_batch_size, steps_per_generation, world_size = 8, 1, 8


GRPOConfig.__module__ = "trl.trainer.grpo_config"


def test_a_config_that_was_constructed_for_another_world_size_is_an_error():
    assert "BB-TRL-054" in codes(GRPOConfig())


small = st.integers(-1, 40)


@given(small, small, small, small, st.none() | small, st.none() | st.integers(-1, 90), st.none() | st.integers(1, 60))
def test_every_offered_change_of_size_makes_legal_sizes_and_none_exceeds_a_dataset_that_was_too_small(
    micro, accumulation, group, world, steps, batch, prompts
):
    values = {
        **LEGAL,
        "per_device_train_batch_size": micro,
        "gradient_accumulation_steps": max(accumulation, 1),
        "num_generations": group,
        "steps_per_generation": steps,
        "generation_batch_size": None if steps is not None else batch,
    }
    for finding in findings(values, world=world, prompts=prompts):
        if finding.code in (
            "BB-TRL-018",
            "BB-TRL-019",
            "BB-TRL-021",
            "BB-TRL-022",
            "BB-TRL-024",
            "BB-TRL-030",
            "BB-TRL-050",
        ):
            assert finding.fixes
            for fix in finding.fixes:
                changes = dict(fix.changes)
                devices = changes.pop("num_processes", world)
                fixed = findings({**values, **changes}, world=devices, prompts=prompts)
                remaining = {f.code for f in fixed if f.severity == "error"}
                assert remaining <= ({"BB-TRL-050"} if finding.code != "BB-TRL-050" else set())
