"""benchmarks/strangers/measure.py holds answers against labels: every kind of wrong answer is seen.

Its labels are facts only: their keys, numbers, commits, and no line that could be somebody's text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchbridge_on_cpu.scripts import module_at

FOLDER = Path(__file__).parents[2] / "benchmarks" / "strangers"
LABELS = {
    "path",
    "trains",
    "framework",
    "code",
    "devices",
    "per_prompt",
    "completions",
    "step",
    "ask",
    "open",
    "errors",
}
LABEL = {"path": "run.sh", "trains": "rl", "framework": "verl", "per_prompt": 8, "completions": 512, "step": "16D"}
RIGHT = "  64 prompts x 8 = 512 completions per rollout; 4 optimizer steps of 128 completions"
SETTING = {"key": "data.own", "file": "run.sh", "line": 3}


@pytest.fixture(scope="module")
def measure() -> Any:
    return module_at(FOLDER / "measure.py", "strangers_measure")


def finding(code: str, *, undecided: bool = False) -> dict[str, Any]:
    return {
        "code": code,
        "severity": "error",
        "message": "verl 1.0 has no setting data.own",
        "where": [SETTING],
        "undecided": undecided,
    }


def answer(measure: Any, text: str, verdict: str = "valid", *findings: dict[str, Any], framework: str = "verl") -> Any:
    spec = {"topology": {"world_size": 8}}
    result = {"verdict": verdict, "framework": framework, "spec": spec, "findings": list(findings)}
    return measure.Said(text, result, {"valid": 0, "invalid": 2}.get(verdict, 4), 0.5)


def test_a_right_answer_is_read(measure: Any) -> None:
    row = measure.judged("a/b", LABEL, [answer(measure, RIGHT)])
    assert (row.state, row.false, row.headline, row.missing) == ("read", (), "", "")
    assert measure.met([row]) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (RIGHT.replace("64 prompts x 8", "64 prompts x 4"), "per_prompt 4, not 8"),
        (RIGHT.replace("= 512", "= 256"), "completions 256, not 512"),
        (RIGHT.replace("of 128", "of 64"), "step 64, not 128"),
    ],
)
def test_a_wrong_headline_is_seen(measure: Any, text: str, said: str) -> None:
    row = measure.judged("a/b", LABEL, [answer(measure, text)])
    assert row.headline == said
    assert row.state == "undecided"
    assert "wrong headlines" in measure.met([row])


def test_a_number_that_the_file_does_not_decide_is_a_wrong_headline(measure: Any) -> None:
    label = {key: value for key, value in LABEL.items() if key != "step"}
    assert measure.judged("a/b", label, [answer(measure, RIGHT)]).headline == "step 128, which the file does not decide"
    marked = answer(measure, f"{RIGHT}\n  as 0.4.0 would; your fit differs here")
    row = measure.judged("a/b", label, [marked])
    assert (row.headline, row.state) == ("", "undecided")


def test_a_right_number_under_a_condition_is_read_and_a_wrong_one_is_not(measure: Any) -> None:
    mark = "\n  numbers of verl's, and right if main trains as verl's trainer does: it is not here"
    assert measure.judged("a/b", LABEL, [answer(measure, RIGHT + mark)]).state == "read"
    row = measure.judged("a/b", LABEL, [answer(measure, RIGHT.replace("of 128", "of 64") + mark)])
    assert (row.headline, row.state) == ("", "undecided")


def test_other_devices_than_the_files_are_a_wrong_headline(measure: Any) -> None:
    assert measure.judged("a/b", {**LABEL, "devices": 4}, [answer(measure, RIGHT)]).headline == "8 devices, not 4"


def test_an_error_that_is_none_is_false(measure: Any) -> None:
    row = measure.judged("a/b", LABEL, [answer(measure, RIGHT, "invalid", finding("BB-VERL-003"))])
    assert row.false == ("BB-VERL-003 verl 1.0 has no setting data.own",)
    assert "false errors" in measure.met([row])
    real = {**LABEL, "errors": ["data.own"]}
    assert measure.judged("a/b", real, [answer(measure, RIGHT, "invalid", finding("BB-VERL-003"))]).false == ()


def test_what_is_open_is_no_error(measure: Any) -> None:
    left = answer(measure, "", "undecided", finding("BB011", undecided=True))
    row = measure.judged("a/b", LABEL, [left])
    assert (row.false, row.state) == ((), "undecided")
    assert "data.own" in row.missing


def test_an_error_that_nobody_told_is_missed(measure: Any) -> None:
    real = {**LABEL, "errors": ["data.own"]}
    assert measure.judged("a/b", real, [answer(measure, RIGHT)]).missed == ("data.own",)


def test_a_crash_is_a_false_error(measure: Any) -> None:
    crash = measure.Said("", {"verdict": "crash", "findings": [], "error": "Traceback"}, 70, 0.1)
    assert measure.judged("a/b", LABEL, [crash]).false == ("crash: Traceback",)


def test_another_framework_is_unread_and_a_fragment_is_claimed(measure: Any) -> None:
    row = measure.judged("a/b", LABEL, [answer(measure, "", "undecided", framework="unknown")])
    assert row.state == "unread"
    assert "0 of 1 trainers are read" in measure.met([row])
    other = {"path": "x.yaml", "trains": "other"}
    assert measure.judged("a/b", other, [answer(measure, RIGHT)]).state == "claimed"


def test_what_is_asked_once_more_counts(measure: Any) -> None:
    said = [answer(measure, "", "undecided", finding("BB011", undecided=True)), answer(measure, RIGHT)]
    assert measure.judged("a/b", LABEL, said).state == "read"


def test_what_would_be_followed_is_counted_once_for_each_trainer(measure: Any) -> None:
    files = [{**LABEL, "path": name} for name in ("a.sh", "b.sh", "c.sh", "absent.sh")]
    truth = {"repositories": {"a/b": {"files": [*files, {"path": "x.yaml", "trains": "other"}]}}}
    twice = [
        {"name": "version", "certain": True},
        {"name": "version", "certain": True},
        {"name": "seldom", "certain": 1},
    ]
    asked = [("unknown", []), ("refused", twice)]  # the answer that has what the user knows is the last
    said = {"a/b/a.sh": [], "a/b/x.yaml": []}
    for name in ("a.sh", "b.sh", "c.sh"):
        said[f"a/b/{name}"] = [
            measure.Said("", {"enforcement": {"verdict": verdict, "obstacles": [*obstacles]}}, 0, 0.1)
            for verdict, obstacles in asked
        ]
    said["a/b/c.sh"].append(measure.Said("", {}, 4, 0.1))  # nothing could be said of it
    said["a/b/b.sh"][-1].result["enforcement"]["obstacles"].append({"name": "fp16", "certain": False})
    lines = measure.followed(said, truth)
    assert "| verl | 3 | 0 | 0 | 1 | 2 |" in lines
    assert "| all | 3 | 0 | 0 | 1 | 2 |" in lines
    assert not any("seldom" in line or "version" in line for line in lines), "two have them, and few are left out"
    said["a/b/c.sh"] = said["a/b/b.sh"]
    assert "| `version` | 3 | 3 | verl 3 |" in measure.followed(said, truth)


@pytest.mark.parametrize("name", ["truth.yaml", "fresh.yaml", "fresh2.yaml", "fresh3.yaml"])
def test_labels_are_facts(name: str) -> None:
    labels = yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))
    for repository, held in labels["repositories"].items():
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", repository)
        assert re.fullmatch(r"[0-9a-f]{40}", held["commit"])
        for file in held["files"]:
            assert set(file) <= LABELS
            assert file["trains"] in ("rl", "other", "broken")
            assert all(len(str(value)) <= 160 for key, value in file.items() if key != "errors")
            assert all(re.fullmatch(r"[\w.]+", key) for key in file.get("errors", []))
            assert ("framework" in file) == (file["trains"] == "rl")
