"""Every message that a rule quotes as the framework's own is a text that doctor knows, and says which rule it is of."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge.contract import plugins
from batchbridge.contract.error_text import RuleRow
from batchbridge.diagnosis import doctor, nearest, quoted_texts
from batchbridge.kit.error_texts import quotations

Run = Callable[..., tuple[int, str, str]]
OURS = ("trl", "verl", "easyr1", "openrlhf", "open_instruct")
ROWS = [row for framework in OURS for row in plugins.rows(plugins.adapters()[framework])]
QUOTING = {f"{row.code} {row.native}": row for row in ROWS if list(quotations(row.native))}


def test_rows_of_old_versions_are_among_them() -> None:
    assert {"BB-TRL-029", "BB-TRL-041"} <= {row.code for row in ROWS}
    assert len(ROWS) > 300
    assert len(QUOTING) > 130


@pytest.mark.parametrize("said", QUOTING)
def test_the_message_that_a_rule_quotes_is_recognised_as_its(said: str) -> None:
    row = QUOTING[said]
    found = doctor(f"[rank0]: Traceback (most recent call last):\n[rank0]: {row.native}\nSystemExit: 1")
    assert row.code in {code for diagnosis in found for code in diagnosis.codes}


def test_what_quotes_nothing_has_no_message_to_quote() -> None:
    """An exception with a message of two words or more is quoted, unless it is only marks or our own words."""
    silent = {row.native for row in ROWS if isinstance(row.native, str) and not list(quotations(row.native))}
    message = re.compile(r"\w+(?:Error|Exception)[^:]{0,30}: (?!\.\.\. %)")
    assert [native for native in silent if message.search(native)] == []


@pytest.mark.parametrize(
    ("native", "text", "recognised"),
    [
        ("ValueError: a (...) must divide b", "ValueError: a (12) must divide b (8)", True),
        ("ValueError: a must divide b", "a (12) must divide `b`", True),
        ("ValueError: a must divide b", "a must not divide b", False),
        ("ValueError: Invalid mode: ...", "ValueError: Invalid mode: 'x'", True),
        ("ValueError: Invalid mode: ...", "an Invalid mode, perhaps", False),
        ("ValueError: no such thing here, after the model has been loaded", "ValueError: no such thing here!", True),
        ("AssertionError: got x=... and size()=...", "AssertionError: got x=3 and size()=4", True),
        ("the run ends; or ValueError: it cannot be told", "ValueError: it cannot be told", True),
    ],
)
def test_values_marks_and_remarks_do_not_matter_and_words_do(native: str, text: str, recognised: bool) -> None:
    (pattern,) = quotations(native)
    assert (re.search(pattern, text) is not None) == recognised


@pytest.mark.parametrize("native", [None, lambda facts: "ValueError: x", "ValueError", "ZeroDivisionError, or so", "-"])
def test_what_has_no_message_is_quoted_nowhere(native: object) -> None:
    assert list(quotations(native)) == []


def test_a_text_of_its_own_goes_before_the_rules_quotation_and_names_the_rule() -> None:
    (found,) = doctor("ValueError: generation_batch_size (12) must be divisible by num_generations (8).")
    assert found.text.name == "trl-generation-batch"
    assert "BB-TRL-021" in found.codes
    assert found.to_dict()["codes"] == list(found.codes)


@pytest.mark.parametrize("framework", [(), ("--framework", "trl")])
@pytest.mark.parametrize("key", ["max_prompt_length", "reward_weightz"])
def test_an_unexpected_keyword_of_trl_leads_to_its_rule_and_to_nobody_elses(
    key: str, framework: tuple[str, ...], run: Run
) -> None:
    text = f"TypeError: GRPOConfig.__init__() got an unexpected keyword argument '{key}'"
    code, out, _ = run("doctor", text, *framework)
    assert code == 0
    assert "  more: batchbridge rule BB-TRL-003\n" in out
    assert "VERL" not in out


def test_an_unexpected_keyword_of_anybodys_function_is_no_text_of_verls_optimizer() -> None:
    assert doctor("TypeError: f() got an unexpected keyword argument 'x'") == ()
    (found,) = doctor("TypeError: SGD.__init__() got an unexpected keyword argument 'betas'")
    assert found.codes == ("BB-VERL-081",)


def test_the_rule_of_another_framework_that_quotes_a_text_stands_only_where_its_own_has_none() -> None:
    (copied,) = doctor("AssertionError: only support equal chunk. Got size of DataProto 512 and chunk 6.")
    assert any("only support equal chunk" in text.rule for text in quoted_texts() if text.name == "BB-EZR1-020")
    assert (copied.text.framework, copied.codes) == ("verl", ("BB-VERL-099", "BB-VERL-104", "BB-VERL-105"))
    (shared,) = doctor("ZeroDivisionError: integer division or modulo by zero")
    assert (shared.text.framework, shared.codes) == ("easyr1", ("BB-ORL-026",))


def test_a_long_text_of_fragments_is_read_quickly() -> None:
    began = time.process_time()
    doctor("INFO something ( ( ((( [actor] ValueError: Rollout must be (x) divisible by \n" * 14_000)
    assert time.process_time() - began < 5  # 0.4 s of CPU; 20 s with patterns that began with anything


def test_an_adapter_whose_rows_fail_does_not_keep_the_others_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object) -> list[RuleRow]:
        raise RuntimeError("no rows")

    monkeypatch.setattr(type(plugins.adapters()["verl"]), "rows", broken)
    frameworks = {text.framework for text in quoted_texts()}
    assert "verl" not in frameworks
    assert {"trl", "openrlhf"} <= frameworks


# ---- the text as an argument, and the run's configuration beside it

RECIPE = """\
model_name_or_path: Qwen/Qwen2.5-0.5B-Instruct
per_device_train_batch_size: 4
gradient_accumulation_steps: 2
num_generations: 7
"""
TEXT = "ValueError: generation_batch_size (24) must be divisible by num_generations (7)."


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: Run) -> Run:
    """The command line with the installed adapters, in a fresh folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    return typed


SIX = [
    "ValueError: Unknown arguments from config file: ['vllm_device']",
    "TypeError: GRPOConfig.__init__() got an unexpected keyword argument 'max_prompt_length'",
    "Could not override 'actor_rollout_ref.actor.ppo_micro_batchsize_per_gpu'. ... not in struct",
    "AssertionError: real_train_batch_size (60) must be divisible by total n_gpus (16).",
    "AssertionError: max_token_len must be greater than the sequence length. Got ...",
    "AssertionError: key task_suite_name length 10 is not equal to batch size 11",
]


@pytest.mark.parametrize("text", SIX)
def test_a_text_is_taken_as_an_argument(text: str, run: Run) -> None:
    code, out, _ = run("doctor", text)
    assert code == 0
    assert "\n  rule: " in out


@pytest.mark.parametrize("name", ["error.txt", "BB-TRL-062", "a\0b", "x" * 10_000, ""])
def test_one_word_that_is_no_file_is_a_usage_error(name: str, run: Run) -> None:
    code, _, err = run("doctor", name)
    assert code == 64
    assert "no such file" in err


def test_a_folder_is_a_usage_error(run: Run) -> None:
    assert run("doctor", ".")[0] == 64


def test_the_configuration_gives_the_line_the_numbers_and_the_fix(run: Run) -> None:
    Path("recipe.yaml").write_text(RECIPE, encoding="utf-8")
    code, out, _ = run("doctor", TEXT, "--config", "recipe.yaml", "--framework-version", "1.16.0", "--world-size", "3")
    assert code == 0
    assert "  recipe.yaml:2, as trl 1.16.0: BB-TRL-021  " in out
    assert "    fix: num_processes = 7, or " in out


def test_where_no_version_is_named_the_newest_that_says_the_text_is_taken(run: Run) -> None:
    Path("recipe.yaml").write_text(RECIPE, encoding="utf-8")
    text = "ValueError: The global train batch size (3 x 4) must be evenly divisible by the number of generations (7)"
    _, out, _ = run("doctor", text.replace("(7)", "per prompt (7)"), "--config", "recipe.yaml", "--world-size", "3")
    assert "as trl 0.16.1: BB-TRL-021" in out

    assert "no version of trl was named: one that says this is taken; --framework-version names yours\n" in out


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        (
            "requirements.txt",
            "verl==0.5.0\n",
            "  no version of verl was named: requirements.txt:1 pins 0.5.0, which is",
        ),
        ("batchbridge.toml", "framework_version = '0.5.0'\n", "  run.sh:3, as verl 0.5.0: BB-VERL-003"),
    ],
)
def test_the_version_is_the_one_that_check_takes_and_is_said(file: str, text: str, said: str, run: Run) -> None:
    Path("run.sh").write_text(VERL, encoding="utf-8")
    Path(file).write_text(text, encoding="utf-8")
    out = run("doctor", SIX[2], "--config", "run.sh")[1]
    assert said in out
    assert "as verl 0.5.0" in out
    assert "--framework-version" not in out
    assert json.loads(run("doctor", SIX[2], "--config", "run.sh", "--json")[1])["results"][0]["read_as"] == "0.5.0"


def test_where_no_version_has_the_text_every_one_was_asked(run: Run) -> None:
    Path("recipe.yaml").write_text(RECIPE.replace("7", "8"), encoding="utf-8")
    _, out, _ = run("doctor", TEXT, "--config", "recipe.yaml", "--world-size", "2")
    assert "  recipe.yaml, as trl of every known version: breaks no rule with this text" in out


def test_a_configuration_that_breaks_no_such_rule_is_said_to_break_none(run: Run) -> None:
    Path("recipe.yaml").write_text(RECIPE.replace("7", "8"), encoding="utf-8")
    _, out, _ = run("doctor", TEXT, "--config", "recipe.yaml", "--framework-version", "1.16.0", "--world-size", "1")
    assert "  recipe.yaml, as trl 1.16.0: breaks no rule with this text" in out


VERL = """\
python3 -m verl.trainer.main_ppo \\
    data.train_batch_size=64 actor_rollout_ref.rollout.n=5 trainer.nnodes=1 trainer.n_gpus_per_node=8 \\
    actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.actor.ppo_micro_batchsize_per_gpu=4
"""


def test_what_is_asked_for_is_looked_up_in_the_configuration(run: Run) -> None:
    text = "AssertionError: ppo_mini_batch_size 0 should be larger than 0 after normalization"
    Path("run.sh").write_text(VERL, encoding="utf-8")
    assert "  asks: " in run("doctor", text)[1]
    out = run("doctor", text, "--config", "run.sh", "--framework-version", "0.7.0")[1]
    assert "  asks: " not in out
    assert "  fix: actor_rollout_ref.actor.ppo_mini_batch_size = 2" in out


def test_a_misspelt_key_is_named_with_its_line_and_the_nearest(run: Run) -> None:
    Path("run.sh").write_text(VERL, encoding="utf-8")
    out = run("doctor", SIX[2], "--config", "run.sh", "--framework-version", "0.7.0", "--json")[1]
    finding, *_ = json.loads(out)["results"][0]["findings"]
    assert finding["where"][0]["line"] == 3
    assert "ppo_micro_batch_size_per_gpu" in finding["fixes"][0]["text"]


# ---- what is not a batch rule, and what is nearly known


@pytest.mark.parametrize(
    ("text", "setting"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "--tokens-per-device"),
        ("Watchdog caught collective operation timeout: WorkNCCL(SeqNum=1)", "ddp_timeout"),
        (
            "Total number of attention heads (14) must be divisible by tensor parallel size (4).",
            "tensor_parallel_size = 2",
        ),
    ],
)
def test_what_is_no_batch_rule_is_said_plainly_with_what_moves_it(text: str, setting: str, run: Run) -> None:
    code, out, _ = run("doctor", text)
    assert code == 0
    assert "  rule: not a batch rule: " in out
    assert setting in out


def test_where_nothing_fits_the_nearest_three_are_named(run: Run) -> None:
    code, out, _ = run(
        "doctor", "AssertionError: train_batch_size 20 is not divisible by the minimal possible batch of 8"
    )
    assert code == 4
    near = [line for line in out.splitlines() if " like " in line]
    assert len(near) == 3
    assert "like verl-minimal-batch (verl): " in near[0]


def test_of_what_is_like_nothing_nothing_is_named() -> None:
    assert nearest("the quick brown fox jumps over the lazy dog") == []
    assert nearest("") == []
