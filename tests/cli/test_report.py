"""`batchbridge report`: what maintainers need of a reading is there, and nothing that is only the user's."""

from __future__ import annotations

import json
import os
import re
import shlex
import string
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from batchbridge.cli import report
from batchbridge.cli.main import main
from batchbridge.contract import plugins
from batchbridge.meaning.findings import Finding, Where

Run = Callable[..., tuple[int, str, str]]
TRL = ("--framework", "trl", "--framework-version", "1.16.0", "--world-size", "2")
VALID = {"num_generations": 8, "per_device_train_batch_size": 8, "learning_rate": 1e-6, "loss_type": "dr_grpo"}
SECRETS = (
    "hf_qWmZkXvbTrLpNcYsDgHjKfAaEeUiOo",
    "sk-proj-9vQz7Lk3Xw1Rt5Yb8Nc2",
    "AKIAQ7XZ3VJ5K2WNPD4M",
    "wJalrXUtnFEMIqK7MDENGbPxRfiCYzq",
    "https://zelda:hyrule77@ganondorf.example.org:8443/tri/force",
    "zelda.bosphoramus@example.org",
    "/".join(("", "home", "zbosphoramus", "quuxcorp")),
    "quuxcorp-internal-gpu17.example.org",
    "10.83.127.9",
    "glpat-zzQq11WwEe22RrTt",
    "hunter2!hunter2",
    "3141592653589793",
    "zwölf Boxkämpfer",
)
VERSION = {"trl": "1.16.0", "open_r1": "1.16.0", "verl": "0.9.1", "easyr1": "0.3.3.dev0", "openrlhf": "0.11.2"}
VERSION |= {"open_instruct": "2026.8.20"}


@pytest.fixture
def run(typed: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    return typed


def recipe(values: Mapping[str, Any], comment: str = "") -> str:
    Path("recipe.yaml").write_text(f"# {comment}\n{yaml.safe_dump(dict(values), allow_unicode=True)}", encoding="utf-8")
    return "recipe.yaml"


def leaks(text: str, secret: str, least: int = 6) -> list[str]:
    """Parts of a secret, of as many characters, that stand in a text."""
    least = min(least, len(secret))
    return [part for at in range(len(secret) - least + 1) if (part := secret[at : at + least]) in text]


def test_a_report_has_versions_configuration_findings_and_verdicts(run: Run) -> None:
    code, out, err = run("report", recipe({**VALID, "num_generations": 6}), *TRL)
    assert (code, err) == (0, "")
    assert out.startswith("### BatchBridge report\n")
    for line in (
        "input       a YAML file, framework trl, version 1.16.0, devices 2",
        "read as     trl 1.16.0",
        "verdict     invalid",
        "run, wrap   refused: BB-TRL-021",
        "num_generations = 6    line 4",
        "loss_type = dr_grpo    line 3",
        "learning_rate = 1e-06    line 2",
    ):
        assert f"\n{line}\n" in out
    assert "\nBB-TRL-021  error, noticed: config  per_device_train_batch_size, " in out
    assert " = 16 (completions per rollout) is not a multiple of num_generations = 6 (completions per prompt)\n" in out
    assert re.search(r"^batchbridge \d", out, re.MULTILINE)
    assert re.search(r"^CPython 3\.\d+\.\d+\S*, \w+ \w+$", out, re.MULTILINE)
    assert re.search(r"^installed   .*pydantic \d", out, re.MULTILINE)


def test_without_a_version_the_report_says_how_each_release_judges_it(run: Run) -> None:
    out = run("report", recipe(VALID), "--framework", "trl")[1]
    assert re.search(r"^releases    0\.15\.0 to \S+: \w+$", out, re.MULTILINE)


def test_words_that_the_tables_know_are_shown_and_others_are_texts(run: Run) -> None:
    values = {**VALID, "output_dir": "runs/quux", "lr_scheduler_type": "cosine", "hub_token": 31415926}
    out = run("report", recipe(values), *TRL)[1]
    assert "lr_scheduler_type = cosine " in out
    assert "output_dir = <text> " in out
    assert re.search(r"^hub_token = <\w+> ", out, re.MULTILINE)
    assert leaks(out, "31415926") == []


def test_settings_are_shown_that_have_another_name_in_later_versions(run: Run) -> None:
    Path("run.sh").write_text(
        "python3 -m openrlhf.cli.train_ppo_ray --train_batch_size 32 --rollout_batch_size 32 --pretrain quuxcorp/x\n",
        encoding="utf-8",
    )
    out = run("report", "run.sh", "--framework-version", "0.9.0")[1]
    assert "\ntrain_batch_size = 32    line 1\nrollout_batch_size = 32    line 1\npretrain = <text>    line 1\n" in out


def test_settings_that_no_table_has_are_counted(run: Run) -> None:
    out = run("report", recipe({**VALID, "quux_key": "quux_value"}), *TRL)[1]
    assert "\n... and 1 settings that are left out: " in out
    assert "quux" not in out
    assert "\nBB-TRL-003  error, undecided, noticed: config" in out
    assert f"\n  {report.UNSAID}\n" in out


@pytest.mark.parametrize("secret", SECRETS)
def test_a_secret_in_any_place_of_a_recipe_is_not_in_the_report(run: Run, secret: str) -> None:
    values = {
        **VALID,
        secret: secret,
        "output_dir": secret,
        "hub_token": secret,
        "run_name": f"trl {secret} grpo",
        "model_init_kwargs": {secret: [secret], "token": secret},
        "report_to": [secret, "wandb"],
        "num_iterations": secret,
        "vllm_server_host": secret,
        "reward_funcs": [secret],
    }
    code, out, _ = run("report", recipe(values, comment=secret), *TRL, "--set", f"project={secret}")
    assert code == 0
    assert leaks(out, secret) == []
    assert run("report", *TRL[:2], "--framework-version", secret, "--set", f"{secret}=1")[1].count("```") == 2
    assert leaks(run("report", *TRL[:2], "--framework-version", secret, "--set", f"{secret}=1")[1], secret) == []


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize(
    "command", ["python -m verl.trainer.main_ppo", "accelerate launch train.py", "python -m nobody.knows"]
)
def test_a_secret_in_any_place_of_a_launch_script_is_not_in_the_report(run: Run, secret: str, command: str) -> None:
    word = shlex.quote(secret)
    folder = Path(re.sub(r"\W", "_", secret))
    folder.mkdir()
    script = folder / f"{folder}.sh"
    script.write_text(
        f"# {secret}\nexport WANDB_API_KEY={word} NAME={word}\ncd {word}\nsource {word}/env.sh\n"
        f"{command} data.train_batch_size=64 trainer.project_name={word} +a.b.{word}={word} --hub_token {word} "
        f'"$NAME" trainer.nnodes={word} --{word} {word} --config {word}\n',
        encoding="utf-8",
    )
    code, out, _ = run("report", str(script), "--env", f"TOKEN={secret}", "--", secret)
    assert code == 0
    assert leaks(out, secret) == []
    assert leaks(run("report", str(script), "--command", "1", "--framework", "verl")[1], secret) == []


@pytest.mark.parametrize("broken", ["a: [{0}", "{0}: *{0}", "- {0}", "a: 1\na: {0}", '{{"{0}": ', "\t{0}", "{0}"])
def test_a_secret_in_a_file_that_cannot_be_read_is_not_in_the_report(run: Run, broken: str) -> None:
    for secret in SECRETS:
        for name in ("broken.yaml", "broken.json", "broken.sh", "broken"):
            Path(name).write_text(broken.format(secret), encoding="utf-8")
            code, out, _ = run("report", name)
            assert (code, leaks(out, secret)) == (0, [])


TOKENS = st.text(string.ascii_letters + string.digits + "_-./:@=+%{}[]$'\"`\\ é", min_size=6, max_size=40)


@pytest.mark.parametrize("framework", VERSION)
@given(token=TOKENS, at=st.integers(0, 400), data=st.data())
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
def test_no_text_of_a_configuration_is_shown_wherever_it_stands(
    framework: str, token: str, at: int, data: st.DataObject, capsys: pytest.CaptureFixture[str]
) -> None:
    """The token is random: what of it stands in a report, stands in a report of nothing, too, or in our own code.
    Numbers are no secrets: the sizes of known settings are what a report is for."""
    assume(re.search(r"[^\d\s_.,:+eE'\"-]", token))
    assume(token not in report.known_of(reading_of(framework)).texts)  # hypothesis draws texts of our code, too
    known = known_keys(framework)
    value = data.draw(st.sampled_from([token, [token], {token: token}, f"grpo {token}", {"a": {"b": token}}]))
    values = {known[at % len(known)]: value, known[(at * 7) % len(known)]: token, token: value}
    raw = data.draw(st.booleans())  # as typed, which is not always YAML; else as a quoted text
    words = [f"{key}={each if raw and isinstance(each, str) else json.dumps(each)}" for key, each in values.items()]
    said = [word for each in words if each.split("=")[0].strip() for word in ("--set", each)]
    main(["report", "--framework", framework, "--framework-version", VERSION[framework], "--world-size", "8"])
    plain = capsys.readouterr().out
    main(["report", "--framework", framework, "--framework-version", VERSION[framework], "--world-size", "8", *said])
    out = capsys.readouterr().out
    ours = {plain, *report.known_of(reading_of(framework)).words}
    found = [part for part in leaks(out, token) if not any(part in text for text in ours)]
    assert found == [], out


def reading_of(framework: str) -> Any:
    from batchbridge import read
    from batchbridge.contract.reading import Source

    return read(Source(), framework=framework, version=VERSION[framework], world_size=8)


def known_keys(framework: str) -> list[str]:
    return sorted(reading_of(framework).native)


def test_every_adapter_has_keys_that_are_shown() -> None:
    assert set(VERSION) == set(plugins.adapters())
    assert all(len(known_keys(framework)) > 40 for framework in VERSION)


KNOWN = report.KnownWords(
    frozenset({"num_generations", "hub_token"}), frozenset({"grpo", "a b"}), frozenset({"is", "no", "setting", "grpo"})
)


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("num_generations", 8, "8"),
        ("num_generations", -0.5, "-0.5"),
        ("num_generations", True, "True"),
        ("num_generations", None, "None"),
        ("num_generations", "grpo", "grpo"),
        ("num_generations", "a b", "<text>"),
        ("num_generations", "other", "<text>"),
        ("num_generations", 10**10, "<number>"),
        ("num_generations", float("inf"), "<number>"),
        ("num_generations", [1, 2.0], "[1, 2.0]"),
        ("num_generations", [1, "other"], "<list>"),
        ("num_generations", [[1]], "<list>"),
        ("num_generations", list(range(17)), "<list>"),
        ("num_generations", {"grpo": 1}, "<table>"),
        ("hub_token", 8, "<number>"),
        ("logger.wandb.key", "grpo", "<text>"),
        ("train.max_tokens_per_gpu", 8, "8"),
        ("main_process_ip", None, "<value>"),
    ],
)
def test_a_value_is_shown_where_it_is_a_size_or_a_word_of_ours(key: str, value: object, shown: str) -> None:
    assert KNOWN.value(key, value) == shown


@pytest.mark.parametrize(
    ("message", "keys", "left_out", "is_shown"),
    [
        ("num_generations = 8 is no setting", ["num_generations"], [], True),
        ("8 is no setting", [], [], False),
        ("is no setting", [], [], True),
        ("is no setting", ["other"], [], False),
        ("num_generations is other", ["num_generations"], [], False),
        ("num_generations is grpo", ["num_generations"], ["grpo"], False),
        ("num_generations is ```", ["num_generations"], [], False),
        ("num_generations is\n- no setting", ["num_generations"], [], False),
        ("num_generations is \x1b[31m no", ["num_generations"], [], False),
        ("num_generations is !§$%&", ["num_generations"], [], False),
    ],
)
def test_a_message_is_shown_where_every_word_is_known(
    message: str, keys: list[str], left_out: list[str], is_shown: bool
) -> None:
    finding = Finding("BB1", "error", "config", message, tuple(Where(key) for key in keys))
    assert (KNOWN.message(finding, {"num_generations": "8"}, left_out) is not None) == is_shown
    assert KNOWN.message(finding, {"num_generations": "<text>"}, []) is None or not keys


@pytest.mark.parametrize(
    ("version", "shown"),
    [
        ("2.13.0+cpu", "2.13.0+cpu"),
        ("2.13.0+cu128", "2.13.0+cu128"),
        ("0.4.dev3+g1a2b3c4d", "0.4.dev3+g1a2b3c4d"),
        ("1.0+quuxcorp", "1.0"),
        ("quuxcorp", "<removed>"),
        ("1." + "7" * 40, "<removed>"),
        ("31415926", "<removed>"),
        ("10.83.127.9", "<removed>"),
        ("2026.8.20", "2026.8.20"),
        ("0.10.1.post2", "0.10.1.post2"),
    ],
)
def test_a_version_s_local_part_names_a_build_or_is_left_out(version: str, shown: str) -> None:
    assert report.plain_version(version) == shown


def test_a_text_that_a_setting_cannot_have_is_a_text_and_its_message_is_left_out(run: Run) -> None:
    """Each word of it stands in our code; together they are a pass phrase, longer than what a message shows."""
    phrase = "rollout group kept never completion group rollout kept never completion kept group"
    out = run("report", recipe({**VALID, "auto_find_batch_size": phrase}), *TRL)[1]
    assert "\nauto_find_batch_size = <text> " in out
    assert leaks(out, phrase, 12) == []


def test_a_folder_is_refused_with_what_to_do(run: Run) -> None:
    code, out, err = run("report", ".")
    assert (code, out) == (64, "")
    assert "name one file of the folder" in err


def test_the_machine_s_name_and_user_are_not_in_the_report(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("USER", "zbosphoramus")
    monkeypatch.setenv("HF_TOKEN", SECRETS[0])
    out = run("report", str(Path(recipe(VALID)).resolve()), *TRL)[1]
    assert str(Path.cwd()) not in out
    for name in (os.uname().nodename, "zbosphoramus", SECRETS[0], str(Path.home())):
        assert len(name) < 4 or name not in out
