"""What people and programs read: golden files for text, exact contents for JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import batchbridge
from batchbridge.contract import plugins
from batchbridge.kit import fingerprints, proven
from batchbridge.render.json import plain

GOLDEN = Path(__file__).parent / "golden"
Run = Callable[..., tuple[int, str, str]]

SCENES = {
    "check_valid": ("check", "recipe.yaml"),
    "check_invalid": ("check", "recipe.yaml", "--set", "toy.step=9"),
    "check_unknown_key": ("check", "recipe.yaml", "--set", "toy.stpe=9", "--set", "toy.group=two"),
    "check_arguments": ("check", "--framework", "toy", "--set", "toy.step=3", "--nodes", "2", "--gpus", "2"),
    "check_duplicate": ("check", "duplicate.yaml"),
    "check_broken": ("check", "broken.yaml"),
    "check_unknown_framework": ("check", "other.yaml"),
    "check_escape_codes": ("check", "escape.yaml"),
    "explain_valid": ("explain", "recipe.yaml", "--dataset-size", "12"),
    "explain_invalid": ("explain", "recipe.yaml", "--set", "toy.step=9"),
    "plan": ("plan", "recipe.yaml", "--dataset-size", "10"),
    "plan_shape": ("plan", "recipe.yaml", "--set", "toy.step=4"),
    "plan_step": ("plan", "recipe.yaml", "--dataset-size", "10", "--step", "1", "--rollout", "0"),
}
"""Arguments by golden file. Refresh the files with BATCHBRIDGE_UPDATE_GOLDEN=1, and read the difference."""


@pytest.mark.parametrize("scene", SCENES)
def test_text_is_as_people_were_shown_it(scene: str, run: Run, recipe: Path) -> None:
    Path("duplicate.yaml").write_text("toy:\n  step: 4\n  step: 8\n", encoding="utf-8")
    Path("broken.yaml").write_text("toy:\n  step: [8\n", encoding="utf-8")
    Path("other.yaml").write_text("colour: green\n", encoding="utf-8")
    Path("escape.yaml").write_text('toy:\n  "a\\e[31m\\nb": "\\e]0;x\\a"\n', encoding="utf-8")
    code, out, err = run(*SCENES[scene])
    shown = f"$ batchbridge {' '.join(SCENES[scene])}\n{out}{err}exit code {code}\n"
    path = GOLDEN / f"{scene}.txt"
    if os.environ.get("BATCHBRIDGE_UPDATE_GOLDEN"):
        path.write_text(shown, encoding="utf-8")
    assert shown == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("command", ["check", "explain"])
def test_json_is_exactly_the_readings_dict_with_its_enforcement(run: Run, recipe: Path, command: str) -> None:
    code, out, _ = run(command, "recipe.yaml", "--json", "--dataset-size", "12")
    found = batchbridge.check("recipe.yaml", dataset_size=12)
    said = {"file": "recipe.yaml", **found.reading.to_dict(), "enforcement": found.enforcement.to_dict()}
    assert json.loads(out)["results"] == [plain(said)]
    assert code == 0


@pytest.mark.parametrize("command", ["check", "explain"])
def test_every_obstacle_is_said_with_its_remedy_where_one_asks(run: Run, recipe: Path, command: str) -> None:
    (one,) = batchbridge.check("recipe.yaml").enforcement.obstacles
    short, long = (run(command, "recipe.yaml", *more)[1] for more in ((), ("-v",)))
    assert f"  run and wrap: refused: {one.name} (-v says why, and what to do)\n" in short
    assert f"  run and wrap: refused: {one.name}\n    {one.name}: {one.reason}\n      remedy: {one.remedy}\n" in long
    assert one.remedy not in short


def test_json_has_the_promised_keys(run: Run, recipe: Path) -> None:
    shown = json.loads(run("explain", "recipe.yaml", "--json", "--set", "toy.step=9")[1])["results"][0]
    assert set(shown) == {
        "file",
        "framework",
        "framework_version",
        "spec",
        "derived",
        "condition",
        "behaviour",
        "provenance",
        "findings",
        "verdict",
        "enforcement",
    }
    assert set(shown["enforcement"]) == {"verdict", "mode", "evidence", "watch", "assumes", "obstacles"}
    assert set(shown["enforcement"]["obstacles"][0]) == {"name", "reason", "allowable", "remedy", "certain"}
    assert {"code", "severity", "phase", "message", "where", "fixes"} <= set(shown["findings"][0])


def test_json_is_valid_whatever_the_values_are(run: Run, recipe: Path) -> None:
    recipe.write_text(
        "toy:\n  a: .nan\n  b: 2026-01-01\n  c: !!binary aGk=\n  d: [.inf, {e: -.inf}]\n", encoding="utf-8"
    )

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    (shown,) = json.loads(run("check", "recipe.yaml", "--json")[1], parse_constant=refuse)["results"]
    assert shown["verdict"] == "invalid"


def test_provenance_tells_file_argument_and_default_apart(run: Run, recipe: Path) -> None:
    shown = json.loads(run("check", "recipe.yaml", "--json", "--set", "toy.step=4")[1])["results"][0]["provenance"]
    step, group = shown["optimizer_step.completions_per_step"], shown["rollout.completions_per_prompt"]
    assert (step["origin"], step["line"]) == ("argument", None)
    assert (group["origin"], group["file"], group["line"]) == ("file", "recipe.yaml", 4)
    assert shown["horizon.epochs"]["origin"] == "default"


def test_the_plan_in_json_has_every_member(run: Run, recipe: Path) -> None:
    shown = json.loads(run("plan", "recipe.yaml", "--dataset-size", "10", "--steps", "0:2", "--json")[1])["results"][0]
    assert [len(step["members"]) for step in shown["steps"]] == [8, 8]
    assert shown["totals"]["total_optimizer_steps"] == 2
    assert shown["rollouts"] == []


def test_a_plan_without_the_number_of_prompts_is_the_shape_of_the_first_rollout(run: Run, recipe: Path) -> None:
    code, out, _ = run("plan", "recipe.yaml", "--set", "toy.step=4", "--json")
    assert code == 0
    with_prompts = run("plan", "recipe.yaml", "--dataset-size", "8", "--json")[1]
    shown, known = (json.loads(text)["results"][0] for text in (out, with_prompts))
    assert (shown["dataset_size"], shown["totals"]["total_optimizer_steps"]) == (None, None)
    assert shown["decided_while_it_runs"]["members_are"] == "place"
    assert [sorted({member["prompt"] for member in step["members"]}) for step in shown["steps"]] == [[0, 1], [2, 3]]
    assert shown["rollouts"][0]["prompts"] == [0, 1, 2, 3]
    assert known["rollouts"][0]["prompts"] != [0, 1, 2, 3]
    for more in (("--step", "0"), ("--rollout", "1"), ("--svg", "plan.svg")):
        code, _, err = run("plan", "recipe.yaml", *more)
        assert (code, "--dataset-size PROMPTS" in err) == (4, True)


def test_adapters_lists_who_provides_what(run: Run) -> None:
    code, out, _ = run("adapters", "--json")
    (toy,) = (row for row in json.loads(out)["results"] if row["framework"] == "toy")
    assert toy == {
        "framework": "toy",
        "reads": ">=1,<3",
        "tables_to": None,
        "enforces": "==2.*",
        "distribution": None,
        "installed": None,
        "code": None,
        "compared_with": None,
        "provided_by": "plugin toy (registered in this process)",
    }
    assert code == 0


def test_explain_says_that_an_adapter_was_compared_with_nothing(run: Run) -> None:
    alone = run("explain", "--framework", "toy", "--set", "toy.step=8", "--world-size", "2", "-v")[1]
    assert "no function of toy 2.0 was asked: its adapter's author says what settings mean" in alone


def test_adapters_grades_the_installed_code_without_importing_it(
    run: Run, toy: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = tmp_path / "framework_of_cli_tests"
    made.mkdir()
    (made / "__init__.py").write_text("raise ImportError\n\n\ndef step():\n    return 1\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    package = proven.Package("framework_of_cli_tests", None, control={"__init__.py": ("step",)})
    (digest,) = fingerprints.of_package(package, made).values()
    for label, expected in (
        ("", "refused (framework_of_cli_tests unrecorded); control flow that is not known: "),
        ("v1", "proven: framework_of_cli_tests v1"),
    ):
        functions = {"__init__.py: step": {digest: (label,)}} if label else {}
        known = {package.name: proven.Record({label: "tested"} if label else {}, functions)}
        monkeypatch.setattr(proven, "records", lambda home, known=known: known)
        code = proven.Code("toy", "nowhere", (package,))
        monkeypatch.setattr(type(plugins.adapters()["toy"]), "code", lambda self, code=code: code)
        (row,) = (row for row in json.loads(run("adapters", "--json")[1])["results"] if row["framework"] == "toy")
        assert row["code"].startswith(expected)


def test_adapters_shows_problems_of_plugins_and_exits_with_2(run: Run) -> None:
    broken = ModuleType("broken")
    broken.batchbridge_check = lambda reading: ()  # type: ignore[attr-defined]  # a module made by hand
    plugins.manager().register(broken, "broken")
    try:
        code, out, _ = run("adapters")
    finally:
        plugins.manager().unregister(broken)
    assert code == 2
    assert "BB032 error  plugin broken (registered in this process)" in out


def test_plan_draws_what_is_asked_for_and_refuses_what_nobody_could_read(run: Run, recipe: Path) -> None:
    drawn = Path("plan.svg")
    assert run("plan", "recipe.yaml", "--dataset-size", "10", "--svg", str(drawn))[0] == 0
    assert "optimizer step 0" in drawn.read_text(encoding="utf-8")
    code, _, said = run("plan", "recipe.yaml", "--dataset-size", "10", "--svg", "no/plan.svg")
    assert code == 64
    assert "--svg" in said
    large = ("--set", "toy.prompts=512", "--set", "toy.step=1024")
    code, _, said = run("plan", "recipe.yaml", "--dataset-size", "100000", *large, "--svg", str(drawn))
    assert code == 64
    assert "completions; up to 512 are drawn" in said
