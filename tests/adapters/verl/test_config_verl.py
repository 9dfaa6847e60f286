"""Reading and writing verl's configuration, without verl."""

from __future__ import annotations

import contextlib
import json
import shlex
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from batchbridge.comparing.convert import convert_to
from batchbridge.contract.reading import Context, Source
from batchbridge.errors import CannotWrite
from batchbridge.meaning.findings import verdict
from batchbridge.meaning.spec import Loss, LossTerm
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read_source
from batchbridge_trl.config import TrlAdapter
from batchbridge_verl import composed
from batchbridge_verl.config import VerlAdapter
from batchbridge_verl.installed import look
from batchbridge_verl.settings import BY_KEY, defaults_of, engines_of

COMMANDS = json.loads((Path(__file__).parent / "commands.json").read_text(encoding="utf-8"))
SHARED = Path(__file__).parents[4] / "shared" / "corpus"
ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
RUN = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 64,
    f"{ROLLOUT}name": "vllm",
    f"{ROLLOUT}n": 4,
    f"{ACTOR}ppo_mini_batch_size": 16,
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 2,
    f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": 2,
}
VERSIONS = ("0.4.0", "0.4.1", "0.5.0", "0.6.0", "0.6.1", "0.7.0", "0.7.1", "0.8.0", "0.9.0", "0.9.1")


def read(source, *, version="0.9.1", world=None, prompts=None):
    context = Context(framework_version=version, world_size=world, dataset_size=prompts)
    return VerlAdapter().read(load_source(source), context)


def command(*words):
    return ["python3", "-m", "verl.trainer.main_ppo", *(f"{key}={value}" for key, value in RUN.items()), *words]


def codes(reading):
    return [finding.code for finding in reading.findings]


def test_mini_batches_count_prompts_not_completions():
    spec = read(RUN).spec
    assert (spec.rollout.prompts_per_rollout, spec.optimizer_step.completions_per_step) == (64, 64)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_a_published_command_is_read(name):
    reading = read(COMMANDS[name]["argv"])
    assert reading.spec is not None
    assert set(codes(reading)) <= {"BB-VERL-080"}  # keys that no dataclass of 0.9.1 has


@pytest.mark.parametrize(
    ("name", "world", "parallel", "prompts", "group", "step"),
    [
        ("grpo_qwen3_8b_fsdp", 8, (1, 1, 4), 16, 5, 80),
        ("gspo_qwen3_30b_a3b_megatron", 8, (2, 1, 1), 256, 16, 512),
        ("gmpo_qwen3_8b_fsdp", 8, (1, 1, 1), 1024, 5, 1280),
        ("one_step_off_qwen3_0.6b", 6, (1, 1, 1), 1152, 5, 960),
    ],
)
def test_a_published_command_means_its_sizes(name, world, parallel, prompts, group, step):
    spec = read(COMMANDS[name]["argv"]).spec
    topology = spec.topology
    assert topology.world_size == world
    assert (topology.tensor_parallel, topology.pipeline_parallel, topology.context_parallel) == parallel
    assert (spec.rollout.prompts_per_rollout, spec.rollout.completions_per_prompt) == (prompts, group)
    assert spec.optimizer_step.completions_per_step == step


REMAX = [*(word.replace("main_ppo_sync", "main_ppo") for word in COMMANDS["remax_qwen2.5_math_7b"]["argv"])]
"""Its own entry takes the V1 trainer, which cannot do it."""
OPEN = ("remax", "opo", "grpo_passk", "gpg", "gdpo", "optimal_token_baseline", "tir_optimal_token_baseline")


@pytest.mark.parametrize("name", OPEN)
def test_an_estimator_without_words_is_carried_by_its_name_and_all_else_is_read(name: str) -> None:
    words = ["trainer.use_v1=False", f"{ACTOR}calculate_sum_pi_squared=True"]
    reading = read([*REMAX, f"algorithm.adv_estimator={name}", *words])
    plain = read([*REMAX, "algorithm.adv_estimator=rloo", *words])
    assert reading.spec.advantage.baseline == "open"
    assert reading.spec.open_terms == (f"advantage: {name}",)
    assert reading.spec.replace(advantage=plain.spec.advantage, open_terms=()) == plain.spec
    assert VerlAdapter().write(reading.spec, "0.9.1").values["algorithm.adv_estimator"] == name
    assert not [one for one in VerlAdapter().check(reading) if one.severity == "error"]


def test_remax_is_read_and_written_by_its_name_and_kept_by_nobody_else():
    reading = read([*REMAX, "trainer.use_v1=False"])
    assert reading.spec.open_terms == ("advantage: remax",)
    assert (reading.spec.advantage.baseline, reading.spec.advantage.scale) == ("open", "none")
    assert reading.provenance["open_terms"].key == "algorithm.adv_estimator"
    assert VerlAdapter().write(reading.spec, "0.9.1").values["algorithm.adv_estimator"] == "remax"
    lost = {field.field: field.target for field in convert_to(TrlAdapter(), reading).fields if field.status != "exact"}
    assert lost["open_terms"] == ()
    with pytest.raises(CannotWrite, match="verl has none such"):
        VerlAdapter().write(reading.spec.replace(open_terms=()), "0.9.1")


@pytest.mark.shared
def test_every_command_of_the_corpus_is_read_without_an_error_of_ours():
    file = SHARED / "launch_argv.jsonl"
    if not file.exists():
        pytest.skip("../shared/corpus is not here")
    adapter, found = VerlAdapter(), []
    for line in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["repository"] != "verl-project/verl":
            continue
        for argv in entry["commands"]:
            reading = read_source(load_source(argv), adapter, Context(framework_version="0.9.1"))
            found += [(f.code, f.where[0].key) for f in reading.findings if f.severity == "error" and not f.undecided]
    # The corpus is of 0.10.0.dev: these keys are in no dataclass of 0.9.1; one example has micro-batches larger than a
    # device's share.
    assert set(found) == {
        ("BB-VERL-080", "actor_rollout_ref.actor.megatron.grad_offload"),
        ("BB-VERL-080", "actor_rollout_ref.actor.policy_loss.tau_pos"),
        ("BB-VERL-080", "actor_rollout_ref.actor.policy_loss.tau_neg"),
        ("BB-VERL-021", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu"),
        ("BB-VERL-088", "algorithm.adv_estimator"),  # of V1, in 0.10.0.dev, too
    }


def test_words_override_in_order_and_the_last_counts_with_a_warning():
    reading = read(command("data.train_batch_size=128"))
    assert reading.spec.rollout.prompts_per_rollout == 128
    assert codes(reading) == ["BB-VERL-011"]


def test_a_learning_rate_of_1e_6_is_a_number_in_words_and_in_files(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({**RUN, f"{ACTOR}optim.lr": 0}).replace("optim.lr: 0", "optim.lr: 5e-6"))
    assert read(command(f"{ACTOR}optim.lr=5e-6")).spec.carried.learning_rate == 5e-6
    assert read(file).spec.carried.learning_rate == 5e-6


def test_a_file_gives_line_and_file(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(f"# a comment\ndata:\n  train_batch_size: 64\n{yaml.safe_dump({k: RUN[k] for k in list(RUN)[2:]})}")
    origin = read(file).provenance["rollout.prompts_per_rollout"]
    assert (origin.key, origin.file, origin.line) == ("data.train_batch_size", str(file), 3)


def test_an_interpolation_follows_the_users_value():
    reading = read(command(f"{ACTOR}ppo_max_token_len_per_gpu=4096", f"{ACTOR}use_dynamic_bsz=True"))
    assert reading.native[f"{ROLLOUT}log_prob_max_token_len_per_gpu"] == 4096
    assert reading.native[f"{ROLLOUT}log_prob_use_dynamic_bsz"] is True


def test_an_environment_variable_leaves_the_run_open_and_is_named():
    values = {**RUN, "trainer.nnodes": "${oc.env:NODES}"}
    reading = read(values)
    assert reading.verdict == "undecided"
    assert "environment variable NODES" in reading.findings[0].message


def test_a_given_environment_variable_is_text_as_in_omegaconf():
    values = {**RUN, f"{ACTOR}loss_agg_mode": "${oc.env:MODE}"}
    assert read(Source(values=values, env={"MODE": "token-mean"})).spec is not None


def test_a_key_that_is_not_there_needs_a_plus():
    (finding,) = read(command("data.my_key=1")).findings
    assert (finding.code, finding.severity) == ("BB-VERL-003", "error")
    assert read(command("+data.my_key=1")).findings == ()


def test_a_plus_on_a_key_that_is_there_is_an_error():
    assert codes(read(command("+data.max_prompt_length=512"))) == ["BB-VERL-008"]


@pytest.mark.parametrize(
    ("word", "refused"),
    [
        ("+data.train_batch_size=512", True),
        ("+trainer.logger=console", True),
        ("+trainer.logger=[console]", False),
        ("+actor_rollout_ref.actor.optim={lr:1e-5}", False),
        ("++data.train_batch_size=512", False),
    ],
)
def test_plus_takes_a_list_or_a_mapping_for_a_key_that_is_there(word, refused, tmp_path):
    assert ("BB-VERL-008" in codes(read(command(word)))) == refused
    hydra = pytest.importorskip("hydra", reason="hydra is not installed")
    there = "data: {train_batch_size: 8}\ntrainer: {logger: [wandb]}\nactor_rollout_ref: {actor: {optim: {lr: 1.0}}}\n"
    (tmp_path / "own.yaml").write_text(there, encoding="utf-8")
    with hydra.initialize_config_dir(config_dir=str(tmp_path), version_base=None), contextlib.ExitStack() as stack:
        if refused:
            stack.enter_context(pytest.raises(Exception, match="Could not append"))
        hydra.compose("own", overrides=[word])


def test_a_misspelt_key_names_the_nearest():
    (finding,) = read(command(f"{ACTOR}ppo_epoch=2")).findings
    assert finding.fixes[0].changes[f"{ACTOR}ppo_epochs"] == 2


@pytest.mark.parametrize(
    ("key", "version"), [("data.train_batchsize", "0.9.1"), (f"{ACTOR}ppo_minibatch_size", "0.5.0")]
)
def test_a_misspelt_key_of_a_file_is_never_noticed(tmp_path, key, version):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({**RUN, key: 32}))
    (finding,) = read(file, version=version).findings
    assert (finding.code, finding.severity, finding.phase) == ("BB-VERL-003", "warning", "never")


def test_a_misspelt_key_of_the_actor_is_refused_by_its_dataclass(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({**RUN, f"{ACTOR}ppo_epoch": 2}))
    (finding,) = read(file).findings
    assert (finding.code, finding.severity, finding.phase) == ("BB-VERL-080", "error", "config")
    assert finding.fixes[0].changes == {f"{ACTOR}ppo_epoch": None, f"{ACTOR}ppo_epochs": 2}


@pytest.mark.parametrize(
    ("word", "version", "found"),
    [
        (f"+{ACTOR}unknown=1", "0.9.1", ["BB-VERL-080"]),
        (f"++{ACTOR}optim.unknown=1", "0.6.0", ["BB-VERL-080"]),
        (f"+{ACTOR}unknown=1", "0.5.0", []),
        (f"+{ACTOR}optim.eps=1e-6", "0.9.1", ["BB-VERL-080"]),
        (f"+{ACTOR}optim.eps=1e-6", "0.5.0", ["BB-VERL-003"]),
        (f"+{ACTOR}use_rollout_log_probs=True", "0.9.1", []),
        (f"+{ACTOR}use_rollout_log_probs=True", "0.6.0", ["BB-VERL-080"]),
        (f"+{ACTOR}fsdp_config.mixed_precision.param_dtype=fp32", "0.9.1", []),
        (f"+{ACTOR}optim.override_optimizer_config.anything=1", "0.9.1", []),
        ("+critic.unknown=1", "0.9.1", []),  # no critic, no dataclass of it
    ],
)
def test_an_appended_key_is_refused_where_a_dataclass_has_no_such_field(word, version, found):
    assert codes(read(command(word), version=version)) == found


def test_an_appended_key_of_a_critic_that_is_trained_is_refused():
    words = command("algorithm.adv_estimator=gae", "critic.ppo_micro_batch_size_per_gpu=2", "+critic.unknown=1")
    assert "BB-VERL-080" in codes(read(words))


def test_a_key_that_a_version_does_not_read_changes_nothing_there():
    plain = read(RUN, version="0.5.0").spec
    words = ("+algorithm.filter_groups.enable=True", "+algorithm.rollout_correction.rollout_is=token")
    assert read(command(*words), version="0.5.0").spec == read(command(), version="0.5.0").spec
    assert plain.carried.optimizer_epsilon == 1e-8


@pytest.mark.parametrize(
    ("values", "version", "field", "value"),
    [
        ({f"{ACTOR}optim.override_optimizer_config": {"eps": 1e-6}}, "0.9.1", "optimizer_epsilon", 1e-6),
        ({f"{ACTOR}optim.override_optimizer_config": {"betas": [0.8, 0.9]}}, "0.9.1", "beta1", 0.8),
        ({f"{ACTOR}optim.override_optimizer_config": {"weight_decay": 0.5}}, "0.9.1", "weight_decay", 0.5),
        ({f"{ACTOR}optim.betas": [0.8, 0.9], "model_engine": "megatron"}, "0.9.1", "beta1", 0.9),
        (
            {f"{ACTOR}optim.override_optimizer_config.adam_beta1": 0.8, "model_engine": "megatron"},
            "0.9.1",
            "beta1",
            0.8,
        ),
        ({f"{ACTOR}optim.optimizer": "SGD"}, "0.9.1", "optimizer", "sgd"),
        ({f"{ACTOR}optim.optimizer": "Adam"}, "0.9.1", "optimizer", "adam"),
        ({f"{ACTOR}optim.optimizer": "adam", "model_engine": "megatron"}, "0.9.1", "optimizer", "adamw"),
        (
            {f"{ACTOR}optim.optimizer": "AdamW8bit", f"{ACTOR}optim.optimizer_impl": "bitsandbytes.optim"},
            "0.9.1",
            "optimizer",
            "bitsandbytes.optim.AdamW8bit",
        ),
        ({f"{ACTOR}grad_clip": 0.5}, "0.7.1", "max_gradient_norm", 0.5),
        ({f"{ACTOR}optim.grad_clip": 0.5}, "0.9.1", "max_gradient_norm", 0.5),
        ({f"{ACTOR}fsdp_config.dtype": "float16"}, "0.6.1", "precision", "fp16"),
        ({f"{ACTOR}fsdp_config.dtype": "float16"}, "0.9.1", "precision", "bf16"),
        ({f"{ACTOR}megatron.dtype": "float16", "model_engine": "megatron"}, "0.9.1", "precision", "fp16"),
    ],
)
def test_the_optimizer_is_what_the_engine_is_handed(values, version, field, value):
    reading = read({**RUN, **values}, version=version)
    assert getattr(reading.spec.carried, field) == value
    written = VerlAdapter().write(reading.spec, version)
    assert read(dict(written.values), version=version).spec == reading.spec


@pytest.mark.parametrize("engine", ["veomni", "torchtitan"])
def test_what_only_another_engine_says_is_written_for_it(engine, tmp_path):
    spec = read({**RUN, "model_engine": engine, f"{ROLLOUT}tensor_model_parallel_size": 1}).spec
    if engine == "torchtitan":
        spec = spec.replace(**{"topology.tensor_parallel": 2})
    else:
        spec = spec.replace(**{"carried.lr_schedule": "linear"})
    written = VerlAdapter().write(spec)
    assert written.values["model_engine"] == engine
    file = tmp_path / "run.yaml"
    file.write_text(written.text["yaml"])
    assert read(file).spec == spec


def test_a_sweep_leaves_the_run_open():
    reading = read(command("data.train_batch_size=64,128"))
    assert reading.verdict == "undecided"
    assert reading.spec is None


def test_the_named_configuration_chooses_the_engine():
    reading = read(command("--config-path=config", "--config-name=ppo_megatron_trainer.yaml"))
    assert reading.spec.carried.weight_decay_excludes == "biases_and_norms"


def test_a_configuration_of_the_users_own_is_read_from_its_folder(tmp_path):
    (tmp_path / "mine.yaml").write_text("defaults:\n  - ppo_trainer\n  - _self_\ndata:\n  train_batch_size: 96\n")
    words = [word for word in command() if not word.startswith("data.train_batch_size")]
    reading = read([*words, "--config-path", str(tmp_path), "--config-name", "mine"])
    assert reading.spec.rollout.prompts_per_rollout == 96


def test_a_configuration_that_is_not_found_leaves_the_run_open():
    reading = read(command("--config-name=mine"))
    assert (reading.verdict, reading.spec) == ("undecided", None)


def test_another_program_of_verl_is_no_training():
    reading = read(["python3", "-m", "verl.trainer.main_generation_server", "trainer.nnodes=1"])
    assert (reading.verdict, codes(reading)) == ("undecided", ["BB-VERL-090"])


def test_the_devices_that_are_asked_about_win_over_those_of_the_command():
    reading = read(command("trainer.nnodes=1"), world=128)
    assert reading.spec.topology.world_size == 128
    assert codes(reading) == ["BB-VERL-009"]


@pytest.mark.parametrize(("first", "said"), [("+", []), ("++", []), ("", ["BB-VERL-003"])])
def test_a_key_that_an_earlier_word_added_may_be_set_by_a_later_one(first, said):
    """Hydra applies them in their order."""
    key = "actor_rollout_ref.model.override_config.attn_implementation"
    found = codes(read(command(f"{first}{key}=eager", f"{key}=sdpa")))
    assert [code for code in found if code == "BB-VERL-003"] == said


@pytest.mark.parametrize("version", ["0.3.0", "0.9.1.dev0", "main"])
def test_an_unknown_version_fails_closed(version):
    reading = read(RUN, version=version)
    assert (reading.spec, codes(reading)) == (None, ["BB-VERL-002"])


@pytest.mark.parametrize("version", ["0.9.2", "0.10.0", "0.10.0.dev0"])
def test_a_newer_version_is_read_as_the_newest_with_a_warning(version):
    reading = read(RUN, version=version)
    assert (reading.framework_version, reading.verdict, codes(reading)) == ("0.9.1", "valid", ["BB-VERL-002"])
    assert reading.spec == read(RUN, version="0.9.1").spec


def nested(flat):
    made = {}
    for key, value in flat.items():
        *groups, name = key.split(".")
        inner = made
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[name] = value
    return made


def test_what_an_installed_newer_version_declares_otherwise_is_named(tmp_path, monkeypatch):
    table = dict(defaults_of("0.9.1", "fsdp"))
    table |= {"data.train_batch_size": 512, "trainer.brand_new": True}
    del table["data.shuffle"]
    file = tmp_path / composed.GENERATED
    file.parent.mkdir(parents=True)
    file.write_text(yaml.safe_dump(nested(table)), encoding="utf-8")
    monkeypatch.setattr(composed, "package_folder", lambda version: tmp_path if version == "0.10.0" else None)
    (found,) = read(RUN, version="0.10.0").findings
    assert "adds trainer.brand_new (True); no longer has data.shuffle; has other defaults for " in found.message
    assert "data.train_batch_size (512, was 1024)" in found.message
    (other,) = read(RUN, version="0.11.0").findings
    assert other.message == "verl 0.11.0 is newer than the newest version known here and is read as 0.9.1"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_known_version_is_read(version):
    assert read(RUN, version=version).spec is not None


@pytest.mark.parametrize("version", VERSIONS)
def test_every_engine_has_a_default_for_what_it_reads(version):
    for engine in engines_of(version):
        keys = defaults_of(version, engine)
        assert {"data.train_batch_size", f"{ACTOR}ppo_mini_batch_size", "trainer.nnodes"} <= keys.keys()


@pytest.mark.parametrize(
    ("version", "key", "default"),
    [
        ("0.4.0", "algorithm.adv_estimator", "gae"),
        ("0.9.1", "data.train_batch_size", 1024),
        ("0.9.1", f"{ACTOR}clip_ratio_c", 3.0),
        ("0.5.0", f"{ACTOR}optim.warmup_style", "constant"),
        ("0.6.0", f"{ACTOR}optim.warmup_style", None),
        ("0.9.0", "trainer.use_v1", True),
        ("0.6.1", f"{ROLLOUT}name", "???"),
        ("0.9.1", f"{ROLLOUT}tensor_model_parallel_size", 2),
    ],
)
def test_a_default_is_that_of_the_wheel(version, key, default):
    assert defaults_of(version, "fsdp")[key] == default


@pytest.mark.parametrize(
    ("version", "seed"), [("0.4.0", 1), ("0.6.0", 1), ("0.6.1", 67280421310721), ("0.9.1", 67280421310721)]
)
def test_the_seed_of_a_run_that_gives_none(version, seed):
    assert read(RUN, version=version).spec.order.seed == seed


@pytest.mark.parametrize(("version", "step"), [("0.7.1", "short"), ("0.8.0", "error"), ("0.9.1", "pad")])
def test_what_becomes_of_a_remainder_of_completions(version, step):
    assert read(RUN, version=version).spec.order.last_optimizer_step == step


def test_legacy_workers_floor_the_step_on_each_replica():
    values = {**RUN, f"{ACTOR}ppo_mini_batch_size": 15, f"{ACTOR}ppo_micro_batch_size_per_gpu": 1}
    assert read(values, version="0.7.1").spec.optimizer_step.completions_per_step == 56


@pytest.mark.parametrize(
    ("version", "detached"), [("0.5.0", False), ("0.6.0", True), ("0.7.1", True), ("0.8.0", False)]
)
def test_a_rollout_of_one_step_takes_the_current_log_probabilities_in_some_versions(version, detached):
    values = {**RUN, f"{ACTOR}ppo_mini_batch_size": 64}
    assert (read(values, version=version).spec.objective.old_logprobs == "detached") is detached


# ---- the installed package


def test_easyr1_installed_as_verl_is_told_apart_by_its_files(tmp_path):
    (tmp_path / "trainer").mkdir()
    (tmp_path / "trainer" / "data_loader.py").touch()
    assert look(tmp_path).project == "easyr1"


def test_files_that_contradict_the_version_are_a_doubt(tmp_path):
    for name in ("version/version", "trainer/ppo/ray_trainer.py", "trainer/config/_generated_ppo_trainer.yaml"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "version" / "version").write_text("0.9.1\n")
    assert any("trainer/ppo/v1" in doubt for doubt in look(tmp_path).doubts)


# ---- writing


def test_written_overrides_are_read_again():
    spec = read({**RUN, f"{ACTOR}optim.lr": 3e-7, "data.seed": 5}).spec
    text = VerlAdapter().write(spec).text["hydra"]
    words = shlex.split(text.partition("\n")[2].replace("\\\n", " "))
    assert read(words).spec == spec


def test_written_yaml_is_read_again(tmp_path):
    spec = read({**RUN, f"{ACTOR}optim.lr": 3e-7, "data.seed": 5}).spec
    file = tmp_path / "run.yaml"
    file.write_text(VerlAdapter().write(spec).text["yaml"])
    assert read(file).spec == spec


def test_writing_for_an_older_version_is_read_by_that_version():
    spec = read(RUN, version="0.7.1").spec
    written = VerlAdapter().write(spec, "0.7.1")
    assert read(written.values, version="0.7.1").spec == spec


def test_every_problem_of_an_unwritable_spec_is_named():
    spec = read(RUN).spec.replace(**{"horizon.epochs": 1.5, "optimizer_step.completions_per_step": 30})
    with pytest.raises(CannotWrite) as caught:
        VerlAdapter().write(spec)
    assert [problem.reason.split(" = ")[0] for problem in caught.value.problems] == [
        "optimizer_step.completions_per_step",
        "horizon.epochs",
    ]


@pytest.mark.parametrize(
    ("epochs", "lengths", "rollouts"),
    [
        (2, {"epochs": 2, "rollouts": 100}, 6),  # 200 prompts are 3 rollouts of 64
        (50, {"epochs": 50, "rollouts": 100}, 100),
        (100, {"rollouts": 100}, 100),  # an epoch has a rollout at least
    ],
)
@pytest.mark.parametrize("version", ["0.4.0", "0.9.1"])
def test_a_run_ends_with_its_epochs_where_they_end_first(version, epochs, lengths, rollouts):
    said = {**RUN, "trainer.total_training_steps": 100, "trainer.total_epochs": epochs}
    reading = read(said, version=version, prompts=200)
    assert reading.spec.horizon.lengths == lengths
    assert reading.derived["total_rollouts"] == rollouts
    assert VerlAdapter().write(reading.spec, version).values["trainer.total_epochs"] == epochs


def test_epochs_do_not_end_a_number_of_rollouts_that_is_written():
    spec = read(RUN).spec.replace(**{"horizon.epochs": None, "horizon.rollouts": 500})
    values = VerlAdapter().write(spec, "0.9.1").values
    assert (values["trainer.total_training_steps"], values["trainer.total_epochs"]) == (500, 500)
    assert read(values).spec == spec


@pytest.mark.parametrize(("limit", "taken"), [(-1, 1000), (0, 1000), (64, 64), (2000, 1000)])
def test_no_more_prompts_are_counted_than_are_taken(limit, taken):
    reading = read({**RUN, "data.train_max_samples": limit}, prompts=1000)
    assert reading.dataset_size == taken
    assert reading.derived["rollouts_per_epoch"] == taken // 64


@st.composite
def configurations(draw):
    world, context = draw(st.sampled_from([(1, 1), (2, 1), (8, 1), (8, 2), (24, 1)]))
    group, micro, times = draw(st.integers(1, 8)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    mini = world // context * micro * times
    gpus = min(world, 8)
    values = {
        "algorithm.adv_estimator": draw(
            st.sampled_from(["grpo", "rloo", "reinforce_plus_plus", "reinforce_plus_plus_baseline"])
        ),
        "data.train_batch_size": mini * draw(st.integers(1, 3)) * context,
        f"{ROLLOUT}name": "vllm",
        f"{ROLLOUT}n": group,
        f"{ROLLOUT}tensor_model_parallel_size": 1,
        f"{ACTOR}ppo_mini_batch_size": mini,
        f"{ACTOR}ulysses_sequence_parallel_size": context,
        "trainer.nnodes": world // gpus,
        "trainer.n_gpus_per_node": gpus,
        **draw(
            st.sampled_from(
                [
                    {
                        f"{ACTOR}ppo_micro_batch_size_per_gpu": micro,
                        f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": draw(st.sampled_from([1, micro])),
                    },
                    {f"{ACTOR}use_dynamic_bsz": True, f"{ACTOR}ppo_max_token_len_per_gpu": 9000},
                ]
            )
        ),
    }
    optional = {
        "algorithm.norm_adv_by_std_in_grpo": st.booleans(),
        "trainer.use_v1": st.booleans(),
        "trainer.total_epochs": st.integers(1, 30),
        "trainer.total_training_steps": st.none() | st.integers(1, 99),
        "data.seed": st.none() | st.integers(0, 99),
        "data.shuffle": st.booleans(),
        "data.max_prompt_length": st.integers(1, 4096),
        "data.max_response_length": st.integers(1, 4096),
        f"{ACTOR}ppo_epochs": st.integers(1, 3),
        f"{ACTOR}shuffle": st.booleans(),
        f"{ACTOR}loss_agg_mode": st.sampled_from(
            ["token-mean", "token-sum", "seq-mean-token-mean", "seq-mean-token-sum", "seq-mean-token-sum-norm"]
        ),
        f"{ACTOR}loss_scale_factor": st.integers(1, 9999),
        f"{ACTOR}clip_ratio_low": st.sampled_from([0.1, 0.2]),
        f"{ACTOR}clip_ratio_high": st.sampled_from([0.28, None]),
        f"{ACTOR}clip_ratio_c": st.sampled_from([3.0, 10]),
        f"{ACTOR}entropy_coeff": st.sampled_from([0, 0.001]),
        f"{ACTOR}policy_loss.loss_mode": st.sampled_from(["vanilla", "gspo", "cispo", "sapo", "geo_mean", "gpg"]),
        f"{ACTOR}optim.lr": st.sampled_from(["1e-6", 5e-7]),
        f"{ACTOR}optim.lr_warmup_steps": st.sampled_from([-1, 0, 10]),
        f"{ACTOR}optim.lr_warmup_steps_ratio": st.sampled_from([0.0, 0.1]),
        f"{ACTOR}optim.lr_scheduler_type": st.sampled_from(["constant", "cosine"]),
        f"{ACTOR}optim.min_lr_ratio": st.sampled_from([0.0, 0.1]),
        f"{ACTOR}optim.weight_decay": st.sampled_from([0.0, 0.1]),
        f"{ACTOR}optim.clip_grad": st.sampled_from([1.0, 0.5]),
        f"{ROLLOUT}temperature": st.sampled_from([1.0, 0.7]),
        "algorithm.rollout_correction.rollout_is": st.sampled_from([None, "token", "sequence"]),
    }
    values |= draw(st.fixed_dictionaries({}, optional=optional))
    if values.get("trainer.use_v1") is False:  # its rows are dealt to these workers in equal chunks
        values[f"{ROLLOUT}agent.num_workers"] = draw(st.sampled_from([1, values["data.train_batch_size"] * group]))
    penalty = draw(st.sampled_from([None, "loss", "reward"]))
    if penalty == "loss":
        values |= {
            f"{ACTOR}use_kl_loss": True,
            f"{ACTOR}kl_loss_type": draw(st.sampled_from(["kl", "k3", "k3+", "mse"])),
        }
    elif penalty == "reward":
        values |= {"algorithm.use_kl_in_reward": True, "algorithm.kl_penalty": draw(st.sampled_from(["kl", "abs"]))}
    if penalty:
        values["actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu"] = 1
    return values


@given(configurations())
def test_what_was_read_is_read_again_from_what_was_written(values):
    adapter = VerlAdapter()
    reading = read(values)
    assert verdict([*reading.findings, *adapter.check(reading)]) == "valid"
    written = adapter.write(reading.spec)
    assert read(written.values).spec == reading.spec


keys = st.sampled_from(sorted(BY_KEY)) | st.text(max_size=5)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just("${data.seed}")
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)


@settings(max_examples=200)
@given(st.dictionaries(keys, anything, max_size=6), st.none() | st.integers(-2, 9), st.sampled_from(VERSIONS))
def test_no_input_makes_reading_or_checking_raise(values, world, version):
    adapter = VerlAdapter()
    reading = adapter.read(Source(values=values), Context(framework_version=version, world_size=world, dataset_size=9))
    assert verdict([*reading.findings, *adapter.check(reading)]) in ("valid", "invalid", "undecided")


@example(["-m", ""])  # a program without a name
@given(st.lists(st.text(max_size=20) | st.sampled_from(command()), max_size=6))
def test_no_words_make_reading_raise(words):
    adapter = VerlAdapter()
    reading = adapter.read(load_source(words), Context(framework_version="0.9.1"))
    assert verdict([*reading.findings, *adapter.check(reading)]) in ("valid", "invalid", "undecided")


def test_importing_the_plugin_module_imports_neither_yaml_nor_a_framework():
    forbidden = "{'yaml', 'torch', 'verl', 'hydra', 'omegaconf', 'pydantic'}"
    code = f"import sys, batchbridge_verl; sys.exit(', '.join({forbidden} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_reading_and_checking_take_less_than_600_ms_of_cpu():
    words = COMMANDS["gspo_qwen3_30b_a3b_megatron"]["argv"]
    defaults_of.cache_clear()
    start = time.process_time()
    adapter = VerlAdapter()
    adapter.check(read(words, prompts=10_000))
    assert time.process_time() - start < 0.6


def test_what_a_script_leaves_open_is_no_error_of_the_settings_that_follow_it():
    key = f"{ACTOR}ppo_mini_batch_size"
    source = Source(values={**RUN, key: "$MINI"}, unknown={key: ("MINI",)})
    reading = read(source)
    assert reading.verdict == "undecided"
    assert "MINI" in reading.findings[0].message


def test_gspo_is_ppos_surrogate_with_the_ratio_of_whole_sequences():
    objective = read({**RUN, f"{ACTOR}policy_loss.loss_mode": "gspo"}).spec.objective
    assert (objective.surrogate, objective.ratio_level, objective.dual_clip) == ("ppo", "sequence", None)


def test_gspo_of_verl_and_the_sequence_level_of_trl_are_one_surrogate():
    from batchbridge_trl.config import TrlAdapter

    theirs = TrlAdapter().read(
        Source(values={"importance_sampling_level": "sequence", "num_generations": 4, "max_steps": 1}),
        Context(framework_version="1.16.0", world_size=8, dataset_size=256),
    )
    ours = read({**RUN, f"{ACTOR}policy_loss.loss_mode": "gspo"})
    for path in ("objective.surrogate", "objective.ratio_level"):
        values = [each.spec.values[path] for each in (ours, theirs)]
        assert values[0] == values[1], path


@pytest.mark.parametrize(("version", "aggregation"), [("0.9.0", "sequence_mean"), ("0.9.1", "token_sum")])
def test_gspo_reads_loss_agg_mode_from_0_9_1_on(version, aggregation):
    values = {**RUN, f"{ACTOR}policy_loss.loss_mode": "gspo", f"{ACTOR}loss_agg_mode": "token-sum"}
    assert read(values, version=version).spec.loss.policy.aggregation == aggregation


KL_AND_ENTROPY = {
    f"{ACTOR}use_kl_loss": True,
    f"{ACTOR}entropy_coeff": 0.01,
    f"{ACTOR}loss_agg_mode": "seq-mean-token-sum-norm",
    f"{ACTOR}loss_scale_factor": 40,
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 1,
}
NORM = LossTerm(aggregation="sequence_sum_over_constant", constant=40)


@pytest.mark.parametrize(
    ("mode", "version", "loss"),
    [
        ("gspo", "0.9.1", Loss(policy=NORM)),
        ("gspo", "0.9.0", Loss(policy=LossTerm(aggregation="sequence_mean"), kl=NORM, entropy=NORM)),
        ("gspo", "0.8.0", Loss(policy=LossTerm(aggregation="sequence_mean"), kl=NORM, entropy=NORM)),
        ("sapo", "0.9.1", Loss(policy=LossTerm(aggregation="sequence_mean"), kl=NORM, entropy=NORM)),
        ("vanilla", "0.8.0", Loss(policy=NORM)),
    ],
)
def test_kl_and_entropy_take_loss_agg_mode_where_the_loss_mode_insists_on_its_own(mode, version, loss):
    spec = read({**RUN, **KL_AND_ENTROPY, f"{ACTOR}policy_loss.loss_mode": mode}, version=version).spec
    assert spec.loss == loss
    written = VerlAdapter().write(spec, version)
    assert read(written.values, version=version).spec == spec


def test_terms_that_are_off_are_not_told_apart():
    own = {f"{ACTOR}use_kl_loss": False, f"{ACTOR}entropy_coeff": 0, f"{ACTOR}policy_loss.loss_mode": "sapo"}
    assert read({**RUN, **KL_AND_ENTROPY, **own}).spec.loss == Loss(policy=LossTerm(aggregation="sequence_mean"))


def test_a_kl_term_of_its_own_is_not_written_where_verl_has_none():
    spec = read({**RUN, **KL_AND_ENTROPY}).spec.replace(**{"loss.kl": LossTerm(aggregation="token_mean")})
    with pytest.raises(CannotWrite, match=r"loss\.kl, loss\.entropy: verl's are as the policy's term"):
        VerlAdapter().write(spec)


@pytest.mark.parametrize("mode", ["vanilla", "gspo", "cispo", "sapo", "geo_mean", "gpg", "dppo_tv", "clip_cov", "dro"])
def test_every_loss_mode_is_written_as_it_was_read(mode):
    spec = read({**RUN, f"{ACTOR}policy_loss.loss_mode": mode}).spec
    assert VerlAdapter().write(spec).values[f"{ACTOR}policy_loss.loss_mode"] == mode


def test_a_rollout_ahead_is_another_program_and_refused_by_name():
    words = ["python3", "-m", "verl.experimental.one_step_off_policy.main_ppo", *command()[3:]]
    spec = read(words).spec
    assert (spec.staleness.mode, spec.staleness.maximum) == ("lookahead", 1)
    with pytest.raises(CannotWrite, match="one_step_off_policy"):
        VerlAdapter().write(spec)


def test_a_schedule_that_the_engine_lacks_is_refused_by_name():
    spec = read(RUN).spec.replace(**{"carried.lr_schedule": "polynomial"})
    with pytest.raises(CannotWrite, match=r"carried\.lr_schedule = polynomial"):
        VerlAdapter().write(spec)


@pytest.mark.parametrize(
    ("words", "version", "ways"),
    [
        ((f"{ACTOR}strategy=megatron",), "0.9.1", ["model_engine=megatron"]),
        ((f"{ACTOR}strategy=megatron",), "0.6.1", ["--config-name=ppo_megatron_trainer.yaml"]),
        (("model_engine=megatron",), "0.7.1", ["--config-name=ppo_megatron_trainer.yaml"]),
        (("model_engine=megatron",), "0.8.0", []),
        (("model_engine=fsdp",), "0.9.1", ["model_engine=dp"]),
        (("model_engine=fsdp",), "0.6.0", ["--config-name=ppo_trainer.yaml"]),
        (("+model_engine=megatron",), "0.9.1", ["model_engine=megatron"]),
        (("++model_engine=megatron",), "0.9.1", ["model_engine=megatron"]),
        (("model_engine=null",), "0.9.1", ["model_engine=dp"]),
        (("~model_engine",), "0.9.1", ["model_engine=dp"]),
        (("model_engine=dp", "model_engine=megatron"), "0.9.1", []),
        ((f"{ACTOR}strategy=fsdp2",), "0.9.1", []),
    ],
)
def test_a_command_composes_the_engine_that_it_names(words, version, ways):
    found = [finding for finding in read(command(*words), version=version).findings if finding.code == "BB-VERL-007"]
    assert [fix.text for finding in found for fix in finding.fixes] == ways
    assert all(finding.severity == "error" and not finding.undecided for finding in found)


@pytest.mark.parametrize(
    ("engine", "version", "ways"),
    [
        ("dp", "0.9.1", []),
        ("megatron", "0.9.1", []),
        ("fsdp", "0.9.1", ["model_engine=dp"]),  # of the group's options none is called so
        ("megatron", "0.7.1", ["--config-name=ppo_megatron_trainer.yaml"]),
    ],
)
def test_a_defaults_list_chooses_an_engine_as_a_command_does(engine, version, ways, tmp_path):
    file = tmp_path / "mine.yaml"
    run = "\n".join(f"{key}: {json.dumps(value)}" for key, value in RUN.items())
    file.write_text(f"defaults: [ppo_trainer, {{override model_engine: {engine}}}, _self_]\n{run}\n")
    found = [finding for finding in read(file, version=version).findings if finding.code == "BB-VERL-007"]
    assert [fix.text for finding in found for fix in finding.fixes] == ways


@pytest.mark.parametrize(("version", "by_name"), [("0.7.1", True), ("0.8.0", False)])
def test_a_written_command_chooses_megatron_as_its_version_does(version, by_name):
    values = {**RUN, "model_engine": "megatron", f"{ACTOR}megatron.tensor_model_parallel_size": 2}
    text = VerlAdapter().write(read(values, version=version).spec, version).text["hydra"]
    assert ("--config-name=ppo_megatron_trainer.yaml" in text) is by_name
    assert ("model_engine=megatron" in text) is not by_name
    words = shlex.split(text.partition("\n")[2].replace("\\\n", " "))
    assert read(words, version=version).spec == read(values, version=version).spec


@pytest.mark.parametrize("key", ["data.max_prompt_length", f"{ACTOR}ppo_mini_batch_size", "trainer.nnodes"])
def test_a_value_that_is_still_missing_is_said_and_no_crash(key):
    reading = read({**RUN, key: "???"})
    assert "BB-VERL-006" in codes(reading)
    assert verdict([*reading.findings, *VerlAdapter().check(reading)]) == "invalid"


# ---- every form of input, by what it does to a run


def test_a_forced_key_sets_one_that_is_there_and_one_that_is_not():
    reading = read(command("++data.train_batch_size=128", "++data.my_key=1"))
    assert reading.spec.rollout.prompts_per_rollout == 128
    assert "BB-VERL-003" not in codes(reading)


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["~trainer.total_epochs"], ("invalid", ["BB-VERL-006"])),
        (["trainer.total_epochs=3", "~trainer.total_epochs"], ("invalid", ["BB-VERL-006"])),
        (["~trainer.total_epochs", "trainer.total_epochs=3"], ("invalid", ["BB-VERL-006"])),
        (["~trainer.total_epochs", "+trainer.total_epochs=3"], ("valid", [])),
        (["+trainer.mine=3", "~trainer.mine"], ("valid", [])),
        (["+trainer.mine=3", "+trainer.mine=4"], ("invalid", ["BB-VERL-008"])),
        (["~actor_rollout_ref.actor.clip_ratio_high=0.2"], ("undecided", ["BB-VERL-005"])),
        (["~actor_rollout_ref.actor.clip_ratio_high=0.3"], ("invalid", ["BB-VERL-008"])),
        (["~critic.optim"], ("undecided", ["BB-VERL-005"])),
        (["~trainer.project_name"], ("valid", [])),
        (["~data.seed"], ("invalid", ["BB-VERL-008"])),
        (["~data.my_key"], ("invalid", ["BB-VERL-008"])),
    ],
)
def test_a_key_that_is_taken_out_has_no_default(words, found):
    reading = read(command(*words))
    assert (reading.verdict, codes(reading)) == found


@pytest.mark.parametrize(
    ("word", "version", "found"),
    [
        ("rollout.n=8", "0.9.1", ["BB-VERL-003"]),
        ("+rollout.n=8", "0.9.1", []),
        ("reward.num_workers=8", "0.9.1", []),
        ("+reward.num_workers=8", "0.9.1", ["BB-VERL-008"]),
        ("reward.my_key=8", "0.9.1", ["BB-VERL-003"]),
        ("+reward.my_key=8", "0.9.1", []),
        ("distillation.my_key=8", "0.8.0", ["BB-VERL-003"]),
        ("+distillation.teacher_models.mine.model_path=x", "0.9.1", []),
        ("ray_kwargs.ray_init.num_cpus=8", "0.6.0", []),
        ("ray_init.num_cpus=8", "0.6.0", ["BB-VERL-003"]),
        ("ray_init.num_cpus=8", "0.5.0", []),
        ("+ray_kwargs.ray_init.address=x", "0.9.1", []),
        ("custom_reward_function.my_key=8", "0.4.0", ["BB-VERL-003"]),
    ],
)
def test_no_group_of_a_command_is_open(word, version, found):
    reading = read(command(word), version=version)
    assert [code for code in codes(reading) if code in ("BB-VERL-003", "BB-VERL-008")] == found


@pytest.mark.parametrize(
    ("word", "value"),
    [
        ("data.shuffle=1", True),
        ("data.shuffle=0", False),
        ("data.shuffle=null", False),
        ("data.shuffle=yes", True),
        ("data.shuffle=no", None),
        ("trainer.total_epochs=3.0", 3),
        ("trainer.total_epochs=3.5", None),
        ("trainer.critic_warmup=2.0", 2),
        ("data.train_batch_size=128.0", None),
    ],
)
def test_a_value_of_another_type_counts_where_verl_only_asks_for_its_truth_or_compares_it(word, value):
    reading = read(command(word))
    wrong = [finding for finding in reading.findings if finding.code == "BB-VERL-006"]
    assert (bool(wrong), reading.native[word.partition("=")[0]]) == (value is None, value)


@pytest.mark.parametrize(
    ("words", "rate"),
    [(["={}"], 0.5), (["={}", ".kl_coef=0.25"], 0.25), ([".kl_coef=0.25", "={}"], 0.25), (["={kl_coef:0.25}"], 0.25)],
)
def test_an_empty_group_says_nothing(words, rate, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("algorithm: {kl_ctrl: {}}\ndata: {}\n", encoding="utf-8")
    words = ["algorithm.kl_ctrl.kl_coef=0.5", "data={}", *(f"algorithm.kl_ctrl{word}" for word in words)]
    reading = read(command(*words))
    assert (reading.verdict, reading.native["algorithm.kl_ctrl.kl_coef"]) == ("valid", rate)
    assert read(file).native == read({}).native


@pytest.mark.parametrize(
    ("word", "found"),
    [
        ("data=mine", ("undecided", ["BB-VERL-005"])),
        ("critic=mine/large.yaml", ("undecided", ["BB-VERL-005"])),
        ("data=4", ("invalid", ["BB-VERL-006"])),
        ('data="a b"', ("invalid", ["BB-VERL-006"])),
        ("algorithm.kl_ctrl=mine", ("invalid", ["BB-VERL-006"])),
    ],
)
def test_a_file_of_a_group_that_is_not_here_leaves_the_group_open(word, found):
    """A fork's folder of configurations may have it; a key with dots is never a group of Hydra's."""
    reading = read(command(word))
    assert (reading.verdict, codes(reading)) == found


def test_hydras_own_groups_are_no_settings():
    words = ("hydra/job_logging=disabled", "hydra.run.dir=x", "~hydra/hydra_logging")
    assert read(command(*words)).findings == ()


def test_a_quoted_number_of_a_command_is_text(tmp_path):
    key, file = f"{ACTOR}optim.lr", tmp_path / "mine.yaml"
    (finding,) = read(command(f'{key}="1e-6"')).findings
    assert finding.message == f'{key} = "1e-6": expected a finite number'
    file.write_text("actor_rollout_ref: {actor: {optim: {lr: 1e-5}}}\n", encoding="utf-8")  # text to PyYAML
    on_top = Source(values={**RUN, key: "1e-5"}, argv=tuple(command()))
    assert [read(source).native[key] for source in (command(f"{key}=1e-5"), file, on_top)] == [1e-5] * 3


@pytest.mark.parametrize(("value", "verdict"), [("1000.5", "undecided"), ("1000.0", "valid"), ('"1000"', "invalid")])
def test_a_constant_that_no_spec_says_leaves_the_run_open(value, verdict):
    reading = read(command(f"{ACTOR}loss_agg_mode=seq-mean-token-sum-norm", f"{ACTOR}loss_scale_factor={value}"))
    assert (reading.verdict, len(reading.findings)) == (verdict, int(verdict != "valid"))
    assert BY_KEY[f"{ACTOR}loss_scale_factor"].kind.takes(1000.0)
    assert not BY_KEY[f"{ACTOR}loss_scale_factor"].kind.takes(1000.5)


def test_text_for_a_flag_counts_as_true_whatever_it_says():
    (finding,) = read(command("data.shuffle=no")).findings
    assert finding.native == "it is asked for its truth: text counts as true, whatever it says"


@pytest.mark.parametrize(("words", "wrong"), [([], False), (["trainer.use_v1=False"], True)])
def test_whole_epochs_as_a_float_end_the_v0_trainer_alone(words, wrong):
    assert ("BB-VERL-006" in codes(read(command("trainer.total_epochs=3.0", *words), version="0.9.1"))) == wrong


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ('actor_rollout_ref.actor.ppo_mini_batch_size="64"', '= "64": expected an integer'),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=64.0", "= 64.0: expected an integer"),
        ("actor_rollout_ref.actor.ppo_mini_batch_size=sixty", "= sixty: expected an integer"),
        ("actor_rollout_ref.actor.ppo_epochs=null", "= null: expected an integer, not null"),
        ("actor_rollout_ref.actor.optim.betas='[0.9,0.99]'", '= "[0.9,0.99]": expected a list'),
        ("trainer.logger={}", "= {}: expected a list"),
        ("hydra=default", "= default: expected a group of settings"),
        ("actor_rollout_ref.actor.ppo_epochs=${oc.env:X}", "is left open: ${oc.env:X} asks for the environment"),
    ],
)
def test_a_wrong_value_is_said_once_as_it_was_given(word, said):
    key = word.partition("=")[0]
    found = [finding for finding in read(command(word)).findings if finding.code in ("BB-VERL-005", "BB-VERL-006")]
    assert [finding.message.startswith(f"{key} {said}") for finding in found] == [True]


def test_a_file_with_interpolations_is_followed(tmp_path):
    file = tmp_path / "run.yaml"
    lines = [f"{key}: {value}" for key, value in RUN.items() if not key.startswith(("data.", ACTOR))]
    file.write_text(
        "\n".join(
            [
                *lines,
                "data: {train_batch_size: 64, seed: 7, max_response_length: '${data.train_batch_size}'}",
                "actor_rollout_ref:",
                "  actor:",
                "    ppo_mini_batch_size: ${oc.select:data.absent,16}",
                "    ppo_micro_batch_size_per_gpu: ${actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu}",
            ]
        )
    )
    spec = read(file).spec
    assert (spec.optimizer_step.completions_per_step, spec.carried.max_completion_tokens) == (64, 64)
    assert spec.micro_batch.completions_per_device == RUN[f"{ROLLOUT}log_prob_micro_batch_size_per_gpu"]


def test_a_key_twice_in_a_file_is_a_finding(tmp_path):
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump(RUN) + "data.max_prompt_length: 9\ndata.max_prompt_length: 8\n")
    found = read_source(load_source(file), VerlAdapter(), Context(framework_version="0.9.1")).findings
    assert any("data.max_prompt_length" in finding.message and "twice" in finding.message for finding in found)


@pytest.mark.parametrize("engine", [(), ("model_engine=megatron",)])
@pytest.mark.parametrize("v1", [True, False])
def test_fsdp_and_megatron_with_both_trainers(engine, v1):
    spec = read(command(*engine, f"trainer.use_v1={v1}")).spec
    assert spec.order.last_optimizer_step == ("pad" if v1 else "error")
    assert spec.carried.weight_decay_excludes == ("biases_and_norms" if engine else "nothing")
    assert spec.objective.nonfinite_step == (None if engine else "skip")


@pytest.mark.shared
def test_every_valid_command_of_the_corpus_is_written_and_read_again_as_it_was():
    file = SHARED / "launch_argv.jsonl"
    if not file.exists():
        pytest.skip("../shared/corpus is not here")
    adapter, context, written = VerlAdapter(), Context(framework_version="0.9.1"), 0
    for line in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        for argv in entry["commands"] if entry["repository"] == "verl-project/verl" else ():
            reading = read_source(load_source(argv), adapter, context)
            # One rollout ahead is another program, which no settings choose.
            if reading.verdict == "valid" and reading.spec.staleness.mode == "sync":
                again = adapter.read(Source(values=adapter.write(reading.spec, "0.9.1").values), context)
                assert again.spec == reading.spec
                written += 1
    assert written > 40
