"""What the script of declared settings reads of a release, and that it notices one that declares otherwise."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # its scripts are no package

import declare  # found by the line above

from batchbridge.kit.declared_settings import declared_options  # as above
from batchbridge.kit.key_table import Key  # as above
from batchbridge.kit.kinds import natural  # as above
from batchbridge.kit.shipped_settings import OPEN, Meant, ShippedTable, rows, shipped  # as above
from batchbridge_open_instruct.settings import GRPO_FAST, SCRIPTS  # as above
from batchbridge_trl.settings import TRL_GROUPS  # as above

CONFIG = """
from dataclasses import dataclass, field
from typing import Any, Optional, Union

@dataclass
class GRPOConfig:
    beta: float = field(default={beta})
    kept: Optional[int] = None
    words: Union[dict, str, None] = field(default=None)
    _hidden: int = 1
"""


def release(folder: Path, version: str, beta: str, extra: str = "") -> str:
    place = folder / version / "trl"
    (place / "trainer").mkdir(parents=True)
    (place / "trainer" / "grpo_config.py").write_text(CONFIG.format(beta=beta) + extra)
    return f"trl=={version}={place}"


def test_releases_that_declare_alike_share_a_row(tmp_path: Path) -> None:
    (tmp_path / "batchbridge_trl").mkdir()
    words = [release(tmp_path, f"1.{minor}.0", beta) for minor, beta in enumerate(("0.1", "0.1", "0.2"))]
    assert declare.main(["trl", *words], tmp_path) == 0
    file = tmp_path / "batchbridge_trl" / "declared.json"
    table = json.loads(file.read_text())["tables"]["GRPOConfig"]
    assert table == {
        "releases": ["1.0.0", "1.1.0", "1.2.0"],
        "settings": {
            "beta": [[0, 1, "float", 0.1], [2, 2, "float", 0.2]],
            "kept": [[0, 2, "int?", None]],
            "words": [[0, 2, "dict?", None]],
        },
    }
    assert declare.main(["--check", "trl", *words], tmp_path) == 0
    one_later = release(tmp_path, "1.3.0", "0.2", "    added: int = 3\n")
    before = file.read_text()
    assert declare.main(["--check", "trl", one_later], tmp_path) == 1
    assert file.read_text() == before, "--check writes nothing"
    assert declare.main(["trl", one_later], tmp_path) == 0
    assert json.loads(file.read_text())["tables"]["GRPOConfig"]["settings"]["added"] == [[3, 3, "int", 3]]


def test_a_release_that_declares_otherwise_than_recorded_is_noticed(tmp_path: Path) -> None:
    (tmp_path / "batchbridge_trl").mkdir()
    assert declare.main(["trl", release(tmp_path / "a", "1.0.0", "0.1")], tmp_path) == 0
    assert declare.main(["--check", "trl", release(tmp_path / "b", "1.0.0", "0.7")], tmp_path) == 1


LOOP = """
for prefix in ("actor", "critic"):
    parser.add_argument(f"--{prefix}.lr", type=float, default=1e-6 if prefix == "actor" else 9e-6)
    parser.add_argument(f"--{prefix}.samples", type=int, default=int(1e8))
for name in names():
    parser.add_argument(f"--{name}.x", type=int, default=1)
parser.add_argument("--limit", type=float, default=float("inf"))
parser.add_argument("--dated", type=str, default="run_%s" % now())
"""


def test_options_that_a_loop_adds_are_declared(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(LOOP)
    found = {name: one.default for name, one in declared_options(tmp_path / "program.py").items()}
    assert found == {
        "actor.lr": 1e-6,
        "actor.samples": 10**8,
        "critic.lr": 9e-6,
        "critic.samples": 10**8,
        "limit": float("inf"),
        "dated": "(computed)",
    }


TABLE = ShippedTable(["1.0.0", "1.1.0", "1.2.0", "1.3.0"], {"size": [[1, 2, "natural", 4], [3, 3, "natural", 8]]})
KINDS = {"natural": natural}


def test_what_a_setting_means_cuts_its_rows() -> None:
    meant = (Meant("size", "a", since="1.1.0", until="1.2.0", before=True), Meant("size", "b", since="1.2.0"))
    assert list(rows(TABLE, KINDS, meant)) == [
        Key("size", natural, 4, "a", versions="<1.1", fixed=True),
        Key("size", natural, 4, "a", versions=">=1.1,<1.2"),
        Key("size", natural, 4, "b", versions=">=1.2,<1.3"),
        Key("size", natural, 8, "b", versions=">=1.3"),
    ]


def test_a_part_without_a_meaning_is_a_row_of_its_own() -> None:
    assert list(rows(TABLE, KINDS, (Meant("size", "a", until="1.2.0"),))) == [
        Key("size", natural, 4, "a", versions=">=1.1,<1.2"),
        Key("size", natural, 4, versions=">=1.2,<1.3"),
        Key("size", natural, 8, versions=">=1.3"),
    ]


def test_a_meaning_of_what_no_release_declares_is_refused() -> None:
    with pytest.raises(AssertionError, match="no release declares sise"):
        list(rows(TABLE, KINDS, (Meant("sise"),)))


def test_open_instructs_tables_hold_every_checkout_that_is_read() -> None:
    tables = shipped("batchbridge_open_instruct")
    for script, checkouts in SCRIPTS.items():
        table = tables[script if script in tables else GRPO_FAST]  # grpo.py parses what grpo_fast.py does
        assert set(checkouts) <= set(table.releases)


def test_every_default_that_is_computed_is_said_by_hand() -> None:
    assert [row.key for group in TRL_GROUPS for row in group.settings if row.default == OPEN] == []
