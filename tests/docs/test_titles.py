"""Every code that a finding can have, has a title of a few words and one sentence of why, in one place."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from batchbridge.contract import plugins
from batchbridge.contract.error_text import HOUSE, RuleTitle, titles_in
from batchbridge.reading.problems import PROBLEMS, PROBLEMS_OF_PLUGINS
from batchbridge.rule_page import known_rules
from batchbridge.rules import core_rules

ROOT = Path(__file__).parents[2]
PREFIXES = {"trl": "TRL", "verl": "VERL", "easyr1": "EZR1", "openrlhf": "ORL", "open_instruct": "OI"}
PLUGINS = {
    "areal": "AREAL",
    "nemo_rl": "NEMO",
    "prime_rl": "PRIME",
    "skyrl": "SKYRL",
    "slime": "SLIME",
    "tinker": "TINKER",
}


def named_in(folder: Path, prefix: str) -> set[str]:
    """The codes that an adapter's sources name, and those of its recorded rows."""
    found = set()
    for file in (ROOT / folder).rglob("*.py"):
        text = file.read_text("utf-8")
        found |= set(re.findall(rf"\bBB-{prefix}-\d{{3}}\b", text))
        found |= {f"BB-{prefix}-{int(number):03}" for number in re.findall(r"\b_row\(\s*(\d+)", text)}
        if f'Codes.of("BB-{prefix}")' in text:
            found |= {f"BB-{prefix}-{number:03}" for number in range(1, 7)}
    for file in (ROOT / folder).rglob("rules.json"):
        found |= {f"BB-{prefix}-{row['code']:03}" for row in json.loads(file.read_text("utf-8"))}
    return found


def wrong(titles: Mapping[str, RuleTitle], codes: set[str]) -> Iterator[str]:
    """The codes without a title, titles without a code, and what is too long or no sentence."""
    yield from (f"{code} has no title" for code in sorted(codes - set(titles)))
    yield from (f"{code} is nobody's code" for code in sorted(set(titles) - codes))
    for code, said in titles.items():
        if not said.title or len(said.title) > 60 or said.title.endswith("."):
            yield f"{code}: {said.title!r} is no title"
        if not re.fullmatch(r"[A-Z0-9v](?:(?!\. [A-Z]).)+\.", said.why):
            yield f"{code}: {said.why!r} is not one sentence"


def test_the_codes_of_every_framework_have_titles() -> None:
    codes = {*PROBLEMS, *PROBLEMS_OF_PLUGINS, *(row.code for row in core_rules.RULES)}
    assert list(wrong(titles_in(HOUSE), codes)) == []


@pytest.mark.parametrize("framework", PREFIXES)
def test_every_code_of_an_adapter_has_a_title(framework: str) -> None:
    prefix = PREFIXES[framework]
    codes = named_in(Path("adapters", f"batchbridge_{framework}"), prefix)
    codes |= {code for code in known_rules() if code.startswith(f"BB-{prefix}-")}
    adapter = plugins.adapters()[framework]
    codes |= set(getattr(adapter, "codes", ()))  # those of its settings
    assert list(wrong(adapter.titles(), codes)) == []


@pytest.mark.parametrize("framework", PLUGINS)
def test_every_code_of_a_plugin_has_a_title(framework: str) -> None:
    package = Path("plugins", f"batchbridge_{framework}", "src", f"batchbridge_{framework}")
    said = json.loads((ROOT / package / "titles.json").read_text("utf-8"))
    titles = {code: RuleTitle(*words) for code, words in said.items()}
    assert len(titles) > (20 if framework != "tinker" else 7)  # a loop's settings have few rules
    assert list(wrong(titles, named_in(package, PLUGINS[framework]))) == []


def test_a_missing_a_stale_a_long_and_a_rambling_one_are_found() -> None:
    good = RuleTitle("run without length", "No step ends.")
    assert list(wrong({"BB-X-001": good}, {"BB-X-001"})) == []
    assert list(wrong({}, {"BB-X-001"})) == ["BB-X-001 has no title"]
    assert list(wrong({"BB-X-001": good}, set())) == ["BB-X-001 is nobody's code"]
    bad = {"BB-X-001": RuleTitle("a" * 61, "No step ends."), "BB-X-002": RuleTitle("run", "One. Two.")}
    assert [text.partition(":")[0] for text in wrong(bad, set(bad))] == list(bad)


def test_a_title_is_found_by_its_code_and_framework() -> None:
    assert plugins.title_of("BB104", "nobody") == titles_in(HOUSE)["BB104"]
    assert plugins.title_of("BB-TRL-021", "open_r1") == plugins.adapters()["trl"].titles()["BB-TRL-021"]
    assert plugins.title_of("BB-TRL-021", "verl") is None
    assert plugins.title_of("BB-TRL-021", "unknown") is None


def test_a_package_without_titles_and_no_package_have_none() -> None:
    assert titles_in("batchbridge.meaning") == {}
    assert titles_in("") == {}
