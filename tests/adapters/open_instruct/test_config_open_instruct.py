"""Open-Instruct's command lines: published numbers, defaults per checkout, and what is said about them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchbridge
from bashread import Argument, read_script
from batchbridge import hookimpl
from batchbridge.contract import plugins
from batchbridge.contract.own_copy import OwnCopy
from batchbridge.contract.reading import Context, Source
from batchbridge.errors import CannotWrite
from batchbridge.kit.frame import RunReading
from batchbridge.kit.rule_table import SILENT, Rule
from batchbridge.kit.versions import holds
from batchbridge.meaning.findings import Finding, Where, verdict
from batchbridge.reading.arguments import parse_arguments
from batchbridge.reading.files import load_source
from batchbridge.reading.launchers import programs
from batchbridge_open_instruct import settings as tables
from batchbridge_open_instruct.config import OpenInstructAdapter
from batchbridge_open_instruct.rules import RULES
from batchbridge_open_instruct.rules.row import OpenInstructFacts
from batchbridge_open_instruct.settings_file import file_behind_script

SHARED = Path(__file__).parents[4] / "shared" / "corpus" / "launch_argv.jsonl"
HEAD, PPO_LAST, PPO_FIRST = "2026.8.20", "2025.11.3", "2024.11.20"
FIRST = "2025.10.20"
"""grpo_fast.py before the first release."""


def judge(command: str | Sequence[str], version: str, **context: Any) -> tuple[RunReading, dict[str, Finding]]:
    argv = shlex.split(command) if isinstance(command, str) else list(command)
    adapter = OpenInstructAdapter()
    source = Source(values=parse_arguments(argv), argv=tuple(argv))
    reading = adapter.read(source, Context(framework_version=version, **context))
    return reading, {finding.code: finding for finding in [*reading.findings, *adapter.check(reading)]}


def fast(flags: str = "", version: str = HEAD) -> tuple[RunReading, dict[str, Finding]]:
    return judge(f"python open_instruct/grpo_fast.py {flags}", version)


TULU_8B = (
    "python open_instruct/ppo_vllm_thread_ray_gtrl.py --beta 0.05 --learning_rate 3e-7 --total_episodes 10000000 "
    "--per_device_train_batch_size 2 --local_rollout_batch_size 32 --local_mini_batch_size 32 "
    "--local_rollout_forward_batch_size 32 --actor_num_gpus_per_node 7"
)
"""The flags that size the published 8B run. Source: open-instruct docs/tulu3.md, e6c3044aa."""

# ---- published numbers


@pytest.mark.parametrize("version", [PPO_FIRST, PPO_LAST])
def test_local_mini_batch_size_32_on_7_learners_is_224_completions(version: str) -> None:
    reading, _ = judge(TULU_8B, version, dataset_size=7473)
    assert reading.spec is not None
    derived = reading.derived
    assert (reading.spec.topology.world_size, reading.spec.optimizer_step.completions_per_step) == (7, 224)
    assert derived["gradient_accumulation_steps"] == 16
    assert derived["total_rollouts"] == 44_642
    assert derived["optimizer_steps_per_rollout"] * derived["total_rollouts"] == 178_568


@pytest.mark.parametrize(
    ("learners", "local", "samples", "mini", "micro", "epochs", "episodes", "expected"),
    [
        ("8 8 8 8 8", 16, 1, 16, 1, 4, 400_000, (640, 640, 625)),
        (" ".join(["8"] * 29), 8, 1, 8, 1, 4, 400_000, (1856, 1856, 215)),
        ("4 8", 4, 16, 32, 2, 1, 10_000_000, (768, 384, 13_020)),
    ],
)
def test_published_runs_of_the_older_script(
    learners: str, local: int, samples: int, mini: int, micro: int, epochs: int, episodes: int, expected: tuple[int]
) -> None:
    reading, _ = judge(
        f"python ppo_vllm_thread_ray_gtrl.py --actor_num_gpus_per_node {learners} --local_rollout_batch_size {local} "
        f"--number_samples_per_prompt {samples} --local_mini_batch_size {mini} --per_device_train_batch_size {micro} "
        f"--num_epochs {epochs} --total_episodes {episodes}",
        PPO_LAST,
    )
    spec = reading.spec
    assert spec is not None
    assert (spec.completions_per_rollout, spec.optimizer_step.completions_per_step, spec.horizon.rollouts) == expected


@pytest.mark.parametrize(
    ("prompts", "samples", "episodes", "rollouts"),
    [(64, 16, 2_000_000, 1953), (48, 16, 1_000_000, 1302), (256, 64, 10_000_000, 610), (64, 8, 1_024_000, 2000)],
)
def test_published_runs_of_grpo_fast(prompts: int, samples: int, episodes: int, rollouts: int) -> None:
    reading, _ = fast(
        f"--num_unique_prompts_rollout {prompts} --num_samples_per_prompt_rollout {samples} --total_episodes {episodes}"
    )
    assert reading.spec is not None
    assert (reading.spec.completions_per_rollout, reading.spec.horizon.rollouts) == (prompts * samples, rollouts)


def test_the_world_size_is_the_learners_of_all_nodes() -> None:
    reading, _ = fast("--num_learners_per_node 4 8 --vllm_num_engines 20")
    assert reading.spec is not None
    assert reading.spec.topology.world_size == 12


# ---- defaults per checkout


@pytest.mark.parametrize(
    ("version", "path", "value"),
    [
        (FIRST, "order.last_rollout", "drop"),
        (FIRST, "objective.kl_estimator", "k3"),
        (FIRST, "advantage.scale", "group"),
        (FIRST, "rollout.group_filter", "drop_zero_variance"),
        ("2026.1.26", "order.last_rollout", "wrap"),
        ("2026.3.1", "staleness.maximum", 1),
        ("2026.6.10", "staleness.maximum", 8),
        ("2026.3.1", "advantage.scale", "group"),
        ("2026.6.10", "advantage.scale", "none"),
        ("2026.3.1", "objective.clip_high", 0.2),
        ("2026.6.10", "objective.clip_high", 0.272),
        ("2026.6.10", "carried.temperature", 0.7),
        ("2026.8.20", "carried.temperature", 1.0),
        ("2026.3.1", "order.seed", 1),
        ("2026.6.10", "order.seed", 42),
        ("2026.6.10", "staleness.mode", "lookahead"),
        ("2026.8.20", "staleness.mode", "bounded"),
        ("0.2.0", "objective.sampler_correction", None),
        ("0.3.0", "objective.sampler_correction", "token_truncate [-, 2.0]"),
    ],
)
def test_defaults_change_between_checkouts(version: str, path: str, value: object) -> None:
    reading, _ = fast(version=version)
    assert reading.spec is not None
    group, name = path.split(".")
    assert getattr(getattr(reading.spec, group), name) == value


def test_standard_advantages_have_a_biased_deviation() -> None:
    reading, _ = fast("--advantage_normalization_type standard")
    assert reading.spec is not None
    assert (reading.spec.advantage.ddof, reading.spec.advantage.epsilon) == (0, 1e-8)


@pytest.mark.parametrize(("version", "code"), [(None, "BB-OI-001"), ("2026.4.1", "BB-OI-002"), ("x", "BB-OI-002")])
def test_unknown_checkouts_fail_closed(version: str | None, code: str) -> None:
    reading, found = fast(version=version)  # type: ignore[arg-type]  # None: not said
    assert (reading.spec, list(found)) == (None, [code])


def test_the_ppo_script_is_no_part_of_later_checkouts() -> None:
    assert "BB-OI-002" in judge(TULU_8B, HEAD)[1]


# ---- command lines


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        ("--active_sampling", "active_sampling", True),
        ("--active_sampling False", "active_sampling", False),
        ("--no_filter_zero_std_samples", "filter_zero_std_samples", False),
        ("--num-mini-batches=4", "num_mini_batches", 4),
        ("--num_mini 4", "num_mini_batches", 4),
        ("--num_learners_per_node 2 4", "num_learners_per_node", [2, 4]),
        ("--learning_rate 3e-7", "learning_rate", 3e-7),
        ("--no-filter-zero-std-samples --with_tracking", "filter_zero_std_samples", False),
        ("--stop_strings a b --filter_zero_std_samples=no", "filter_zero_std_samples", False),
    ],
)
def test_flags_are_read_as_the_parser_reads_them(flags: str, key: str, value: object) -> None:
    reading, found = fast(flags)
    assert reading.native[key] == value
    assert verdict(found.values()) == "valid"


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("--num-mini_batches 4", "BB-OI-003", "has no setting num-mini_batches"),
        ("--num_m 4 stray", "BB-OI-003", "no option takes 'stray'"),
        ("--num 4", "BB-OI-003", "--num could be short for num_"),
        ("--no_active_sampling", "BB-OI-003", "has no setting no_active_sampling"),
        ("--beta", "BB-OI-004", "--beta needs a value; given: nothing"),
        ("--num_learners_per_node", "BB-OI-004", "--num_learners_per_node needs values; given: nothing"),
    ],
)
def test_what_the_parser_refuses_is_a_finding(flags: str, code: str, message: str) -> None:
    _, found = fast(flags)
    assert verdict(found.values()) == "invalid"
    assert message in found[code].message


@pytest.mark.parametrize("key", ["max_grad_norm", "ref_policy_update_freq", "fsdp_shard_degree", "fsdp_num_replicas"])
def test_no_command_line_says_none(key: str) -> None:
    assert fast(f"--{key} None")[1]["BB-OI-004"].where[0].key == key
    settings = Source(values={"script": "grpo_fast.py", key: None})
    assert OpenInstructAdapter().read(settings, Context(framework_version=HEAD)).verdict == "valid"


@pytest.mark.parametrize("words", ["'2 2'", "='2 2'", "=2,2"])
def test_numbers_of_nodes_are_words_of_their_own(words: str) -> None:
    assert "BB-OI-004" in fast(f"--num_learners_per_node{words if words[0] == '=' else ' ' + words}")[1]


def test_an_override_replaces_an_argument() -> None:
    argv = ("python", "open_instruct/grpo_fast.py", "--num_learners_per_node", "2", "4")
    source = load_source(list(argv), overrides={"num_learners_per_node": 3})
    reading = OpenInstructAdapter().read(source, Context(framework_version=HEAD))
    assert reading.native["num_learners_per_node"] == [3]


def test_old_flags_name_their_successors() -> None:
    _, found = fast("--actor_num_gpus_per_node 6")
    assert found["BB-OI-003"].fixes[0].text == "write num_learners_per_node"


def test_a_launch_script_reads_from_end_to_end(tmp_path: Path) -> None:
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\nLEARNERS=${LEARNERS:-6}\npython mason.py --gpus 8 -- source setup.sh \\&\\& "
        "uv run python open_instruct/grpo_fast.py \\\n  --num_unique_prompts_rollout 48 \\\n"
        "  --num_samples_per_prompt_rollout 16 --num_learners_per_node $LEARNERS 2>&1 | tee log\n"
    )
    source = load_source(script)
    assert source.values["num_unique_prompts_rollout"] == 48
    reading = batchbridge.read(source, framework="open_instruct", version=HEAD)
    assert reading.spec is not None
    assert (reading.spec.completions_per_rollout, reading.spec.topology.world_size) == (768, 6)
    assert reading.provenance["rollout.completions_per_prompt"].line == 5


# ---- rules


@pytest.mark.parametrize(
    ("flags", "version", "code"),
    [
        ("--num_learners_per_node 2", HEAD, "BB-OI-050"),
        ("--mask_truncated_completions True", HEAD, "BB-OI-051"),
        ("--num_mini_batches 4", HEAD, "BB-OI-052"),
        ("--gradient_accumulation_steps 4", HEAD, "BB-OI-053"),
        ("--total_episodes 100", HEAD, "BB-OI-054"),
        ("", HEAD, "BB-OI-055"),
        ("--sequence_parallel_size 2 --deepspeed_stage 3 --num_learners_per_node 2", HEAD, "BB-OI-056"),
        ("--deepspeed_stage 2", "2026.1.26", "BB-OI-059"),
        ("--set_weight_decay_on_bias_and_norm False", HEAD, "BB-OI-060"),
        ("", HEAD, "BB-OI-061"),
        ("", FIRST, "BB-OI-067"),
        ("--num_learners_per_node 2", FIRST, "BB-OI-050"),
    ],
)
def test_silent_effects_are_said(flags: str, version: str, code: str) -> None:
    reading, found = fast(flags, version)
    assert code in found
    assert verdict(found.values()) == "valid", found
    assert reading.spec is not None


@pytest.mark.parametrize(
    ("flags", "version", "code"),
    [
        ("--num_learners_per_node 1", HEAD, "BB-OI-050"),
        ("--mask_truncated_completions True", "2026.3.1", "BB-OI-051"),
        ("--deepspeed_stage 2", "2026.3.1", "BB-OI-059"),
        ("--deepspeed_stage 2", FIRST, "BB-OI-059"),
        ("--active_sampling", HEAD, "BB-OI-055"),
        ("", "2026.1.26", "BB-OI-067"),
        ("--async_steps 0", FIRST, "BB-OI-013"),
        ("--num_learners_per_node 65", FIRST, "BB-OI-016"),
        ("--num_learners_per_node 64", FIRST, "BB-OI-080"),
        ("--num_learners_per_node 65 --allow_world_padding", FIRST, "BB-OI-080"),
        ("--num_learners_per_node 65", "2026.1.26", "BB-OI-080"),
    ],
)
def test_what_does_not_hold_is_not_said(flags: str, version: str, code: str) -> None:
    assert code not in fast(flags, version)[1]


@pytest.mark.parametrize(
    ("flags", "version", "code"),
    [
        ("--use_vllm_logprobs True --truncated_importance_sampling_ratio_cap 2", FIRST, "BB-OI-065"),
        ("--use_vllm_logprobs True --truncated_importance_sampling_ratio_cap 2", "2026.3.1", "BB-OI-065"),
        ("--masked_mean_denominator 0", FIRST, "BB-OI-066"),
        ("--num_samples_per_prompt_rollout 1", FIRST, "BB-OI-068"),
        ("--num_learners_per_node 65", FIRST, "BB-OI-080"),
        ("--kl_estimator 2", FIRST, "BB-OI-027"),
        ("--kl_estimator kl3", "2026.1.26", "BB-OI-004"),
    ],
)
def test_an_error_of_one_checkout_is_found_in_it(flags: str, version: str, code: str) -> None:
    assert fast(flags, version)[1][code].severity == "error"


@pytest.mark.parametrize(("learners", "said"), [(64, False), (65, True)])
def test_rows_that_are_too_few_for_the_replicas_of_grpo_py_train_nothing(learners: int, said: bool) -> None:
    _, found = judge(f"python open_instruct/grpo.py --num_learners_per_node {learners}", HEAD)
    assert ("BB-OI-080" in found) == said
    assert "BB-OI-016" not in found
    assert verdict(found.values()) == ("invalid" if said else "valid")


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ("--rho_clamp_upper_bound 0.5", "BB-OI-072"),
        ("--rho_clamp_upper_bound 1", "BB-OI-072"),
        ("--rho_clamp_lower_bound 1", "BB-OI-072"),
        ("--rho_mask_lower_bound 2", "BB-OI-072"),
        ("--rho_mask_upper_bound 0.5", "BB-OI-072"),
        ("--rho_clamp_upper_bound 0.5 --no_use_rho_correction", None),
        ("--rho_clamp_upper_bound 0 --rho_clamp_lower_bound -1 --rho_mask_lower_bound 0.5", None),
        ("--eval_on_step_0 --local_eval_every 0", "BB-OI-073"),
        ("--eval_on_step_0 False --local_eval_every -1", None),
        ("--eval_on_step_0", None),
        ("--eval_top_p 2", "BB-OI-074"),
        ("--eval_top_p 0", "BB-OI-074"),
        ("--eval_top_p 1", None),
        ("--apply_verifiable_reward 0", "BB-OI-075"),
        ("--no_apply_verifiable_reward", "BB-OI-075"),
        ("--apply_verifiable_reward 0 --non_stop_penalty", None),
        ("--max_steps 0", "BB-OI-004"),
        ("--save_freq auto", "BB-OI-004"),
        ("--data_loader_seed 1.0", "BB-OI-004"),
        ("--save_traces 2", "BB-OI-004"),
        ("--verification_reward no", "BB-OI-004"),
        ("--cp_strategy ring", "BB-OI-004"),
        ("--attn_implementation flash_attention_2", "BB-OI-004"),  # as it was before 2026.6.10
        ("--attn_implementation flash_2", None),
        ("--output_dir", "BB-OI-004"),
        ("--tools", "BB-OI-004"),
        ("--save_traces", None),
        ("--save_traces no --max_steps 1 --save_freq -1 --verification_reward 1 --output_dir True --tools a b", None),
    ],
)
def test_settings_that_say_nothing_about_batches_are_refused_as_the_parser_refuses_them(
    flags: str, code: str | None
) -> None:
    found = fast(flags)[1].values()
    assert {one.code for one in found if one.severity == "error"} == ({code} if code else set())


@pytest.mark.parametrize("flags", ["--masked_mean_axis 1", "--masked_mean_denominator 9", "--fill_completions True"])
def test_what_only_the_first_checkout_does_is_undecided(flags: str) -> None:
    reading, found = fast(flags, FIRST)
    assert (reading.spec, verdict(found.values()), "BB-OI-007" in found) == (None, "undecided", True)


def test_the_first_checkout_counts_tokens_in_micro_batches() -> None:
    behaviour = fast("", FIRST)[0].behaviour
    assert behaviour is not None
    assert behaviour.denominator_scope == "micro_batch"


def test_synchronous_training_was_possible_before_the_first_release() -> None:
    reading, _ = fast("--async_steps 0", FIRST)
    assert reading.spec is not None
    assert (reading.spec.staleness.mode, reading.spec.staleness.maximum) == ("sync", 0)


def test_a_removed_flag_says_when_it_went_and_which_checkout_has_it() -> None:
    _, found = fast("--max_token_length 2048 --kl_estimator kl3")
    message, fixes = found["BB-OI-003"].message, [fix.text for fix in found["BB-OI-003"].fixes]
    assert "lost it on 2025-10-20 (3a9a97e46" in message
    assert fixes[0] == f"read it in the checkout that has it: --framework-version {FIRST}"
    assert verdict(fast("--max_token_length 2048 --kl_estimator kl3", FIRST)[1].values()) == "valid"


def test_a_checkout_that_refuses_another_flag_is_not_proposed() -> None:
    _, found = fast("--max_token_length 2048 --kl_estimator 2")
    texts = [fix.text for fix in found["BB-OI-003"].fixes]
    assert texts[-1] == "remove max_token_length: no known checkout takes all that is given"
    assert not any("--framework-version" in text for text in texts)


def test_a_flag_of_the_older_script_is_said_to_be_one() -> None:
    _, found = fast("--local_rollout_batch_size 4")
    assert "ppo_vllm_thread_ray_gtrl.py had it, grpo_fast.py never" in found["BB-OI-003"].message


def test_deepspeed_clips_by_no_bound_below_0_and_olmo_core_by_any() -> None:
    reading, found = fast("--max_grad_norm -1")
    assert reading.spec is not None
    assert (verdict(found.values()), reading.spec.carried.max_gradient_norm) == ("valid", 0.0)
    reading, _ = judge("python open_instruct/grpo.py --max_grad_norm -1", HEAD)
    assert reading.spec is not None
    assert reading.spec.carried.max_gradient_norm == -1.0  # BB101: it would turn every gradient round


def test_the_other_script_has_its_own_defects() -> None:
    _, found = judge(
        "python open_instruct/grpo.py --num_epochs 2 --sequence_parallel_size 2 --deepspeed_stage 3 "
        "--num_mini_batches 2",
        HEAD,
    )
    assert {"BB-OI-057", "BB-OI-058", "BB-OI-052"} <= set(found)
    assert "fewer than 2 optimizer steps" in found["BB-OI-052"].message


def test_the_older_script_depends_on_the_split_and_the_world() -> None:
    reading, found = judge(TULU_8B, PPO_LAST)
    assert {"BB-OI-062", "BB-OI-063"} <= set(found)
    assert reading.behaviour is not None
    assert reading.behaviour.denominator_scope == "micro_batch"
    assert {defect.code for defect in reading.behaviour.defects} >= {"BB-OI-062", "BB-OI-063"}


def test_the_first_ppo_checkout_checks_no_mini_batches() -> None:
    flags = "--local_rollout_batch_size 24 --local_mini_batch_size 16 --num_mini_batches 3"
    _, first = judge(f"python ppo_vllm_thread_ray_gtrl.py {flags}", PPO_FIRST)
    _, last = judge(f"python ppo_vllm_thread_ray_gtrl.py {flags}", PPO_LAST)
    assert (first["BB-OI-033"].severity, "BB-OI-064" in first) == ("warning", False)
    assert (last["BB-OI-031"].severity, "BB-OI-064" in last) == ("error", True)


def test_a_denominator_that_the_schema_cannot_say_is_undecided() -> None:
    reading, found = fast("--loss_denominator 1000")
    assert (reading.spec, verdict(found.values()), "BB-OI-007" in found) == (None, "undecided", True)


def test_rows_of_plugins_are_asked_with_the_adapters_own() -> None:
    class Site:
        @hookimpl
        def batchbridge_rules(self, framework: str, version: str) -> Iterator[Rule[OpenInstructFacts]]:
            if (framework, version) == ("open_instruct", HEAD):
                few = "few completions"
                yield SILENT("SITE-1", lambda facts: few if facts.completions < 64 else None, ("seed",), "", "site")

    assert "SITE-1" not in fast("--num_unique_prompts_rollout 8")[1]
    site = Site()
    plugins.manager().register(site)
    try:
        found = fast("--num_unique_prompts_rollout 8")[1]["SITE-1"]
        assert "SITE-1" not in fast("--num_unique_prompts_rollout 16")[1]
    finally:
        plugins.manager().unregister(site)
    assert (found.severity, found.message, found.where) == ("warning", "few completions", (Where("seed", 42),))


def test_codes_are_used_once() -> None:
    codes = [rule.code for rule in RULES]
    assert len(codes) == len(set(codes))


def test_every_setting_has_one_row_in_each_of_its_checkouts() -> None:
    for checkout in tables.CHECKOUTS:
        rows = tables.PPO_ROWS if checkout in tables.SCRIPTS[tables.PPO] else tables.GRPO_ROWS
        keys = [row.key for row in rows if holds(row.versions, checkout)]
        assert len(keys) == len(set(keys))


def test_no_name_is_both_a_row_and_without_meaning() -> None:
    for checkout in tables.CHECKOUTS:
        assert not set(tables.rows_of(checkout)) & tables.other_names(checkout)


# ---- writing


@given(
    prompts=st.integers(1, 512),
    samples=st.integers(2, 64),
    learners=st.integers(1, 16),
    parts=st.sampled_from([1, 2, 4]),
    rollouts=st.integers(1, 10**6),
    epochs=st.integers(1, 4),
    script=st.sampled_from(["grpo_fast.py", "grpo.py"]),
    beta=st.sampled_from([0.0, 0.05]),
    scale=st.sampled_from(["standard", "centered"]),
)
def test_what_is_written_reads_as_the_same(
    prompts: int,
    samples: int,
    learners: int,
    parts: int,
    rollouts: int,
    epochs: int,
    script: str,
    beta: float,
    scale: str,
) -> None:
    values = {
        "script": script,
        "num_unique_prompts_rollout": prompts,
        "num_samples_per_prompt_rollout": samples,
        "num_learners_per_node": [min(learners, prompts * samples)],
        "num_mini_batches": parts,
        "num_epochs": epochs,
        "total_episodes": rollouts * prompts * samples,
        "beta": beta,
        "advantage_normalization_type": scale,
    }
    adapter, context = OpenInstructAdapter(), Context(framework_version=HEAD)
    spec = adapter.read(Source(values=values), context).spec
    assert spec is not None
    written = adapter.write(spec)
    assert adapter.read(Source(values=written.values), context).spec == spec
    argv = written.text["argv"].splitlines()
    assert adapter.read(Source(values=parse_arguments(argv), argv=tuple(argv)), context).spec == spec


@pytest.mark.parametrize("beta", [0.0, 0.05])
@pytest.mark.parametrize(
    ("script", "version"), [(script, one) for script, found in tables.SCRIPTS.items() for one in found]
)
def test_what_is_written_for_a_checkout_reads_as_the_same_in_it(script: str, version: str, beta: float) -> None:
    adapter, context = OpenInstructAdapter(), Context(framework_version=version)
    values = {"script": script, "beta": beta, "learning_rate": 3e-7, "total_episodes": 4096}
    spec = adapter.read(Source(values=values), context).spec
    assert spec is not None
    written = adapter.write(spec, version)
    assert written.framework_version == version
    back = adapter.read(Source(values=written.values), context)
    assert (back.spec, list(back.findings)) == (spec, [])


def test_what_a_checkout_has_no_setting_for_is_named() -> None:
    spec = fast("--active_sampling --async_steps 2")[0].spec
    assert spec is not None
    with pytest.raises(CannotWrite, match=r"active_sampling True: open-instruct 2025\.10\.20 has no such setting"):
        OpenInstructAdapter().write(spec, FIRST)


def test_the_shell_line_is_the_argv() -> None:
    spec = judge(TULU_8B, PPO_LAST)[0].spec
    assert spec is not None
    written = OpenInstructAdapter().write(spec)
    (command,) = read_script(written.text["shell"]).commands
    assert list(command.argv) == written.text["argv"].splitlines()


# ---- published commands

PUBLISHED = json.loads((Path(__file__).parent / "published.json").read_text(encoding="utf-8"))
"""Counts over the published commands, said in docs/open_instruct.md: all, those with flags that the checkout does not
have, those of them with both max_token_length and a kl_estimator of 2, and those that are valid without the flags."""


def _published() -> list[tuple[str, tuple[str, ...]]]:
    """(path, argv) of every published command of the scripts that are read."""
    if not SHARED.exists():
        pytest.skip("../shared/corpus is not part of this repository")
    rows = [json.loads(line) for line in SHARED.read_text(encoding="utf-8").splitlines()]
    commands = [
        (row["path"], program.argv)
        for row in rows
        if row["repository"] == "allenai/open-instruct"
        for command in row["commands"]
        for program in programs([Argument(word, 1) for word in command])
    ]
    return [(path, argv) for path, argv in commands if OpenInstructAdapter().detect(load_source(list(argv)))]


@pytest.mark.shared
def test_every_published_command_is_read() -> None:
    published = _published()
    for path, argv in published:
        reading, found = judge(argv, PPO_LAST if "ppo" in argv[1] else HEAD)
        # Some published scripts are stale: flags that the checkout no longer has, and one pack_length.
        errors = {code for code, finding in found.items() if finding.severity == "error"}
        assert errors <= {"BB-OI-003", "BB-OI-010"}, (path, errors)
        assert reading.spec is not None, (path, found)
    assert len(published) == PUBLISHED["commands"]


def without(argv: Sequence[str], options: Collection[str]) -> list[str]:
    """Words without some options and all that stands behind them."""
    kept, dropping = [], False
    for word in argv:
        dropping = word[2:].partition("=")[0] in options if word.startswith("--") else dropping
        kept += [] if dropping else [word]
    return kept


@pytest.mark.shared
def test_a_stale_published_command_is_valid_without_the_flags_that_are_named() -> None:
    stale = both = mendable = 0
    for path, argv in _published():
        version = PPO_LAST if "ppo" in argv[1] else HEAD
        source = load_source(list(argv))
        reading = OpenInstructAdapter().read(source, Context(framework_version=version))
        named = [found.where[0].key for found in reading.findings if found.code == "BB-OI-003"]
        if not named:
            continue
        stale += 1
        both += "max_token_length" in named and source.values.get("kl_estimator") == 2
        adapter = OpenInstructAdapter()
        mended = adapter.read(load_source(without(argv, named)), Context(framework_version=version))
        errors = {f.code for f in [*mended.findings, *adapter.check(mended)] if f.severity == "error"}
        assert errors == ({"BB-OI-010"} if path.endswith("grpo_fast_mini_old.sh") else set()), path
        mendable += not errors
    counted = {"stale": stale, "stale_with_both": both, "stale_and_valid_without": mendable}
    assert counted == {name: PUBLISHED[name] for name in counted}


# ---- a YAML file as the first argument


YAML = "num_mini_batches: 2\nlocal_rollout_batch_size: 32\nseed: 3\nbeta: 0.05\n"


def behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: str, script: str = "ppo_vllm_thread_ray_gtrl.py"
) -> tuple[RunReading, dict[str, Finding]]:
    (tmp_path / "run.yaml").write_text(YAML, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return judge(f"python open_instruct/{script} {words}", HEAD if script == "grpo_fast.py" else PPO_LAST)


def test_a_yaml_file_is_the_first_argument_of_the_ppo_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, found = behind(tmp_path, monkeypatch, "run.yaml --seed=7")
    assert "BB-OI-003" not in found
    assert reading.native["local_rollout_batch_size"] == 32
    assert reading.native["seed"] == 7  # the words behind the file win
    place = reading.given["local_rollout_batch_size"]
    assert (place.file, place.line) == ("run.yaml", 2)


def test_behind_a_yaml_file_a_word_without_its_value_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reading, found = behind(tmp_path, monkeypatch, "run.yaml --seed 7")
    assert found["BB-OI-003"].native == "IndexError: list index out of range"
    assert (reading.spec, verdict(found.values())) == (None, "invalid")


def test_a_yaml_file_that_is_not_here_leaves_the_run_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reading, found = behind(tmp_path, monkeypatch, "other.yaml")
    assert (reading.spec, verdict(found.values()), "BB-OI-009" in found) == (None, "undecided", True)


def test_the_grpo_scripts_take_no_yaml_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They call `parse_args_into_dataclasses`: the word is left over, and HfArgumentParser ends the run."""
    _, found = behind(tmp_path, monkeypatch, "run.yaml", "grpo_fast.py")
    assert "run.yaml" in found["BB-OI-003"].message
    assert verdict(found.values()) == "invalid"


@pytest.mark.parametrize(("call", "takes"), [("parse()", True), ("parse_args_into_dataclasses()", False)])
def test_the_grpo_script_of_a_copy_takes_one_where_it_calls_parse(tmp_path: Path, call: str, takes: bool) -> None:
    (tmp_path / "grpo_fast.py").write_text(f"args = parser.{call}\n", encoding="utf-8")
    copy = OwnCopy(folder=tmp_path, place="open_instruct/", label="", release=HEAD)
    source = Source(argv=("python", "open_instruct/grpo_fast.py", "nowhere.yaml"))
    assert bool(file_behind_script(source, 1, "grpo_fast.py", copy).findings) is takes
