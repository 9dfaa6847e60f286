"""Reading and writing OpenRLHF's options, without OpenRLHF."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import batchbridge
from batchbridge.comparing.convert import left_behind
from batchbridge.comparing.diff_sources import diff
from batchbridge.contract import plugins
from batchbridge.contract.reading import Context, Source
from batchbridge.errors import CannotWrite
from batchbridge.meaning.findings import verdict
from batchbridge.meaning.spec import LossTerm
from batchbridge.reading.files import load_source
from batchbridge_openrlhf import declared
from batchbridge_openrlhf.config import OpenRlhfAdapter
from batchbridge_openrlhf.settings import ABSENT, OPTIONS, RELEASES, defaults_of, names_of, options_of

SHARED = Path(__file__).parents[4] / "shared" / "corpus"
INSTALLED = pytest.mark.skipif("openrlhf" not in plugins.adapters(), reason="scripts need the installed entry point")
COMMANDS = Path(__file__).parent / "launch_commands.json"
"""Commands of three published launch scripts of OpenRLHF (Apache-2.0), as executed; absolute paths replaced by ABS."""


def read(values, *, version="0.11.2", world=None, prompts=None, **overrides):
    context = Context(framework_version=version, world_size=world, dataset_size=prompts)
    return OpenRlhfAdapter().read(load_source(values, overrides=overrides or None), context)


def codes(reading):
    return [finding.code for finding in reading.findings]


def judged(reading):
    return verdict([*reading.findings, *OpenRlhfAdapter().check(reading)])


SIZES = {
    "actor.num_gpus_per_node": 8,
    "rollout.batch_size": 128,
    "rollout.n_samples_per_prompt": 8,
    "train.batch_size": 128,
    "train.micro_batch_size": 4,
}


# ---- launch commands


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_published_launch_command_is_valid(number):
    argv = json.loads(COMMANDS.read_text())[number]
    reading = read(argv, version="0.11.1")
    assert (reading.findings, judged(reading)) == ((), "valid")


def test_a_published_launch_command_means_what_the_script_says():
    reading = read(json.loads(COMMANDS.read_text())[0], version="0.11.1")
    spec = reading.spec
    assert (spec.topology.world_size, spec.topology.context_parallel) == (4, 2)
    assert (spec.completions_per_rollout, spec.optimizer_step.completions_per_step) == (1024, 1024)
    assert (spec.micro_batch.tokens_per_device, spec.micro_batch.forward_tokens_per_device) == (16192, 32768)
    assert (spec.objective.kl_placement, spec.objective.kl_estimator, spec.objective.kl_coefficient) == (
        *("loss", "k2"),
        1e-5,
    )
    assert spec.objective.sampler_correction == "token_mask [0.5, 5.0]"
    assert (spec.carried.max_prompt_tokens, spec.carried.max_completion_tokens) == (10240, 64000)


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="../shared is absent")
def test_every_collected_openrlhf_command_reads_without_an_error_of_ours():
    rows = [json.loads(line) for line in (SHARED / "launch_argv.jsonl").read_text().splitlines()]
    commands = [argv for row in rows if row["repository"] == "OpenRLHF/OpenRLHF" for argv in row["commands"]]
    readings = [read(argv, version="0.11.1") for argv in commands]
    assert commands
    assert [judged(reading) for reading in readings] == ["valid"] * len(commands)


@pytest.mark.parametrize(
    "launcher",
    [
        "python -m openrlhf.cli.train_ppo_ray",
        "python3 -u openrlhf/cli/train_ppo_ray.py",
        "deepspeed --module openrlhf.cli.train_ppo_ray",
        "torchrun --nproc_per_node 8 -m openrlhf.cli.train_ppo_ray",
        "ray job submit --address=http://127.0.0.1:8265 --runtime-env-json '{\"x\": 1}' -- python3 -m "
        "openrlhf.cli.train_ppo_ray",
        "",
    ],
)
def test_the_command_may_stand_behind_a_launcher(launcher):
    options = "--train.batch_size=64 --algo.dynamic_filtering_range 0.1 0.9 --eval.steps -1 --ds.packing_samples"
    reading = read(shlex.split(f"{launcher} {options} --vllm.num_engines 1"))
    assert reading.findings == ()
    assert reading.run.settings["train.batch_size"] == 64
    assert reading.run.settings["algo.dynamic_filtering_range"] == (0.1, 0.9)
    assert reading.run.settings["eval.steps"] == -1
    assert reading.run.settings["ds.packing_samples"] is True


def test_another_program_of_openrlhf_is_refused_by_name():
    (finding,) = read(["python", "-m", "openrlhf.cli.train_sft", "--train.batch_size", "8"]).findings
    assert (finding.code, "train_sft" in finding.message, finding.undecided) == ("BB-ORL-005", True, True)


def test_a_command_of_something_else_is_refused():
    assert codes(read(["python", "-m", "verl.trainer.main_ppo", "data.train_batch_size=8"])) == ["BB-ORL-005"]


def test_an_abbreviated_option_is_read_as_argparse_reads_it():
    reading = read(["--rollout.n_s", "4"])
    assert (reading.run.settings["rollout.n_samples_per_prompt"], codes(reading)) == (4, ["BB-ORL-008"])


def test_an_ambiguous_abbreviation_is_unknown():
    assert codes(read(["--rollout.m", "4"])) == ["BB-ORL-003"]


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ("--train.batch_size", "BB-ORL-004"),
        ("--train.batch_size --train.seed 3", "BB-ORL-004"),
        ("--train.batch_size many", "BB-ORL-004"),
        ("--train.batch_size 1e3", "BB-ORL-004"),
        ("--algo.dynamic_filtering_range 0.5", "BB-ORL-004"),
        ("--ds.packing_samples=1", "BB-ORL-004"),
        ("--actor.policy_loss_type cispo", "BB-ORL-004"),
        ("--train.seed 3 4", "BB-ORL-003"),
    ],
)
def test_a_malformed_option_is_a_finding(words, code):
    assert codes(read(["--data.max_len", "8", *words.split()])) == [code]


def test_a_setting_given_beside_the_command_replaces_it():
    argv = ["--train.batch_size", "64", "--rollout.batch_size", "32"]
    reading = read(argv, **{"train.batch_size": 128})
    assert reading.spec.optimizer_step.completions_per_step == 128
    assert reading.spec.rollout.prompts_per_rollout == 32


def test_settings_without_dashes_are_read_as_yaml():
    reading = read(["train.batch_size=64", "actor.eps_clip_low_high=[0.2, 0.28]", "reward.clip_range=-5 5"])
    assert reading.findings == ()
    assert (reading.spec.objective.clip_high, reading.spec.objective.reward_clip) == (0.28, 5.0)


def test_the_last_of_two_occurrences_counts():
    assert read(["--train.batch_size", "8", "--train.batch_size", "16"]).run.settings["train.batch_size"] == 16


@pytest.mark.parametrize("words", ["--train.seed a --train.seed 1", "--train.seed --train.seed 1"])
def test_argparse_refuses_an_occurrence_although_a_later_one_would_replace_it(words):
    assert codes(read(words.split())) == ["BB-ORL-004"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--data.input_template", "-- {} --"], []),
        (["--data.input_template", "-x"], ["BB-ORL-004", "BB-ORL-003"]),
        (["--algo.kl.init_coef", "-1e-3"], ["BB-ORL-004", "BB-ORL-003"]),
        (["--algo.kl.init_coef=-1e-3"], []),
        (["--data.input_template", "--", "x"], ["BB-ORL-004", "BB-ORL-003"]),
        (["--algo.dynamic_filtering_range", "-5", "-.5"], []),
    ],
)
def test_a_word_with_a_dash_is_a_value_where_argparse_of_python_3_11_takes_it_for_one(words, expected):
    assert codes(read(words)) == expected


@INSTALLED
def test_a_launch_script_gives_file_and_line_of_every_option(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text("TB=256\nray job submit -- python3 -m openrlhf.cli.train_ppo_ray \\\n  --train.batch_size $TB\n")
    origin = read(script).provenance["optimizer_step.completions_per_step"]
    assert (origin.key, origin.value, origin.file, origin.line) == ("train.batch_size", 256, str(script), 3)


def test_a_run_without_a_pass_is_told_in_words():
    said = batchbridge.check({"train.max_epochs": 0}, framework="openrlhf", version="0.11.2").text()
    assert "0 optimizer steps of 128 completions" in said


@INSTALLED
def test_what_a_script_leaves_open_matters_only_where_something_depends_on_it(tmp_path):
    script = tmp_path / "run.sh"
    script.write_text(
        "python3 -m openrlhf.cli.train_ppo_ray --logger.logging_steps $LOG --actor.num_gpus_per_node $GPUS "
        "--ref.num_gpus_per_node 4 --critic.num_gpus_per_node 4 --reward.remote_url math.py\n"
    )
    context = {"framework": "openrlhf", "version": "0.11.2"}
    readings = [batchbridge.read(script, env=env, **context) for env in (None, {"GPUS": "4"})]
    assert [reading.verdict for reading in readings] == ["undecided", "valid"]


# ---- mappings and files


def test_nested_and_dotted_names_mean_the_same():
    nested = {"rollout": {"batch_size": 64}, "algo": {"kl": {"init_coef": 0.5}}}
    assert read(nested).spec == read({"rollout.batch_size": 64, "algo.kl.init_coef": 0.5}).spec


@INSTALLED
@pytest.mark.parametrize(
    ("value", "decided"),
    [
        ('"$(realpath "$0")/agent.py"', True),
        ("$ROOT/agent.py", True),
        ("http://$HOST:80", True),
        ("$AGENT", False),
        ('"$(find "$(pwd)" -name agent)"', False),
        ("${A:-${B}}", False),
    ],
)
@pytest.mark.parametrize("option", ["train.agent_func_path", "reward.remote_url"])
def test_what_decides_by_being_given_is_decided_where_a_part_is_written(tmp_path, option, value, decided):
    """The control: a value that may be empty, which is as if the option were not given."""
    script = tmp_path / "run.sh"
    script.write_text(f"python -m openrlhf.cli.train_ppo_ray --{option} {value} --train.batch_size 128\n")
    found = {one.where[0].key for one in batchbridge.read(script, version="0.11.2").findings if one.code == "BB011"}
    matters = option == "train.agent_func_path"  # an address of a reward alone decides nothing here
    assert (option in found) == (matters and not decided)


def test_a_file_gives_line_and_file_of_every_option_it_says(tmp_path):
    path = tmp_path / "options.yaml"
    path.write_text("train:\n  batch_size: 64\nrollout.batch_size: 32\n")
    reading = read(path)
    origins = [reading.provenance[f] for f in ("optimizer_step.completions_per_step", "rollout.prompts_per_rollout")]
    assert [(origin.key, origin.line) for origin in origins] == [("train.batch_size", 2), ("rollout.batch_size", 3)]


def test_what_a_file_says_beyond_the_options_is_left_to_the_program_that_reads_it(tmp_path):
    """OpenRLHF has no configuration file: an option that it lacks may be one of the file's own program."""
    path = tmp_path / "options.yaml"
    path.write_text("train:\n  batch_size: 64\nrollout.batch_size: 32\nstride: 8\nactor.adam.lr: ${rate}\n")
    reading = read(path)
    found = {one.where[0].key: (one.code, one.undecided) for one in reading.wrong}
    assert found == {"stride": ("BB-ORL-003", True), "actor.adam.lr": ("BB-ORL-004", True)}
    path.write_text("train:\n  batch_size: 64\nactor.adam.lr: high\n")  # the control: no text is a rate
    assert [(one.code, one.undecided) for one in read(path).wrong] == [("BB-ORL-004", False)]
    argv = ["-m", "openrlhf.cli.train_ppo_ray", "--train.batch_size", "64", "--stride", "8"]
    assert [(one.code, one.undecided) for one in read(["python", *argv]).wrong] == [("BB-ORL-003", False)]


# ---- versions


def parser_of(version):
    """Name to kind, default and choices in the parser of a release; recorded by record_verdicts.py."""
    found = {}
    for release, changes in json.loads((Path(__file__).parent / "parser_options.json").read_text()).items():
        found |= changes
        if release == version:
            return {name: option for name, option in found.items() if option is not None}
    raise KeyError(version)


@pytest.mark.parametrize("version", RELEASES)
def test_every_option_of_a_release_is_as_in_its_parser(version):
    options = {name: [o.kind, o.default, list(o.choices)] for name, o in options_of(version).items()}
    assert json.loads(json.dumps(options)) == parser_of(version)


@pytest.mark.parametrize(("version", "dotted"), [("0.10.1", 0), ("0.10.1.post2", 0), ("0.10.2", 162), ("0.11.2", 165)])
def test_names_are_flat_to_0_10_1_and_dotted_from_0_10_2_on(version, dotted):
    assert sum("." in name for name in options_of(version)) == dotted


def test_no_release_has_two_rows_of_one_name():
    for version in RELEASES:
        rows = [option.name(version) for option in OPTIONS if option in options_of(version).values()]
        assert len(rows) == len(set(rows)) == len(names_of(version))


def test_what_an_absent_option_stands_for_is_the_default_of_the_version_that_brought_it():
    first = {identity: next((v for v in RELEASES if identity in names_of(v)), None) for identity in ABSENT}
    differ = {
        identity
        for identity, version in first.items()
        if version is not None and defaults_of(version)[identity] != ABSENT[identity][0]
    }
    assert differ == set()


@pytest.mark.parametrize(("version", "micro", "forward"), [("0.9.10", 4, 8), ("0.10.0", 1, None), ("0.11.2", 1, None)])
def test_the_default_micro_batches_are_those_of_the_version(version, micro, forward):
    spec = read({}, version=version).spec
    assert spec.micro_batch.completions_per_device == micro
    assert spec.micro_batch.forward_completions_per_device == forward


def test_a_flat_name_is_refused_where_names_are_dotted():
    (finding,) = read({"train_batch_size": 8}, version="0.10.2").findings
    assert (finding.code, finding.fixes[0].text) == ("BB-ORL-003", "write train.batch_size")


def test_a_dotted_name_is_refused_where_names_are_flat():
    (finding,) = read({"train.batch_size": 8}, version="0.10.1.post2").findings
    assert (finding.code, finding.fixes[0].text) == ("BB-ORL-003", "write train_batch_size")


def test_an_option_of_other_versions_is_said_to_be_one():
    (finding,) = read({"algo.advantage.is_correction_enable": True}).findings
    assert "exists in 0.10.2 to 0.11.1" in finding.message


@pytest.mark.parametrize(
    ("kind", "parts"),
    [(None, "token clip ratio"), ("icepop", "token mask ratio"), ("seq-mask-tis", "seq mask ratio")],
)
def test_a_correction_of_before_is_told_in_the_options_of_today(kind, parts):
    given = {
        "algo.advantage.is_correction_enable": True,
        **({"algo.advantage.is_correction_type": kind} if kind else {}),
    }
    told = dict(zip(["level", "mode", "gating"], parts.split(), strict=True))
    today = {f"algo.advantage.is_correction_{part}": value for part, value in told.items()}
    unknown = [finding for finding in read({**SIZES, **given}).findings if finding.code == "BB-ORL-003"]
    assert len(unknown) == len(given)
    for finding in unknown:
        assert finding.fixes[0].changes == {**today, **dict.fromkeys(given)}
    before = read({**SIZES, **given}, version="0.11.1").spec
    assert read({**SIZES, **today}).spec.objective == before.objective


def test_without_a_version_the_releases_that_know_the_options_are_named(monkeypatch):
    monkeypatch.setattr("batchbridge_openrlhf.config.installed", lambda distribution: None)
    (finding,) = read({"use_dynamic_batch": True, "prompt_max_len": 8}, version=None).findings
    assert (finding.code, finding.undecided) == ("BB-ORL-001", True)
    assert "exist in 0.8.6 to 0.9.7" in finding.message


@pytest.mark.parametrize("version", ["0.7.5", "main"])
def test_an_unknown_version_fails_closed(version):
    reading = read(SIZES, version=version)
    assert (codes(reading), reading.spec) == (["BB-ORL-002"], None)


def test_what_an_installed_newer_version_declares_otherwise_is_named(tmp_path, monkeypatch):
    known = declared.known()
    options = {**known, "train.brand_new": "7", "rollout.batch_size": "512"}
    del options["train.seed"]
    (tmp_path / "cli").mkdir()
    lines = [
        f"parser.add_argument('--{name}', action={value})"
        if value in ("'store_true'", "'store_false'")
        else f"parser.add_argument('--{name}'{'' if value == 'no default' else f', default={value}'})"
        for name, value in options.items()
    ]
    (tmp_path / "cli" / "train_ppo_ray.py").write_text("\n".join(lines), encoding="utf-8")
    monkeypatch.setattr(declared, "folder_of", lambda package: tmp_path)
    monkeypatch.setattr("batchbridge_openrlhf.config.installed", lambda distribution: "0.12.0")
    (found,) = read(SIZES, version="0.12.0").findings
    assert (found.code, found.severity) == ("BB-ORL-002", "warning")
    assert "adds train.brand_new (7); no longer has train.seed; has other defaults for " in found.message
    assert "rollout.batch_size (512, was 1024)" in found.message


# ---- meaning


def test_accumulation_is_the_train_batch_over_micro_batch_and_replicas():
    values = {**SIZES, "train.batch_size": 128, "train.micro_batch_size": 2}
    assert read(values).derived["gradient_accumulation_steps"] == 8
    assert read({**values, "ds.ring_attn_size": 2, "vllm.num_engines": 1}).derived["gradient_accumulation_steps"] == 16


def test_the_world_is_the_actors_nodes_times_devices():
    origin = read({"actor.num_nodes": 2, "actor.num_gpus_per_node": 4}).provenance["topology.world_size"]
    assert "actor.num_nodes 2 x actor.num_gpus_per_node 4" in origin.detail


def test_a_world_size_that_was_asked_for_wins_and_is_named():
    reading = read({"actor.num_gpus_per_node": 4}, world=16)
    assert (reading.spec.topology.world_size, codes(reading)) == (16, ["BB-ORL-007"])


@pytest.mark.parametrize(
    ("version", "expected"),
    [("0.8.1", 64), ("0.9.0", 64), ("0.9.1", 128), ("0.9.10", 128), ("0.10.0", 64), ("0.11.2", 64)],
)
def test_a_smaller_generation_batch_makes_smaller_rollouts_in_some_versions(version, expected):
    names = names_of(version)
    values = {names["rollout.batch_size"]: 128, names["rollout.vllm_generate_batch_size"]: 64}
    assert read(values, version=version).spec.rollout.prompts_per_rollout == expected


@pytest.mark.parametrize(("version", "last"), [("0.9.8", "drop"), ("0.10.4", "drop"), ("0.11.0", "short")])
def test_an_incomplete_rollout_is_dropped_until_0_10_4(version, last):
    assert read({}, version=version).spec.order.last_rollout == last


@pytest.mark.parametrize(("version", "last"), [("0.9.8", "drop"), ("0.9.9", "short"), ("0.11.0", "short")])
def test_with_asynchronous_training_it_is_dropped_until_0_9_8(version, last):
    values = {names_of(version)["train.async_enable"]: True}
    assert read(values, version=version).spec.order.last_rollout == last


def test_defaults_differ_from_other_frameworks_where_it_hurts():
    spec = read({}).spec
    assert (spec.advantage.baseline, spec.objective.kl_placement, spec.objective.kl_coefficient) == (
        *("value", "reward"),
        0.01,
    )
    assert (spec.objective.dual_clip, spec.objective.reward_clip, spec.objective.kl_clamp) == (None, 10.0, 10.0)
    assert (spec.carried.beta2, spec.carried.lr_schedule) == (0.95, 'cosine_with_min_lr {"min_lr_rate": 0.1}')
    assert (spec.carried.warmup_ratio, spec.carried.weight_decay_excludes) == (0.03, "biases_and_norms")


@pytest.mark.parametrize(
    ("estimator", "expected"),
    [
        ("group_norm", ("group_mean", "group", 1e-9, 1)),
        ("dr_grpo", ("group_mean", "none", None, None)),
        ("rloo", ("leave_one_out", "none", None, None)),
        ("reinforce_baseline", ("group_mean", "batch", 0.0, 0)),
        ("reinforce", ("none", "batch", 0.0, 0)),
        ("gae", ("value", "batch", 0.0, 0)),
    ],
)
def test_the_advantage_of_an_estimator(estimator, expected):
    advantage = read({"algo.advantage.estimator": estimator}).spec.advantage
    assert (advantage.baseline, advantage.scale, advantage.epsilon, advantage.ddof) == expected


def test_no_seed_orders_the_prompts_from_0_8_1_on():
    read_seeds = [read({"seed": 7}, version=version).spec.order.seed for version in ("0.8.0.post1", "0.8.1")]
    assert read_seeds == [7, None]
    assert read({"train.seed": 7}).spec.order.seed is None
    assert "nothing seeds, train.seed neither" in read({}).behaviour.order


def test_the_seed_is_left_behind_where_it_orders_nothing():
    assert left_behind(read({"train.seed": 7, "train.batch_size": 64}), {"train.seed": 7, "train.batch_size": 64}) == {
        "train.seed": 7
    }


def test_a_seed_of_the_prompts_cannot_be_written():
    with pytest.raises(CannotWrite, match=r"order\.seed = 7: openrlhf orders prompts by no seed"):
        OpenRlhfAdapter().write(read({}).spec.replace(**{"order.seed": 7}))


def test_gspo_is_ppos_surrogate_with_a_ratio_of_sequences():
    spec = read({"actor.policy_loss_type": "gspo"}).spec
    assert (spec.objective.surrogate, spec.objective.ratio_level) == ("ppo", "sequence")
    assert OpenRlhfAdapter().write(spec).values["actor.policy_loss_type"] == "gspo"


def test_gspo_over_tokens_cannot_be_written():
    spec = read({}).spec.replace(**{"objective.ratio_level": "sequence"})
    with pytest.raises(CannotWrite, match=r"loss\.policy\.aggregation"):
        OpenRlhfAdapter().write(spec)


@INSTALLED
def test_gspo_here_and_sequence_ratios_in_trl_are_one_surrogate():
    here = read({"actor.policy_loss_type": "gspo", "algo.advantage.estimator": "group_norm", **SIZES})
    there = batchbridge.read(
        {"loss_type": "grpo", "importance_sampling_level": "sequence"}, framework="trl", version="1.16.0", world_size=8
    )
    fields = {difference.field for difference in diff(here, there).differences}
    assert not fields & {"objective.surrogate", "objective.ratio_level", "loss.policy.aggregation"}
    assert {"order.seed", "advantage.epsilon"} <= fields


def test_rloo_was_scaled_over_the_rollout_until_0_8_4():
    scales = [read({"advantage_estimator": "rloo"}, version=v).spec.advantage.scale for v in ("0.8.4", "0.8.5")]
    assert scales == ["batch", "none"]


@pytest.mark.parametrize(
    "values",
    [{"algo.advantage.estimator": "flash_reinforce"}, {"reward.clip_range": [0, 1]}],
)
def test_what_the_schema_has_no_word_for_is_left_undecided(values):
    reading = read(values)
    assert (codes(reading), reading.spec, reading.verdict) == (["BB-ORL-009"], None, "undecided")


def test_kl_and_entropy_are_averaged_over_tokens_whatever_the_policy_term_does():
    values = {"actor.loss_agg_mode": "seq-mean-token-mean", "algo.kl.use_loss": True, "actor.entropy_coef": 0.1}
    loss = read(values).spec.loss
    assert (loss.policy.aggregation, loss.policy.count_empty) == ("sequence_mean", False)
    assert (loss.kl, loss.entropy) == (LossTerm(aggregation="token_mean"),) * 2


@pytest.mark.parametrize(("version", "aggregation"), [("0.8.8", "token_mean"), ("0.8.9", "sequence_mean")])
def test_gspo_is_a_mean_over_sequences_from_0_8_9_on(version, aggregation):
    assert read({"policy_loss_type": "gspo"}, version=version).spec.loss.policy.aggregation == aggregation


@pytest.mark.parametrize(
    ("version", "values", "expected"),
    [
        ("0.8.9", {"enable_vllm_is_correction": True}, "token_truncate [-, 2.0]"),
        ("0.9.1", {"enable_vllm_is_correction": True, "use_icepop": True}, "token_mask [0.5, 5.0]"),
        (
            "0.9.3",
            {"enable_vllm_is_correction": True, "vllm_is_correction_type": "mis"},
            "sequence_geometric_mask [0.5, 5.0]",
        ),
        ("0.10.1", {"enable_vllm_is_correction": True}, "token_truncate [0.5, 5.0]"),
        (
            "0.11.2",
            {
                "algo.advantage.is_correction_level": "seq",
                "algo.advantage.is_correction_gating": "binary_kl",
                "algo.advantage.is_correction_threshold": [0.02],
            },
            "sequence_binary_kl_mask [-, 0.02]",
        ),
    ],
)
def test_the_correction_towards_the_sampler_has_one_name_over_the_versions(version, values, expected):
    assert read(values, version=version).spec.objective.sampler_correction == expected


def test_asynchronous_training_is_bounded_by_its_queue():
    staleness = read({"train.async_enable": True, "train.async_queue_size": 3}).spec.staleness
    assert (staleness.mode, staleness.maximum, staleness.unit) == ("bounded", 3, "rollouts")


def test_versions_that_generate_before_they_wait_run_one_rollout_further_ahead():
    ahead = [read({"async_train": True}, version=v).spec.staleness.maximum for v in ("0.8.1.post1", "0.8.2")]
    assert ahead == [2, 1]


# ---- reported cases (issue threads)


def test_orlhf_203_thirty_completions_on_three_devices_accumulate_ten_times():
    values = {"train.batch_size": 30, "train.micro_batch_size": 1, "actor.num_gpus_per_node": 3}
    reading = read(values)
    assert (judged(reading), reading.derived["gradient_accumulation_steps"]) == ("valid", 10)


def test_orlhf_206_eight_thousand_prompts_make_31_rollouts_of_32_steps():
    # Reported for a version of 2025-02, older than what is read; 0.8.0 drops an epoch's remainder in the same way.
    values = {
        "train_batch_size": 128,
        "micro_train_batch_size": 2,
        "rollout_batch_size": 256,
        "n_samples_per_prompt": 16,
        "max_epochs": 1,
        "num_episodes": 30,
    }
    derived = read(values, version="0.8.0", prompts=8000).derived
    assert derived["gradient_accumulation_steps"] == 8
    assert derived["optimizer_steps_per_rollout"] == 32
    assert derived["rollouts_per_epoch"] == 31


def test_orlhf_209_accepted_rollouts_are_discarded_when_prompts_run_out_in_0_11_0():
    values = {**SIZES, "algo.dynamic_filtering_enable": True, "train.agent_func_path": "agent.py"}
    defects = read(values, version="0.11.0").behaviour.defects
    assert "BB-ORL-049" in {defect.code for defect in defects}


# ---- writing


@st.composite
def configurations(draw):
    micro, accumulation, devices = draw(st.integers(1, 8)), draw(st.integers(1, 8)), draw(st.integers(1, 32))
    tensor = draw(st.sampled_from([1, 2]))
    values = {
        "actor.num_gpus_per_node": devices * tensor,
        "ds.tensor_parallel_size": tensor,
        "train.micro_batch_size": micro,
        "train.batch_size": micro * accumulation * devices,
        "rollout.batch_size": draw(st.integers(1, 4)) * micro * accumulation * devices,
        "rollout.n_samples_per_prompt": draw(st.integers(2, 16)),
        "rollout.micro_batch_size": 1,
        "train.max_epochs": draw(st.integers(1, 3)),
        "train.num_episodes": draw(st.integers(1, 20)),
        "train.seed": draw(st.integers(0, 1000)),
        "algo.advantage.estimator": draw(
            st.sampled_from(["gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo"])
        ),
    }
    options = {
        "algo.kl.init_coef": st.sampled_from([0.0, 1e-3, 0.5]),
        "algo.kl.use_loss": st.booleans(),
        "algo.kl.estimator": st.sampled_from(["k1", "k2", "k3"]),
        "algo.kl.unbiased_gradient": st.booleans(),
        "algo.advantage.no_std_norm": st.booleans(),
        "actor.loss_agg_mode": st.sampled_from(["token-mean", "seq-mean-token-mean"]),
        "actor.policy_loss_type": st.sampled_from(["ppo", "gspo"]),
        "actor.eps_clip": st.sampled_from([0.1, 0.2]),
        "actor.eps_clip_low_high": st.sampled_from([(0.2, 0.28), (0.2, 0.2)]),
        "actor.dual_clip": st.sampled_from([3.0]),
        "actor.entropy_coef": st.sampled_from([0.0, 0.01]),
        "actor.aux_loss_coef": st.sampled_from([0.0, 0.01]),
        "actor.optim": st.sampled_from(["adam", "muon"]),
        "actor.adam.lr": st.sampled_from([1e-6, 5e-7]),
        "actor.adam.betas": st.sampled_from([(0.9, 0.999)]),
        "actor.adam.weight_decay": st.sampled_from([0.1]),
        "actor.lr_scheduler": st.sampled_from(["constant", "linear", "cosine_with_min_lr"]),
        "actor.min_lr_ratio": st.sampled_from([0.0, 0.5]),
        "actor.lr_warmup_ratio": st.sampled_from([0.0, 0.1]),
        "actor.max_norm": st.sampled_from([0.5]),
        "reward.clip_range": st.sampled_from([(-5.0, 5.0)]),
        "rollout.temperature": st.sampled_from([0.6]),
        "rollout.top_p": st.sampled_from([0.95]),
        "rollout.max_new_tokens": st.sampled_from([512, 1024]),
        "data.max_len": st.sampled_from([2048, 8192]),
        "ds.param_dtype": st.just("bf16"),
        "algo.advantage.is_correction_level": st.sampled_from(["token", "seq"]),
        "algo.advantage.is_correction_threshold": st.sampled_from([(0.5, 2.0), (0.0, 2.0), [3.0]]),
    }
    values |= draw(st.fixed_dictionaries({}, optional=options))
    if draw(st.booleans()):
        values |= {"train.async_enable": True, "train.async_queue_size": draw(st.integers(1, 3))}
    if draw(st.booleans()):
        values |= {"train.dynamic_batch_enable": True, "ds.zero_stage": 3, "vllm.num_engines": 1}
        values |= draw(st.sampled_from([{}, {"rollout.max_tokens_per_gpu": 32768}, {"train.max_tokens_per_gpu": 9000}]))
    return values


@given(configurations())
def test_what_was_read_is_read_again_from_what_was_written(values):
    spec = read(values).spec
    written = OpenRlhfAdapter().write(spec)
    argv = shlex.split(written.text["argv"])
    shell = shlex.split(written.text["shell"].replace("\\\n", " "), comments=True)
    assert [read(again).spec for again in (written.values, argv, shell)] == [spec] * 3


@given(configurations(), st.sampled_from([v for v in RELEASES if defaults_of(v)["data.max_len"] == 2048]))
def test_what_was_read_is_written_for_an_older_version_or_refused(values, version):
    spec = read(values).spec
    try:
        written = OpenRlhfAdapter().write(spec, version)
    except CannotWrite:
        return
    assert written.framework_version == version
    assert read(written.values, version=version).spec == spec


CHOICES = {
    "algo.advantage.estimator": ["gae", "reinforce", "rloo", "reinforce_baseline", "group_norm", "dr_grpo"],
    "algo.kl.init_coef": [0.0, 0.1],
    "algo.kl.use_loss": [True],
    "algo.kl.estimator": ["k1", "k2", "k3"],
    "algo.advantage.no_std_norm": [True],
    "actor.policy_loss_type": ["gspo", "ppo"],
    "actor.entropy_coef": [0.01],
    "actor.lr_scheduler": ["constant", "cosine_with_min_lr"],
    "algo.advantage.is_correction_enable": [True],
    "algo.advantage.is_correction_type": ["tis", "icepop", "mis", "seq-mask-tis"],
    "use_icepop": [True],
    "bf16": [True],
    "train.async_enable": [True],
    "train.dynamic_batch_enable": [True],
    "prompt_max_len": [77],
    "rollout.vllm_generate_batch_size": [16],
}
"""By identity, so that each release gets what it knows."""


@given(st.fixed_dictionaries({}, optional={name: st.sampled_from(CHOICES[name]) for name in CHOICES}), st.data())
def test_what_was_read_under_a_release_is_written_for_it(chosen, data):
    version = data.draw(st.sampled_from(RELEASES))
    names, options = names_of(version), options_of(version)
    chosen = {"ds.zero_stage": 3, "vllm.num_engines": 1, "rollout.n_samples_per_prompt": 4, **chosen}
    values = {names[key]: value for key, value in chosen.items() if key in names}
    values = {key: value for key, value in values.items() if value in (options[key].choices or [value])}
    spec = read(values, version=version).spec
    if spec.micro_batch.tokens_per_device and spec.completions_per_rollout < spec.optimizer_step.completions_per_step:
        with pytest.raises(CannotWrite, match=r"trains nothing where a rollout of .* fills no step"):
            OpenRlhfAdapter().write(spec, version)
        return
    assert read(OpenRlhfAdapter().write(spec, version).values, version=version).spec == spec


def test_the_shell_snippet_is_a_command():
    text = OpenRlhfAdapter().write(read(SIZES).spec).text["shell"]
    assert "python3 -m openrlhf.cli.train_ppo_ray \\\n  --" in text
    assert "  --ref.num_nodes 1 \\\n" in text


@pytest.mark.parametrize(("completion", "length"), [(1024, None), (2048, 4096), (9000, 11048)])
def test_a_completion_that_fills_the_default_length_gets_as_much_again_for_an_open_prompt(completion, length):
    spec = read(SIZES).spec.replace(**{"carried.max_prompt_tokens": None, "carried.max_completion_tokens": completion})
    written = OpenRlhfAdapter().write(spec).values
    assert written.get("data.max_len") == length
    assert "BB-ORL-051" not in codes(read(written))


def test_a_token_budget_is_written_with_zero_3():
    spec = read(SIZES).spec.replace(
        **{
            "micro_batch.completions_per_device": None,
            "micro_batch.forward_completions_per_device": None,
            "micro_batch.tokens_per_device": 8192,
            "micro_batch.cap": "soft",
            "optimizer_step.step_may_span": "none",
            "optimizer_step.rollout_shuffle": "none",
            "critic.rollout_shuffle": "none",
        }
    )
    values = OpenRlhfAdapter().write(spec).values
    assert (values["train.dynamic_batch_enable"], values["ds.zero_stage"]) == (True, 3)


def test_a_refusal_names_every_field_at_once():
    spec = read(SIZES).spec.replace(**{"advantage.maximum": 2.0, "horizon.epochs": 1.5, "staleness.mode": "lookahead"})
    with pytest.raises(CannotWrite) as refused:
        OpenRlhfAdapter().write(spec)
    text = str(refused.value)
    assert all(field in text for field in ("advantage.maximum", "horizon.epochs", "staleness.mode"))


# ---- anything


names = st.sampled_from(sorted({n for v in ("0.10.1", "0.11.2") for n in options_of(v)})) | st.text(max_size=5)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)


@given(
    st.dictionaries(names, anything, max_size=6),
    st.sampled_from(["0.8.0", "0.9.10", "0.11.2"]),
    st.none() | st.integers(-2, 9),
    st.none() | st.integers(0, 50),
)
def test_no_mapping_makes_reading_or_checking_raise(values, version, world, prompts):
    reading = read(values, version=version, world=world, prompts=prompts)
    assert judged(reading) in ("valid", "invalid", "undecided")


words = names.map(lambda name: f"--{name}") | st.text(max_size=5) | st.integers().map(str) | st.floats().map(str)


@given(st.lists(words, max_size=10), st.sampled_from(["0.8.0", "0.9.10", "0.11.2"]))
def test_no_command_makes_reading_or_checking_raise(argv, version):
    source = Source(argv=("openrlhf.cli.train_ppo_ray", *argv))
    reading = OpenRlhfAdapter().read(source, Context(framework_version=version))
    assert judged(reading) in ("valid", "invalid", "undecided")


def test_importing_the_plugin_imports_neither_yaml_nor_a_framework():
    code = (
        "import sys, batchbridge_openrlhf; sys.exit(', '.join({'yaml', 'torch', 'ray', 'pydantic'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


# ---- behaviour


@pytest.mark.parametrize(
    ("version", "scope", "formula"),
    [
        ("0.10.1", "micro_batch", "1 / (W k T_m)"),
        ("0.10.3", "micro_batch", "1 / (k T_w)"),
        ("0.10.4", "optimizer_step", "1 / T"),
        ("0.11.2", "optimizer_step", "1 / T"),
    ],
)
def test_the_denominator_of_a_version(version, scope, formula):
    found = read({}, version=version).behaviour
    assert (found.denominator_scope, found.denominator_formula) == (scope, formula)


def test_dynamic_batches_count_over_the_step_from_0_10_3_on():
    values = {"train.dynamic_batch_enable": True, "ds.zero_stage": 3, "vllm.num_engines": 1}
    assert read(values, version="0.10.3").behaviour.denominator_scope == "optimizer_step"


WHOLE = {
    "actor.num_gpus_per_node": 1,
    "rollout.batch_size": 4,
    "rollout.n_samples_per_prompt": 2,
    "train.batch_size": 8,
    "train.micro_batch_size": 8,
    "train.max_epochs": 2,
    "train.num_episodes": 3,
    "algo.advantage.estimator": "group_norm",
}


def steps(values, prompts=4):
    tokens = {(prompt, sample): prompt + sample for prompt in range(prompts) for sample in range(2)}
    return list(OpenRlhfAdapter().native_steps(read(values), prompts, tokens)), tokens


def test_an_episode_in_one_step_is_decided():
    found, tokens = steps(WHOLE)
    assert [(step.rows[0].rollout, step.rows[0].pass_index) for step in found] == [
        *((0, 0), (0, 1), (1, 0), (1, 1), (2, 0)),
        (2, 1),
    ]
    assert {sum(row.weight * tokens[row.prompt, row.sample] for row in step.rows) for step in found} == {1}


def test_a_sequence_mean_counts_completions_that_have_a_token():
    found, _ = steps({**WHOLE, "actor.loss_agg_mode": "seq-mean-token-mean"})
    assert {row.weight for row in found[0].rows if (row.prompt, row.sample) == (3, 1)} == {Fraction(1, 7 * 4)}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"rollout.batch_size": 2}, "order of the prompts"),
        ({"train.batch_size": 4, "train.micro_batch_size": 4}, "shuffle"),
        ({"train.async_enable": True}, "runs ahead"),
        ({"train.agent_func_path": "agent.py"}, "agent_func_path"),
        ({"data.prompt_probs": "0.5,0.5"}, "mixes datasets"),
    ],
)
def test_an_open_run_is_refused_with_its_reason(change, reason):
    with pytest.raises(ValueError, match=reason):
        steps({**WHOLE, **change})


def test_an_incomplete_rollout_gives_no_step_until_0_9_8():
    reading = read({"rollout_batch_size": 8}, version="0.9.8")
    assert list(OpenRlhfAdapter().native_steps(reading, 4, {})) == []


def test_a_setting_that_came_and_went_is_refused_by_name_in_a_version_before_it():
    spec = read(SIZES).spec
    sampled = spec.replace(**{"objective.ratio_level": "sequence", "objective.old_logprobs": "sampler"})
    with pytest.raises(CannotWrite) as refused:
        OpenRlhfAdapter().write(sampled, "0.8.0")
    assert any("has no option algo.advantage.is_correction_enable" in one.reason for one in refused.value.problems)


def test_a_setting_that_a_version_lacks_is_a_problem_of_the_field_that_it_says():
    spec = read(SIZES).spec.replace(**{"objective.dual_clip": 5.0})
    with pytest.raises(CannotWrite) as refused:
        OpenRlhfAdapter().write(spec, "0.8.5")
    fields = {one.fields for one in refused.value.problems if "has no option actor.dual_clip" in one.reason}
    assert fields == {("objective.dual_clip",)}


def test_a_critic_is_read_by_its_options_and_written_back() -> None:
    from batchbridge.meaning.critic import Critic

    said = {"algo.advantage.estimator": "gae", "algo.advantage.lambd": 0.95, "critic.value_clip": 0.3}
    spec = read({**SIZES, **said, "train.max_epochs": 2, "critic.adam.lr": 1e-5}).spec
    assert spec.advantage.baseline == "value"
    assert spec.critic == Critic(
        completions_per_step=spec.optimizer_step.completions_per_step,
        passes_per_rollout=2,
        rollout_shuffle="completions",
        aggregation="token_mean",
        value_clip=0.3,
        gae_lambda=0.95,
        learning_rate=1e-5,
        max_gradient_norm=1.0,
    )
    values = OpenRlhfAdapter().write(spec).values
    assert {name: values[name] for name in (*said, "critic.adam.lr")} == {**said, "critic.adam.lr": 1e-5}
    assert read({**SIZES, "algo.advantage.estimator": "rloo"}).spec.critic is None


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("critic.completions_per_step", 64),
        ("critic.passes_per_rollout", 3),
        ("critic.completions_per_device", 3),
        ("critic.aggregation", "sequence_mean"),
        ("critic.warmup_rollouts", 2),
        ("critic.value_clip", None),
        ("advantage.baseline", "group_mean"),
    ],
)
def test_a_critic_that_no_option_says_is_not_written(field: str, value: object) -> None:
    spec = read({**SIZES, "algo.advantage.estimator": "gae"}).spec.replace(**{field: value})
    with pytest.raises(CannotWrite) as refused:
        OpenRlhfAdapter().write(spec)
    assert field in str(refused.value)


def test_rollouts_that_a_frozen_policy_trains_on_later_have_no_word() -> None:
    spec = read({**SIZES, "algo.advantage.estimator": "gae", "critic.freezing_steps": 1}).spec
    assert spec.critic.warmup_rollouts == 2
    assert [term.partition(":")[0] for term in spec.unfollowed_terms] == ["critic"]
