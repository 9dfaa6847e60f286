"""docs/tutorial.md, from its first block to its last, in an empty folder.

A block is what the comment above it says: `file`, a new file; `made`, what is in a file by then (`...` stands for
anything); `change`, definitions that take the place of those of the same name in a file, or are added to it. What a
console block's commands print is compared, and whether they fail; `pip install -e` is what it comes to, a folder on
the path with a name.
"""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^(?:<!-- (file|made|change): (\S+) -->\n\n)?```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PROGRAMS = {"batchbridge": ["-m", "batchbridge"], "pytest": ["-m", "pytest", "-p", "no:cacheprovider"]}

STOPS = ("undecided (", "invalid (", ": lossy\n", "AssertionError")
"""Words of an expected output without which its command has to succeed."""


def test_the_tutorial_does_what_it_says(tmp_path: Path) -> None:
    paths = [str(Path(place).resolve()) for place in sys.path if place]
    blocks = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    assert len(blocks) > 15
    for kind, name, language, text in blocks:
        file = tmp_path / name
        if kind == "file":
            file.write_text(text, encoding="utf-8")
        elif kind == "made":
            assert re.search(pattern(text), file.read_text(encoding="utf-8"), re.DOTALL), file.read_text("utf-8")
        elif kind == "change":
            file.write_text(changed(file.read_text(encoding="utf-8"), text), encoding="utf-8")
        else:
            assert language == "console", f"a block that nobody runs: {text}"
            parts = re.split(r"^\$ (.*)\n", text, flags=re.MULTILINE)[1:]
            for command, expected in zip(parts[::2], parts[1::2], strict=True):
                if command.startswith("pip install -e "):
                    paths += installed(tmp_path / command.split()[-1], tmp_path / "site")
                    continue
                failed, said = output(command, tmp_path, paths)
                assert failed == any(word in expected for word in STOPS), f"$ {command}\n{said}"
                assert re.fullmatch(pattern(expected.strip()), said.strip(), re.DOTALL), f"$ {command}\n{said}"


def pattern(text: str) -> str:
    return re.escape(text).replace(re.escape("..."), ".*")


def output(command: str, folder: Path, paths: list[str]) -> tuple[bool, str]:
    """Whether a command fails, and what it prints."""
    program, *words = shlex.split(command)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    line = [sys.executable, *PROGRAMS[program], *words]
    run = subprocess.run(line, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    return run.returncode != 0, run.stdout + run.stderr


def installed(package: Path, site: Path) -> list[str]:
    """What an editable install adds to the path; the entry points are its pyproject.toml's."""
    project = tomllib.loads((package / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    described = site / f"{project['name'].replace('-', '_')}-{project['version']}.dist-info"
    described.mkdir(parents=True)
    (described / "METADATA").write_text(f"Name: {project['name']}\nVersion: {project['version']}\n", encoding="utf-8")
    groups = (
        f"[{group}]\n" + "".join(f"{name} = {value}\n" for name, value in points.items())
        for group, points in project["entry-points"].items()
    )
    (described / "entry_points.txt").write_text("".join(groups), encoding="utf-8")
    return [str(site), str(package / "src")]


def changed(text: str, block: str) -> str:
    """A module with the definitions of `block`: of the same name replaced, others added behind its imports or, to a
    class, at its end."""
    behind = ""
    for new in ast.parse(block).body:
        source = str(ast.get_source_segment(block, new))
        body = ast.parse(text).body
        if isinstance(new, (ast.Import, ast.ImportFrom)):
            text = text.replace("\nfrom batchbridge", f"\n{source}\nfrom batchbridge", 1)
        elif isinstance(new, ast.ClassDef):
            for member in new.body:
                own = "\n".join(block.splitlines()[member.lineno - 1 : member.end_lineno])
                (owner,) = [one for one in ast.parse(text).body if _name(one) == new.name]
                assert isinstance(owner, ast.ClassDef)
                text = _with(text, owner.body, _name(member), own, after=owner.body[-1])
        else:
            imports = [one for one in body if isinstance(one, (ast.Import, ast.ImportFrom))]
            after = next((one for one in body if behind and _name(one) == behind), imports[-1])
            text, behind = _with(text, body, _name(new), source, after=after), _name(new)
    return text


def _with(text: str, body: list[ast.stmt], name: str, source: str, *, after: ast.stmt) -> str:
    lines = text.splitlines()
    for old in body:
        if _name(old) == name:
            return "\n".join([*lines[: old.lineno - 1], source, *lines[old.end_lineno :], ""])
    return "\n".join([*lines[: after.end_lineno], "", source, *lines[after.end_lineno :], ""])


def _name(node: ast.stmt) -> str:
    if isinstance(node, (ast.Assign, ast.AnnAssign)):
        return ast.unparse(node.targets[0] if isinstance(node, ast.Assign) else node.target)
    return str(getattr(node, "name", ""))
