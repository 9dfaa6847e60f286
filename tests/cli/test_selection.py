"""`check --select`, `--ignore`, `--fail-on`: which findings count, and from which on the command fails."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

import batchbridge

Run = Callable[..., tuple[int, str, str]]
UNEVEN = ("check", "recipe.yaml", "--set", "toy.step=9", "--output-format", "concise")
"""BB-TOY-003 (error), BB121 and BB123 (warnings), BB141 (note)."""


def codes(out: str) -> list[str]:
    return [line.split(": ")[1].split()[0] for line in out.splitlines()]


@pytest.mark.parametrize(
    ("words", "code", "left"),
    [
        ((), 2, ["BB-TOY-003", "BB121", "BB123", "BB141"]),
        (("--ignore", "BB-TOY-003"), 0, ["BB121", "BB123", "BB141"]),
        (("--ignore", "BB-TOY"), 0, ["BB121", "BB123", "BB141"]),
        (("--ignore", "BB121, BB141", "--ignore", "BB123"), 2, ["BB-TOY-003"]),
        (("--select", "BB12"), 0, ["BB121", "BB123"]),
        (("--select", "BB-TOY,BB14"), 2, ["BB-TOY-003", "BB141"]),
        (("--select", "BB12", "--ignore", "BB123"), 0, ["BB121"]),
        (("--select", "BB12", "--fail-on", "warning"), 2, ["BB121", "BB123"]),
        (("--select", "BB14", "--fail-on", "warning"), 0, ["BB141"]),
        (("--fail-on", "error"), 2, ["BB-TOY-003", "BB121", "BB123", "BB141"]),
    ],
)
def test_the_findings_that_count_make_the_exit_code(
    words: tuple[str, ...], code: int, left: list[str], run: Run, recipe: Path
) -> None:
    got, out, err = run(*UNEVEN, *words)
    assert (got, codes(out)) == (code, left)
    dropped = [each for each in ("BB-TOY-003", "BB121", "BB123", "BB141") if each not in left]
    assert err == (f"not counted: {', '.join(dropped)}\n" if dropped else "")


def test_what_does_not_count_is_in_no_format(run: Run, recipe: Path) -> None:
    for form in ("text", "json", "github", "gitlab", "sarif", "junit"):
        out = run(*UNEVEN[:-1], form, "--ignore", "BB-TOY")[1]
        assert "BB121" in out
        assert "not a multiple of 2 devices; " not in out
        assert "BB-TOY-003 error" not in out


def test_what_does_not_count_still_stands_in_the_way_of_a_run(run: Run, recipe: Path) -> None:
    shown = json.loads(run(*UNEVEN[:-1], "json", "--ignore", "BB-TOY")[1])["results"][0]
    assert (shown["verdict"], shown["enforcement"]) == (
        "valid",
        json.loads(run(*UNEVEN[:-1], "json")[1])["results"][0]["enforcement"],
    )


@pytest.mark.parametrize(("fail_on", "code"), [("error", 0), ("undecided", 4), ("warning", 4)])
def test_undecided_fails_unless_errors_alone_do(fail_on: str, code: int, run: Run, recipe: Path) -> None:
    Path("other.yaml").write_text("colour: green\n", encoding="utf-8")
    assert run("check", "other.yaml", "--fail-on", fail_on)[0] == code


@pytest.mark.parametrize("words", [("--ignore", "BB0"), ("--select", "BB-TOY"), ("--fail-on", "error")])
def test_a_file_that_cannot_be_read_always_fails(words: tuple[str, ...], run: Run, recipe: Path) -> None:
    Path("broken.yaml").write_text("toy: [8\n", encoding="utf-8")
    for file in ("missing.yaml", "broken.yaml"):
        assert run("check", file, *words)[0] == 2


def test_select_leaves_a_file_that_nobody_recognises_undecided(run: Run, recipe: Path) -> None:
    Path("other.yaml").write_text("colour: green\n", encoding="utf-8")
    assert run("check", "other.yaml", "--select", "BB-TOY")[0] == 4
    assert run("check", "other.yaml", "--ignore", "BB020")[0] == 0


@pytest.mark.parametrize("option", ["--select", "--ignore"])
@pytest.mark.parametrize("text", ["", "TOY-003", "BB-TOY-003,", "bb-toy-003", "BB1210", "*"])
def test_what_is_no_code_is_a_mistake(option: str, text: str, run: Run, recipe: Path) -> None:
    code, _, err = run("check", "recipe.yaml", option, text)
    assert code == 64
    assert "BB-TRL-062" in err


def test_releases_are_judged_by_what_counts() -> None:
    said = {"num_generations": 8, "max_prompt_length": 9}
    both = [
        batchbridge.check(said, framework="trl", world_size=2, keep=lambda finding, gone=gone: finding.code not in gone)
        for gone in ((), ("BB-TRL-003",), ("BB025",))
    ]
    assert [found.verdict for found in both] == ["undecided", "valid", "valid"]
    assert both[1].judged is not None
    assert len(both[1].judged.spans[-1].errors) == 0


def test_from_python_the_reading_keeps_every_finding() -> None:
    said = {"framework": "trl", "version": "1.16.0", "world_size": 2}
    found = batchbridge.check({"num_generations": 6}, **said, keep=lambda _: False)
    assert (found.verdict, found.findings, found.to_dict()["findings"]) == ("valid", (), [])
    assert [finding.code for finding in found.reading.findings] == ["BB-TRL-021"]
    assert found.enforcement.verdict == "refused"
