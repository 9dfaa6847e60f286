"""Reading, writing and predicting EasyR1's runs, without EasyR1."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from fractions import Fraction
from functools import lru_cache
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

import batchbridge
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.errors import CannotWrite
from batchbridge.kit.shipped_settings import shipped
from batchbridge.meaning.findings import verdict
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read_source
from batchbridge_easyr1.config import EasyR1Adapter
from batchbridge_easyr1.installed import version_in
from batchbridge_easyr1.rules import RULES
from batchbridge_easyr1.settings import SETTINGS, kinds_of, settings_of

sys.path.insert(0, str(Path(__file__).parent))
from agreement import PHASES, disagreements

COMMANDS = json.loads((Path(__file__).parent / "commands.json").read_text(encoding="utf-8"))
SHARED = Path(__file__).parents[4] / "shared" / "corpus"
ACTOR, ROLLOUT = "worker.actor.", "worker.rollout."
MICRO, FORWARD = (f"{ACTOR}micro_batch_size_per_device_for_{use}" for use in ("update", "experience"))
VERSIONS = ("0.3.0", "0.3.1", "0.3.2", "0.3.3.dev0")
MINI_ROLLOUT = "data.mini_rollout_batch_size"
CRITIC_FORWARD = "worker.critic.micro_batch_size_per_device_for_experience"
RUN = {
    "data.rollout_batch_size": 64,
    f"{ACTOR}global_batch_size": 16,
    MICRO: 2,
    FORWARD: 2,
    f"{ROLLOUT}n": 8,
}


@lru_cache
def recorded(version):
    """What EasyR1's own code said; native/record.py says how it is made."""
    lines = (Path(__file__).parent / "recorded" / f"{version}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


DEFAULTS = {version: recorded(version)[0]["defaults"] for version in VERSIONS}


def read(source, *, version="0.3.3.dev0", world=None, prompts=None):
    context = Context(framework_version=version, world_size=world, dataset_size=prompts)
    return EasyR1Adapter().read(load_source(source), context)


def judge(values, *, version="0.3.3.dev0", world=None, prompts=None):
    context = Context(framework_version=version, world_size=world, dataset_size=prompts)
    return read_source(load_source({**RUN, **values}), EasyR1Adapter(), context).findings


def codes(values, **said):
    return [finding.code for finding in judge(values, **said)]


def test_the_articles_128_completions_per_step_are_16_on_each_of_8_devices():
    reading = read(RUN)
    assert reading.spec.optimizer_step.completions_per_step == 128
    assert reading.derived["completions_per_device_per_step"] == 16


@pytest.mark.parametrize(
    ("name", "prompts", "step", "world", "steps"),
    [
        # The reference's table of published configurations.
        ("qwen3_14b_dapo17k_dapo", 512, 512, 8, 16),
        ("qwen2_5_vl_3b_android_gui_grpo", 32, 256, 2, 1),
        ("qwen2_5_vl_7b_geo3k_sapo", 512, 640, 8, 4),
        ("qwen3_vl_4b_geo3k_grpo", 512, 640, 2, 4),
    ],
)
def test_a_published_command_means_its_sizes(name, prompts, step, world, steps):
    reading = read(COMMANDS[name]["argv"])
    spec = reading.spec
    assert (spec.rollout.prompts_per_rollout, spec.optimizer_step.completions_per_step) == (prompts, step)
    assert spec.topology.world_size == world
    assert reading.derived["optimizer_steps_per_rollout"] == steps
    assert EasyR1Adapter().detect(load_source(COMMANDS[name]["argv"])) == 1.0


@pytest.mark.shared
def test_every_command_of_the_corpus_is_read_without_an_error():
    file = SHARED / "launch_argv.jsonl"
    if not file.exists():
        pytest.skip("../shared/corpus is not here")
    for line in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        if entry["repository"] == "hiyouga/EasyR1":
            for argv in entry["commands"]:
                reading = read_source(load_source(argv), EasyR1Adapter(), Context(framework_version="0.3.3.dev0"))
                assert reading.verdict == "valid", entry["path"]


@pytest.mark.shared
def test_the_published_file_of_the_corpus_is_what_its_name_stands_for():
    file = SHARED / "configs" / "easyr1" / "config.yaml"
    if not file.exists():
        pytest.skip("../shared/corpus is not here")
    assert read(file).spec == read({"config": "examples/config.yaml"}).spec


def test_a_file_that_config_names_is_the_base_of_the_overrides(tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("data:\n  rollout_batch_size: 64\nworker:\n  rollout:\n    n: 8\n")
    reading = read(["python3", "-m", "verl.trainer.main", f"config={file}", f"{ROLLOUT}n=4"])
    assert (reading.spec.rollout.prompts_per_rollout, reading.spec.rollout.completions_per_prompt) == (64, 4)
    assert reading.provenance["rollout.prompts_per_rollout"].line == 2


def test_text_that_is_a_number_is_one():
    assert (
        read({**RUN, f"{ACTOR}optim.lr": "1e-5", f"{ROLLOUT}n": "8"}).spec
        == read({**RUN, f"{ACTOR}optim.lr": 1e-5}).spec
    )


TAKEN = (
    *("data.shuffle=0", "data.shuffle=1", "data.shuffle=-3", "data.shuffle=y", "data.shuffle=N", "data.shuffle='1'"),
    *("data.val_batch_size=1_0", "data.val_batch_size='5'", "algorithm.gamma=1", "algorithm.gamma=.inf"),
    *("worker.actor.use_torch_compile=on", "worker.critic.max_grad_norm=inf", "trainer.load_checkpoint_path=null"),
    *(
        "data.prompt_key=3",
        "data.prompt_key=true",
        "data.format_prompt=",
        "trainer.logger=[file,wandb]",
        "data[seed]=3",
    ),
    *("data[seed]=3", "worker.actor.model.override_config={a: 1}", "data.train_files=${data.val_files}"),
)
REFUSED = (
    *("data.shuffle=1.0", "data.shuffle=maybe", "data.shuffle=", "worker.actor.use_torch_compile=null"),
    *("data.val_batch_size=null", "data.val_batch_size=1.0", "data.val_batch_size=true", "algorithm.gamma=yes"),
    *("data.prompt_key=", "data.prompt_key=[a]", "trainer.logger=file", "trainer.logger=null"),
    *("worker.actor.model.override_config=3", "worker.actor.model.override_config=null"),
    *("foo", "data.seed", "--data.seed=1", "~data.seed", "+data.seed=1", "-m", "data.seed =3"),
)
"""Words of a command line. Source: EasyR1 0.3.0 to b44b311, omegaconf 2.3.1 (run, native/record_types.py --takes)."""


@pytest.mark.parametrize("version", VERSIONS)
def test_words_are_taken_or_refused_as_structured_configurations_do(version):
    def errors(word):
        sizes = [f"{key}={value}" for key, value in RUN.items()]
        reading = read(["python3", "-m", "verl.trainer.main", *sizes, word], version=version)
        return {one.code for one in reading.findings if one.severity == "error"}

    assert {word: errors(word) for word in TAKEN if errors(word)} == {}
    assert [word for word in REFUSED if not errors(word) & {"BB-EZR1-003", "BB-EZR1-006"}] == []


@pytest.mark.parametrize("version", VERSIONS)
def test_the_defaults_of_the_version_are_of_the_types_of_its_fields(version):
    kinds = kinds_of(version)
    assert [key for key, value in DEFAULTS[version].items() if not kinds[key].takes(value)] == []


def test_the_recorded_types_and_refused_words_are_those_of_easyr1s_own_code():
    checkout = os.environ.get("BATCHBRIDGE_EASYR1")
    if not checkout:
        pytest.skip("BATCHBRIDGE_EASYR1 names no checkout of EasyR1")

    def asked(what, words=None):
        python = os.environ.get("BATCHBRIDGE_EASYR1_PYTHON", sys.executable)
        script = Path(__file__).parent / "native" / "record_types.py"
        done = subprocess.run(
            [python, str(script), what, checkout], input=json.dumps(words), capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return json.loads(done.stdout)

    version = version_in(Path(checkout) / "verl")
    declared = shipped("batchbridge_easyr1")["PPOConfig"].of(version)
    assert asked("--of") == {key: row[0] for key, row in declared.items()}
    words = (*TAKEN, *REFUSED)
    assert dict(zip(words, asked("--takes", [[word] for word in words]), strict=True)) == {
        **dict.fromkeys(TAKEN, True),
        **dict.fromkeys(REFUSED, False),
    }


def test_an_environment_variable_leaves_the_run_open():
    assert read({**RUN, f"{ROLLOUT}n": "${oc.env:N}"}).verdict == "undecided"


@pytest.mark.parametrize("version", VERSIONS)
def test_every_known_version_is_read(version):
    assert read(RUN, version=version).spec is not None


@pytest.mark.parametrize("version", ["0.2.0", "main"])
def test_an_unknown_version_fails_closed(version):
    assert read(RUN, version=version).spec is None


@pytest.mark.parametrize(
    ("version", "mode", "scope"),
    [
        ("0.3.3.dev0", "token", "optimizer_step"),
        ("0.3.2", "seq", "micro_batch"),
        ("0.3.1", "seq", "optimizer_step"),
        ("0.3.1", "token", "micro_batch"),
    ],
)
def test_the_mode_that_depends_on_the_split_was_swapped_in_0_3_2(version, mode, scope):
    values = {**RUN, f"{ACTOR}loss_avg_mode": mode}
    assert read(values, version=version).behaviour.denominator_scope == scope
    assert ("BB-EZR1-023" in codes({f"{ACTOR}loss_avg_mode": mode}, version=version)) is (scope == "micro_batch")


@pytest.mark.parametrize(("version", "ticks"), [("0.3.0", 1.0), ("0.3.1", 1.0), ("0.3.2", 1.0), ("0.3.3.dev0", 0.0)])
def test_without_a_warm_up_the_first_rollout_was_trained_with_a_learning_rate_of_0(version, ticks):
    assert read(RUN, version=version).spec.carried.warmup_steps == ticks


def test_a_learning_rate_that_starts_at_its_peak_cannot_be_said_before_0_3_3():
    spec = read(RUN, version="0.3.3.dev0").spec
    with pytest.raises(CannotWrite, match=r"carried\.warmup_steps = 0: without a warm-up easyr1 0\.3\.2"):
        EasyR1Adapter().write(spec, "0.3.2")
    assert EasyR1Adapter().write(spec.replace(**{"carried.warmup_steps": 1.0}), "0.3.2").values


CASES = [
    ({"data.rollout_batch_size": 60}, "BB-EZR1-011"),
    ({FORWARD: 7}, "BB-EZR1-012"),
    ({f"{ROLLOUT}n": 1}, "BB-EZR1-013"),
    ({f"{ACTOR}global_batch_size": 1, f"{ROLLOUT}n": 4}, "BB-EZR1-014"),
    ({MICRO: 3}, "BB-EZR1-015"),
    ({f"{ACTOR}fsdp.enable_cpu_offload": True}, "BB-EZR1-016"),
    ({f"{ACTOR}ulysses_size": 3}, "BB-EZR1-017"),
    ({f"{ROLLOUT}tensor_parallel_size": 3}, "BB-EZR1-018"),
    ({"data.max_response_length": 9000}, "BB-EZR1-019"),
    ({"data.rollout_batch_size": 60, f"{ACTOR}global_batch_size": 12}, "BB-EZR1-020"),
    ({"data.rollout_batch_size": 24, f"{ACTOR}global_batch_size": 12, f"{ROLLOUT}n": 5, MICRO: 1}, "BB-EZR1-021"),
    ({"data.rollout_batch_size": 12, f"{ACTOR}global_batch_size": 3, f"{ROLLOUT}n": 4, MICRO: 1}, "BB-EZR1-022"),
    ({f"{ACTOR}loss_avg_mode": "seq"}, "BB-EZR1-023"),
    ({"algorithm.adv_estimator": "gae"}, "BB-EZR1-024"),
    ({"data.mini_rollout_batch_size": 40}, "BB-EZR1-026"),
    ({f"{ACTOR}loss_avg_mode": "mean"}, "BB-EZR1-027"),
    ({f"{ACTOR}loss_type": "ppo"}, "BB-EZR1-028"),
    ({"algorithm.adv_estimator": "mine"}, "BB-EZR1-029"),
    ({"algorithm.adv_estimator": "remax"}, "BB-EZR1-030"),
    ({}, "BB-EZR1-031"),
    ({"algorithm.kl_penalty": "k9"}, "BB-EZR1-032"),
    ({"algorithm.kl_penalty": "full", "algorithm.use_kl_loss": True}, "BB-EZR1-032"),
    ({f"{ROLLOUT}n": 0}, "BB-EZR1-010"),
    ({"data.mini_rollout_batch_size": 0}, "BB-EZR1-010"),
    ({"trainer.n_gpus_per_node": 1, f"{ACTOR}ulysses_size": 2}, "BB-EZR1-017"),
    ({f"{ACTOR}kl_coef": 0.5}, "BB-EZR1-033"),
    ({"data.mini_rollout_batch_size": 8, "trainer.max_try_make_batch": 7}, "BB-EZR1-035"),
    ({f"{ACTOR}dynamic_batching": False, FORWARD: 128}, "BB-EZR1-036"),
    ({"algorithm.adv_estimator": "gae"}, "BB-EZR1-037"),  # 256 prompts for the critic
    ({"algorithm.adv_estimator": "gae", CRITIC_FORWARD: 7}, "BB-EZR1-038"),
    ({"algorithm.kl_type": "falling"}, "BB-EZR1-039"),
    ({"algorithm.kl_type": "adaptive", "algorithm.kl_horizon": 0}, "BB-EZR1-040"),
    ({"algorithm.kl_type": "adaptive"}, "BB-EZR1-041"),
    ({f"{ACTOR}optim.strategy": "sgd"}, "BB-EZR1-042"),
    ({f"{ACTOR}max_grad_norm": 0.0}, "BB-EZR1-050"),
    ({"trainer.critic_warmup": 2}, "BB-EZR1-052"),
    ({f"{ACTOR}optim.lr_scheduler_type": "linear"}, "BB-EZR1-043"),
    ({"algorithm.online_filtering": True}, "BB-EZR1-044"),
    ({"algorithm.adv_estimator": "grpo_passk", f"{ROLLOUT}n": 1}, "BB-EZR1-048"),
    (
        {"data.rollout_batch_size": 12, f"{ACTOR}global_batch_size": 4, f"{ROLLOUT}n": 5, MINI_ROLLOUT: 16},
        "BB-EZR1-047",
    ),
]
WITH_A_DATASET = [
    ({"data.mini_rollout_batch_size": 40}, 70, "BB-EZR1-025"),
    ({}, 63, "BB-EZR1-034"),
    ({"data.rollout_batch_size": 32, "data.mini_rollout_batch_size": 250}, 999, "BB-EZR1-049"),
    ({"data.mini_rollout_batch_size": 128}, 127, "BB-EZR1-034"),
]


def test_rollouts_of_several_batches_go_on_in_the_next_epoch():
    one, several = (read({**RUN, MINI_ROLLOUT: size}).behaviour.order for size in (None, 16))
    assert one.endswith("; an epoch's incomplete batch is dropped")
    assert several == f"{one}, of 16 prompts, and a rollout that an epoch leaves unfilled goes on in the next"


EPOCHS = {"0.3.0": "trainer.total_episodes", "0.3.1": "trainer.total_epochs", "0.3.3.dev0": "trainer.total_epochs"}


@pytest.mark.parametrize(("version", "key"), EPOCHS.items())
def test_only_the_loop_of_0_3_0_ends_with_its_epochs(version, key):
    reading = read({**RUN, "trainer.max_steps": 50, key: 2}, version=version, prompts=200)
    first = version == "0.3.0"
    assert reading.spec.horizon.lengths == ({"rollouts": 50, "epochs": 2} if first else {"rollouts": 50})
    spec = reading.spec.replace(**{"horizon.epochs": None})
    written = EasyR1Adapter().write(spec, version).values
    assert written.get(key) == (50 if first else None)
    assert read(written, version=version).spec == spec


BEFORE_0_3_3 = [({}, "BB-EZR1-051"), ({f"{ACTOR}optim.lr_warmup_steps": 0}, "BB-EZR1-051")]
EXPLAINED = [({}, "BB-EZR1-045"), ({}, "BB-EZR1-046")]


@pytest.mark.parametrize(("values", "code"), CASES)
def test_a_rule_speaks_where_it_is_broken(values, code):
    assert code in codes(values)


@pytest.mark.parametrize(
    ("key", "code"), [(f"{ACTOR}ulysses_size", "BB-EZR1-017"), (f"{ROLLOUT}tensor_parallel_size", "BB-EZR1-018")]
)
def test_the_nearest_sizes_that_share_out_the_devices_are_offered(key, code):
    found = read({key: 3, "trainer.n_gpus_per_node": 8})
    (finding,) = [one for one in EasyR1Adapter().check(found) if one.code == code]
    assert [fix.changes for fix in finding.fixes] == [{key: 2}, {key: 4}]


@pytest.mark.parametrize(("values", "prompts", "code"), WITH_A_DATASET)
def test_a_rule_speaks_where_the_dataset_breaks_it(values, prompts, code):
    assert code in codes(values, prompts=prompts)
    assert code not in codes(values, prompts=1000)


@pytest.mark.parametrize(("values", "code"), BEFORE_0_3_3)
def test_a_rule_speaks_where_an_older_version_breaks_it(values, code):
    assert code in codes(values, version="0.3.2")
    assert code not in codes(values)
    assert code not in codes({**values, f"{ACTOR}optim.lr_warmup_steps": 1}, version="0.3.2")


@pytest.mark.parametrize(("values", "code"), EXPLAINED)
def test_what_holds_for_most_runs_is_explained_and_not_found_fault_with(values, code):
    assert code in [defect.code for defect in read({**RUN, **values}, prompts=1000).behaviour.defects]
    assert code not in codes(values, prompts=1000)


def test_every_rule_has_a_case():
    cases = {code for _, code in CASES} | {code for _, _, code in WITH_A_DATASET} | {code for _, code in EXPLAINED}
    assert {rule.code for rule in RULES} == cases | {code for _, code in BEFORE_0_3_3}


def test_a_dataset_that_fills_a_rollout_in_generation_batches_is_no_run_of_no_steps():
    assert "BB-EZR1-025" not in codes({"data.mini_rollout_batch_size": 32}, prompts=70)
    assert "BB-EZR1-025" not in codes({"data.mini_rollout_batch_size": 40, "trainer.max_steps": 3}, prompts=70)


@pytest.mark.parametrize(
    ("version", "key", "value", "code"),
    [
        ("0.3.0", "algorithm.kl_type", "adaptive", "BB-EZR1-040"),  # the horizon's default was 0
        ("0.3.2", "algorithm.adv_estimator", "grpo_passk", "BB-EZR1-029"),
        ("0.3.3.dev0", "algorithm.adv_estimator", "grpo_passk", "BB-EZR1-030"),
    ],
)
def test_a_rule_holds_in_its_versions(version, key, value, code):
    assert code in codes({key: value}, version=version)


def test_an_unknown_loss_is_the_default_one():
    assert read({**RUN, f"{ACTOR}loss_type": "ppo"}).spec == read(RUN).spec


@pytest.mark.parametrize(("loss", "bound"), [("default", 3.0), ("gspo", 3.0), ("gspo_token", 3.0), ("cispo", None)])
def test_the_losses_that_are_clipped_twice(loss, bound):
    assert read({**RUN, f"{ACTOR}loss_type": loss}).spec.objective.dual_clip == bound


@pytest.mark.parametrize("version", VERSIONS)
def test_the_keys_that_are_known_are_those_of_the_version(version):
    assert kinds_of(version).keys() == set(DEFAULTS[version])


@pytest.mark.parametrize("version", VERSIONS)
def test_the_defaults_are_those_of_the_version(version):
    assert {key: row.default for key, row in settings_of(version).items()} == {
        key: DEFAULTS[version][key] for key in settings_of(version)
    }


@pytest.mark.parametrize("version", VERSIONS)
def test_every_recorded_verdict_and_number_is_ours(version):
    rows = recorded(version)[1:]
    assert len(rows) == 150
    assert [line for row in rows for line in disagreements(version, row)] == []


def test_the_recorded_configurations_end_in_every_phase():
    assert {row["phase"] for version in VERSIONS for row in recorded(version)[1:]} == {None, *PHASES}


@pytest.mark.parametrize(("version", "code"), [("0.3.1", None), ("0.3.2", "BB-EZR1-036")])
def test_parts_before_0_3_2_are_equal_and_not_of_the_size_that_was_asked(version, code):
    # 6 completions on each device: 6 // 4 is 1 part of 6.
    values = {"data.rollout_batch_size": 16, f"{ROLLOUT}n": 3, f"{ACTOR}global_batch_size": 8, MICRO: 1, FORWARD: 4}
    values |= {f"{ACTOR}dynamic_batching": False} if version == "0.3.2" else {}
    found = codes(values, version=version)
    assert [one for one in found if one == "BB-EZR1-036"] == ([] if code is None else [code])


def test_a_wrong_number_of_ours_would_be_noticed():
    row = next(row for row in recorded("0.3.2")[1:] if row["phase"] is None)
    numbers = {**row["numbers"], "completions_per_device_per_step": 10**6}
    assert disagreements("0.3.2", {**row, "numbers": numbers})
    assert disagreements("0.3.2", {**row, "phase": "construction"})


def test_easyr1s_own_code_agrees_on_many_configurations(tmp_path):
    checkout = os.environ.get("BATCHBRIDGE_EASYR1")
    if not checkout:
        pytest.skip("BATCHBRIDGE_EASYR1 names no checkout of EasyR1")
    python = os.environ.get("BATCHBRIDGE_EASYR1_PYTHON", sys.executable)
    needed = "import accelerate, omegaconf, ray, tensordict, torch, torchdata, transformers"
    if subprocess.run([python, "-c", needed], capture_output=True, check=False).returncode:
        pytest.skip(f"{python} cannot {needed}; BATCHBRIDGE_EASYR1_PYTHON may name another")
    count, seed = os.environ.get("BATCHBRIDGE_EASYR1_COUNT", "2000"), "2"
    script = Path(__file__).parent / "native" / "record.py"
    done = subprocess.run([python, str(script), checkout, count, seed], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    head, *rows = map(json.loads, done.stdout.splitlines())
    assert head["defaults"] == DEFAULTS[head["version"]]
    assert version_in(Path(checkout) / "verl") == head["version"]
    assert len(rows) == int(count)
    assert [line for row in rows for line in disagreements(head["version"], row)] == []


def test_the_installed_verl_is_easyr1_where_its_files_say_so(tmp_path, monkeypatch):
    package = tmp_path / "verl"
    for name in ("trainer/ray_trainer.py", "trainer/data_loader.py", "workers/config.py", "__init__.py"):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text('__version__ = "0.3.2"\n' if name == "__init__.py" else "raise ImportError\n")
    monkeypatch.syspath_prepend(tmp_path)
    assert read(RUN, version=None).framework_version == "0.3.2"
    (package / "workers/config.py").unlink()
    assert read(RUN, version=None).framework_version is None


def test_a_floored_step_is_smaller_than_asked():
    # Recorded: 8 devices, P 12, B 3, n 4: steps of 8 completions instead of 12.
    values = {"data.rollout_batch_size": 12, f"{ACTOR}global_batch_size": 3, f"{ROLLOUT}n": 4, MICRO: 1}
    assert read({**RUN, **values}).spec.optimizer_step.completions_per_step == 8


@pytest.mark.parametrize("code", ["BB-EZR1-011", "BB-EZR1-012", "BB-EZR1-015"])
def test_a_proposed_size_mends_the_rule(code):
    values = next(values for values, name in CASES if name == code)
    (finding,) = [finding for finding in judge(values) if finding.code == code]
    assert finding.fixes
    for fix in finding.fixes:
        assert code not in codes({**values, **fix.changes}), fix.text


# Reported in issue threads, with their outcomes.


def test_reported_512_prompts_on_6_devices_fail_in_equal_chunks():
    # hiyouga/EasyR1 issue 44, 2025-02; read as 0.3.0, the oldest version that is known.
    values = {"data.rollout_batch_size": 512, f"{ACTOR}global_batch_size": 256, f"{ROLLOUT}tensor_parallel_size": 2}
    (finding,) = [f for f in judge(values, version="0.3.0", world=6) if f.code == "BB-EZR1-020"]
    assert "only support equal chunk" in finding.native


def test_reported_16_samples_per_device_and_update():
    # hiyouga/EasyR1 issue 259
    reading = read(RUN, version="0.3.0", world=8)
    assert reading.derived["completions_per_device_per_step"] == 16


def test_reported_published_configuration_has_80_micro_batches_and_4_steps():
    values = {"config": "examples/config.yaml", f"{ACTOR}dynamic_batching": False}
    derived = read(values).derived
    assert derived["completions_per_device_per_step"] == 80
    assert derived["optimizer_steps_per_rollout"] == 4
    assert derived["gradient_accumulation_steps"] == 80


def test_reported_cpu_offload_needs_one_micro_batch():
    values = {"data.rollout_batch_size": 512, f"{ACTOR}global_batch_size": 128, f"{ROLLOUT}n": 5, MICRO: 4}
    (finding,) = [f for f in judge({**values, f"{ACTOR}fsdp.enable_cpu_offload": True}) if f.code == "BB-EZR1-016"]
    assert "cannot use FSDP's CPU offload when gradient accumulation is enabled" in finding.native


@pytest.mark.parametrize(("micro", "loss"), [(2, Fraction(1, 2)), (1, Fraction(1, 4))])
def test_reported_seq_mode_depends_on_the_micro_batch(micro, loss):
    # Lengths 1 and 3; the first completion's token has loss 1, the others 0.
    values = {
        **RUN,
        "data.rollout_batch_size": 1,
        f"{ACTOR}global_batch_size": 1,
        f"{ROLLOUT}n": 2,
        MICRO: micro,
        f"{ACTOR}loss_avg_mode": "seq",
        f"{ACTOR}dynamic_batching": False,
        f"{ROLLOUT}tensor_parallel_size": 1,
        "trainer.n_gpus_per_node": 1,
        "trainer.max_steps": 1,
    }
    (step,) = EasyR1Adapter().native_steps(read(values), 1, {(0, 0): 1, (0, 1): 3})
    assert next(row.weight for row in step.rows if row.sample == 0) == loss


def test_several_devices_leave_the_steps_open():
    with pytest.raises(ValueError, match="balanced over the devices"):
        EasyR1Adapter().native_steps(read(RUN), 64, {})


# ---- writing


def test_written_arguments_and_yaml_are_read_again(tmp_path):
    spec = read({**RUN, f"{ACTOR}optim.lr": 3e-7}).spec
    text = EasyR1Adapter().write(spec).text
    file = tmp_path / "config.yaml"
    file.write_text(text["yaml"])
    assert yaml.safe_load(text["yaml"])["data"]["rollout_batch_size"] == 64
    assert read(file).spec == spec
    words = shlex.split(text["arguments"].partition("\n")[2].replace("\\\n", " "))
    assert read([word for word in words if not word.startswith("config=")]).spec == spec


def test_devices_that_share_sequences_have_a_part_of_the_budget_each_rounded_up():
    # 4 sequences of 512 + 512 tokens, and 2 for scoring, over 8 devices; then of 1 token more
    values = {**RUN, f"{ACTOR}ulysses_size": 8, f"{ACTOR}dynamic_batching": True, MICRO: 4, FORWARD: 2}
    spec = read(values).spec
    assert (spec.micro_batch.tokens_per_device, spec.micro_batch.forward_tokens_per_device) == (512, 256)
    odd = read({**values, "data.max_response_length": 513}).spec
    assert (odd.micro_batch.tokens_per_device, odd.micro_batch.forward_tokens_per_device) == (513, 257)
    for one in (spec, odd):
        written = EasyR1Adapter().write(one).text["arguments"].partition("\n")[2].replace("\\\n", " ")
        assert read([word for word in shlex.split(written) if not word.startswith("config=")]).spec == one
    with pytest.raises(CannotWrite, match="multiples of the longest sequence, 1024 tokens, over 8 devices"):
        EasyR1Adapter().write(spec.replace(**{"micro_batch.tokens_per_device": 500}))


def test_every_problem_of_an_unwritable_spec_is_named():
    spec = read(RUN).spec.replace(**{"horizon.epochs": 1.5, "optimizer_step.completions_per_step": 30})
    with pytest.raises(CannotWrite) as caught:
        EasyR1Adapter().write(spec)
    assert len(caught.value.problems) == 2


@st.composite
def configurations(draw):
    world, ulysses = draw(st.sampled_from([(1, 1), (2, 1), (8, 1), (8, 2), (16, 1)]))
    group, micro, times = draw(st.integers(2, 8)), draw(st.integers(1, 3)), draw(st.integers(1, 3))
    batch = world * micro * times
    gpus = min(world, 8)
    values = {
        "data.rollout_batch_size": batch * draw(st.integers(1, 3)),
        f"{ACTOR}global_batch_size": batch,
        MICRO: micro,
        FORWARD: draw(st.sampled_from([micro, 1])),
        f"{ACTOR}ulysses_size": ulysses,
        f"{ROLLOUT}n": group,
        f"{ROLLOUT}tensor_parallel_size": 1,
        "trainer.nnodes": world // gpus,
        "trainer.n_gpus_per_node": gpus,
    }
    optional = {
        f"{ACTOR}dynamic_batching": st.booleans(),
        f"{ACTOR}loss_avg_mode": st.sampled_from(["token", "seq"]),
        f"{ACTOR}loss_type": st.sampled_from(["default", "gspo", "gspo_token", "cispo", "sapo"]),
        f"{ACTOR}ppo_epochs": st.integers(1, 3),
        f"{ACTOR}clip_ratio_high": st.sampled_from([0.28, 0.3]),
        f"{ACTOR}clip_ratio_dual": st.sampled_from([3.0, 10.0]),
        f"{ACTOR}optim.lr": st.sampled_from([1e-6, "1e-5"]),
        f"{ACTOR}optim.lr_warmup_ratio": st.sampled_from([0.0, 0.1]),
        f"{ACTOR}optim.lr_scheduler_type": st.sampled_from(["constant", "cosine"]),
        f"{ACTOR}optim.strategy": st.sampled_from(["adamw", "adamw_bf16"]),
        f"{ROLLOUT}temperature": st.sampled_from([1.0, 0.7]),
        "algorithm.adv_estimator": st.sampled_from(["grpo", "rloo", "reinforce_plus_plus"]),
        "algorithm.disable_kl": st.booleans(),
        "algorithm.use_kl_loss": st.booleans(),
        "algorithm.kl_penalty": st.sampled_from(["kl", "mse", "low_var_kl"]),
        "algorithm.online_filtering": st.booleans(),
        "data.seed": st.integers(0, 99),
        "data.shuffle": st.booleans(),
        "data.max_prompt_length": st.integers(1, 4000),
        "data.max_response_length": st.integers(1, 4000),
        "trainer.total_epochs": st.integers(1, 20),
        "trainer.max_steps": st.none() | st.integers(1, 99),
    }
    return values | draw(st.fixed_dictionaries({}, optional=optional))


@given(configurations())
def test_what_was_read_is_read_again_from_what_was_written(values):
    adapter = EasyR1Adapter()
    reading = read(values)
    assert verdict([*reading.findings, *adapter.check(reading)]) == "valid"
    assert read(adapter.write(reading.spec).values).spec == reading.spec


keys = st.sampled_from(sorted(row.key for row in SETTINGS)) | st.text(max_size=5)
scalars = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2)
)


@settings(max_examples=200)
@given(st.dictionaries(keys, anything, max_size=6), st.none() | st.integers(-2, 9), st.sampled_from(VERSIONS))
def test_no_input_makes_reading_or_checking_raise(values, world, version):
    adapter = EasyR1Adapter()
    reading = adapter.read(Source(values=values), Context(framework_version=version, world_size=world, dataset_size=9))
    assert verdict([*reading.findings, *adapter.check(reading)]) in ("valid", "invalid", "undecided")


def test_importing_the_plugin_module_imports_neither_yaml_nor_a_framework():
    forbidden = "{'yaml', 'torch', 'verl', 'omegaconf', 'pydantic'}"
    code = f"import sys, batchbridge_easyr1; sys.exit(', '.join({forbidden} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.strip() == ""


def test_reading_and_checking_take_less_than_600_ms_of_cpu():
    start = time.process_time()
    EasyR1Adapter().check(read(COMMANDS["qwen3_14b_dapo17k_dapo"]["argv"], prompts=10_000))
    assert time.process_time() - start < 0.6


# ---- the installed package


def test_easyr1_is_told_apart_from_verl_by_its_files(tmp_path):
    (tmp_path / "__init__.py").write_text('__version__ = "0.3.3.dev0"\n')
    assert version_in(tmp_path) is None
    for name in ("trainer/ray_trainer.py", "trainer/data_loader.py", "workers/config.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert version_in(tmp_path) == "0.3.3.dev0"


def test_a_program_of_ones_own_may_train_otherwise_and_declare_more(tmp_path: Path) -> None:
    """Its own RayPPOTrainer and PPOConfig stand beside EasyR1's, whose settings are no bound of its own."""
    words = " ".join(f"{key}={value}" for key, value in {**RUN, "trainer.experience_replay": "true"}.items())
    script = tmp_path / "run.sh"

    def started(program: str) -> Reading:
        script.write_text(f"python3 -m {program} {words} trainer.n_gpus_per_node=1\n")
        return batchbridge.read(script, framework="easyr1", version="0.3.2")

    theirs = started("verl.trainer.main")
    assert (theirs.verdict, theirs.condition) == ("invalid", None)
    mine = started("mine.main")
    assert mine.verdict == "undecided"
    assert mine.condition is not None
    assert mine.condition.supposed == "mine.main trains as EasyR1's RayPPOTrainer does"
    (unknown,) = [one for one in mine.findings if one.code == "BB-EZR1-003"]
    assert unknown.message.endswith("trainer.experience_replay; whether mine.main declares it is not seen")
    (tmp_path / "mine.py").write_text("from verl.trainer.ray_trainer import RayPPOTrainer\nRayPPOTrainer().fit()\n")
    assert started("mine").condition is None
