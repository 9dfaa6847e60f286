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


@pytest.mark.parametrize(
    ("framework", "package", "release"),
    [("easyr1", "verl", "0.3.3.dev0"), ("open_instruct", "open_instruct", "2026.8.20")],
)
def test_a_checkout_splits_rows_where_and_as_it_is_recorded(framework: str, package: str, release: str) -> None:
    variable = f"BATCHBRIDGE_{framework.upper()}"
    checkout = os.environ.get(variable)
    if not checkout:
        pytest.skip(f"{variable} names no checkout")
    assert splits.splits_in(Path(checkout) / package, framework) == splits.recorded_of(framework, release)


def test_what_only_one_framework_shares_rows_by_is_seen_in_that_one(tmp_path: Path) -> None:
    for name in ("protocol.py", "trainer/utils.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("def cut(batch, n):\n    return split_tensor_dict(batch, n)\n", encoding="utf-8")
    assert [*splits.splits_in(tmp_path, "trl")] == ["trainer/utils.py: cut"]
    assert [*splits.splits_in(tmp_path, "easyr1")] == []


@pytest.mark.parametrize("framework", ["trl", "open_instruct"])
def test_every_release_that_is_read_is_recorded(framework: str) -> None:
    read = {
        "trl": importlib.import_module("batchbridge_trl.settings").RELEASES,
        "open_instruct": tuple(importlib.import_module("batchbridge_open_instruct.settings").CHECKOUTS),
    }[framework]
    forms = (entry["forms"].values() for entry in splits.recorded(framework).values())
    assert set(" ".join(said for every in forms for said in every).split()) == set(read)
