"""`check --fix`, `--fix=N` and `--diff`: renamed keys, keys that nothing reads, and a chosen way out; in YAML files,
launch scripts and Python programs, and nothing else of them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from batchbridge import Finding, Fix, Where
from batchbridge.cli.main import main
from batchbridge.comparing import edit_yaml
from batchbridge.comparing.edit_yaml import rename
from batchbridge.errors import CannotEdit
from batchbridge_trl import settings
from batchbridge_trl.tables import settings_of

RECIPE = """\
# A recipe of Open-R1's form, under TRL 0.18.
model_name_or_path: some/model
'torch_dtype': bfloat16   # as the model was saved
use_vllm: true

# GRPO trainer config
num_generations: 16 # completions per prompt
per_device_train_batch_size: 16
gradient_accumulation_steps: 4
overwrite_output_dir: true
reward_funcs:
- accuracy
- format
system_prompt: "Write torch_dtype: never"
warmup_ratio: 0.1
"""
FIXED = """\
# A recipe of Open-R1's form, under TRL 0.18.
model_name_or_path: some/model
'dtype': bfloat16   # as the model was saved
use_vllm: true

# GRPO trainer config
num_generations: 16 # completions per prompt
per_device_train_batch_size: 16
gradient_accumulation_steps: 4
reward_funcs:
- accuracy
- format
system_prompt: "Write torch_dtype: never"
warmup_steps: 0.1
"""
UNDER = ("--framework", "open_r1", "--framework-version", "1.16.0", "--world-size", "8")


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    path = Path("recipe.yaml")
    path.write_bytes(RECIPE.encode())
    return path


Said = tuple[int, str, str]


@pytest.fixture
def check(capsys: pytest.CaptureFixture[str]) -> Callable[..., Said]:
    def check(file: object, *options: str, under: tuple[str, ...] = UNDER) -> Said:
        code = main(["check", str(file), *under, *options])
        said = capsys.readouterr()
        return code, said.out, said.err

    return check


def test_renamed_keys_keep_their_places_and_a_key_that_nothing_reads_goes(
    file: Path, check: Callable[..., Said]
) -> None:
    assert check(file)[0] == 2
    code, _, err = check(file, "--fix")
    assert (code, file.read_bytes()) == (0, FIXED.encode())
    assert err.startswith(
        "recipe.yaml: 3 keys fixed: torch_dtype -> dtype (line 3), overwrite_output_dir removed (line 10), "
        "warmup_ratio -> warmup_steps (line 15); carried.warmup_steps:"
    )


def test_a_second_time_there_is_nothing_to_fix(file: Path, check: Callable[..., Said]) -> None:
    check(file, "--fix")
    before = file.stat().st_mtime_ns
    code, _, err = check(file, "--fix")
    assert (code, file.read_bytes(), file.stat().st_mtime_ns) == (0, FIXED.encode(), before)
    assert "fixed:" not in err.replace("nothing was fixed:", "")


@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
def test_line_ends_and_the_byte_order_mark_stay(file: Path, check: Callable[..., Said], mark: bytes) -> None:
    file.write_bytes(mark + RECIPE.replace("\n", "\r\n").encode())
    assert check(file, "--fix")[0] == 0
    assert file.read_bytes() == mark + FIXED.replace("\n", "\r\n").encode()


def test_utf_16_stays_utf_16(file: Path, check: Callable[..., Said]) -> None:
    file.write_bytes(b"\xff\xfe" + RECIPE.encode("utf-16-le"))
    check(file, "--fix")
    assert file.read_bytes() == b"\xff\xfe" + FIXED.encode("utf-16-le")


def test_diff_shows_the_lines_and_writes_nothing(file: Path, check: Callable[..., Said]) -> None:
    code, out, err = check(file, "--diff")
    assert (code, file.read_bytes()) == (2, RECIPE.encode())
    changed = [line for line in out.splitlines() if line[:1] in "+-"]
    assert changed == [
        *("--- recipe.yaml", "+++ recipe.yaml"),
        *("-'torch_dtype': bfloat16   # as the model was saved", "+'dtype': bfloat16   # as the model was saved"),
        *("-overwrite_output_dir: true", "-warmup_ratio: 0.1", "+warmup_steps: 0.1"),
    ]
    assert err.startswith("recipe.yaml: 3 keys would be fixed: ")


def test_a_file_of_a_link_is_written_and_the_link_stays(file: Path, check: Callable[..., Said]) -> None:
    link = Path("link.yaml")
    link.symlink_to(file)
    check(link, "--fix")
    assert link.is_symlink()
    assert file.read_bytes() == FIXED.encode()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("torch_dtype: bfloat16\ndtype: float16\n", "no finding has a safe fix"),
        ("warmup_ratio: 1.0\n", "no finding has a safe fix"),
        ("warmup_ratio: 0.1\nwarmup_steps: 5\n", "no finding has a safe fix"),
        ("max_prompt_length: 512\n", "no finding has a safe fix"),
        ("num_generation: 8\n", "no finding has a safe fix"),
        ("per_gpu_train_batch_size: null\n", "no finding has a safe fix"),
        ("{torch_dtype: bfloat16}", "nothing was fixed"),
    ],
    ids=["new name there", "share of 1", "both", "it cut prompts", "a misspelt key", "no value", "flow and block"],
)
def test_what_is_no_mere_renaming_stays(file: Path, check: Callable[..., Said], text: str, why: str) -> None:
    text = RECIPE.replace("'torch_dtype': bfloat16   # as the model was saved\n", text).replace("warmup_ratio: 0.1", "")
    text = text.replace("overwrite_output_dir: true\n", "")
    file.write_text(text, encoding="utf-8")
    _, _, err = check(file, "--fix")
    assert file.read_text(encoding="utf-8") == text
    assert why in err or text.startswith("{")


def test_a_batch_size_under_its_old_name_is_named_where_it_moves_the_run(
    file: Path, check: Callable[..., Said]
) -> None:
    file.write_text("num_generations: 4\nper_gpu_train_batch_size: 4\nsteps_per_generation: 1\n", encoding="utf-8")
    _, _, err = check(file, "--fix")
    assert file.read_text(encoding="utf-8").splitlines()[1] == "per_device_train_batch_size: 4"
    assert "optimizer_step.completions_per_step: 64 before, 32 now" in err


def test_a_merged_key_that_serves_two_places_is_refused(file: Path, check: Callable[..., Said]) -> None:
    text = f"base: &base {{torch_dtype: bfloat16}}\n<<: *base\n{RECIPE}".replace("'torch_dtype': bfloat16", "#")
    file.write_text(text, encoding="utf-8")
    _, _, err = check(file, "--fix")
    assert file.read_text(encoding="utf-8") == text
    assert "nothing was fixed" in err


def test_a_comment_that_ignores_the_rule_keeps_the_line(file: Path, check: Callable[..., Said]) -> None:
    text = RECIPE.replace("# as the model was saved", "# batchbridge: ignore BB-TRL-003")
    file.write_text(text, encoding="utf-8")
    check(file, "--fix")
    assert file.read_text(encoding="utf-8") == FIXED.replace("'dtype'", "'torch_dtype'").replace(
        "# as the model was saved", "# batchbridge: ignore BB-TRL-003"
    )


def test_without_a_version_nothing_is_fixed(file: Path, check: Callable[..., Said]) -> None:
    new = (
        "pad_to_multiple_of: 8\nvllm_structured_outputs_regex: x\nlog_multimodal: true\nuse_bias_correction_kl: true\n"
    )
    new += "max_tool_calling_iterations: 3\nlog_completions_hub_repo: a/b\n"
    file.write_text(RECIPE + new, encoding="utf-8")  # newer settings beside some that are gone since 0.27
    _, _, err = check(file, "--fix", under=("--framework", "open_r1", "--world-size", "8"))
    assert file.read_text(encoding="utf-8") == RECIPE + new
    assert "--framework-version" in err


def test_of_a_key_in_a_recipe_that_a_script_starts_with_the_recipe_is_named(
    file: Path, check: Callable[..., Said]
) -> None:
    script = Path("run.sh")
    words = "accelerate launch --num_processes 8 src/open_r1/grpo.py --config recipe.yaml\n"
    script.write_text(words, encoding="utf-8")
    code, _, err = check(script, "--fix", under=("--framework-version", "1.16.0"))
    assert (code, script.read_text(encoding="utf-8"), file.read_bytes()) == (2, words, RECIPE.encode())
    assert "torch_dtype stands in recipe.yaml:3; fix that file: batchbridge check recipe.yaml --fix" in err


SCRIPT = """\
#!/bin/bash
GROUP=7  # completions
trl grpo \\
  --per_device_train_batch_size 6 --overwrite_output_dir true \\
  --num_generations $GROUP \\
  --torch_dtype bfloat16
"""
PROGRAM = """\
from trl import GRPOConfig, GRPOTrainer

arguments = GRPOConfig(output_dir="out", torch_dtype="bfloat16",
    overwrite_output_dir=True,
    per_device_train_batch_size=6, num_generations=7,  # completions
)
trainer = GRPOTrainer(model="some/model", args=arguments, reward_funcs=[len])
"""
ON_EIGHT = ("--framework", "trl", "--framework-version", "1.16.0", "--world-size", "8")


@pytest.mark.parametrize(
    ("name", "text", "after"),
    [
        ("run.sh", SCRIPT, SCRIPT.replace("torch_dtype", "dtype").replace(" --overwrite_output_dir true", "")),
        (
            "train.py",
            PROGRAM,
            PROGRAM.replace("torch_dtype", "dtype").replace("    overwrite_output_dir=True,\n", ""),
        ),
    ],
)
def test_options_of_a_script_and_keywords_of_a_program_are_renamed_and_go(
    tmp_path: Path, check: Callable[..., Said], name: str, text: str, after: str
) -> None:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    _, _, err = check(path, "--fix", under=ON_EIGHT)
    assert path.read_text(encoding="utf-8") == after, err
    assert "torch_dtype -> dtype (line" in err
    assert "overwrite_output_dir removed (line 4)" in err


YAML = "num_generations: 7 # completions\nper_device_train_batch_size: 6\n"


@pytest.mark.parametrize(
    ("name", "text", "old", "new"),
    [
        ("recipe.yaml", YAML, "num_generations: 7", "num_generations: {}"),
        ("run.sh", SCRIPT, "GROUP=7", "GROUP={}"),
        ("train.py", PROGRAM, "num_generations=7", "num_generations={}"),
    ],
)
def test_a_way_out_is_written_by_its_number_in_the_table(
    tmp_path: Path, check: Callable[..., Said], name: str, text: str, old: str, new: str
) -> None:
    path = tmp_path / name
    text = text.replace("torch_dtype", "dtype").replace("--overwrite_output_dir true ", "")
    text = text.replace("    overwrite_output_dir=True,\n", "")
    path.write_text(text, encoding="utf-8")
    code, out, _ = check(path, "-v", under=ON_EIGHT)
    rows = [line.split() for line in out.splitlines()]
    chosen, group = next((row[0], row[3]) for row in rows if row[1:3] == ["num_generations", "="] and row[0].isdigit())
    assert code == 2
    code, shown, _ = check(path, f"--fix={chosen}", "--diff", under=ON_EIGHT)
    assert (code, path.read_text(encoding="utf-8")) == (2, text)
    assert [line for line in shown.splitlines() if line[:2] in ("- ", "+ ", f"-{old[0]}", f"+{old[0]}")]
    code, _, err = check(path, f"--fix={chosen}", under=ON_EIGHT)
    assert (code, path.read_text(encoding="utf-8")) == (0, text.replace(old, new.format(group)))
    assert f"way out {chosen} written: num_generations = {group}; on 8 devices an optimizer step has 48" in err


def test_a_way_out_without_a_version_is_the_one_of_the_release_that_is_shown(
    tmp_path: Path, check: Callable[..., Said]
) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text(YAML, encoding="utf-8")
    under = ("--framework", "trl", "--world-size", "8")
    code, _, err = check(path, "--fix=1", under=under)
    assert (code, "way out 1 written" in err) == (0, True)
    assert check(path, under=under)[0] == 0


@pytest.mark.parametrize(
    ("text", "option", "why"),
    [
        (YAML, "--fix=99", "--fix=99 of recipe.yaml: the ways out are 1 to "),
        (YAML, "--fix=0", "0 is not in the range"),
        (YAML, "--fix=two", "'two' is not a valid integer"),
        ("num_generations: 8\nper_device_train_batch_size: 8\n", "--fix=1", "no error has a way out"),
    ],
)
def test_a_number_that_no_way_out_has_is_a_usage_error(
    file: Path, check: Callable[..., Said], text: str, option: str, why: str
) -> None:
    file.write_text(text, encoding="utf-8")
    code, _, err = check(file, option, under=ON_EIGHT)
    assert (code, why in err, file.read_text(encoding="utf-8")) == (64, True, text), err


def test_a_way_out_is_of_one_file(file: Path, check: Callable[..., Said]) -> None:
    code, _, err = check(file, str(file), "--fix=1")
    assert (code, "--fix=1 is of one FILE" in err, file.read_bytes()) == (64, True, RECIPE.encode())


def test_a_way_out_of_devices_stands_in_no_recipe(file: Path, check: Callable[..., Said]) -> None:
    file.write_text("num_generations: 7\nper_device_train_batch_size: 1\n", encoding="utf-8")
    under = ("--framework", "trl", "--framework-version", "0.18.0", "--world-size", "8")
    _, out, _ = check(file, "-v", under=under)
    number = next(line.split()[0] for line in out.splitlines() if line.split()[1:2] == ["num_processes"])
    code, _, err = check(file, f"--fix={number}", under=under)
    assert (code, "num_processes is not said in recipe.yaml: say it where the run is started" in err) == (2, True)
    assert file.read_text(encoding="utf-8").startswith("num_generations: 7\n")


def test_json_is_refused_by_name(tmp_path: Path, check: Callable[..., Said]) -> None:
    path = tmp_path / "recipe.json"
    path.write_text(json.dumps({"num_generations": 8, "torch_dtype": "bfloat16"}), encoding="utf-8")
    before = path.read_bytes()
    _, _, err = check(path, "--fix")
    assert path.read_bytes() == before
    assert "is a .json file; YAML files, launch scripts and Python programs are edited" in err


@pytest.mark.parametrize("options", [("--fix", "--set", "beta=1"), ("--diff", "--set", "beta=1")])
def test_what_stands_beside_the_file_cannot_be_fixed(
    file: Path, check: Callable[..., Said], options: tuple[str, ...]
) -> None:
    code, _, err = check(file, *options)
    assert (code, file.read_bytes()) == (64, RECIPE.encode())
    assert "leave out --set" in err


@pytest.mark.parametrize("options", [("--json",), ("--output-format", "sarif"), ("--output-format", "concise")])
def test_a_difference_is_not_mixed_with_what_programs_read(
    file: Path, check: Callable[..., Said], options: tuple[str, ...]
) -> None:
    code, out, err = check(file, "--diff", *options)
    assert (code, out) == (64, "")
    assert "--diff prints a difference" in err
    code, out, _ = check(file, "--fix", "--json")
    assert json.loads(out)["exit_code"] == code
    assert file.read_bytes() == FIXED.encode()


def test_a_file_is_not_emptied(file: Path, check: Callable[..., Said]) -> None:
    file.write_text("overwrite_output_dir: true  # all there is\n", encoding="utf-8")
    _, _, err = check(file, "--fix")
    assert "nothing was fixed: no setting would be left in the file" in err
    assert file.read_text(encoding="utf-8") == "overwrite_output_dir: true  # all there is\n"


def test_standard_input_cannot_be_fixed(check: Callable[..., Said], monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(RECIPE.encode())))
    code, _, err = check("-", "--fix")
    assert code == 64
    assert "standard input" in err


def test_every_file_of_a_folder_is_fixed(file: Path, check: Callable[..., Said]) -> None:
    Path("recipes").mkdir()
    for name in ("a.yaml", "b.yaml"):
        Path("recipes", name).write_bytes(RECIPE.encode())
    code, out, _ = check("recipes", "--fix")
    assert (code, out.splitlines()[-1]) == (0, "2 files: 2 ok")
    assert {path.read_bytes() for path in Path("recipes").iterdir()} == {FIXED.encode()}


def test_what_cannot_be_written_is_a_usage_error_and_leaves_the_file(
    file: Path, check: Callable[..., Said], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    code, _, err = check(file, "--fix")
    monkeypatch.undo()
    assert (code, file.read_text(encoding="utf-8") if file.exists() else RECIPE) == (64, RECIPE)
    assert "No space left on device" in err


def test_easyr1s_renamed_keys_stay_in_their_groups(tmp_path: Path, check: Callable[..., Said]) -> None:
    path = tmp_path / "config.yaml"
    text = "worker:\n  actor:\n    ulysses_sequence_parallel_size: 2  # two devices a copy\ntrainer:\n"
    text += "  total_episodes: ${data.epochs}\ndata:\n  epochs: 15\n"
    path.write_text(text, encoding="utf-8")
    check(path, "--fix", under=("--framework", "easyr1", "--framework-version", "0.3.2", "--world-size", "8"))
    assert path.read_text(encoding="utf-8") == text.replace("ulysses_sequence_parallel_size", "ulysses_size").replace(
        "total_episodes", "total_epochs"
    )


def _fixing(fixes: tuple[Fix, ...], key: str) -> Callable[..., Any]:
    def check(self: object, reading: Any) -> tuple[Finding, ...]:
        if key not in reading.given:
            return ()
        return (Finding("BB-TOY-009", "error", "config", "wrong", reading.where(key), fixes),)

    return check


@pytest.mark.parametrize(
    ("fixes", "text"),
    [
        ((Fix("", {"toy.group": None}, safe=True),), "the run would mean something else: rollout."),
        ((Fix("", {"toy.step": None, "toy.steps": 8}, safe=True),), "it would be wrong in another way: BB-TOY-001"),
        ((Fix("", {"toy.step": 4}, safe=True),), "only keys that are renamed, or that go"),
        ((Fix("", {"toy.step": None, "step": 4}, safe=True),), "would move to another group"),
        ((Fix("a", {"toy.step": None}, safe=True), Fix("b", {"toy.group": None}, safe=True)), "no finding has a safe"),
        ((Fix("", {"toy.step": None}),), "no finding has a safe fix"),
    ],
    ids=["other meaning", "unknown name", "another value", "another group", "two ways", "not safe"],
)
def test_a_fix_that_an_adapter_calls_safe_and_is_not_is_refused(
    toy_module: ModuleType,
    run: Callable[..., Said],
    recipe: Path,
    monkeypatch: pytest.MonkeyPatch,
    fixes: tuple[Fix, ...],
    text: str,
) -> None:
    key = next((key for key, value in fixes[0].changes.items() if value is None), "toy.step")
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("group: 2", "group: 4"), encoding="utf-8")
    before = recipe.read_bytes()
    original = toy_module.ToyAdapter.read

    def read(self: Any, source: Any, context: Any) -> Any:
        import dataclasses

        reading = original(self, source, context)
        file = None if source.path is None else str(source.path)
        given = {key: Where(key, 1, file, source.lines[key]) for key in source.lines}
        return dataclasses.replace(reading, given=given)

    monkeypatch.setattr(toy_module.ToyAdapter, "read", read)
    monkeypatch.setattr(toy_module.ToyAdapter, "check", _fixing(fixes, key))
    _, _, err = run("check", "recipe.yaml", "--framework-version", "2.0", "--fix")
    assert recipe.read_bytes() == before
    assert text in err


def test_a_text_that_does_not_read_back_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(edit_yaml, "_apply", lambda text, edits: "dtype: bfloat16\nother: 1\n")
    with pytest.raises(CannotEdit):
        rename("torch_dtype: bfloat16\n", {"torch_dtype": "dtype"})


@pytest.mark.parametrize(
    ("text", "after"),
    [
        ("a: 1\n", "b: 1\n"),
        ('"a" : 1 # why\n', '"b" : 1 # why\n'),
        ("{x: 2, a: 1}", "{x: 2, b: 1}"),
        ("? a\n: 1\n", "? b\n: 1\n"),
        ("a: &x [1, 2]\nc: *x\n", "b: &x [1, 2]\nc: *x\n"),
        ("a:\n  deep: |\n    a: 1\n", "b:\n  deep: |\n    a: 1\n"),
    ],
)
def test_a_key_is_renamed_in_place(text: str, after: str) -> None:
    assert rename(text, {"a": "b"}) == after


@pytest.mark.parametrize("text", ["a: 1\nb: 2\n", "c: 1\n", "", "&k a: 1\n", "- a\n", "a: [\n"])
def test_a_key_that_cannot_be_renamed_is_refused(text: str) -> None:
    with pytest.raises(CannotEdit):
        rename(text, {"a": "b"})


def test_every_key_that_a_renamed_one_becomes_is_a_setting_of_the_newest_release() -> None:
    rows = settings_of(settings.TRL_GROUPS, "1.16.0")
    named = {gone.key: gone.same for gone in settings.GONE if gone.same is not None}
    assert {key: new for key, new in named.items() if new not in rows} == {}
    assert not [gone.key for gone in settings.GONE if gone.unread and gone.same]
