"""Launch scripts as verl's repository has them: `$(date)`, `$(pwd)`, configurations beside them, placeholders."""

from __future__ import annotations

from pathlib import Path

import pytest

import batchbridge
from bashread import read_script
from batchbridge.reading.files import load_source

RUN = """\
algorithm.adv_estimator=grpo data.train_batch_size=64 actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=4 actor_rollout_ref.actor.ppo_mini_batch_size=16 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2 """


def check(folder: Path, text: str, **more: object) -> batchbridge.Reading:
    path = folder / "examples" / "grpo" / "run.sh"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.replace("RUN", RUN), encoding="utf-8")
    return batchbridge.read(path, version="0.7.1", **more)  # type: ignore[arg-type]  # the tests' own options


def codes(reading: batchbridge.Reading) -> set[str]:
    return {finding.code for finding in reading.findings}


def test_a_date_in_a_runs_name_is_a_note(tmp_path: Path) -> None:
    found = check(tmp_path, "python3 -m verl.trainer.main_ppo RUN trainer.experiment_name=7b-$(date +%Y%m%d)\n")
    assert found.verdict == "valid"
    (note,) = (finding for finding in found.findings if finding.code == "BB017")
    assert (note.severity, "trainer.experiment_name" in note.message) == ("note", True)
    assert "BB-VERL-008" not in codes(found)


def test_an_unknown_value_of_a_setting_that_matters_leaves_it_open(tmp_path: Path) -> None:
    found = check(tmp_path, "python3 -m verl.trainer.main_ppo RUN data.train_batch_size=$(cat size)\n")
    assert found.verdict == "undecided"
    assert "BB011" in codes(found)


def test_an_override_that_hydra_refuses_is_still_said(tmp_path: Path) -> None:
    found = check(tmp_path, "python3 -m verl.trainer.main_ppo RUN 'trainer.experiment_name=7b-(a)'\n")
    assert (found.verdict, "BB-VERL-008" in codes(found)) == ("invalid", True), "no configuration is composed"
    found = check(tmp_path, "python3 -m verl.trainer.main_ppo RUN 'trainer.experiment_name=a,b'\n")
    assert (found.verdict, "BB-VERL-008" in codes(found)) == ("undecided", True), "a sweep is no one run"


def test_words_with_a_value_that_is_yet_to_be_filled_in_leave_the_run_open() -> None:
    found = batchbridge.check(["python3", "-m", "verl.trainer.main_ppo", "trainer.default_local_dir=<folder>"])
    (said,) = (finding for finding in found.findings if finding.code == "BB-VERL-008")
    assert said.undecided


def test_a_launcher_that_is_handed_one_of_verls_programs_starts_that(tmp_path: Path) -> None:
    found = check(tmp_path, "python3 -m mine.launch verl.trainer.main_ppo RUN\n")
    assert {"BB-VERL-089", "BB041"} <= codes(found), "a custom program"
    assert (found.verdict, found.supposed.verdict) == ("undecided", "valid")
    found = check(
        tmp_path, "torchrun -m mine.launch verl.trainer.sft_trainer data.train_batch_size=32\n", framework="verl"
    )
    assert (found.verdict, "BB-VERL-090" in codes(found)) == ("undecided", True), "it fine-tunes"


CONFIGURED = """\
PROJECT="$(pwd)"
python3 -m verl.trainer.main_ppo --config-path="$PROJECT/examples/grpo/config" --config-name=mine RUN \\
    actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2
"""


@pytest.mark.parametrize("here", [".", "examples", "elsewhere"])
def test_a_configuration_of_the_same_repository_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str
) -> None:
    config = tmp_path / "examples" / "grpo" / "config" / "mine.yaml"
    config.parent.mkdir(parents=True)
    config.write_text("defaults: [ppo_megatron_trainer, _self_]\nactor_rollout_ref: {rollout: {mine: {a: 1}}}\n")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / here)
    found = check(tmp_path, CONFIGURED)
    assert found.verdict == "valid"
    assert found.spec is not None
    assert found.spec.topology.tensor_parallel == 2
    # A file may hold keys that nothing reads: they come into the configuration anyway.
    (unread,) = (finding for finding in found.findings if finding.code == "BB-VERL-003")
    assert (unread.severity, unread.where[0].line) == ("warning", 2)


@pytest.mark.parametrize(("folder", "flag"), [("config", ""), ("settings", "--config-path=settings ")])
@pytest.mark.parametrize("here", [".", "elsewhere"])
def test_a_configuration_beside_the_program_is_found_where_hydra_looks_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, here: str, folder: str, flag: str
) -> None:
    program = tmp_path / "recipe" / "mine" / "main_mine.py"
    config = program.parent / folder / "mine.yaml"
    config.parent.mkdir(parents=True)
    config.write_text(
        "hydra:\n  searchpath: [file://verl/trainer/config]\ndefaults: [ppo_trainer, _self_]\ndata: {seed: 3}\n"
    )
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / here)
    text = f"python3 -m recipe.mine.main_mine {flag}--config-name=mine RUN\n"
    assert "BB-VERL-007" in codes(check(tmp_path, text))  # the program is not there, so its folder is not known
    program.write_text("raise SystemExit('nothing of it runs')\n")
    found = check(tmp_path, text)
    assert (found.verdict, found.supposed.verdict) == ("undecided", "valid")  # the program is not verl's
    assert found.native["data.seed"] == 3
    assert "BB-VERL-003" not in codes(found)


def test_a_configuration_that_is_not_found_leaves_all_open(tmp_path: Path) -> None:
    found = check(tmp_path, CONFIGURED)
    assert (found.verdict, codes(found)) == ("undecided", {"BB-VERL-007"})
    (missing,) = (finding for finding in found.findings if finding.code == "BB-VERL-007")
    assert "there is no file examples/grpo/config/mine.yaml" in missing.message


def test_the_folder_is_not_known_where_the_script_leaves_it() -> None:
    for text, folder in (
        ("a=$(pwd)\nrun $a", "."),
        ("cd /x\nrun $(pwd)", "/x"),
        ("(cd /x)\nrun $PWD", "."),
        ("a=$(cd x && pwd)\nrun $a", "x"),
        ("cd $X\nrun $(pwd)", None),
        ("a=$(cd $X && pwd)\nrun $a", None),
    ):
        (command,) = (one for one in read_script(text, {"PWD": "."}).commands if one.argv[0] == "run")
        assert (None if command.words[1].unknown else command.argv[1]) == folder, text
    (command,) = read_script("run $(pwd)").commands
    assert command.words[1].unknown


@pytest.mark.parametrize(
    ("key", "verdict"), [("actor_rollout_ref.model.path", "valid"), ("data.train_batch_size", "undecided")]
)
def test_a_placeholder_is_named_and_counts_where_the_setting_does(tmp_path: Path, key: str, verdict: str) -> None:
    text = f'MODEL="<path to your model>"\npython3 -m verl.trainer.main_ppo RUN {key}="$MODEL"\n'
    found = check(tmp_path, text)
    assert found.verdict == verdict
    (named,) = (finding for finding in found.findings if "placeholder" in finding.message)
    assert named.message == f"{key} still has a placeholder, <path to your model>"
    source = batchbridge.check(load_source(tmp_path / "examples/grpo/run.sh", overrides={key: 64}))
    assert not any("placeholder" in finding.message for finding in source.findings)


def test_a_placeholder_that_bash_takes_for_a_redirection_is_called_one(tmp_path: Path) -> None:
    found = check(tmp_path, "HOME_OF_VERL=<VERL_ROOT_PATH>\npython3 -m verl.trainer.main_ppo RUN\n")
    (remark,) = (finding for finding in found.findings if finding.code == "BB014")
    assert "still has a placeholder, <VERL_ROOT_PATH>" in remark.message
    assert found.verdict == "undecided"


BY_DEVICE = """\
DEVICE=${DEVICE:-$(python3 -c 'import torch_npu' 2>/dev/null && echo npu || echo gpu)}
SIZE=64
case "${DEVICE}" in
    gpu) ;;
    npu) SIZE=32 ;;
    *) exit 1 ;;
esac
LAUNCH=(python3)
if [ "${DEVICE:-gpu}" = gpu ]; then
    LAUNCH=(uv run python3)
fi
"${LAUNCH[@]}" -m verl.trainer.main_ppo RUN data.train_batch_size=$SIZE
"""


@pytest.mark.parametrize(("env", "size"), [({}, 64), ({"DEVICE": "gpu"}, 64), ({"DEVICE": "npu"}, 32)])
def test_a_device_that_a_program_finds_is_read_as_where_it_fails(
    tmp_path: Path, env: dict[str, str], size: int
) -> None:
    found = check(tmp_path, BY_DEVICE, env=env)
    assert (found.verdict, found.spec and found.spec.rollout.prompts_per_rollout) == ("valid", size)
    notes = [finding for finding in found.findings if finding.code == "BB019"]
    assert [(note.message, note.where[0].line) for note in notes] == (
        [] if env else [("DEVICE is npu or gpu, which only the machine that runs the script tells; read as gpu", 1)]
    )


def test_a_device_that_changes_nothing_is_not_said(tmp_path: Path) -> None:
    text = BY_DEVICE.replace("npu) SIZE=32", "npu) SEED=1")
    assert "BB019" not in codes(check(tmp_path, text.replace("(uv run python3)", "(python3)")))


OWN = "python3 {program} RUN algorithm.mine=1\n"


@pytest.mark.parametrize(
    ("program", "module"),
    [
        ("-m recipe.dapo.main_dapo", "recipe.dapo.main_dapo"),
        ("-m rllm.trainer.train_agent", "rllm.trainer.train_agent"),
        ("-m verl.trainer.main_ppo_format", "verl.trainer.main_ppo_format"),
        ("scripts/train.py", "scripts.train"),
    ],
)
def test_a_program_of_ones_own_is_read_as_verls_and_said(tmp_path: Path, program: str, module: str) -> None:
    plain = check(tmp_path, OWN.replace("{program}", "-m verl.trainer.main_ppo"))
    found = check(tmp_path, OWN.replace("{program}", program))
    assert plain.verdict == "invalid"
    # Its own configuration may have a key like this, and nobody has read what it trains.
    assert (found.verdict, found.supposed.verdict) == ("undecided", "valid")
    assert found.spec is not None
    (condition,) = (finding for finding in found.findings if finding.code == "BB041")
    assert module in condition.message
    (said,) = (finding for finding in found.findings if finding.code == "BB-VERL-089")
    assert said.message.startswith(f"{module} is not a verl program")
    unknown = [finding.message for finding in found.findings if finding.code == "BB-VERL-003"]
    assert unknown
    assert all(
        message.endswith(f"hydra ends the run, unless the configuration of {module} has it") for message in unknown
    )
    foretold = batchbridge.check(tmp_path / "examples" / "grpo" / "run.sh", version="0.9.1").enforcement
    assert foretold is not None
    assert foretold.verdict == "unknown"
    assert [(one.name, one.certain) for one in foretold.obstacles] == [("own_program", False)]


@pytest.mark.parametrize("program", ["-m verl.trainer.main_ppo", "../verl/trainer/main_ppo.py"])
def test_verls_own_program_is_none_of_ones_own(tmp_path: Path, program: str) -> None:
    assert "BB-VERL-089" not in codes(check(tmp_path, f"python3 {program} RUN\n"))


@pytest.mark.parametrize(
    ("module", "code", "what"),
    [
        ("verl.trainer.sft_trainer", "BB-VERL-090", "supervised fine-tuning"),
        ("verl.trainer.fsdp_sft_trainer", "BB-VERL-090", "supervised fine-tuning"),
        ("verl.trainer.main_generation_server", "BB-VERL-090", "trains nothing"),
        ("recipe.fully_async_policy.fully_async_main", "BB-VERL-007", "trains while it generates"),
    ],
)
def test_what_verls_other_programs_do_is_said_and_nothing_is_judged(
    tmp_path: Path, module: str, code: str, what: str
) -> None:
    found = check(tmp_path, f"torchrun -m {module} data.train_batch_size=64 optim.lr=1e-5\n", framework="verl")
    assert found.verdict == "undecided"
    assert [finding.code for finding in found.findings] == [code]
    assert what in found.findings[0].message


@pytest.mark.parametrize(
    "text",
    [
        "$COMMAND data.train_batch_size=64 optim.lr=1e-5\n",  # any program
        'bash "$HERE/other.sh" data.train_batch_size=64\n',
        "python3 prepare.py\n\nactor_rollout_ref.rollout.n=4 data.train_batch_size=64\n",  # what is left of a command
    ],
)
def test_what_is_no_training_command_is_not_judged_as_one(tmp_path: Path, text: str) -> None:
    found = check(tmp_path, text, framework="verl")
    assert found.verdict == "undecided"
    assert "BB010" in codes(found)


def test_a_part_of_the_configuration_that_another_one_replaces_is_left_open(tmp_path: Path) -> None:
    words = "actor@actor_rollout_ref.actor=mine actor_rollout_ref.actor.tp=1"
    found = check(tmp_path, f"python3 -m verl.trainer.main_ppo RUN {words}\n")
    assert found.verdict == "undecided"
    assert [finding.code for finding in found.findings if finding.severity == "error"] == ["BB-VERL-008"]
