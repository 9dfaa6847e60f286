"""`check --output-format`: findings as other programs read them. Their schemas: `native/test_schemas.py`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any
from xml.etree import ElementTree

import pytest

import batchbridge
from batchbridge import address
from batchbridge.cli.main import main
from batchbridge.render import formats

Run = Callable[..., tuple[int, str, str]]
MESSAGE = "toy.step = 9 (completions) is not a multiple of 2 devices; fix: toy.step = 8"


@pytest.fixture
def uneven(recipe: Path) -> Path:
    recipe.write_text(recipe.read_text(encoding="utf-8").replace("step: 8", "step: 9"), encoding="utf-8")
    return recipe


def test_concise_is_one_line_for_each_finding(run: Run, uneven: Path) -> None:
    code, out, _ = run("check", "recipe.yaml", "--output-format", "concise")
    assert (code, len(out.splitlines())) == (2, 4)
    assert out.startswith(f"recipe.yaml:5: BB-TOY-003 error: {MESSAGE}\nrecipe.yaml:5: BB121 warning: ")


def test_github_shows_it_beside_the_line(run: Run, uneven: Path) -> None:
    code, out, _ = run("check", "recipe.yaml", "--output-format", "github")
    assert code == 2
    assert out.startswith(f"::error file=recipe.yaml,line=5,title=BB-TOY-003::{MESSAGE}\n::warning file=")
    assert out.splitlines()[-1].startswith("::notice file=recipe.yaml,line=5,title=BB141::")


def test_gitlab_gets_a_code_quality_report(run: Run, uneven: Path) -> None:
    found = json.loads(run("check", "recipe.yaml", "--output-format", "gitlab")[1])[0]
    assert len(found.pop("fingerprint")) == 64
    assert found == {
        "description": MESSAGE,
        "check_name": "BB-TOY-003",
        "severity": "major",
        "location": {"path": "recipe.yaml", "lines": {"begin": 5}},
    }


def test_a_fingerprint_knows_no_line_and_yet_the_value(run: Run, uneven: Path) -> None:
    def fingerprint() -> str:
        found = json.loads(run("check", "recipe.yaml", "--output-format", "gitlab")[1])
        return str(found[0]["fingerprint"])

    before, text = fingerprint(), uneven.read_text(encoding="utf-8")
    uneven.write_text("\n\n" + text, encoding="utf-8")
    assert fingerprint() == before
    uneven.write_text(text.replace("step: 9", "step: 11"), encoding="utf-8")
    assert fingerprint() != before


def test_sarif_has_rule_level_and_place(run: Run, uneven: Path) -> None:
    (found,) = json.loads(run("check", "recipe.yaml", "--output-format", "sarif")[1])["runs"]
    codes = ["BB-TOY-003", "BB121", "BB123", "BB141"]
    assert [rule["id"] for rule in found["tool"]["driver"]["rules"]] == codes
    assert [one["ruleId"] for one in found["results"]] == codes
    result = found["results"][0]
    assert (result["ruleId"], result["level"], result["message"]["text"]) == ("BB-TOY-003", "error", MESSAGE)
    place = {"artifactLocation": {"uri": "recipe.yaml"}, "region": {"startLine": 5}}
    assert result["locations"] == [{"physicalLocation": place}]


def lacking(log: Mapping[str, Any]) -> Iterator[str]:
    """The fields that GitHub's code scanning asks for and a log lacks."""
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    yield from (name for name in ("name", "version", "semanticVersion") if not driver.get(name))
    for rule in driver["rules"]:
        texts = (rule.get(name, {}) for name in ("shortDescription", "fullDescription", "help"))
        if not all(isinstance(text.get("text"), str) and text["text"] for text in texts):
            yield f"texts of {rule['id']}"
        if not rule.get("help", {}).get("markdown", "").startswith("# ") and rule["id"] not in NO_PAGE:
            yield f"page of {rule['id']}"
    for result in run["results"]:
        place = result["locations"][0]["physicalLocation"]
        if driver["rules"][result["ruleIndex"]]["id"] != result["ruleId"]:
            yield f"index of {result['ruleId']}"
        if place.get("region", {}).get("startLine", 0) < 1 or not place["artifactLocation"]["uri"]:
            yield f"place of {result['ruleId']}"
        if not result["message"]["text"] or not result["partialFingerprints"]:
            yield f"text of {result['ruleId']}"


NO_PAGE = ("BB-TOY-003",)
"""The toy adapter has no titles and no rows."""


def test_sarif_has_what_code_scanning_asks_for(run: Run, uneven: Path) -> None:
    log = json.loads(run("check", "recipe.yaml", "--output-format", "sarif")[1])
    assert list(lacking(log)) == []
    rules = {rule["id"]: rule for rule in log["runs"][0]["tool"]["driver"]["rules"]}
    assert rules["BB141"]["shortDescription"] == {"text": "groups are split over optimizer steps"}
    assert rules["BB141"]["defaultConfiguration"] == {"level": "note"}
    assert rules["BB-TOY-003"]["shortDescription"] == {"text": MESSAGE}


def test_sarif_has_a_rules_page_and_the_first_line_where_a_finding_has_none() -> None:
    found = batchbridge.check({"num_generations": 6}, framework="trl", version="1.16.0", world_size=4)
    log = json.loads(formats.sarif([found]))
    assert list(lacking(log)) == []
    assert log["runs"][0]["results"][0]["locations"][0]["physicalLocation"]["region"] == {"startLine": 1}
    assert "rollout tears groups" in log["runs"][0]["tool"]["driver"]["rules"][0]["help"]["markdown"]


def test_sarif_leads_to_the_projects_pages_once_an_owner_has_said_where_they_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = batchbridge.check({"num_generations": 6}, framework="trl", version="1.16.0", world_size=4)
    monkeypatch.setattr(address, "SITE", f"https://{address.PLACEHOLDER}.example")
    assert "Uri" not in formats.sarif([found])
    monkeypatch.setattr(address, "SOURCE", "https://code.example/batchbridge")
    monkeypatch.setattr(address, "SITE", "https://pages.example/batchbridge")
    driver = json.loads(formats.sarif([found]))["runs"][0]["tool"]["driver"]
    assert driver["informationUri"] == "https://code.example/batchbridge"
    assert driver["rules"][0]["helpUri"] == "https://pages.example/batchbridge/rules/BB-TRL-021/"


@pytest.mark.parametrize(
    ("path", "said"),
    [
        (("tool", "driver", "version"), "version"),
        (("tool", "driver", "rules", 0, "shortDescription"), "texts of BB-TRL-021"),
        (("tool", "driver", "rules", 0, "help"), "texts of BB-TRL-021"),
        (("results", 0, "locations", 0, "physicalLocation", "region"), "place of BB-TRL-021"),
        (("results", 0, "partialFingerprints"), "text of BB-TRL-021"),
    ],
)
def test_a_log_that_lacks_a_field_is_found(path: tuple[Any, ...], said: str) -> None:
    found = batchbridge.check({"num_generations": 6}, framework="trl", version="1.16.0", world_size=4)
    log = json.loads(formats.sarif([found]))
    part: Any = log["runs"][0]
    for name in path[:-1]:
        part = part[name]
    part[path[-1]] = {}
    assert said in list(lacking(log))


def test_junit_has_a_suite_for_each_file_and_a_case_for_each_finding(toy: ModuleType, uneven: Path) -> None:
    reports = [
        batchbridge.check(uneven),
        batchbridge.check({"toy.step": 8}, name="fine.yaml"),
        batchbridge.check({"colour": "green"}, name="other.yaml"),
    ]
    suites = ElementTree.fromstring(formats.junit(reports))
    said = [(suite.get("name"), [[kind.tag for kind in case] for case in suite]) for suite in suites]
    assert said == [
        ("recipe.yaml", [["failure"], *[["system-out"]] * 3]),
        ("fine.yaml", [[]]),
        ("other.yaml", [["error"]]),
    ]


@pytest.mark.parametrize("form", ["concise", "github"])
def test_a_fine_file_has_nothing_to_say(run: Run, recipe: Path, form: str) -> None:
    assert run("check", "recipe.yaml", "--output-format", form) == (0, "", "")


@pytest.mark.parametrize("form", ["json", "text"])
def test_the_default_and_json_are_as_they_were(run: Run, uneven: Path, form: str) -> None:
    words = ("--json",) if form == "json" else ()
    assert run("check", "recipe.yaml", "--output-format", form) == run("check", "recipe.yaml", *words)


@pytest.mark.parametrize("form", formats.FORMATS)
def test_no_format_hands_on_what_a_terminal_obeys(toy: ModuleType, form: str) -> None:
    strange = "a\x1b[31m\r\nb%,:\ud800"
    said = formats.FORMATS[form]([batchbridge.check({f"toy.{strange}": strange}, name=strange)])
    assert "BB-TOY-001" in said
    assert all(line.isprintable() for line in said.split("\n"))


def test_two_formats_at_once_are_a_mistake(run: Run, recipe: Path) -> None:
    assert run("check", "recipe.yaml", "--json", "--output-format", "sarif")[0] == 64


def test_releases_that_differ_are_a_finding_of_their_own() -> None:
    found = batchbridge.check({"num_generations": 8, "max_prompt_length": 9}, framework="trl", world_size=2)
    assert (found.reading.verdict, found.verdict) == ("valid", "undecided")
    assert (found.findings[-1].code, found.findings[-1].undecided) == ("BB025", True)
    assert "BB025" in formats.concise([found])


def test_several_files_are_judged_each_by_itself(run: Run, uneven: Path) -> None:
    Path("other.yaml").write_text("colour: green\n", encoding="utf-8")
    files = ("recipe.yaml", "other.yaml")
    alone = [run("check", file)[1] for file in files]
    assert run("check", *files)[1] == "\n".join(alone)
    shown = json.loads(run("check", *files, "--json")[1])["results"]
    verdicts = {"recipe.yaml": "invalid", "other.yaml": "undecided"}
    assert {one["file"]: one["verdict"] for one in shown} == verdicts
    lines = run("check", *files, "--output-format", "concise")[1]
    assert lines == "".join(run("check", file, "--output-format", "concise")[1] for file in files)


def test_a_recipe_of_open_r1_has_the_line_that_its_owner_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    text = "num_generations: 8\nper_device_train_batch_size: 8\nreward_funcs: [accuracy]\nvllm_device: auto\n"
    Path("config_codeforces.yaml").write_text(text, encoding="utf-8")
    words = ("--framework", "open_r1", "--framework-version", "0.18.0", "--world-size", "8")
    assert main(("check", "./config_codeforces.yaml", *words, "--output-format", "concise")) == 0
    line = (
        "config_codeforces.yaml:4: BB-TRL-003 warning: vllm_device is gone since trl 0.18.0: TrlParser drops it "
        "without a word; fix: remove vllm_device"
    )
    assert line in capsys.readouterr().out.splitlines()


def test_a_finding_without_a_line_names_the_file_alike(run: Run, recipe: Path) -> None:
    Path("other.yaml").write_text("colour: green\n", encoding="utf-8")
    assert run("check", "./other.yaml", "--output-format", "concise")[1].startswith("other.yaml: BB020 undecided: ")
