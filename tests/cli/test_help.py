"""Help: examples that parse in every `--help`, `help`, `-V`, and tips for what was misspelt."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import batchbridge
from batchbridge.cli.main import COMMANDS, EXAMPLES, cli, tip

Run = Callable[..., tuple[int, str, str]]
SHOWN = [(command, words) for command, examples in EXAMPLES.items() for words in examples]


def test_every_command_has_examples() -> None:
    assert list(EXAMPLES) == list(COMMANDS)
    assert all(EXAMPLES.values())


@pytest.mark.parametrize(("command", "words"), SHOWN)
def test_an_example_is_a_command_line_that_parses(command: str, words: str) -> None:
    with click.Context(cli, info_name="batchbridge") as context:
        body = cli.get_command(context, command)
        assert body is not None
        made = body.make_context(command, shlex.split(words), parent=context)
        if isinstance(body, click.Group):
            name, *rest = shlex.split(words)
            body.commands[name].make_context(name, rest, parent=made)


@pytest.mark.parametrize("command", [*COMMANDS, "ledger show", "ledger diff", "ledger verify", "ledger export"])
def test_every_help_shows_examples(command: str, run: Run) -> None:
    words = command.split()
    code, out, _ = run(*words, "--help")
    assert code == 0
    examples = out.partition("  Examples:\n")[2].splitlines()
    assert examples
    assert all(line.startswith(f"    batchbridge {command}") for line in examples)
    assert run("help", *words) == (0, out, "")


@pytest.mark.parametrize("command", [*COMMANDS, "ledger show", "ledger diff", "ledger verify", "ledger export"])
def test_every_option_says_what_it_is_for(command: str) -> None:
    body: click.Command = cli
    with click.Context(cli) as context:
        for name in command.split():
            assert isinstance(body, click.Group)
            found = body.get_command(context, name)
            assert found is not None
            body = found
    assert [one.name for one in body.params if isinstance(one, click.Option) and not one.help] == []


@pytest.mark.parametrize("words", [(), ("ledger",)])
def test_no_line_about_a_command_is_cut_short(words: tuple[str, ...], run: Run) -> None:
    assert "..." not in run(*words, "--help")[1].partition("Commands:")[2].partition("Examples:")[0]


def test_help_alone_is_the_help_of_all(run: Run) -> None:
    code, out, _ = run("help")
    assert (code, out) == (0, run("--help")[1])
    assert "  batchbridge check recipe.yaml" in out


def test_v_is_version(run: Run) -> None:
    assert run("-V") == run("--version") == (0, f"batchbridge {batchbridge.__version__}\n", "")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("chek", "x"), "no such command: 'chek'; tip: a similar command exists: 'check'"),
        (("Convert", "x"), "tip: a similar command exists: 'convert'"),
        (("help", "docter"), "tip: a similar command exists: 'doctor'"),
        (("frobnicate",), "commands: explain, check, "),
        (
            ("check", "recipe.yaml", "--framework", "toyz"),
            "--framework toyz: no such adapter; tip: a similar framework",
        ),
        (("check", "recipe.yaml", "--framework", "xyz"), "--framework xyz: no such adapter; installed: toy"),
        (
            ("convert", "recipe.yaml", "--to", "toyy"),
            "--to toyy: no such adapter; tip: a similar framework exists: 'toy'",
        ),
        (("explain", "BB-TRL-062"), "tip: a rule has a page: batchbridge rule BB-TRL-062"),
        (("check", "BB101"), "tip: a rule has a page: batchbridge rule BB101"),
        (("doctor", "BB-TRL-062"), "tip: a rule has a page: batchbridge rule BB-TRL-062"),
    ],
)
def test_what_is_misspelt_gets_a_tip(words: tuple[str, ...], said: str, run: Run, recipe: object) -> None:
    code, _, err = run(*words)
    assert code == 64
    assert said in err


def test_a_file_that_is_called_like_a_rule_is_read(run: Run, recipe: object) -> None:
    Path("BB101").write_text("toy: {prompts: 4, group: 2, step: 8, devices: 2}", encoding="utf-8")
    assert "batchbridge rule" not in run("explain", "BB101")[2]


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("open-r1", "; tip: a similar framework exists: 'open_r1'"),
        ("TRL", "; tip: a similar framework exists: 'trl'"),
        ("deepspeed", ""),
    ],
)
def test_a_tip_names_what_is_near(word: str, said: str) -> None:
    assert tip(word, ["easyr1", "open_instruct", "open_r1", "openrlhf", "trl", "verl"], "framework") == said
