"""What `check` and `explain` print: verdict and batches first, compact findings in order, notes by -v."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge.contract.reading import Reading
from batchbridge.meaning.findings import Finding, Fix, Where
from batchbridge.render import text

Run = Callable[..., tuple[int, str, str]]
VERL = """\
python3 -m verl.trainer.main_ppo \\
    algorithm.adv_estimator=grpo \\
    data.train_batch_size=1024 \\
    data.filter_overlong_prompts=True \\
    actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.rollout.n=5 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=256 \\
    actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=16 \\
    actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=32 \\
    actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu=32 \\
    actor_rollout_ref.actor.use_kl_loss=True \\
    trainer.n_gpus_per_node=8 trainer.nnodes=1
"""


@pytest.fixture
def run(typed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """The command line with the installed adapters, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    return typed


def test_a_valid_script_is_judged_in_its_first_line_and_its_batches_stand_in_the_second(run: Run) -> None:
    Path("run.sh").write_text(VERL, encoding="utf-8")
    code, out, _ = run("check", "run.sh", "--framework-version", "0.7.0")
    head, batches, followed, warning, *more = out.splitlines()
    assert code == 0
    assert head == "run.sh  verl 0.7.0  8 devices  VALID  1 warning, 4 notes (-v shows them)"
    assert batches == "  1,024 prompts x 5 = 5,120 completions per rollout; 4 optimizer steps of 1,280 completions"
    assert followed.startswith("  run and wrap: ")
    assert warning.startswith("  warning :8  token-mean divides by each micro-batch's own tokens: ")
    assert warning.endswith("    BB-VERL-042")
    assert more[0] == "    at: actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu = 16"
    assert more[1].startswith("    verl never reports it: ")
    assert more[2].startswith("    fix: ")
    assert more[3:] == ["not asked: the framework's own constructor; --native asks it where it is installed"]
    assert out.count("run.sh") == 1


def test_notes_and_sources_stand_there_where_one_asks_and_every_finding_does(run: Run) -> None:
    Path("run.sh").write_text(VERL, encoding="utf-8")
    short, long = (run("check", "run.sh", "--framework-version", "0.7.0", *more)[1] for more in ((), ("-v",)))
    found = json.loads(run("check", "run.sh", "--framework-version", "0.7.0", "--json")[1])["results"][0]["findings"]
    notes = [finding["code"] for finding in found if finding["severity"] == "note"]
    assert len(notes) == 4
    assert not any(code in short for code in notes)
    assert "source: " not in short
    for finding in found:
        assert f"{finding['message']}    {finding['code']}\n" in long
        assert f"source: {finding['source']}\n" in long or finding["source"] is None
        assert all(fix["text"] in long for fix in finding["fixes"])
    assert "(-v shows them)" not in long


def test_a_long_value_is_cut_and_whole_where_one_asks(run: Run) -> None:
    value = "{% for message in messages %}" + "x" * 4800
    recipe = {"num_generations": 8, "per_device_train_batch_size": 8, "chat_templat": value, "loss_type": value}
    Path("recipe.yaml").write_text(json.dumps(recipe), encoding="utf-8")
    arguments = ("recipe.yaml", "--framework", "trl", "--framework-version", "1.16.0", "--world-size", "1")
    for command in ("check", "explain"):
        short, long = (run(command, *arguments, *more)[1] for more in ((), ("-v",)))
        assert max(map(len, short.splitlines())) < 400
        assert value[:57] + "..." in short
        assert value in long
    assert value in run("check", *arguments, "--json")[1]


def test_a_path_is_named_once_and_from_here(run: Run) -> None:
    folder = Path("recipes", "accelerate_configs")
    folder.mkdir(parents=True)
    (folder / "ddp.yaml").write_text("num_processes: 8\n", encoding="utf-8")
    recipe = Path("recipes", "demo.yaml")
    recipe.write_text("num_generations: 14\nper_device_train_batch_size: 16\ndataset_prompt_column: p\n", "utf-8")
    for name in (str(recipe), str(recipe.resolve())):
        out = run("check", name, "--framework-version", "0.18.0")[1]
        assert out.startswith("recipes/demo.yaml  open_r1 0.18.0  ")
        assert str(Path.cwd()) not in out
        assert out.count("recipes/demo.yaml") == 1
        assert "recipes/accelerate_configs/ddp.yaml:1" in out
        assert "  undecided :2  " in out


def finding(code: str, severity: str, phase: str, *, undecided: bool = False, key: str = "a") -> Finding:
    where = (Where(key, 1, "run.yaml", 3),)
    fixes = tuple(Fix(f"{key} = {number}") for number in range(5))
    return Finding(code, severity, phase, f"{key} is wrong", where, fixes, "it stops", "toy 1.0", undecided)  # type: ignore[arg-type]  # words of the tests


def shown(*found: Finding, verbose: bool = False) -> list[str]:
    reading = Reading(framework="toy", framework_version="1.0", findings=found)
    return text.check("run.yaml", reading, verbose=verbose).splitlines()


def test_the_most_severe_stands_first_and_of_these_what_is_noticed_first() -> None:
    lines = shown(
        finding("T-6", "note", "never"),
        finding("T-5", "warning", "config"),
        finding("T-3", "error", "never"),
        finding("T-4", "error", "config", undecided=True),
        finding("T-2", "error", "first_rollout"),
        finding("T-1", "error", "worker_start"),
    )
    heads = [line for line in lines if line.endswith(("T-1", "T-2", "T-3", "T-4", "T-5", "T-6"))]
    assert [head.split()[-1] for head in heads] == ["T-1", "T-2", "T-3", "T-4", "T-5"]
    assert lines[0] == "run.yaml  toy 1.0  INVALID  3 errors, 1 undecided, 1 warning, 1 note (-v shows them)"
    assert "    toy while starting the workers: it stops" in lines


def test_many_warnings_of_one_rule_are_counted_and_no_error_is() -> None:
    warnings = [finding("T-1", "warning", "never", key=f"key{number}") for number in range(9)]
    errors = [finding("T-2", "error", "config", key=f"key{number}") for number in range(9)]
    lines = shown(*warnings, *errors)
    assert sum(line.endswith("    T-1") for line in lines) == 3
    assert "  warning  6 more of T-1 (-v shows them)" in lines
    assert sum(line.endswith("    T-2") for line in lines) == 9
    assert sum("never reports it" in line for line in lines) == 1
    assert sum(line.endswith("    T-1") for line in shown(*warnings, verbose=True)) == 9


def test_three_ways_out_are_shown_and_all_where_one_asks() -> None:
    one = finding("T-1", "error", "config")
    assert "    fix: a = 0, or a = 1, or a = 2, or 2 more (-v)" in shown(one)
    assert "    fix: a = 0, or a = 1, or a = 2, or a = 3, or a = 4" in shown(one, verbose=True)


def test_a_rule_about_many_settings_lists_those_that_somebody_set(run: Run) -> None:
    recipe = "num_generations: 8\nper_device_train_batch_size: 8\nreward_weights: [1.0, 2.0]\n"
    Path("recipe.yaml").write_text(recipe, encoding="utf-8")
    arguments = ("recipe.yaml", "--framework", "trl", "--framework-version", "0.18.0", "--world-size", "1")
    (found,) = (
        one
        for one in json.loads(run("check", *arguments, "--json")[1])["results"][0]["findings"]
        if one["code"] == "BB-TRL-075"
    )
    assert [where["key"] for where in found["where"]] == ["reward_weights"]


def test_explain_says_where_a_field_comes_from_in_a_word_and_no_unit_that_says_nothing(run: Run) -> None:
    recipe = "num_generations: 8\nper_device_train_batch_size: 8\nseed: 7\nlearning_rate: 2.0e-5\n"
    Path("recipe.yaml").write_text(recipe, encoding="utf-8")
    arguments = ("recipe.yaml", "--framework", "trl", "--framework-version", "1.16.0", "--world-size", "1")
    short, long = (run("explain", *arguments, *more)[1] for more in ((), ("-v",)))
    rows = {said: place for line in short.splitlines() for said, _, place in [line.strip().partition("  ")]}
    assert rows["num_generations = 8 (:1)"].strip() == "rollout.completions_per_prompt"
    assert rows["learning_rate = 2e-05 (:4)"].strip() == "learning_rate"
    assert rows["seed = 7 (:3)"].strip() == "order.seed"
    assert "carried." not in short
    assert short.index("Meaning") < short.index("What is set")
    assert long.index("Meaning") < long.index("Specification")
    assert "num_generations = 8 (recipe.yaml:1)" in long
    assert len(short.splitlines()) < 0.8 * len(long.splitlines())


R1_V = """from transformers import Trainer
from trl import GRPOConfig
class Qwen2VLGRPOTrainer(Trainer):
    def compute_loss(self, model, inputs): ...
args = GRPOConfig(output_dir="x", per_device_train_batch_size=4, num_generations=4)
NAMEGRPOTrainer(model="m", reward_funcs=[], args=args, train_dataset=[]).train()
"""


def test_a_program_that_counts_itself_has_no_plan_of_the_frameworks(run: Run, tmp_path: Path) -> None:
    """R1-V's copies repeat rows; of an unknown trainer the plan is TRL's, and says so."""
    asked = ("--world-size", "2", "--dataset-size", "64", "--framework-version", "1.16.0")
    program = tmp_path / "train.py"
    program.write_text(R1_V.replace("NAME", "Qwen2VL"), encoding="utf-8")
    code, out, error = run("plan", str(program), *asked)
    assert (code, out) == (4, "")
    assert "there is no plan: the program counts batches itself: in R1-V and its copies" in error
    program.write_text(f"from mine import FancyGRPOTrainer\n{R1_V.replace('NAME', 'Fancy')}", encoding="utf-8")
    code, out, _ = run("plan", str(program), *asked)
    assert out.splitlines()[0].startswith("numbers of TRL's, and right if FancyGRPOTrainer trains as TRL's")


def test_where_nothing_seeds_the_order_there_is_no_plan_and_it_is_said_what_there_is(run: Run) -> None:
    asked = ("--framework", "openrlhf", "--framework-version", "0.11.0", "--world-size", "1", "--set", "train.seed=1")
    code, _, err = run("plan", *asked)
    assert code == 4
    assert "nothing seeds the order of prompts, so every launch has another" in err
    assert "batchbridge explain" in err
    assert "nothing seeds" in json.loads(run("plan", *asked, "--json")[1])["error"]


def test_scaling_without_a_version_takes_one_and_asks_for_devices(run: Run) -> None:
    Path("recipe.yaml").write_text("num_generations: 8\nper_device_train_batch_size: 8\nbeta: 0.1\n", encoding="utf-8")
    code, out, _ = run("scale", "recipe.yaml", "--framework", "trl", "--world-size", "6")
    assert (code, "no version was named: trl 1.16.0 is taken" in out) == (4, True)
    assert out.endswith("--from DEVICES says what FILE is written for\n")
    out = run("scale", "recipe.yaml", "--framework", "trl", "--framework-version", "1.16.0", "--world-size", "6")[1]
    assert out.endswith("--from DEVICES says what FILE is written for\n")


def test_one_of_a_thing_is_said_in_the_singular(run: Run) -> None:
    recipe = "per_device_train_batch_size: 8\nnum_generations: 8\nnum_train_epochs: 1\n"
    Path("recipe.yaml").write_text(recipe, encoding="utf-8")
    sizes = ("--framework-version", "1.16.0", "--gpus", "1", "--dataset-size", "1")
    _, out, _ = run("explain", "recipe.yaml", *sizes, "-v")
    assert "  An optimizer step trains on 8 completions, the size of 1 prompt: 8 on the one device.\n" in out
    assert re.search(r"gradient_accumulation_steps +1 micro-batch\n", out)
    assert "into 1 micro-batch, the same in every pass (1); an optimizer step takes 1 micro-batch\n" in out
    assert re.findall(r"(?<![\d.,])1 (?:completions|prompts|devices|passes|micro-batches|optimizer steps)\b", out) == []
    _, out, _ = run("plan", "recipe.yaml", *sizes)
    assert "dataset: 1 prompt\n" in out
    assert "  1 prompt x 8: 0\n" in out
