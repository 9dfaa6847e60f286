"""Every place where a framework splits rows or sizes is held by a rule, or says why none is needed."""

from __future__ import annotations

import importlib
import json
import os
import re
from pathlib import Path

import pytest

from batchbridge_on_cpu.scripts import module_at

splits = module_at(Path(__file__).with_name("splits.py"), "splits")
CODE = re.compile(r"BB-[A-Z0-9]+-\d+")


@pytest.mark.parametrize("framework", splits.PARTS)
def test_every_place_names_rules_that_there_are_or_a_reason(framework: str) -> None:
    known = {rule.code for rule in importlib.import_module(f"batchbridge_{framework}.rules").RULES}
    for place, entry in splits.recorded(framework).items():
        codes = CODE.findall(entry["held"])
        assert entry["held"].strip(), place
        assert set(codes) <= known, place
        assert bool(codes) != bool(CODE.sub("", entry["held"]).strip()), f"{place}: rules or a reason"


@pytest.mark.parametrize("framework", splits.PARTS)
def test_no_release_has_two_forms_of_a_place(framework: str) -> None:
    for place, entry in splits.recorded(framework).items():
        releases = " ".join(entry["forms"].values()).split()
        assert len(releases) == len(set(releases)), place


def test_rows_and_sizes_are_seen_and_texts_are_not(tmp_path: Path) -> None:
    (tmp_path / "protocol.py").write_text(
        "def texts(x):\n    return x.split(), x.split('/'), x.rsplit('.', 1)\n"
        "class Data:\n    def rows(self, n):\n        return self.batch.split(n)\n"
        "    def size(self, n):\n        self.micro //= n\n    def whole(self, n):\n        return self.rows % n\n",
        encoding="utf-8",
    )
    found = splits.splits_in(tmp_path, "verl")
    assert [*found] == ["protocol.py: Data.rows", "protocol.py: Data.size"]
    (tmp_path / "protocol.py").write_text(
        "class Data:\n    def rows(self, n):\n        return self.batch.split(n + 1)\n"
    )
    assert splits.splits_in(tmp_path, "verl")["protocol.py: Data.rows"] != found["protocol.py: Data.rows"]


def test_a_release_is_recorded_beside_the_others_and_a_new_place_asks_for_a_rule(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = {"protocol.py: cut": {"held": "BB-VERL-004", "forms": {"0": "0.8.0 0.9.0"}}}
    (tmp_path / "splits.json").write_text(json.dumps({"verl": held}), encoding="utf-8")
    monkeypatch.setattr(splits, "FILE", tmp_path / "splits.json")
    (tmp_path / "protocol.py").write_text("def cut(x):\n    return x.chunk(2)\ndef more(x):\n    return x // 2\n")
    splits.main(["verl", f"0.9.0={tmp_path}"])
    cut, more = (splits.recorded("verl")[f"protocol.py: {name}"] for name in ("cut", "more"))
    assert cut["held"] == "BB-VERL-004"
    assert sorted(cut["forms"].values()) == ["0.8.0", "0.9.0"]
    assert more == {"held": "", "forms": {next(iter(more["forms"])): "0.9.0"}}


def test_the_checkout_of_easyr1_splits_rows_where_and_as_it_is_recorded() -> None:
    checkout = os.environ.get("BATCHBRIDGE_EASYR1")
    if not checkout:
        pytest.skip("BATCHBRIDGE_EASYR1 names no checkout of EasyR1")
    assert splits.splits_in(Path(checkout) / "verl", "easyr1") == splits.recorded_of("easyr1", "0.3.3.dev0")
