"""`batchbridge new-adapter`: what it writes runs, and keeps the contract once it is filled in (docs/plugins.md)."""

from __future__ import annotations

import datetime
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge.cli.main import FINE, INVALID, USAGE
from batchbridge.cli.new_adapter import canonical_fields, kind_of, literal
from batchbridge.contract import plugins
from batchbridge.kit import kinds

Run = Callable[..., tuple[int, str, str]]
FIRST = """\
grpo:
  num_prompts: 32
  group: 8
  lr: 1.0e-6
  kl: null
train:
  batch: 256
  seed: 0
  loss: token
  flags: [a, b]
  resume: true
"""
SAID = {
    'Key("grpo.num_prompts", natural, 32)': 'Key("grpo.num_prompts", natural, 32, "rollout.prompts_per_rollout")',
    'Key("grpo.group", natural, 8)': 'Key("grpo.group", natural, 8, "rollout.completions_per_prompt")',
    'Key("grpo.lr", real(), 1e-06)': 'Key("grpo.lr", real(0), 1e-06, "carried.learning_rate")',
    'Key("train.batch", natural, 256)': 'Key("train.batch", natural, 256, "optimizer_step.completions_per_step")',
    'Key("train.seed", count, 0)': 'Key("train.seed", count, 0, "order.seed")',
    "CONSTANTS: dict[str, Any] = {}": 'CONSTANTS = {"loss.policy.aggregation": "token_mean", "horizon.epochs": 1.0}',
}
"""What an author would say of this framework, in place of what was written."""


@pytest.fixture
def begun(run: Run, tmp_path: Path) -> Path:
    (tmp_path / "first.yaml").write_text(FIRST, encoding="utf-8")
    code, out, _ = run("new-adapter", "my_rl", "--from", str(tmp_path / "first.yaml"), "--into", str(tmp_path))
    assert (code, "pip install -e" in out) == (FINE, True)
    return tmp_path / "my_rl_adapter"


def contract(place: Path) -> str:
    """What pytest says of the contract test."""
    paths = [str(place / "src"), *map(os.path.abspath, filter(None, sys.path))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:hypothesispytest", "tests"]
    own = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    return subprocess.run(command, cwd=place, env=own, capture_output=True, text=True, check=False).stdout


def test_what_is_left_to_say_is_what_the_contract_says(begun: Path) -> None:
    said = contract(begun)
    assert "TODO: say rollout.prompts_per_rollout, rollout.completions_per_prompt, loss.policy.aggregation" in said
    assert "valid: at least one case with its spec written down" in said
    assert said.count("FAILED") < 30, "what is missing first is buried"


def test_interpolations_and_numbers_of_omegaconf_are_rows_of_what_they_lead_to(run: Run, tmp_path: Path) -> None:
    text = "data:\n  batch: 64\nrollout:\n  prompts: ${data.batch}\n  at: ${now:%H}\nlr: 1e-6\n"
    (tmp_path / "first.yaml").write_text(text, encoding="utf-8")
    run("new-adapter", "my_rl", "--from", str(tmp_path / "first.yaml"), "--into", str(tmp_path))
    config = (tmp_path / "my_rl_adapter" / "src" / "my_rl_batchbridge" / "config.py").read_text(encoding="utf-8")
    for row in ('"rollout.prompts", natural, 64)', '"rollout.at", text, "${now:%H}")', '"lr", real(), 1e-06)'):
        assert f"    Key({row},\n" in config
    assert "    interpolates = True" in config


def test_once_it_is_said_the_contract_misses_only_the_spec_that_an_author_writes_down(begun: Path) -> None:
    config = begun / "src" / "my_rl_batchbridge" / "config.py"
    text = config.read_text(encoding="utf-8")
    for written, said in SAID.items():
        assert written in text
        text = text.replace(written, said)
    head, rest = text.split('        raise ValueError("TODO')
    config.write_text(f"{head}        return {{}}\n{rest.partition(chr(10))[2]}", encoding="utf-8")
    said = contract(begun)
    failed = [line for line in said.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1, said[-4000:]
    assert "test_it_is_tested_with_valid_and_invalid_cases" in failed[0]


def test_every_canonical_field_stands_beside_the_rows(begun: Path) -> None:
    text = (begun / "src" / "my_rl_batchbridge" / "config.py").read_text(encoding="utf-8")
    for field, said, needed in canonical_fields():
        assert f"- {field}{'*' if needed else ''} ({said})" in text


@pytest.mark.parametrize("value", [True, 3, 0, -1, 0.5, "x", None, [1], {}])
def test_a_guessed_kind_takes_the_value_that_it_was_guessed_from(value: object) -> None:
    assert eval(kind_of(value), vars(kinds)).takes(value)


@pytest.mark.parametrize(("name", "near"), [("My", "my"), ("9x", "my_rl"), ("NeMo-RL", "nemo_rl"), ("", "my_rl")])
def test_a_name_that_nobody_can_import_is_a_usage_error(name: str, near: str, run: Run, recipe: Path) -> None:
    code, _, error = run("new-adapter", name, "--from", str(recipe))
    assert (code, f"lower case, digits and underscores, such as {near}\n" in error) == (USAGE, True)


def test_a_name_that_an_adapter_has_is_a_usage_error(run: Run, recipe: Path) -> None:
    code, _, error = run("new-adapter", next(iter(plugins.adapters())), "--from", str(recipe))
    assert (code, "an adapter of that name is installed" in error) == (USAGE, True)


@pytest.mark.parametrize("value", [float("inf"), [1, float("-inf")], {'a "b"': [True, None]}, 'it\'s \\ "so"', 10**30])
def test_a_value_is_written_as_python_reads_it(value: object) -> None:
    assert eval(literal(value)) == value


def test_a_date_is_its_text() -> None:
    assert literal([datetime.date(2026, 11, 26)]) == '["2026-11-26"]'


def test_nothing_is_written_over(begun: Path, run: Run) -> None:
    code, _, error = run(
        "new-adapter", "my_rl", "--from", str(begun.parent / "first.yaml"), "--into", str(begun.parent)
    )
    assert (code, "exists already" in error) == (USAGE, True)


SCRIPT = """\
pip list --outdated
ARGS=(--lr 1e-6 --use-kl)
torchrun --nproc_per_node 4 -m ember.train \\
  --rollout-batch-size 32 --n-samples-per-prompt 8 --data-path $DATA \\
  --loss tokens ${ARGS[@]}
"""
PARSER = """\
def options(parser):
    parser.add_argument("--rollout-batch-size", type=int, required=True)
    parser.add_argument("--n-samples-per-prompt", type=int, default=1)
    parser.add_argument("--lr", type=float, default=1e-5)
    parser.add_argument("--loss", choices=["mean", "tokens"], default="mean")
    parser.add_argument("--use-kl", action="store_true")
    parser.add_argument("--names", nargs="+")
    parser.add_argument("--seed", type=int, default=42)
    parser.add_argument("--data-path")
raise SystemExit("it is not run")
"""
SAID_OF_OPTIONS = {
    'Key("rollout-batch-size", optional(natural), None)': (
        'Key("rollout-batch-size", natural, 1, "rollout.prompts_per_rollout")'
    ),
    'Key("n-samples-per-prompt", natural, 1)': (
        'Key("n-samples-per-prompt", natural, 1, "rollout.completions_per_prompt")'
    ),
    'Key("lr", real(), 1e-05)': 'Key("lr", real(0), 1e-05, "carried.learning_rate")',
    'Key("use-kl", flag, False)': 'Key("use-kl", flag, False, "order.prompt_shuffle", SHUFFLES)',
    'Key("loss", one_of("mean", "tokens"), "mean")': (
        'Key("loss", one_of("mean", "tokens"), "mean", "loss.policy.aggregation", LOSSES)'
    ),
    "KEYS = (": (
        'SHUFFLES = {True: "epoch_permutation", False: "none"}\n'
        'LOSSES = {"mean": "sequence_mean", "tokens": "token_mean"}\nKEYS = ('
    ),
    'launched = {"nproc_per_node": "nproc_per_node"}': "launched = {}",
    "CONSTANTS: dict[str, Any] = {}": (
        'CONSTANTS = {"optimizer_step.completions_per_step": 64, "horizon.epochs": 1.0, "order.seed": 0}'
    ),
}


def test_a_launch_script_begins_an_adapter_of_options(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT, encoding="utf-8")
    (tmp_path / "arguments.py").write_text(PARSER, encoding="utf-8")
    words = ("--from", str(tmp_path / "run.sh"), "--options", str(tmp_path / "arguments.py"), "--into", str(tmp_path))
    code, out, error = run("new-adapter", "ember", *words)
    assert (code, "pip install -e" in out) == (FINE, True), error
    place = tmp_path / "ember_adapter" / "src" / "ember_batchbridge"
    options = json.loads((place / "options.json").read_text(encoding="utf-8"))
    assert options == {
        **dict.fromkeys(("rollout-batch-size", "n-samples-per-prompt", "lr", "loss", "seed", "data-path"), 1),
        "use-kl": 0,
        "names": -1,
    }
    config = place / "config.py"
    text = config.read_text(encoding="utf-8")
    assert "data-path" not in text
    assert 'start = "python -m ember.train"' in text
    for written, said in SAID_OF_OPTIONS.items():
        assert written in text, written
        text = text.replace(written, said)
    head, rest = text.split('        raise ValueError("TODO')
    config.write_text(f"{head}        return {{}}\n{rest.partition(chr(10))[2]}", encoding="utf-8")
    installed = tmp_path / "ember_adapter" / "src" / "ember-0.1.0.dist-info"  # as pip leaves it: a command is detected
    installed.mkdir()
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: ember\nVersion: 0.1.0\n", encoding="utf-8")
    (installed / "entry_points.txt").write_text("[batchbridge]\nember = ember_batchbridge\n", encoding="utf-8")
    said = contract(tmp_path / "ember_adapter")
    failed = [line for line in said.splitlines() if line.startswith("FAILED")]
    assert len(failed) == 1, said[-4000:]
    assert "test_it_is_tested_with_valid_and_invalid_cases" in failed[0]


def test_without_the_frameworks_source_kinds_are_guessed_from_the_script(run: Run, tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text(SCRIPT, encoding="utf-8")
    assert run("new-adapter", "ember", "--from", str(tmp_path / "run.sh"), "--into", str(tmp_path))[0] == FINE
    config = (tmp_path / "ember_adapter" / "src" / "ember_batchbridge" / "config.py").read_text(encoding="utf-8")
    for row in ('"lr", real(), 1e-06', '"use-kl", flag, True', '"rollout-batch-size", natural, 32'):
        assert f"    Key({row}),\n" in config


@pytest.mark.parametrize("script", ["echo hello\n", "python train.py config.yaml\n"])
def test_a_script_without_options_begins_nothing(run: Run, tmp_path: Path, script: str) -> None:
    (tmp_path / "run.sh").write_text(script, encoding="utf-8")
    code, _, error = run("new-adapter", "my_rl", "--from", str(tmp_path / "run.sh"), "--into", str(tmp_path))
    assert (code, "run.sh: BB0" in error) == (INVALID, True)


def test_options_belong_to_a_command(run: Run, recipe: Path, tmp_path: Path) -> None:
    (tmp_path / "arguments.py").write_text(PARSER, encoding="utf-8")
    code, _, error = run("new-adapter", "my_rl", "--from", str(recipe), "--options", str(tmp_path / "arguments.py"))
    assert (code, "--options is for a launch script" in error) == (USAGE, True)


def test_a_file_that_cannot_be_read_begins_nothing(run: Run, tmp_path: Path) -> None:
    code, _, error = run("new-adapter", "my_rl", "--from", str(tmp_path / "none.yaml"), "--into", str(tmp_path))
    assert (code, "none.yaml: BB001" in error) == (INVALID, True)
    (tmp_path / "empty.json").write_text("{}", encoding="utf-8")
    code, _, error = run("new-adapter", "my_rl", "--from", str(tmp_path / "empty.json"), "--into", str(tmp_path))
    assert (code, "empty.json: it says no setting" in error) == (INVALID, True)
    assert [one.name for one in tmp_path.iterdir()] == ["empty.json"]
