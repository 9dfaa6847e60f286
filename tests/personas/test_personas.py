"""The eight people of the review, from their first command to their last: each in a file beside this one, in a folder
that has that person's files and nothing else.

A file says who it is, what the person has (`files`; a text, or `gbk: TEXT` in another encoding) and types (`steps`).
A step has the command (`run`), its exit code (`exit`, 0 unless said), words that must stand in its output (`says`) and
such that must not (`never`), whether it is typed at a terminal of 80 columns (`terminal`), and the letters of the
review that its output answers (`answers`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import make_outputs
import pytest
import yaml

HERE = Path(__file__).parent
PERSONAS = {path.stem: yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted(HERE.glob("*.yaml"))}
HURT_MOST = {f"A{number}" for number in range(1, 9)}
"""The letters of what hurt most."""
ELSEWHERE = {"A5": "tests/packaging/native/test_wheel_alone.py"}
"""Letters that no command shows, and the test that answers them."""
STEP = {"run", "exit", "says", "never", "terminal", "answers"}


def has(folder: Path, files: dict[str, Any]) -> None:
    """Writes what a person has."""
    for name, text in files.items():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        ((encoding, content),) = text.items() if isinstance(text, dict) else (("utf-8", text),)
        place.write_bytes(content.encode(encoding))


def wrong(step: dict[str, Any], code: int, printed: str) -> list[str]:
    """What of a step's output is not as it must be."""
    found = [] if code == step.get("exit", 0) else [f"exit code {code}, not {step.get('exit', 0)}"]
    flat = " ".join(printed.split())  # at a terminal lines are folded
    found += [f"does not say: {words}" for words in step.get("says", ()) if " ".join(words.split()) not in flat]
    found += [f"says: {words}" for words in ("Traceback", *step.get("never", ())) if words in flat]
    if step.get("terminal"):
        found += [f"wider than 80 columns: {line}" for line in printed.splitlines() if len(line) > make_outputs.COLUMNS]
    return found


@pytest.mark.parametrize("who", PERSONAS)
def test_a_person_of_the_review_comes_from_the_first_command_to_the_last(who: str, tmp_path: Path) -> None:
    persona = PERSONAS[who]
    has(tmp_path, persona["files"])
    reader = make_outputs.Reader(tmp_path)
    for step in persona["steps"]:
        printed = reader.types(step["run"], at_terminal=bool(step.get("terminal")))
        assert wrong(step, reader.last, printed) == [], f"{persona['who']}\n$ {step['run']}\n{printed}"


def test_there_are_eight_and_each_step_has_a_bar() -> None:
    assert len(PERSONAS) == 8
    for name, persona in PERSONAS.items():
        assert persona.keys() == {"who", "files", "steps"}, name
        for step in persona["steps"]:
            assert step.keys() <= STEP, (name, step)
            assert step.get("says") or step.get("never") or step["run"].startswith(("sed ", "git ")), (name, step)


def test_everything_that_hurt_most_is_answered() -> None:
    answered = {letter for one in PERSONAS.values() for step in one["steps"] for letter in step.get("answers", ())}
    assert answered | ELSEWHERE.keys() >= HURT_MOST
    assert all((HERE.parents[1] / place).is_file() for place in ELSEWHERE.values())
    assert all(re.fullmatch(r"[A-G]\d*", letter) for letter in answered)


@pytest.mark.parametrize(
    ("step", "code", "printed"),
    [
        ({"says": ["448 completions"]}, 0, "512 completions"),
        ({"says": ["448 completions"]}, 2, "448 completions"),
        ({"never": ["UNDECIDED"]}, 0, "recipe.yaml  UNDECIDED"),
        ({"says": ["a"]}, 0, "a\nTraceback (most recent call last):"),
        ({"says": ["a"], "terminal": True}, 0, f"a {'b' * 80}"),
    ],
)
def test_an_output_that_does_not_answer_is_noticed(step: dict[str, Any], code: int, printed: str) -> None:
    assert len(wrong(step, code, printed)) == 1


def test_a_folded_line_is_the_same_line() -> None:
    assert (
        wrong({"says": ["is not a multiple of num_generations"]}, 0, "is not a\n    multiple of num_generations") == []
    )


@pytest.mark.by_hand  # nbclient and a kernel, which no session installs: pip install nbclient ipykernel
def test_a_real_notebook_shows_every_result(tmp_path: Path) -> None:
    client, form = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    program = PERSONAS["6_notebook"]["files"]["cells.py"]
    results = re.findall(r'^    "\w+": (.+),$', program, re.MULTILINE)
    assert len(results) == 7
    sources = [program.partition("cells = {")[0], *results]
    notebook = form.v4.new_notebook(cells=[form.v4.new_code_cell(source) for source in sources])
    client.NotebookClient(notebook, timeout=60, kernel_name="python3").execute(cwd=str(tmp_path))
    for cell in notebook.cells[1:]:
        (output,) = cell.outputs
        assert output["data"]["text/html"].startswith('<div class="batchbridge">'), cell.source
        assert output["data"]["text/plain"], cell.source
