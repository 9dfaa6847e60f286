"""TRL's rules and known defects: each row fires where it should, only there, and says the way out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge import read
from batchbridge.contract.reading import Context
from batchbridge.reading.files import load_source
from batchbridge_history.trl import ROWS
from batchbridge_trl import rules
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.settings import holds

RULES = (*ROWS, *rules.RULES)
LEGAL = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 8,
    "num_train_epochs": 1,
    "save_strategy": "no",
    "loss_type": "grpo",
}


RELEASES = (
    *("0.15.0", "0.15.1", "0.15.2", "0.16.0", "0.16.1", "0.17.0", "0.18.0", "0.18.1", "0.18.2", "0.19.0", "0.19.1"),
    *("0.20.0", "0.21.0", "0.22.0", "0.22.1", "0.22.2", "0.23.0", "0.23.1", "0.24.0", "0.25.0", "0.25.1", "0.26.0"),
    *("0.26.1", "0.26.2", "0.27.0", "0.27.1", "0.27.2", "0.28.0", "0.29.0", "0.29.1", "1.0.0", "1.1.0", "1.2.0"),
    *("1.3.0", "1.4.0", "1.5.0", "1.5.1", "1.6.0", "1.7.0", "1.7.1", "1.8.0", "1.9.0", "1.9.1", "1.9.2", "1.10.0"),
    *("1.11.0", "1.12.0", "1.13.0", "1.14.0", "1.14.1", "1.14.2", "1.15.0", "1.16.0"),
)


def findings(values, *, world=1, version="1.16.0", prompts=None):
    adapter = TrlAdapter()
    reading = adapter.read(
        load_source(values), Context(framework_version=version, world_size=world, dataset_size=prompts)
    )
    assert reading.findings == ()
    return list(adapter.check(reading))


def codes(values, **context):
    return [finding.code for finding in findings(values, **context)]


@pytest.mark.parametrize("version", RELEASES)
def test_codes_are_unique_in_every_release(version):
    known = [rule.code for rule in RULES if holds(rule.versions, version)]
    assert len(set(known)) == len(known)


def test_every_row_cites_a_source_and_holds_in_some_release():
    assert all(rule.source and rule.native for rule in RULES)
    assert all(any(holds(rule.versions, version) for version in RELEASES) for rule in RULES)


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
    "BB-TRL-011": {"fp16": True, "bf16": True},
    "BB-TRL-012": {"warmup_steps": -1},
    "BB-TRL-014": {"parallelism_config": {"cp_size": 2}},
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
    "BB-TRL-043": {"lr_scheduler_kwargs": "ppo"},
    "BB-TRL-051": {"num_iterations": 0},
    "BB-TRL-086": {"lr_scheduler_type": "reduce_lr_on_plateau"},
    "BB-TRL-087": {"accelerator_config": {"split_batch": True}},
    "BB-TRL-090": {"lr_scheduler_type": "cosine_with_min_lr"},
    "BB-TRL-091": {"use_vllm": True, "vllm_mode": "external"},
    "BB-TRL-092": {"use_vllm": True, "vllm_importance_sampling_mode": "token"},
    "BB-TRL-093": {"loss_type": "cispo"},
    "BB-TRL-094": {"max_steps": 0},
    "BB-TRL-097": {"use_vllm": True, "top_p": 0.9, "vllm_importance_sampling_mode": "token_truncate"},
    "BB-TRL-098": {"use_vllm": True, "top_k": 20},
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
        "BB-TRL-057",
        "BB-TRL-058",
        "BB-TRL-060",
        "BB-TRL-064",
        "BB-TRL-070",
        "BB-TRL-071",
    }
    judged = {rule.code for rule in RULES if not rule.retired}
    assert judged == set(BROKEN) | {code for code, _ in BROKEN_EARLIER} | elsewhere


BROKEN_EARLIER = {
    # code, a version that it fires in: (settings, processes, the nearest release where it does not fire or is another)
    ("BB-TRL-021", "0.16.1"): ({"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}, 1, "0.17.0"),
    ("BB-TRL-022", "0.17.0"): ({"num_generations": 1}, 1, "0.16.1"),
    ("BB-TRL-020", "0.17.0"): ({"eval_strategy": "steps", "per_device_eval_batch_size": 12}, 1, None),
    ("BB-TRL-020", "0.21.0"): ({"eval_strategy": "steps", "per_device_eval_batch_size": 12}, 1, None),
    ("BB-TRL-018", "0.19.1"): ({"per_device_train_batch_size": 0}, 1, "0.20.0"),
    ("BB-TRL-019", "0.19.1"): ({"generation_batch_size": 24}, 2, "0.19.0"),
    ("BB-TRL-055", "0.19.0"): ({"generation_batch_size": 24}, 2, "0.19.1"),
    ("BB-TRL-025", "1.6.0"): (
        {"vllm_importance_sampling_mode": "token_truncate", "vllm_importance_sampling_clip_max": None},
        1,
        None,
    ),
    ("BB-TRL-026", "0.24.0"): ({"delta": 2.0, "use_liger_loss": True}, 1, None),
    ("BB-TRL-026", "1.3.0"): ({"delta": 2.0, "use_liger_kernel": True}, 1, "1.4.0"),
    ("BB-TRL-027", "0.27.2"): ({"warmup_ratio": 1.5}, 1, None),
    ("BB-TRL-029", "0.17.0"): ({"per_device_train_batch_size": -4}, 1, "0.18.0"),
    ("BB-TRL-028", "0.28.0"): ({"lr_scheduler_type": "greedy"}, 1, "0.29.0"),
    ("BB-TRL-034", "1.8.0"): ({"dataset_streaming": True, "max_steps": 5}, 1, "1.9.0"),
    ("BB-TRL-041", "0.17.0"): ({"use_liger_loss": True, "loss_type": "grpo"}, 1, "0.18.0"),
    ("BB-TRL-042", "1.13.0"): ({"use_liger_kernel": True, "top_entropy_quantile": 0.2}, 1, "1.14.0"),
    ("BB-TRL-056", "0.22.1"): ({}, 1, "0.22.2"),
    ("BB-TRL-059", "0.19.1"): ({"gradient_accumulation_steps": 3, "steps_per_generation": 2}, 1, "0.20.0"),
    ("BB-TRL-061", "1.9.0"): ({"loss_type": "dapo", "steps_per_generation": 2}, 1, None),
    ("BB-TRL-076", "0.15.2"): ({}, 1, "0.16.0"),
    ("BB-TRL-077", "0.17.0"): ({"eval_on_start": True, "eval_strategy": "steps"}, 1, "0.18.0"),
    ("BB-TRL-078", "1.8.0"): ({"mask_truncated_completions": True, "loss_type": "dapo"}, 1, "1.9.0"),
    ("BB-TRL-079", "1.8.0"): ({"auto_find_batch_size": True}, 1, "1.9.0"),
    ("BB-TRL-080", "0.26.0"): ({"max_prompt_length": 512}, 1, "0.25.1"),
    ("BB-TRL-103", "0.28.0"): ({"per_gpu_train_batch_size": 4}, 1, None),
    ("BB-TRL-104", "0.28.0"): ({"adafactor": True}, 1, None),
}


def old(values, version):
    """`LEGAL` and `values`, without a `loss_type` where the version has none."""
    return {key: value for key, value in {**LEGAL, **values}.items() if key != "loss_type" or holds(">=0.17", version)}


@pytest.mark.parametrize(("code", "version"), BROKEN_EARLIER)
def test_the_rule_of_earlier_versions_fires_there(code, version):
    values, world, _ = BROKEN_EARLIER[code, version]
    assert code in codes(old(values, version), world=world, version=version)


@pytest.mark.parametrize(("code", "version"), [key for key, row in BROKEN_EARLIER.items() if row[2]])
def test_the_rule_of_earlier_versions_does_not_fire_in_the_nearest_other_release(code, version):
    values, world, elsewhere = BROKEN_EARLIER[code, version]
    assert code not in codes(old(values, elsewhere), world=world, version=elsewhere)


@pytest.mark.parametrize(
    "values", [{"per_gpu_train_batch_size": 8}, {"adafactor": True, "optim": "adafactor"}, {"adafactor": False}]
)
def test_an_old_name_that_says_the_same_is_no_finding(values):
    assert codes(old(values, "0.28.0"), version="0.28.0") == codes(old({}, "0.28.0"), version="0.28.0")


def test_the_reported_error_of_0_15_is_cited_with_its_numbers():
    values = {"per_device_train_batch_size": 1, "num_generations": 8}
    (finding,) = (f for f in findings(values, world=7, version="0.15.0") if f.code == "BB-TRL-021")
    assert "The global train batch size (7 x 1) must be evenly divisible by the number of generations" in finding.native
    assert finding.phase == "construction"
    assert {"num_generations": 7} in [dict(fix.changes) for fix in finding.fixes]


@pytest.mark.parametrize(
    ("version", "fires"), [("0.15.2", []), ("0.16.0", ["058", "060"]), ("0.19.1", ["058", "060"]), ("0.20.0", ["060"])]
)
def test_the_sampler_counts_dropped_prompts_from_0_16_to_0_19(version, fires):
    values = old({"per_device_train_batch_size": 16, "gradient_accumulation_steps": 2}, version)
    found = codes(values, version=version, prompts=7)
    assert [code for code in ("058", "060") if f"BB-TRL-{code}" in found] == fires


def test_accelerate_fills_the_last_micro_batch_of_0_15_on_several_devices():
    values = {"per_device_train_batch_size": 8, "num_generations": 8}
    found = [codes(values, version="0.15.2", prompts=7, world=world) for world in (1, 2)]
    assert ["BB-TRL-057" in known for known in found] == [False, True]


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


@pytest.mark.parametrize(
    ("values", "version", "code"),
    [
        ({"top_p": 0.9}, "1.16.0", "BB-TRL-098"),  # sequence_mask is the default
        ({"top_p": 0.9}, "0.25.1", "BB-TRL-097"),  # whose correction is of tokens
        ({"top_p": 0.9}, "0.23.1", None),  # whose vLLM returns log-probabilities of all tokens
        ({"top_p": 0.9, "vllm_mode": "server"}, "0.26.2", None),  # whose server does
        ({"top_p": 0.9, "vllm_mode": "server"}, "1.16.0", "BB-TRL-098"),
        ({"min_p": 0.1, "vllm_importance_sampling_mode": "token_mask"}, "1.16.0", "BB-TRL-097"),
        ({"top_p": 0.9, "use_vllm": False}, "1.16.0", None),
        ({"top_p": 0.9, "vllm_importance_sampling_correction": False}, "1.16.0", None),
        ({"top_k": 0, "top_p": 1.0}, "1.16.0", None),
        ({"top_p": 0.9, "use_liger_kernel": True}, "0.26.2", None),  # which has no correction
    ],
)
def test_a_limit_of_sampling_is_told_where_its_probabilities_are_compared_with_whole_ones(values, version, code):
    values = {**LEGAL, "use_vllm": True, "vllm_mode": "colocate", **values}
    found = [one for one in findings(values, version=version) if one.code in ("BB-TRL-097", "BB-TRL-098")]
    assert [one.code for one in found] == ([code] if code else [])
    for fix in (fix for one in found for fix in one.fixes):
        assert code not in codes({**values, **fix.changes}, version=version)


@pytest.mark.parametrize(
    ("version", "values", "correction"),
    [
        ("0.24.0", {"use_liger_loss": True}, None),
        ("0.24.0", {"use_liger_kernel": True}, "token_truncate"),  # transformers' own: it replaces layers
        ("0.26.2", {"use_liger_kernel": True}, None),
        ("0.26.2", {}, "sequence_mask"),
        ("0.29.0", {"use_liger_kernel": True}, "sequence_mask"),
    ],
)
def test_a_fused_loss_has_no_correction_before_it_takes_one(version, values, correction):
    reading = read(
        {**LEGAL, "use_vllm": True, "vllm_mode": "colocate", **values}, framework="trl", version=version, world_size=1
    )
    found = reading.spec.objective.sampler_correction
    assert (found or "").partition(" ")[0] == (correction or "")


@pytest.mark.parametrize(
    ("version", "devices", "sizes", "prompts", "epochs", "steps"),
    [
        # 5,498 prompts, 7 x 8 completions of 8, 4 micro-batches a step: 786 micro-batches (open-r1 issue 483: 196)
        ("0.15.2", 7, (8, 4), 5498, 1, 196),
        ("0.15.2", 7, (8, 4), 5498, 2, 392),
        ("0.15.2", 2, (4, 4), 1001, 3, 750),
        ("0.15.2", 2, (4, 4), 1000, 3, 750),  # no remainder
        ("0.17.0", 2, (4, 4), 1001, 1, 250),  # drops what fills no rollout
    ],
)
def test_the_total_is_what_transformers_plans(version, devices, sizes, prompts, epochs, steps):
    values = {"num_generations": 8, "num_train_epochs": epochs, "max_completion_length": 8}
    values |= dict(zip(("per_device_train_batch_size", "gradient_accumulation_steps"), sizes, strict=True))
    reading = read(values, framework="trl", version=version, world_size=devices, dataset_size=prompts)
    assert reading.derived["total_optimizer_steps"] == steps
