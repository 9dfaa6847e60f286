"""The house: which room may know which, that nobody needs the rooms behind his own, and how an adapter comes in."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path

import measures
import pytest
from measures import FRAMEWORKS, MARKS, ROOMS, UNDERSTOOD_FIRST, arrows, circles, page, room

ARROWS = arrows()
REWRITE = "python tests/repository/measures.py --page"


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
            runs = module == "batchbridge_trl.testing" or module.split(".")[1:2] == ["on_cpu"]
            is_kit = runs and room(target) == "batchbridge.testing"
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
    assert page(text) == text, REWRITE


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


def misplaced(text: str, repository: Path) -> list[str]:
    """Words of the page's table of the code's words whose class does not stand where the table says."""
    rows = re.findall(r"^\| ([^|]+) \| [^|]+ \| `([\w/]+\.py)`, `(\w+)` \|$", text, re.M)
    assert rows, "the table has another form"
    lines = {file: (repository / file).read_text(encoding="utf-8") for _, file, _ in rows}
    return [word for word, file, name in rows if not re.search(rf"^(class|def) {name}\b", lines[file], re.M)]


def test_every_word_of_the_code_is_explained_by_a_class_that_is_there(repository: Path) -> None:
    text = (repository / "docs" / "house.md").read_text(encoding="utf-8")
    words = text.split("## Words of the code")[1].split("\n## ")[0]
    assert misplaced(words, repository) == []
    assert misplaced(words.replace("`Seam`", "`Joint`"), repository) == ["`seam`"]


def without_role(text: str, packages: Mapping[str, Path]) -> set[str]:
    """Names of files that two adapters share and the page's table of an adapter's files has not."""
    roles = text.split("## An adapter")[1].split("\n## ")[0]
    known = re.findall(r"`([\w*]+)\.py`", "\n".join(line.split(" | ")[0] for line in roles.splitlines()))
    names = [{file.stem for file in packages[f"batchbridge_{name}"].glob("*.py")} for name in FRAMEWORKS]
    shared = {one for here in names for one in here if sum(one in others for others in names) > 1}
    return {one for one in shared if not any(fnmatch(one, pattern) for pattern in known)}


def test_the_page_has_the_role_of_every_file_that_two_adapters_share(repository: Path, tmp_path: Path) -> None:
    text = (repository / "docs" / "house.md").read_text(encoding="utf-8")
    assert without_role(text, measures.PACKAGES) == set()
    made = {f"batchbridge_{name}": tmp_path / name for name in FRAMEWORKS}
    for folder in made.values():
        folder.mkdir()
        (folder / "stranger.py").touch()
        (folder / "config.py").touch()
    assert without_role(text, made) == {"stranger"}


def test_the_page_says_of_every_room_what_it_is_for_and_what_would_be_too_much(repository: Path) -> None:
    text = (repository / "docs" / "house.md").read_text(encoding="utf-8").split("\n## ")[0]
    rows = {name: cells for line in text.splitlines() for name, *cells in [rooms_of(line)] if name}
    named = {name for row in rows for name in row.split(", ")}
    core = {"batchbridge" if name == "batchbridge" else name.removeprefix("batchbridge.") for name in ROOMS}
    tools = {name.removeprefix("batchbridge.") for name in (*measures.TOOLS, "batchbridge.__main__")}
    assert core - tools <= named
    assert {place.partition("/")[0] for place in measures.rooms() if place.startswith("batchbridge_")} <= named
    assert [name for name, cells in rows.items() if len(cells) != 2 or not all(cells)] == []


def rooms_of(line: str) -> list[str]:
    """The cells of a row of a table whose first cell is names in backticks; else one empty cell."""
    cells = [cell.strip() for cell in line.strip().strip("|").split(" | ")]
    names = re.findall(r"`([\w.]+)`", cells[0])
    return [", ".join(names), *cells[1:]] if line.startswith("| `") and names else [""]


def test_every_file_stands_in_one_room_and_the_sum_is_all_that_is_shipped() -> None:
    every = measures.shipped()
    sizes = measures.rooms()
    assert sum(size.files for size in sizes.values()) == len(every)
    assert sum(size.lines for size in sizes.values()) == sum(len(measures.lines_of_code(file)) for file in every)
    said = measures.table(sizes)[-1].split()
    assert said[0].replace(",", "") == str(sum(size.lines for size in sizes.values()))
    assert {"plugins/batchbridge_skyrl", "batchbridge_trl/rules", "batchbridge.kit"} <= sizes.keys()


def test_every_file_counts_once_in_the_tables_of_what_lines_buy() -> None:
    sizes = measures.bought()
    assert sum(sizes.values()) == sum(size.lines for size in measures.rooms().values())
    groups = {name for name, side in sizes if not side}
    assert groups == measures.BOUGHT.keys()
    assert {name for name, side in sizes if side} == set(measures.TITLES.values())
    assert {side for _, side in sizes} == {"", *measures.SIDES}
    assert all(sizes.values())


def test_the_lists_of_sides_name_no_file_that_is_gone_and_none_twice() -> None:
    every = measures.shipped()
    kit = {file.stem for file in every if file.parent == measures.PACKAGES["batchbridge"] / "kit"}
    names = [*measures.KIT_READING.split(), *measures.KIT_RUNNING.split()]
    assert sorted(names) == sorted(kit)
    adapters = [file for file in every if not file.is_relative_to(measures.ROOT / "src")]
    there = {part.removesuffix(".py") for file in adapters for part in file.parts[-3:]}
    listed = [*measures.ADAPTER_READING.split(), *measures.ADAPTER_RUNNING.split()]
    assert len(listed) == len(set(listed))
    assert set(listed) <= there


@pytest.mark.parametrize("name", ["unheard_of.py", "config.py"])
def test_a_file_that_no_list_has_or_two_is_named(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measures, "ADAPTER_RUNNING", f"{measures.ADAPTER_RUNNING} config")
    with pytest.raises(LookupError, match=name.removesuffix(".py")):
        measures.bought_by(measures.PACKAGES["batchbridge_trl"] / name)


def test_the_page_has_the_tables_of_some_commit_with_their_sum(repository: Path) -> None:
    text = (repository / "docs" / "house.md").read_text(encoding="utf-8")
    block = text.split(measures.SIZE_MARKS[0])[1].split(measures.SIZE_MARKS[1])[0]
    head, rest = block.split("\n", 1)
    assert re.fullmatch(r"Lines of code on [0-9a-f]{12}, \d{4}-\d\d-\d\d:", head), REWRITE
    rows = re.findall(r"^\| (these together|all frameworks) \|.*?([\d,]+) \|(?: \|)?$", rest, re.M)
    assert [name for name, _ in rows] == ["these together", "all frameworks"]
    (whole,) = re.findall(r"All that is shipped: ([\d,]+) lines", rest)
    assert sum(int(count.replace(",", "")) for _, count in rows) == int(whole.replace(",", ""))
    first = re.findall(r"^\| ([^|]+?) \|", rest, re.M)
    assert {*measures.BOUGHT, *measures.TITLES.values()} <= set(first), REWRITE


def test_tables_whose_numbers_are_the_same_keep_their_date(repository: Path) -> None:
    text = (repository / "docs" / "house.md").read_text(encoding="utf-8")
    now = measures.with_sizes(text)
    assert measures.with_sizes(now) == now
    longer = now.replace("All that is shipped: ", "All that is shipped: 1")
    assert measures.with_sizes(longer) != longer
