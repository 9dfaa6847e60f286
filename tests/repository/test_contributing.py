"""What CONTRIBUTING.md, RELEASING.md and SECURITY.md name is there: files, folders, sessions, codes and formats."""

from __future__ import annotations

import ast
import re
import shlex
from pathlib import Path

import pytest

from batchbridge.rule_page import known_rules

ROOT = Path(__file__).parents[2]
PAGES = {name: (ROOT / name).read_text(encoding="utf-8") for name in ("CONTRIBUTING.md", "RELEASING.md", "SECURITY.md")}
OF_THE_READER = ("my_rl_adapter/tests", "tests/test_adapter.py")
"""Paths of the adapter that a reader begins."""
BY_NOBODY = ("tests/docs/test_code_blocks.py",)
"""A test whose file is mended by hand."""
TOP = {path.name for path in ROOT.iterdir()} - {".venv", ".nox"}  # what a session makes is not there before it


def quoted(page: str) -> list[str]:
    """Words in quotes of code, and in blocks of it."""
    blocks = re.split(r"```(?:bash)?\n", PAGES[page])
    parts = [*blocks[1::2], *(part for text in blocks[::2] for part in re.findall(r"`([^`]+)`", text))]
    return [word for part in parts for word in part.split()]


def sessions() -> set[str]:
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    return {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and any("nox.session" in ast.unparse(one) for one in node.decorator_list)
    }


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_is_there(page: str) -> None:
    words = {word.strip("():,;") for word in quoted(page)}
    paths = {word for word in words if "/" in word and word.split("/")[0] in TOP}
    assert len(paths) >= 4
    missing = [word for word in paths if word not in OF_THE_READER and not list(ROOT.glob(example(word)))]
    assert missing == []


def example(path: str) -> str:
    """NAME stands for any adapter."""
    return re.sub(r"NAME", "*", path)


@pytest.mark.parametrize("page", PAGES)
def test_every_link_of_a_page_leads_to_a_file(page: str) -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)]+)\)", PAGES[page]) if "://" not in link]
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_every_session_that_a_page_names_exists() -> None:
    text = "\n".join(PAGES.values())
    named = {word for words in re.findall(r"nox -s ([a-z_ 0-9]+)", text) for word in words.split()}
    assert len(named) >= 8
    assert named <= sessions()


def test_every_code_that_a_page_names_is_a_rule() -> None:
    codes = set(re.findall(r"BB-[A-Z]+-\d{3}", "\n".join(PAGES.values())))
    assert codes
    assert codes <= set(known_rules())


def test_the_table_names_a_test_of_every_generated_file() -> None:
    """A test that says what to run is in the table; so is whatever `nox -s pages` writes."""
    rows = [line for line in PAGES["CONTRIBUTING.md"].splitlines() if line.startswith("| `tests/")]
    named = {test for row in rows for test in re.findall(r"`(tests/[^`]+/test_\w+\.py)`", row.split("|")[1])}
    saying = re.compile(r'== [^\n]*, "(?:run: )?python \S+\.py|BATCHBRIDGE_UPDATE_GOLDEN"\)|makes? (it|them) again')
    files = [
        file for file in (ROOT / "tests").rglob("test_*.py") if "native" not in file.parts and file != Path(__file__)
    ]
    advising = {file.relative_to(ROOT).as_posix() for file in files if saying.search(file.read_text(encoding="utf-8"))}
    assert len(advising) >= 10
    # One golden of a terminal in a file of other tests.
    assert advising - named <= {"tests/cli/test_processes.py", "tests/repository/test_pages.py"}
    for row in rows:
        command = row.split("|")[3]
        assert "nox -s" in command or any(test in row for test in BY_NOBODY), row


def test_the_set_up_installs_what_the_core_s_session_does() -> None:
    """Two commands: an environment with what `lint` and `core` install, and their tests."""
    (block,) = re.findall(r"<!-- set-up -->\n```bash\n(.*?)```", PAGES["CONTRIBUTING.md"], re.DOTALL)
    commands = block.strip().splitlines()
    assert len(commands) == 2
    tree = ast.parse((ROOT / "noxfile.py").read_text(encoding="utf-8"))
    values = {ast.unparse(one.targets[0]): one.value for one in tree.body if isinstance(one, ast.Assign)}
    wanted = {"nox", "ruff", "mypy", "types-PyYAML", "pytest-xdist", "jsonschema", *ast.literal_eval(values["TEST"])}
    wanted |= {ast.literal_eval(values["ON_CPU"])}
    body = {node.name: ast.unparse(node) for node in tree.body if isinstance(node, ast.FunctionDef)}
    for word in wanted - {"./tests/on_cpu", *ast.literal_eval(values["TEST"])}:
        assert f"'{word}'" in body["lint"] + body["core"], f"{word} is in neither session any more"
    words = shlex.split(commands[0])
    given = set(words[words.index("-c") + 2 :]) - {"-e"}
    assert given == wanted | {".[hydra,speed,html,parquet,remote]", "uv"}, "uv: nox makes environments with it"
    assert commands[1] == '.venv/bin/python -m pytest -n 2 -m "not by_hand"'


@pytest.mark.parametrize(
    "name",
    [
        "batchbridge/1",
        "batchbridge/order/1",
        "batchbridge/sampling/1",
        "batchbridge/checkpoint/1",
        "batchbridge/whole/1",
        "batchbridge-ledger/1",
        "batchbridge/json/1",
    ],
)
def test_a_format_that_is_promised_is_the_code_s(name: str) -> None:
    assert f"| `{name}` |" in PAGES["RELEASING.md"]
    sources = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    assert name in sources


def test_every_format_of_the_code_is_promised() -> None:
    sources = "\n".join(file.read_text(encoding="utf-8") for file in (ROOT / "src").rglob("*.py"))
    names = set(re.findall(r"""["`](batchbridge[-/a-z_]*/\d+)[:"`]""", sources))
    assert {name for name in names if f"`{name}`" not in PAGES["RELEASING.md"]} == set()
    assert len(names) >= 5
