"""The commands that say whose functions an adapter's meaning was compared with: `adapters`, and `explain -v`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from batchbridge.contract import plugins
from batchbridge.contract.held import LAWS, Held
from batchbridge.testing import EvidenceContract

Typed = Callable[..., tuple[int, str, str]]
ROOT = Path(__file__).parents[2]
WORDS = ("explain", "--framework", "trl", "--set", "num_generations=4", "--world-size", "1")


def test_adapters_say_the_release_the_laws_and_the_digest(typed: Typed) -> None:
    rows = {row["framework"]: row["compared_with"] for row in json.loads(typed("adapters", "--json")[1])["results"]}
    alone = ["kl_rewards", "staleness"]  # TRL has neither
    held = [law for law in LAWS if law not in alone]
    assert (rows["trl"]["version"], rows["trl"]["laws"], rows["trl"]["said_alone"]) == ("1.16.0", held, alone)
    assert rows["easyr1"]["version"] == "0.3.3.dev0 (b44b311)"
    assert rows["open_r1"] is None, "what holds TRL's adapter says nothing of Open-R1's own settings"
    assert f"1.16.0, {len(held)} of {len(LAWS)} laws ({rows['trl']['digest']})" in typed("adapters")[1]


def test_explain_says_it_of_the_release_that_was_asked_and_of_no_other(typed: Typed) -> None:
    held = plugins.adapters()["trl"].held()
    assert held is not None
    same = typed(*WORDS, "-v", "--framework-version", held.version)[1]
    assert f"compared with the functions of trl {held.version} ({held.digest}): topology.world_size, horizon, " in same
    assert "said by its adapter alone: objective.kl_placement, staleness.maximum" in same
    other = typed(*WORDS, "-v", "--framework-version", "1.9.1")[1]
    assert f"compared with the functions of trl {held.version} ({held.digest}), and not of trl 1.9.1: " in other
    assert "compared with" not in typed(*WORDS, "--framework-version", held.version)[1]


@pytest.mark.parametrize("text", ["{", "[]", '{"version": "1"}', '{"version": "1", "laws": {}, "more": 0}'])
def test_a_file_that_is_no_such_record_is_none(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pkgutil.get_data", lambda package, name: text.encode())
    assert plugins.adapters()["trl"].held() is None


def test_another_function_is_another_digest() -> None:
    one = Held(version="1", laws={"steps": {"a.py: f": "00"}})
    assert one.digest != Held(version="1", laws={"steps": {"a.py: f": "01"}}).digest
    assert one.digest == Held(version="2", laws={"weights": {"a.py: f": "00"}}).digest
    assert one.holds == "optimizer_step"
    assert "steps" not in one.said
    assert one.unheld.startswith("topology.world_size, horizon, ")
    assert Held(version="1", laws={law: {} for law in LAWS}).unheld == ""


def test_the_page_names_the_laws_that_each_framework_leaves_unanswered() -> None:
    page = (ROOT / "docs/plugins.md").read_text(encoding="utf-8")
    head = "| laws that no function of its framework answers | why |\n|---|---|---|\n"
    table = page.partition(head)[2].partition("\n\n")[0]
    said = {}
    for row in table.splitlines():
        named, left, why = row.strip("|").split("|")
        laws = set(re.findall(r"`(\w+)`", left))
        said |= dict.fromkeys(re.findall(r"`(\w+)`", named), laws)
        assert bool(why.strip()) == bool(laws), f"no reason is given: {row}"
    held = [*ROOT.glob("adapters/*/held.json"), *ROOT.glob("plugins/*/src/*/held.json")]
    found = {
        file.parent.name.removeprefix("batchbridge_"): set(LAWS) - set(json.loads(file.read_text("utf-8"))["laws"])
        for file in held
    }
    assert said == found


@pytest.mark.parametrize("law", LAWS)
def test_every_law_is_a_test_and_a_method_of_the_contract(law: str) -> None:
    assert callable(getattr(EvidenceContract, LAWS[law].test))
    assert callable(getattr(EvidenceContract, LAWS[law].method))
