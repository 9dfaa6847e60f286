"""Thousands of random command lines: what TrlParser refuses is refused here, and its values are ours."""

from __future__ import annotations

import contextlib
import io
import random
from collections.abc import Iterator

import pytest
import trl
from accelerate.commands.launch import launch_command_parser
from trl.scripts.grpo import make_parser

from batchbridge.contract.reading import Context, Source
from batchbridge.kit.command_line import options_of
from batchbridge.reading.arguments import parse_arguments
from batchbridge.reading.launcher_table import WRAPPERS
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.settings import ENVIRONMENT, LAUNCH, OF_LAUNCHER
from batchbridge_trl.tables import settings_of

PARSER = make_parser()
ROWS = {
    key: row
    for key, row in settings_of(TrlAdapter.groups, trl.__version__).items()
    if not row.fixed and key not in {row.key for group in (LAUNCH, ENVIRONMENT) for row in group.settings}
}
CALLED = {"dict", "ParallelismConfig", "DatasetConfig", "DebugOption"}
"""Types that argparse calls with a word, which fails for nearly every one."""
COMPARED = sorted(
    {
        action.dest
        for action in PARSER._actions
        if action.dest in ROWS
        and getattr(action.type, "__name__", "") not in CALLED
        and not ROWS[action.dest].kind.name.startswith(("any", "int or auto"))
    }
)
VALUES = (
    *(
        "8",
        "1",
        "0",
        "-3",
        "1_0",
        "0x10",
        "2.0",
        " 7 ",
        "1e2",
        "٣",
        "1e-6",
        "-0.04",
        "-1e-3",
        ".5",
        "5.",
        "1,0",
        "1.0,2",
    ),
    *(
        "true",
        "False",
        "no",
        "YES",
        "0",
        "tru",
        "none",
        "null",
        "None",
        "",
        "cosine",
        "adamw_torch",
        "steps",
        "DAPO",
        "fp4",
        "gloo",
    ),
    *("a b", "-a b", "--a b", "x=y", "~", "[1, 2]", "1 # one"),
)


FITTING = {
    "int": ("8", "-3", "1_0", " 7 "),
    "float": ("1e-6", "-0.04", ".5", "5."),
    "bool": ("no", "true", "0", "YES"),
    "choice": ("cosine", "adamw_torch", "steps"),
    "str": ("DAPO", "a b", "null"),
    "floats": ("1", "0.5", "-2"),
}


def spelled(rng: random.Random, field: str) -> str:
    """An option that may stand for a field, or for none."""
    name = f"no_{field}" if rng.random() < (0.4 if ROWS[field].default is True else 0.02) else field
    odd = (name.replace("_", "-", 1), name[: rng.randint(2, 30)], f"{name}x", f"{name[:-1]}", f"-{name}")
    return f"--{rng.choice((name, name.replace('_', '-'), rng.choice(odd) if rng.random() < 0.3 else name))}"


def command_line(rng: random.Random) -> Iterator[str]:
    """A few options with their words."""
    for _ in range(rng.randint(1, 3)):
        field = rng.choice(COMPARED)
        option, kind = spelled(rng, field), ROWS[field].kind.name.rstrip("?")
        pool = FITTING.get(kind, VALUES) if rng.random() < 0.8 else VALUES
        count = rng.choice((0, 1, 2) if rng.random() < 0.15 else ((1, 2) if kind in ("floats", "texts") else (1,)))
        words = [] if option.startswith(("--no_", "--no-")) and rng.random() < 0.9 else rng.choices(pool, k=count)
        if len(words) == 1 and rng.random() < 0.3:
            option, words = f"{option}={words[0]}", []
        yield option
        yield from words
    if rng.random() < 0.05:
        yield from rng.choice((("stray",), ("--", "--seed", "3"), ("-s", "3"), ("-",)))


def parsed(words: list[str]) -> dict[str, object] | None:
    """What TRL's parser makes of words; None: it refuses them."""
    try:
        with contextlib.redirect_stderr(io.StringIO()), contextlib.redirect_stdout(io.StringIO()):
            return vars(PARSER.parse_args(words))
    except SystemExit:
        return None


def test_the_options_are_those_of_the_parser() -> None:
    theirs = {
        option.removeprefix("--"): (action.dest, {"+": None, "?": 1, 0: 0}.get(action.nargs, 1), action.nargs == "?")
        for option, action in PARSER._option_string_actions.items()
        if action.dest != "help"
    }
    ours = {
        name: (takes.field, takes.number, takes.number == 1 and takes.least == 0)
        for name, takes in options_of(ROWS).items()
    }
    assert ours == theirs


def test_the_launcher_s_options_are_those_of_accelerate() -> None:
    actions = launch_command_parser()._option_string_actions
    known = {row.key for row in LAUNCH.settings} - {"accelerate_config"} | {*OF_LAUNCHER}
    assert {f"--{key}" for key in known} <= set(actions)
    assert not {*OF_LAUNCHER} & set(ROWS)
    (wrapper,) = (row for row in WRAPPERS if row.words == ("accelerate", "launch"))
    assert {option.lstrip("-").replace("-", "_") for option, action in actions.items() if action.nargs == 0} == {
        flag for flag in wrapper.flags if f"--{flag}" in actions or f"-{flag}" in actions
    }


@pytest.mark.parametrize("seed", range(10))
def test_every_command_line_is_read_as_the_parser_reads_it(seed: int) -> None:
    rng, refused, taken = random.Random(seed), 0, 0
    for _ in range(300):
        words = list(command_line(rng))
        real = parsed(words)
        argv = ("python", "trl/scripts/grpo.py", *words)
        source = Source(values=parse_arguments(argv), argv=argv)
        reading = TrlAdapter().read(source, Context(framework_version=trl.__version__, world_size=8))
        wrong = [found.message for found in reading.findings if found.code in ("BB-TRL-003", "BB-TRL-004")]
        assert bool(wrong) == (real is None), (words, wrong)
        refused, taken = refused + (real is None), taken + (real is not None)
        for key in reading.given if real is not None else ():
            if key in ROWS and not isinstance(reading.native[key], dict):
                assert reading.native[key] == real[key], (words, key)
    assert min(refused, taken) > 40
