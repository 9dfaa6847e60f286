"""The house: which room may know which, that nobody needs the rooms behind his own, and how an adapter comes in."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest

ROOMS = (
    "bashread",
    "batchbridge.lazily",
    "batchbridge.errors",
    "batchbridge.meaning",
    "batchbridge.contract",
    "batchbridge.rules",
    "batchbridge.ledger",
    "batchbridge.reading",
    "batchbridge.running",
    "batchbridge.kit",
    "batchbridge.comparing",
    "batchbridge.diagnosis",
    "batchbridge.testing",
    "batchbridge.render",
    "batchbridge.reports",
    "batchbridge",
    "batchbridge.cli",
    "batchbridge.__main__",
)
"""Each imports only from those before it, for type checkers included; `batchbridge` is the face alone."""
UNDERSTOOD_FIRST = ("batchbridge.meaning", "batchbridge.contract", "batchbridge.rules", "batchbridge.reading")
"""What a reader needs before anything else, and what works without the rest."""
ADAPTERS = ("trl", "open_r1", "verl", "easyr1", "openrlhf", "open_instruct")


def imported(text: str, modules: Collection[str] = ()) -> Iterator[str]:
    """The modules that a text imports, anywhere in it; `from package import module` is the module."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            assert node.module is not None
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                yield name if name in modules else node.module


def files(folder: Path) -> dict[str, Path]:
    """Module -> file, of every Python file below a folder; without the site folders that start processes."""
    found = {}
    for file in sorted(folder.rglob("*.py")):
        parts = file.relative_to(folder).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


def room(module: str) -> str:
    """The last of `ROOMS` that the module stands in; of `batchbridge` itself only the face does."""
    fitting = [name for name in ROOMS if module == name or (module.startswith(f"{name}.") and name != "batchbridge")]
    assert fitting, f"{module} stands in no room"
    return max(fitting, key=len)


def arrows(folder: Path) -> Iterator[tuple[str, str]]:
    """(module, module that it imports), of the modules below a folder."""
    modules = files(folder)
    for module, file in modules.items():
        for target in imported(file.read_text(encoding="utf-8"), set(modules)):
            if target in modules and target != module:
                yield module, target


def test_every_room_imports_only_from_rooms_before_it(repository: Path) -> None:
    wrong = [
        f"{module} imports {target}"
        for module, target in arrows(repository / "src")
        if ROOMS.index(room(target)) > ROOMS.index(room(module))
    ]
    assert wrong == []


def test_no_modules_import_each_other_in_a_circle(repository: Path) -> None:
    known: dict[str, set[str]] = {}
    for module, target in arrows(repository / "src"):
        known.setdefault(module, set()).add(target)
    done: set[str] = set()

    def visit(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join((*path[path.index(module) :], module))
        if module not in done:
            for target in sorted(known.get(module, ())):
                visit(target, (*path, module))
            done.add(module)

    for module in sorted(known):
        visit(module, ())


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_imports_the_face_and_the_kit_alone(name: str, repository: Path) -> None:
    own = {f"batchbridge_{name}"} | ({"batchbridge_trl"} if name == "open_r1" else set())
    wrong = [
        f"{module} imports {target}"
        for module, file in files(repository / "adapters").items()
        if module.partition(".")[0] == f"batchbridge_{name}"
        for target in imported(file.read_text(encoding="utf-8"))
        if target.partition(".")[0].startswith("batchbridge")
        and target.partition(".")[0] not in own
        and target != "batchbridge"
        and not f"{target}.".startswith("batchbridge.kit.")
        and ".testing" not in module
    ]
    assert wrong == []


@pytest.mark.parametrize("module", UNDERSTOOD_FIRST)
def test_what_is_understood_first_works_without_the_rest(module: str) -> None:
    rest = [name for name in ROOMS[ROOMS.index("batchbridge.reading") + 1 :] if name != "batchbridge"]
    code = f"import sys; sys.modules.update(dict.fromkeys({rest!r}))\n"
    code += "import importlib, pkgutil\n"
    code += f"package = importlib.import_module({module!r})\n"
    code += f"for each in pkgutil.iter_modules(package.__path__, {module + '.'!r}): importlib.import_module(each.name)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_way_back_would_be_seen(tmp_path: Path) -> None:
    for name, text in {
        "meaning/plan.py": "def f():\n    from batchbridge.kit import drift\n",
        "kit/drift.py": "from batchbridge.meaning import plan\n",
    }.items():
        file = tmp_path / "src" / "batchbridge" / name
        file.parent.mkdir(parents=True)
        file.write_text(text, encoding="utf-8")
    with pytest.raises(AssertionError, match=r"batchbridge\.meaning\.plan imports batchbridge\.kit\.drift"):
        test_every_room_imports_only_from_rooms_before_it(tmp_path)
    with pytest.raises(AssertionError, match="-> batchbridge"):
        test_no_modules_import_each_other_in_a_circle(tmp_path)
