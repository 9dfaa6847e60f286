"""A user's own copy of a framework is the yardstick: its settings, its defaults, and the release whose code it has."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

import batchbridge
from batchbridge.kit import own_copy
from batchbridge.kit.composed_yaml import NotComposed, composed
from batchbridge.kit.declared_settings import OPEN, classes_parsed, declared_fields, declared_options
from batchbridge.kit.function_forms import forms_in
from batchbridge.kit.own_copy import CopyFacts
from batchbridge.kit.versions import release_after
from batchbridge_easyr1.copies import FACTS as EASYR1
from batchbridge_open_instruct.copies import FACTS as OPEN_INSTRUCT
from batchbridge_openrlhf.copies import FACTS as OPENRLHF
from batchbridge_openrlhf.settings import options_of
from batchbridge_trl.copies import FACTS as TRL
from batchbridge_verl.copies import FACTS as VERL

VERL_YAML = """
data: {train_batch_size: 64, max_prompt_length: 512, max_response_length: 512, shuffle: true}
recurrent: {enable: false}
actor_rollout_ref:
  hybrid_engine: true
  actor: {strategy: fsdp, ppo_mini_batch_size: 64, ppo_micro_batch_size_per_gpu: 8, ppo_epochs: 1, use_kl_loss: false,
    ulysses_sequence_parallel_size: 1, optim: {lr: 1e-6, warmup_style: constant, lr_warmup_steps: -1}}
  rollout: {name: vllm, n: 1, tensor_model_parallel_size: 1, log_prob_micro_batch_size_per_gpu: 8}
algorithm: {adv_estimator: gae}
trainer: {nnodes: 1, n_gpus_per_node: 8, total_epochs: 1, total_training_steps: null}
"""
RUN = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.n=4"


def _write(folder: Path, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text, encoding="utf-8")


def _verl(folder: Path, fit: str = "return 1") -> None:
    _write(
        folder,
        {
            "verl/trainer/config/ppo_trainer.yaml": VERL_YAML,
            "verl/trainer/ppo/ray_trainer.py": f"class RayPPOTrainer:\n    def fit(self):\n        {fit}\n",
            "verl/version/version": "0.2.0.dev\n",
        },
    )


def _read(folder: Path, command: str, **said: object) -> batchbridge.Reading:
    script = folder / "run.sh"
    script.write_text(f"set -x\n{command}\n", encoding="utf-8")
    return batchbridge.read(str(script), **said)  # type: ignore[arg-type]  # arguments of read


def _known_as(monkeypatch: pytest.MonkeyPatch, facts: CopyFacts, package: Path, release: str) -> None:
    """The functions of a package recorded as a release's."""
    known = {key: {digest: (release,)} for key, digest in forms_in(package, facts.functions).items()}
    monkeypatch.setattr(own_copy, "recorded_forms", lambda home: known)


def _errors(reading: batchbridge.Reading) -> list[str]:
    return [f"{one.code} {one.where[0].key}" for one in reading.findings if one.severity == "error"]


def test_a_setting_of_the_copy_is_no_error_and_its_default_counts(tmp_path: Path) -> None:
    _verl(tmp_path)
    reading = _read(tmp_path, f"{RUN} recurrent.enable=memory")
    assert _errors(reading) == ["BB039 None"]
    assert reading.verdict == "undecided"
    assert reading.spec is not None
    assert reading.spec.rollout.prompts_per_rollout == 64  # the releases have 1024
    assert "1 setting of its own, not judged: recurrent.enable" in " ".join(one.message for one in reading.findings)
    assert reading.copy is not None
    assert reading.copy.title("verl") == "verl 0.2.0.dev, your copy"


def test_a_setting_that_the_copy_lacks_is_an_error(tmp_path: Path) -> None:
    _verl(tmp_path)
    reading = _read(tmp_path, f"{RUN} recurrent.enabled=memory trainer.balance_batch=true")
    assert _errors(reading)[:2] == ["BB-VERL-003 recurrent.enabled", "BB-VERL-003 trainer.balance_batch"]
    assert reading.verdict == "invalid"
    assert any("your copy of verl has no setting" in one.message for one in reading.findings)


OPTION = "{{train_batch_size: {}, max_prompt_length: 512, max_response_length: 512, shuffle: true}}\n"


@pytest.mark.parametrize(
    ("word", "left_open", "prompts"),
    [
        ("data=mine", [], 96),
        ("data=mine data.train_batch_size=64", [], 64),
        ("data=default", [], 32),
        ("data=nobodys", ["data"], None),
        ("data@data=mine", [], 96),
    ],
)
def test_a_choice_among_the_copys_own_files_is_read(
    tmp_path: Path, word: str, left_open: list[str], prompts: int | None
) -> None:
    _verl(tmp_path)
    config = "verl/trainer/config"
    body = VERL_YAML.replace(VERL_YAML.splitlines()[1] + "\n", "defaults: [{data@data: default}, _self_]\n")
    files = {f"{config}/data/{name}.yaml": OPTION.format(size) for name, size in (("default", 32), ("mine", 96))}
    _write(tmp_path, {f"{config}/ppo_trainer.yaml": body, **files})
    reading = _read(tmp_path, f"{RUN} {word} actor_rollout_ref.actor.ppo_mini_batch_size=32")
    assert [one.where[0].key for one in reading.findings if one.code == "BB-VERL-005"] == left_open
    assert reading.verdict == "undecided"
    assert (reading.spec.rollout.prompts_per_rollout if reading.spec else None) == prompts


@pytest.mark.parametrize("place", ["external/verl", "verl-0.4.x", "submodules/VERL_fork", "libs/verl"])
def test_the_one_copy_of_a_repository_is_the_yardstick_wherever_its_project_lies(tmp_path: Path, place: str) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / "scripts").mkdir()
    _verl(tmp_path / place)
    reading = _read(tmp_path / "scripts", f"{RUN} recurrent.enable=memory")
    assert reading.copy is not None
    assert reading.copy.folder == tmp_path / place / "verl"
    assert _errors(reading) == ["BB039 None"]


def test_of_two_copies_none_is_the_yardstick(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    for place in ("external/verl", "verl-0.4.x"):
        _verl(tmp_path / place)
    assert _read(tmp_path, RUN).copy is None
    assert _read(tmp_path, f"cd verl-0.4.x\n{RUN}").copy is not None, "the script says which"


def test_copies_of_other_projects_are_not_looked_for_outside_a_repository(tmp_path: Path) -> None:
    _verl(tmp_path / "external" / "verl")
    assert _read(tmp_path, RUN).copy is None


def test_a_named_release_is_judged_in_place_of_the_copy(tmp_path: Path) -> None:
    _verl(tmp_path)
    reading = _read(tmp_path, f"{RUN} recurrent.enable=memory", version="0.4.0")
    assert "BB-VERL-003 recurrent.enable" in _errors(reading)
    assert reading.copy is None


def test_a_copy_with_the_code_of_a_release_is_judged_and_one_changed_function_opens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _verl(tmp_path)
    _known_as(monkeypatch, VERL, tmp_path / "verl", "0.4.0")
    same = _read(tmp_path, RUN)
    assert same.verdict == "valid"
    assert any(one.code == "BB038" and "0.4.0's batches" in one.message for one in same.findings)
    _verl(tmp_path, fit="return 2")
    other = _read(tmp_path, RUN)
    assert other.verdict == "undecided"
    found = [one.message for one in other.findings if one.code == "BB039"]
    assert found == ["rollout size: as verl 0.4.0 would; your RayPPOTrainer.fit differs here"]
    lines = str(batchbridge.check(other)).splitlines()
    assert lines[2] == "  as verl 0.4.0 would count them; your RayPPOTrainer.fit differs here"


def test_an_error_of_a_releases_rule_is_open_where_the_code_is_not_its(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _verl(tmp_path)
    broken = f"{RUN} data.train_batch_size=8"  # below the mini batch
    assert _read(tmp_path, broken).verdict == "undecided"
    _known_as(monkeypatch, VERL, tmp_path / "verl", "0.4.0")
    assert _read(tmp_path, broken).verdict == "invalid"


@pytest.mark.parametrize(
    ("release", "passes", "rollouts"),
    [("0.2.0", 1, 9), ("0.3.0", 2, 10)],  # 0.2 has no loop over ppo_epochs, and leaves its last rollout out
)
def test_a_copy_of_old_verl_means_what_its_own_code_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, release: str, passes: int, rollouts: int
) -> None:
    _verl(tmp_path)
    _known_as(monkeypatch, VERL, tmp_path / "verl", release)
    twice = "actor_rollout_ref.actor.ppo_epochs=2 trainer.total_training_steps=10"
    reading = _read(tmp_path, f"{RUN} {twice}")
    assert reading.verdict == "valid", _errors(reading)
    assert reading.spec is not None
    assert reading.spec.optimizer_step.passes_per_rollout == passes
    assert reading.spec.horizon.rollouts == rollouts
    said = reading.spec.objective
    assert (said.kl_placement, said.dual_clip, said.nonfinite_step) == ("reward", None, "apply")
    in_the_loss = _read(tmp_path, f"{RUN} actor_rollout_ref.actor.use_kl_loss=True").spec
    assert in_the_loss is not None
    assert in_the_loss.objective.kl_placement == "loss"
    _known_as(monkeypatch, VERL, tmp_path / "verl", "0.4.0")
    later = _read(tmp_path, f"{RUN} {twice}").spec
    assert later is not None
    assert (later.objective.kl_placement, later.objective.dual_clip) == ("none", 3.0)


def test_an_engine_that_is_not_read_of_a_copy_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _verl(tmp_path)
    _known_as(monkeypatch, VERL, tmp_path / "verl", "0.3.0")
    reading = _read(tmp_path, f"{RUN} --config-name=ppo_megatron_trainer.yaml")
    assert (reading.verdict, reading.spec) == ("undecided", None)
    assert any(
        "megatron is not read of your copy" in one.message for one in reading.findings if one.code == "BB-VERL-007"
    )


def test_what_a_file_of_verls_leaves_out_the_command_may_say(tmp_path: Path) -> None:
    """A file that is composed by a program of the user's, and completed by its launch script."""
    sizes = "data: {train_batch_size: 8}\nactor_rollout_ref: {actor: {ppo_mini_batch_size: 8, %s}, rollout: {n: 4}}\n"
    file = tmp_path / "base.yaml"
    said = {"framework": "verl", "version": "0.6.1", "world_size": 4}
    for text, verdict, message in (
        (sizes % "ppo_epochs: 1", "undecided", "there is no micro-batch; the command that starts the run may say it"),
        (sizes % "ppo_epochs: null", "undecided", "ppo_epochs = null: expected"),
        (sizes % "ppo_epochs: 0.5", "invalid", "ppo_epochs = 0.5: expected"),
    ):
        file.write_text(text, encoding="utf-8")
        found = batchbridge.check(file, **said)  # type: ignore[arg-type]
        assert found.verdict == verdict, (text, str(found))
        assert message in str(found), str(found)
    command = tmp_path / "run.sh"
    command.write_text(f"{RUN} actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=null\n", encoding="utf-8")
    assert batchbridge.check(command, **said).verdict == "invalid"  # type: ignore[arg-type]  # nothing comes behind it


def test_a_mini_batch_that_verl_0_2_shares_out_otherwise_is_not_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _verl(tmp_path)
    _known_as(monkeypatch, VERL, tmp_path / "verl", "0.2.0")
    reading = _read(tmp_path, f"{RUN} +actor_rollout_ref.actor.fsdp_config.fsdp_size=2")
    assert (reading.verdict, reading.spec) == ("undecided", None)
    assert any("fsdp_size = 2" in one.message for one in reading.findings if one.code == "BB039")
    _known_as(monkeypatch, VERL, tmp_path / "verl", "0.3.0")
    assert _read(tmp_path, f"{RUN} +actor_rollout_ref.actor.fsdp_config.fsdp_size=2").spec is not None


def test_a_release_that_only_copies_have_is_no_version_to_name(tmp_path: Path) -> None:
    assert _read(tmp_path, RUN, version="0.3.0").spec is None


@pytest.mark.parametrize(
    ("place", "line"),
    [
        ("src", ""),
        ("verl", ""),
        ("algorithms/mine", "export PYTHONPATH=$PWD/algorithms/mine:$PYTHONPATH\n"),
        ("mine", "pip install -e mine\n"),
    ],
)
def test_the_copy_is_found_beside_and_where_the_script_names_it(tmp_path: Path, place: str, line: str) -> None:
    _verl(tmp_path / place)
    reading = _read(tmp_path, f"{line}{RUN}")
    assert reading.copy is not None
    assert reading.copy.folder == (tmp_path / place / "verl").resolve()


def test_no_copy_is_taken_from_above_the_repository(tmp_path: Path) -> None:
    _verl(tmp_path)
    (tmp_path / "repository/.git").mkdir(parents=True)
    (tmp_path / "repository/scripts").mkdir()
    assert _read(tmp_path / "repository/scripts", RUN).copy is None


def test_nothing_is_written_beside_the_copy(tmp_path: Path) -> None:
    _verl(tmp_path)
    (tmp_path / "run.sh").write_text("")
    before = sorted(tmp_path.rglob("*"))
    _read(tmp_path, RUN)
    assert sorted(tmp_path.rglob("*")) == before


def test_easyr1s_dataclasses_are_the_settings_of_a_copy(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "verl/__init__.py": '__version__ = "0.3.3.dev0"\n',
            "verl/trainer/main.py": "",
            "verl/trainer/ray_trainer.py": "",
            "verl/trainer/config.py": "from dataclasses import dataclass, field\n"
            "from ..workers.config import WorkerConfig\n"
            "@dataclass\nclass DataConfig:\n    rollout_batch_size: int = 32\n    schedule: list = None\n"
            "@dataclass\nclass PPOConfig:\n    data: DataConfig = field(default_factory=DataConfig)\n"
            "    worker: WorkerConfig = field(default_factory=WorkerConfig)\n",
            "verl/workers/config.py": "from dataclasses import dataclass\n"
            "@dataclass\nclass WorkerConfig:\n    own_weight: float = 0.5\n    own_words: dict = None\n",
        },
    )
    run = "python3 -m verl.trainer.main data.schedule='[{a: 1}]' worker.own_weight=0.25"
    reading = _read(tmp_path, run)
    assert reading.framework == "easyr1"
    assert not [one for one in reading.findings if one.severity == "error" and not one.undecided]
    assert reading.native["data.rollout_batch_size"] == 32
    config = tmp_path / "verl/trainer/config.py"
    text = config.read_text(encoding="utf-8").replace(
        "schedule: list = None", "schedule: list = None\n    val_files: Any = ''"
    )
    config.write_text(text, encoding="utf-8")
    listed = _read(tmp_path, f"{run} data.val_files=[a,b]")  # which the releases declare as text
    assert not [one for one in listed.findings if one.severity == "error" and not one.undecided]
    of_any_key = _read(tmp_path, f"{run} worker.own_words.low=-1.0 worker.own_words.high=0.5")
    assert not [one for one in of_any_key.findings if one.severity == "error" and not one.undecided]
    wrong = _read(tmp_path, f"{run} worker.own_wait=1 worker.own_weight=much")
    assert _errors(wrong)[:2] == ["BB-EZR1-003 worker.own_wait", "BB-EZR1-006 worker.own_weight"]


def test_openrlhfs_parser_is_the_settings_of_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _write(
        tmp_path,
        {
            "openrlhf/trainer/ppo_trainer.py": "",
            "openrlhf/cli/train_ppo_ray.py": "import argparse\nparser = argparse.ArgumentParser()\n"
            'parser.add_argument("--rollout_batch_size", type=int, default=96)\n'
            'parser.add_argument("--train_batch_size", type=int, default=96)\n'
            'parser.add_argument("--own_bonus", type=float, default=0.5)\n'
            'parser.add_argument("--own_switch", action="store_true")\n'
            'parser.add_argument("--policy_loss_type", type=str, choices=["ppo", "mine"], default="ppo")\n',
        },
    )
    run = "python3 -m openrlhf.cli.train_ppo_ray --own_bonus 0.1 --own_switch"
    reading = _read(tmp_path, run)
    assert not [one for one in reading.findings if one.severity == "error" and not one.undecided]
    assert reading.native["rollout_batch_size"] == 96
    _known_as(monkeypatch, OPENRLHF, tmp_path / "openrlhf", "0.9.0")
    own = _read(tmp_path, f"{run} --policy_loss_type mine")
    said = [one.message for one in own.findings if one.code == "BB-ORL-009"]
    assert [message.partition(":")[0] for message in said] == ["mine is a word that no release takes"]
    wrong = _read(tmp_path, f"{run} --micro_train_batch_size 2")
    assert "BB-ORL-003 micro_train_batch_size" in _errors(wrong)


def _parser_of(release: str) -> str:
    """A parser with the options of a release."""
    lines = ["import argparse", "parser = argparse.ArgumentParser()"]
    kinds = {"int": "type=int", "float": "type=float", "str": "type=str", "pair": "type=float, nargs=2"}
    for name, option in options_of(release).items():
        if option.kind in ("flag", *kinds):
            taken = f"{kinds.get(option.kind)}, default={option.default!r}"
            said = 'action="store_true"' if option.kind == "flag" else taken
            lines.append(f'parser.add_argument("--{name}", {said})')
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("release", "words", "policy", "kl", "prompts"),
    [
        ("0.5.5", "--use_kl_estimator_k3", "sequence_mean", ("reward", "k3"), 96),
        ("0.6.4", "--packing_samples", "token_mean", ("reward", "k1"), 96),
        ("0.6.4", "--use_kl_loss --kl_estimator k2", "sequence_mean", ("loss", "k2"), 96),
        ("0.7.0", "--use_kl_loss --kl_estimator k2", "token_mean", ("loss", "k2"), 96),
        ("0.7.4", "", "token_mean", ("reward", "k1"), 100),  # one controller, and no replica's share
    ],
)
def test_a_copy_of_old_openrlhf_means_what_its_own_code_does(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    release: str,
    words: str,
    policy: str,
    kl: tuple[str, str],
    prompts: int,
) -> None:
    program = {"openrlhf/trainer/ppo_trainer.py": "", "openrlhf/cli/train_ppo_ray.py": _parser_of(release)}
    _write(tmp_path, program)
    _known_as(monkeypatch, OPENRLHF, tmp_path / "openrlhf", release)
    sizes = "--rollout_batch_size 100 --n_samples_per_prompt 2 --train_batch_size 64 --micro_train_batch_size 2"
    devices = "--actor_num_nodes 1 --actor_num_gpus_per_node 8 --pretrain m --remote_rm_url u --prompt_data d"
    reading = _read(tmp_path, f"python3 -m openrlhf.cli.train_ppo_ray {sizes} {devices} {words}")
    assert reading.framework_version == release
    assert reading.spec is not None
    assert reading.spec.rollout.prompts_per_rollout == prompts
    assert reading.spec.loss.policy.aggregation == policy
    assert (reading.spec.objective.kl_placement, reading.spec.objective.kl_estimator) == kl
    if release == "0.7.0" and "use_kl_loss" in words:
        assert reading.spec.loss.kl.aggregation == "sequence_mean"


def test_a_rule_of_newer_openrlhf_is_open_for_an_old_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = {"openrlhf/trainer/ppo_trainer.py": "", "openrlhf/cli/train_ppo_ray.py": _parser_of("0.5.5")}
    _write(tmp_path, program)
    _known_as(monkeypatch, OPENRLHF, tmp_path / "openrlhf", "0.5.5")
    words = "--actor_num_gpus_per_node 8 --pretrain m --train_batch_size 60 --micro_train_batch_size 8"
    reading = _read(tmp_path, f"python3 -m openrlhf.cli.train_ppo_ray {words} --prompt_data d --remote_rm_url u")
    said = [one for one in reading.findings if one.severity == "error"]
    assert said, "60 is no multiple of 8 devices x 8"
    assert all(one.undecided for one in said)
    assert any(one.message.startswith("as 0.8.0 would: ") for one in said)


def test_open_instructs_dataclasses_are_the_settings_of_a_copy(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "open_instruct/utils.py": "",
            "open_instruct/loader.py": "class LoaderConfig(Base):\n    num_unique_prompts_rollout: int = 24\n"
            "    own_bonus: float = 0.5\n    own_flag: bool = False\n",
            "open_instruct/grpo_fast.py": "from open_instruct import loader as loader_lib\n"
            "class Args:\n    seed: int = 3\nparser = ArgumentParserPlus((Args, loader_lib.LoaderConfig))\n"
            "parser.parse()\n",
        },
    )
    run = "python open_instruct/grpo_fast.py --own_bonus 0.1"
    reading = _read(tmp_path, run)
    assert not [one for one in reading.findings if one.severity == "error" and not one.undecided]
    assert reading.native["num_unique_prompts_rollout"] == 24
    assert "BB-OI-003 own_bonuses" in _errors(_read(tmp_path, f"{run} --own_bonuses 1"))
    for flag, wrong in (("--own_flag", False), ("--own_flag True", False), ("--own_flag=8", True)):
        assert ("BB-OI-004 own_flag" in _errors(_read(tmp_path, f"{run} {flag}"))) is wrong, flag
    (tmp_path / "run.yaml").write_text("own_flag: true\nnum_unique_prompts_rollout: 16\n", encoding="utf-8")
    of_file = _read(tmp_path, "python open_instruct/grpo_fast.py run.yaml")
    assert ("BB-OI-004 own_flag" in _errors(of_file), of_file.native.get("num_unique_prompts_rollout")) == (False, 16)


@pytest.mark.parametrize("version", ["0.16.0.dev0", "0.17.0rc1", "0.18.0.dev0", "0.24.0.dev0", "1.0.0rc1"])
def test_a_version_before_a_release_is_read_as_that_release(version: str) -> None:
    recipe = {"per_device_train_batch_size": 8, "num_generations": 8}
    before = batchbridge.read(recipe, framework="trl", version=version, world_size=8)
    release = batchbridge.read(recipe, framework="trl", version=release_after(version), world_size=8)
    assert release.spec is not None
    assert (before.verdict, before.spec) == (release.verdict, release.spec)
    assert any(one.code == "BB-TRL-002" and one.severity == "warning" for one in before.findings)


def test_the_form_of_a_function_leaves_out_words_and_layout_alone(tmp_path: Path) -> None:
    functions = {"a.py": ("step",)}
    texts = {
        "plain": "def step(x):\n    return x * 2\n",
        "told": 'def step(x: int) -> int:\n    """Words."""\n    # more\n    return (x\n      * 2)\n',
        "other": "def step(x):\n    return x + 2\n",
        "decorated": "@cached\ndef step(x):\n    return x * 2\n",
    }
    found = {}
    for name, text in texts.items():
        _write(tmp_path / name, {"a.py": text})
        found[name] = forms_in(tmp_path / name, functions)["a.py: step"]
    assert found["plain"] == found["told"]
    assert len(set(found.values())) == 3
    assert forms_in(tmp_path, functions) == {"a.py: step": ""}


def test_defaults_lists_are_composed_as_hydra_does(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "main.yaml": "defaults:\n  - engine: dp\n  - actor@a.actor: ${engine}_actor\n"
            "  - extra@a.extra\n  - _self_\n"
            "a: {actor: {lr: 2e-6}}\nhydra: {run: x}\n",
            "engine/dp.yaml": "# @package _global_\nengine: dp\n",
            "engine/big.yaml": "# @package _global_\nengine: big\n",
            "actor/dp_actor.yaml": "defaults: [../optim@optim: fsdp, base, _self_]\nlr: 1e-6\nname: dp\n",
            "actor/big_actor.yaml": "name: big\n",
            "actor/base.yaml": "name: base\nonly: 1\n",
            "optim/fsdp.yaml": "eps: 1e-8\n",
            "extra.yaml": "n: 1\n",
        },
    )
    tree, files = composed([tmp_path], "main")
    dp = {"lr": 2e-6, "name": "dp", "only": 1, "optim": {"eps": 1e-8}}
    assert tree == {"engine": "dp", "a": {"actor": dp, "extra": {"n": 1}}}
    assert len(files) == 6
    big, _ = composed([tmp_path], "main", {"engine": "big"})
    assert big == {"engine": "big", "a": {"actor": {"name": "big", "lr": 2e-6}, "extra": {"n": 1}}}
    (tmp_path / "extra.yaml").unlink()
    with pytest.raises(NotComposed, match=r"there is no extra\.yaml"):
        composed([tmp_path], "main")


def test_a_configuration_that_expands_without_bound_is_refused(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{at}: &a{at} [{', '.join([f'*a{at - 1}'] * 10)}]" for at in range(1, 12)]
    _write(tmp_path, {"main.yaml": "\n".join(lines)})
    with pytest.raises(NotComposed, match="more than 50000 values"):
        composed([tmp_path], "main")


def test_fields_are_declared_by_inheritance_and_factories(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "base.py": "class Base:\n    seed: int = 1\n    name: 'str | None' = None\n",
            "train.py": "from dataclasses import dataclass, field\nfrom base import Base\n"
            "@dataclass\nclass Mine(Base):\n    seed: int = 7\n"
            "    parts: list[str] = field(default_factory=lambda: ['a'])\n"
            "    day: str = today()\n    needed: float\n"
            "parser = TrlParser((Mine, GRPOConfig))\n",
        },
    )
    found = declared_fields(tmp_path, tmp_path / "train.py", "Mine")
    assert {key: (one.kind, one.default, one.optional) for key, one in found.items()} == {
        "seed": ("int", 7, False),
        "name": ("str", None, True),
        "parts": ("list", ["a"], False),
        "day": ("str", OPEN, False),
        "needed": ("float", None, True),
    }
    assert classes_parsed(tmp_path / "train.py") == ["Mine", "GRPOConfig"]


def test_options_are_declared_by_the_calls_that_add_them(tmp_path: Path) -> None:
    _write(
        tmp_path,
        {
            "cli.py": "p.add_argument('--n', type=int, default=4)\np.add_argument('--pair', type=float, nargs=2)\n"
            "p.add_argument('--off', action='store_false')\np.add_argument('--m', choices=['a', 'b'], default='a')\n"
            "p.set_defaults(n=8)\n"
        },
    )
    found = declared_options(tmp_path / "cli.py")
    assert {key: (one.kind, one.default, one.words) for key, one in found.items()} == {
        "n": ("int", 8, 1),
        "pair": ("float", None, 2),
        "off": ("flag_off", True, 1),
        "m": ("str", "a", 1),
    }
    assert found["m"].choices == ("a", "b")


@pytest.mark.parametrize("facts", [VERL, EASYR1, OPENRLHF, OPEN_INSTRUCT, TRL], ids=lambda facts: facts.home)
def test_every_deciding_function_is_on_record_in_a_release(facts: CopyFacts) -> None:
    known = own_copy.recorded_forms(facts.home)
    assert set(known) == {f"{file}: {name}" for file, names in facts.functions.items() for name in names}
    assert not [key for key, digests in known.items() if not any(digests)], "a function that no release has"
    releases = own_copy.recorded_releases(facts.home)
    for digests in known.values():
        assert sorted(release for said in digests.values() for release in said) == sorted(releases)
