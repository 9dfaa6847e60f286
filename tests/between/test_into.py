"""Conversions into an existing file: what must change changes, the rest stays, and the edited file is the judge."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from registered import adapters
from toys import plain_spec, reading_of

import batchbridge
from batchbridge.cli.main import main
from batchbridge.comparing.convert import convert_to
from batchbridge.comparing.edit_file import EditedFile, convert_into
from batchbridge.contract.reading import Reading

YAML_FRAMEWORKS = ("trl", "open_r1", "verl", "easyr1")

VERL = """\
# Our verl run; see the wiki.
defaults:
  - ppo_trainer
  - _self_

data:
  train_batch_size: 512  # prompts
  train_files: /data/größe.parquet   # not ours
  max_response_length: 512
actor_rollout_ref:
  actor:
    ppo_mini_batch_size: ${data.train_batch_size}
    ppo_micro_batch_size_per_gpu: &micro 2
  rollout:
    n: 4
    log_prob_micro_batch_size_per_gpu: *micro
  ref:
    log_prob_micro_batch_size_per_gpu: *micro
trainer:
  n_gpus_per_node: 4
  project_name: 'mine'   # quoted
"""
TRL = """\
# A recipe.
model_name_or_path: Qwen/Qwen2.5-1.5B   # the small one
reward_funcs:
- accuracy
- format
learning_rate: 1e-5   # too high?
num_generations: 4
per_device_train_batch_size: 4
steps_per_generation: 3
"""
EASYR1 = """\
data:
  rollout_batch_size: 512   # prompts
  image_dir: null
worker:
  actor:
    global_batch_size: 128
    micro_batch_size_per_device_for_update: 1
  rollout:
    n: 5
trainer:
  n_gpus_per_node: 4
"""
FILES = {"verl": VERL, "trl": TRL, "open_r1": TRL, "easyr1": EASYR1}


def into(framework: str, text: str | bytes, path: Path, source: Reading | None = None, **changes: Any) -> EditedFile:
    """A plain run converted into a file with `text`."""
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    reading = source or reading_of(plain_spec(**changes), dataset_size=160)
    adapter = adapters()[framework]
    return convert_into(adapter, convert_to(adapter, reading), path)


def changed(found: EditedFile) -> dict[str, tuple[str, Any]]:
    return {change.key: (change.action, change.new) for change in found.changes}


@pytest.mark.parametrize("framework", YAML_FRAMEWORKS)
def test_the_edited_file_means_what_the_conversion_alone_means(framework: str, tmp_path: Path) -> None:
    found = into(framework, FILES[framework], tmp_path / "run.yaml")
    adapter = adapters()[framework]
    alone = convert_to(adapter, reading_of(plain_spec(), dataset_size=160))
    assert found.problems == ()
    assert found.against == ()
    lost = {field.field for field in alone.fields if field.status in ("approximate", "inexpressible")}
    assert {f.field for f in found.conversion.fields if f.status in ("approximate", "inexpressible")} <= lost
    assert found.conversion.back is not None
    assert found.conversion.back.verdict == "valid"


@pytest.mark.parametrize("framework", YAML_FRAMEWORKS)
def test_only_the_lines_of_changed_keys_change(framework: str, tmp_path: Path) -> None:
    found = into(framework, FILES[framework], tmp_path / "run.yaml")
    assert found.text is not None
    names = {part for change in found.changes for part in change.key.split(".")}
    gone = set(FILES[framework].split("\n")) - set(found.text.split("\n"))
    assert gone
    assert {line.strip().partition(":")[0] for line in gone} <= names


@pytest.mark.parametrize("framework", YAML_FRAMEWORKS)
def test_a_second_conversion_changes_nothing(framework: str, tmp_path: Path) -> None:
    first = into(framework, FILES[framework], tmp_path / "run.yaml")
    assert first.text is not None
    second = into(framework, first.text, tmp_path / "run.yaml")
    assert (second.changes, second.text) == ((), first.text)


@pytest.mark.parametrize("framework", YAML_FRAMEWORKS)
def test_the_file_itself_is_left_to_the_caller(framework: str, tmp_path: Path) -> None:
    into(framework, FILES[framework], tmp_path / "run.yaml")
    assert (tmp_path / "run.yaml").read_text(encoding="utf-8") == FILES[framework]


def test_an_interpolation_stays_where_its_value_follows(tmp_path: Path) -> None:
    found = into("verl", VERL, tmp_path / "run.yaml", **{"optimizer_step.completions_per_step": 128})
    assert found.text is not None
    assert "ppo_mini_batch_size: ${data.train_batch_size}\n" in found.text
    assert changed(found)["data.train_batch_size"] == ("set", 16)


def test_an_interpolation_goes_where_its_value_must_be_another(tmp_path: Path) -> None:
    found = into("verl", VERL, tmp_path / "run.yaml", **{"optimizer_step.completions_per_step": 64})
    assert changed(found)["actor_rollout_ref.actor.ppo_mini_batch_size"] == ("set", 8)


def test_an_anchor_and_its_aliases_change_as_one(tmp_path: Path) -> None:
    found = into("verl", VERL, tmp_path / "run.yaml")
    assert found.text is not None
    assert "ppo_micro_batch_size_per_gpu: &micro 4\n" in found.text
    assert found.text.count("*micro") == 2


def test_a_key_that_contradicts_is_removed_and_listed(tmp_path: Path) -> None:
    found = into("trl", TRL, tmp_path / "run.yaml")
    assert changed(found)["steps_per_generation"] == ("removed", None)
    assert found.text is not None
    assert "steps_per_generation" not in found.text


@pytest.mark.parametrize(
    ("line", "key"),
    [
        ("torch_dtype: bfloat16", "torch_dtype"),
        ("eval_strategy: steps\nper_device_eval_batch_size: 3", "per_device_eval_batch_size"),
    ],
)
def test_a_key_that_the_target_refuses_is_removed_with_that_reason(line: str, key: str, tmp_path: Path) -> None:
    found = into("trl", f"{TRL}{line}\n", tmp_path / "run.yaml")
    (removed,) = (change for change in found.changes if change.key == key)
    assert removed.action == "removed"
    assert "refuses the configuration with it" in removed.reason


def test_what_the_source_leaves_open_stays_as_the_file_says(tmp_path: Path) -> None:
    found = into("trl", f"{TRL}temperature: 0.7\n", tmp_path / "run.yaml", **{"carried.temperature": None})
    (field,) = (field for field in found.conversion.fields if field.field == "carried.temperature")
    assert (field.status, field.target) == ("filled", 0.7)


def test_what_the_source_says_wins_over_the_file(tmp_path: Path) -> None:
    found = into("trl", TRL, tmp_path / "run.yaml", **{"carried.learning_rate": 3e-6})
    assert found.text is not None
    assert "learning_rate: 3.0e-06   # too high?\n" in found.text


def test_a_file_that_cannot_be_brought_to_it_says_what_stands_against_it(tmp_path: Path) -> None:
    found = into("trl", f"{TRL}use_vllm: true\n", tmp_path / "run.yaml")
    assert any("objective.sampler_correction" in line for line in found.against)
    assert found.conversion.verdict == "lossy"


@pytest.mark.parametrize("framework", YAML_FRAMEWORKS)
def test_a_file_of_comments_gets_the_whole_configuration(framework: str, tmp_path: Path) -> None:
    found = into(framework, "# to be filled\n", tmp_path / "run.yaml")
    alone = convert_to(adapters()[framework], reading_of(plain_spec(), dataset_size=160))
    assert alone.written is not None
    assert found.text == "# to be filled\n" + alone.written.text["yaml"]


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("a: [", "not YAML"),
        ("learning_rate: 1\nlearning_rate: 2\n", "set twice"),
        ("learning_rate: 1\n---\nlearning_rate: 2\n", "another document"),
        ("learning_rate: !!python/name:os.system\n", "tags are not followed"),
        ("- 1\n", "not a mapping"),
        (b"learning_rate: \xff\n", "not text"),
        (VERL, "reads as verl"),
        ("per_device_train_batch_size: many\n", None),
    ],
    ids=["syntax", "duplicate", "documents", "tag", "list", "bytes", "stranger", "mended"],
)
def test_what_is_no_file_of_the_target_is_refused_by_name(
    content: str | bytes, why: str | None, tmp_path: Path
) -> None:
    found = into("trl", content, tmp_path / "run.yaml")
    if why is None:
        assert found.problems == ()
        return
    assert found.text is None
    assert why in " ".join(found.problems)


@pytest.mark.parametrize("framework", ["openrlhf", "open_instruct"])
def test_a_framework_without_yaml_says_how_it_is_written(framework: str, tmp_path: Path) -> None:
    found = into(framework, "a: 1\n", tmp_path / "run.yaml")
    assert f"{framework} has no YAML configuration" in found.problems[0]


# ---- the command


@pytest.fixture
def files(own_adapters: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """`a.yaml`, a TRL recipe of one rollout per step, and the files of every framework; all adapters registered."""
    monkeypatch.chdir(tmp_path)
    recipe = "num_generations: 8\nper_device_train_batch_size: 8\ngradient_accumulation_steps: 4\nbeta: 0.04\n"
    Path("a.yaml").write_text(recipe, encoding="utf-8")
    for name, text in FILES.items():
        Path(f"{name}.yaml").write_text(text, encoding="utf-8")
    return tmp_path


BASE = ("convert", "a.yaml", "--framework", "trl", "--framework-version", "1.16.0", "--world-size", "4")
TO_R1 = (*BASE, "--to", "open_r1", "--to-version", "1.16.0", "--into", "open_r1.yaml")


def read(path: str, framework: str = "open_r1") -> Reading:
    return batchbridge.read(path, framework=framework, version="1.16.0", world_size=4)


def test_into_edits_the_file_and_lists_what_changed(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TO_R1) == 0
    out = capsys.readouterr().out
    assert "num_generations: 4 -> 8" in out
    assert "steps_per_generation: 3 -> removed, open_r1 1.16.0 refuses the configuration with it" in out
    assert "beta: 0.04 (new)" in out
    edited = Path("open_r1.yaml").read_text(encoding="utf-8")
    assert "model_name_or_path: Qwen/Qwen2.5-1.5B   # the small one\n" in edited
    source = batchbridge.read("a.yaml", framework="trl", version="1.16.0", world_size=4)
    assert batchbridge.diff(source, read("open_r1.yaml")).verdict == "equivalent"


def test_with_output_the_file_stays(files: Path) -> None:
    assert main((*TO_R1, "-o", "new.yaml")) == 0
    assert Path("open_r1.yaml").read_text(encoding="utf-8") == TRL
    assert read("new.yaml").spec is not None


def test_a_dry_run_writes_nothing_and_says_the_same(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main((*TO_R1, "--dry-run")) == 0
    assert "num_generations: 4 -> 8" in capsys.readouterr().out
    assert Path("open_r1.yaml").read_text(encoding="utf-8") == TRL


def test_a_lossy_conversion_leaves_the_file_alone(files: Path) -> None:
    lossy = (*BASE, "--to", "verl", "--to-version", "0.9.1", "--into", "verl.yaml")
    assert main(lossy) == 3
    assert Path("verl.yaml").read_text(encoding="utf-8") == VERL
    assert main((*lossy, "--allow-lossy")) == 0
    assert Path("verl.yaml").read_text(encoding="utf-8") != VERL


def test_a_refused_file_is_exit_code_2_and_stays(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("open_r1.yaml").write_text("a: 1\na: 2\n", encoding="utf-8")
    assert main(TO_R1) == 2
    assert "line 2: a is set twice" in capsys.readouterr().out
    assert Path("open_r1.yaml").read_text(encoding="utf-8") == "a: 1\na: 2\n"


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_line_ends_encoding_mode_and_links_stay(encoding: str, files: Path) -> None:
    real = files / "real.yaml"
    real.write_bytes(f"# größe\n{TRL}".replace("\n", "\r\n").encode(encoding))
    real.chmod(0o640)
    Path("open_r1.yaml").unlink()
    Path("open_r1.yaml").symlink_to(real)
    assert main(TO_R1) == 0
    text = real.read_bytes().decode(encoding)
    assert text.startswith("# größe\r\n# A recipe.\r\n")
    assert "num_generations: 8\r\n" in text
    assert text.count("\n") == text.count("\r\n")
    assert real.stat().st_mode & 0o777 == 0o640
    assert Path("open_r1.yaml").is_symlink()
    assert not list(files.glob(".*"))


def test_into_in_json_lists_changes(files: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main((*TO_R1, "--json", "--dry-run")) == 0
    shown = json.loads(capsys.readouterr().out)["results"][0]["into"]
    assert {"key": "num_generations", "old": 4, "new": 8, "action": "set", "reason": ""} in shown["changes"]
    assert shown["problems"] == []


@pytest.mark.parametrize("wrong", [("--into", "missing.yaml"), ("--format", "python")])
def test_what_cannot_be_meant_is_a_usage_error(wrong: tuple[str, str], files: Path) -> None:
    assert main((*TO_R1, *wrong)) == 64


def test_check_and_help_do_not_load_the_editor(tmp_path: Path) -> None:
    code = (
        "import sys\nfrom batchbridge.cli.main import main\nmain(['convert', '--help'])\nnames = sorted(sys.modules)\n"
    )
    code += "print([m for m in names if '.edit_' in m])"
    path = os.pathsep.join(map(os.path.abspath, filter(None, sys.path)))
    run = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True
    )
    assert run.stdout.splitlines()[-1] == "[]"
