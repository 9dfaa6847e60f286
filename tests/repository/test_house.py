"""The house: which room may know which, that nobody needs the rooms behind his own, and how an adapter comes in."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import measures
import pytest
from measures import FRAMEWORKS, MARKS, ROOMS, UNDERSTOOD_FIRST, arrows, circles, page, room

ARROWS = arrows()
REWRITE = "python tests/repository/measures.py --page"
SIZE = re.compile(r"(?<=  )[\d,]+(?=  )")


def ways_back(graph: Mapping[str, set[str]]) -> list[str]:
    """Imports of a room from one that comes later, or of the core from an adapter."""
    found = []
    for module, targets in sorted(graph.items()):
        if (here := room(module)) is None:
            continue
        for target in sorted(targets):
            there = room(target)
            if there is None or ROOMS.index(there) > ROOMS.index(here):
                found.append(f"{module} imports {target}")
    return found


def by_another_door(graph: Mapping[str, set[str]]) -> list[str]:
    """Imports of adapters that are neither of the face, nor of the kit, nor their own; Open-R1 stands on TRL's."""
    found = []
    for module, targets in sorted(graph.items()):
        own = module.partition(".")[0]
        if room(module) is not None:
            continue
        for target in sorted(targets):
            package = target.partition(".")[0]
            is_open = target == "batchbridge" or f"{target}.".startswith("batchbridge.kit.")
            stands_on = (own, package) == ("batchbridge_open_r1", "batchbridge_trl") or own == "batchbridge_history"
            is_kit = module == "batchbridge_trl.testing" and room(target) == "batchbridge.testing"
            if package != own and not (is_open or stands_on or is_kit):
                found.append(f"{module} imports {target}")
    return found


def test_every_room_imports_only_from_rooms_before_it() -> None:
    assert ways_back(ARROWS) == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    assert circles(ARROWS) == []


def test_an_adapter_imports_the_face_and_the_kit_alone() -> None:
    assert {module.partition(".")[0] for module in ARROWS} >= {f"batchbridge_{name}" for name in FRAMEWORKS}
    assert by_another_door(ARROWS) == []


@pytest.mark.parametrize("module", UNDERSTOOD_FIRST)
def test_what_is_understood_first_works_without_the_rest(module: str) -> None:
    rest = [name for name in ROOMS[ROOMS.index("batchbridge.reading") + 1 :] if name != "batchbridge"]
    code = f"import sys; sys.modules.update(dict.fromkeys({rest!r}))\n"
    code += "import importlib, pkgutil\n"
    code += f"package = importlib.import_module({module!r})\n"
    code += f"for each in pkgutil.iter_modules(package.__path__, {module + '.'!r}): importlib.import_module(each.name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("found", "import_"),
    [
        (ways_back, ("batchbridge.meaning.plan", "batchbridge.kit.drift")),
        (ways_back, ("batchbridge.kit.drift", "batchbridge_trl.config")),
        (by_another_door, ("batchbridge_trl.config", "batchbridge.meaning.spec")),
        (by_another_door, ("batchbridge_easyr1.config", "batchbridge_verl.config")),
    ],
)
def test_a_wrong_import_is_found(found: object, import_: tuple[str, str]) -> None:
    module, target = import_
    assert callable(found)
    assert found({**ARROWS, module: {*ARROWS[module], target}}) == [f"{module} imports {target}"]


@pytest.mark.parametrize(
    "text",
    [
        "from ..kit import values",
        "from ..kit.values import Told",
        "def late():\n    import batchbridge.kit.values",
        "import importlib\nimportlib.import_module('batchbridge.kit.values')",
    ],
)
def test_every_way_to_import_is_seen(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "batchbridge"
    for name, said in {"meaning/spec": text, "kit/values": ""}.items():
        (package / name).parent.mkdir(parents=True)
        (package / f"{name}.py").write_text(said, encoding="utf-8")
    monkeypatch.setattr(measures, "PACKAGES", {"batchbridge": package})
    assert arrows()["batchbridge.meaning.spec"] == {"batchbridge.kit.values"}


def test_a_circle_is_found() -> None:
    graph = {**ARROWS, "batchbridge.meaning.spec": {"batchbridge.meaning.plan"}}
    assert any({"batchbridge.meaning.plan", "batchbridge.meaning.spec"} <= set(found) for found in circles(graph))


def test_the_picture_of_the_page_is_of_the_imports_as_they_are(repository: Path) -> None:
    text = (repository / "docs" / "house.md").read_text(encoding="utf-8")
    assert MARKS[0] in text
    assert SIZE.sub("", page(text)) == SIZE.sub("", text), REWRITE


WHERE = {
    "reads TRL's `loss_type`": '"loss_type"',
    "weighs a token": "def token_weights",
    "measures what the trainer's own loss gives a token": "class Tap",
    "patches `training_step`": '"training_step"',
    "decides which completions a step trains": "class Plan",
    "refuses what cannot be enforced": "class Refusal",
    "says before a run what would be refused": "def foreseen",
}
"""What the page's table says of a file, and what stands in that file."""


def test_every_file_that_the_page_names_is_there_and_has_what_it_says(repository: Path) -> None:
    text = (repository / "docs" / "house.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \| (.*`.+?`.*) \|$", text.split("## Where is ...")[1].split("\n## ")[0], re.M)
    files = {what: re.findall(r"`([\w/]+/\w+\.py)`", where) for what, where in rows}
    assert {what: files[what] for what in WHERE if not files[what]} == {}
    for what, word in WHERE.items():
        assert word in (repository / files[what][0]).read_text(encoding="utf-8"), what


def test_the_sizes_of_the_page_are_those_of_the_rooms_but_for_a_hundred_lines(repository: Path) -> None:
    text = (repository / "docs" / "house.md").read_text(encoding="utf-8")
    now, said = sizes(page(text)), sizes(text)
    assert len(now) > 10
    assert [pair for pair in zip(now, said, strict=True) if abs(pair[0] - pair[1]) > 100] == [], REWRITE


def sizes(text: str) -> list[int]:
    """Lines of code of each room, as a page's picture says."""
    return [int(size.replace(",", "")) for size in SIZE.findall(text.split(MARKS[0])[1].split(MARKS[1])[0])]
