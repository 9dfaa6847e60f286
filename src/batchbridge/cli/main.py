"""The command line: `batchbridge COMMAND`. Thin: a table of commands, whose bodies are imported on use.

The exit codes stand in `EXIT_TABLE`. `--help` imports click and nothing else.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from batchbridge import __version__
from batchbridge.cli._exit_codes import EXIT_TABLE

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

FINE, INVALID, NOT_EQUIVALENT, UNDECIDED, USAGE = (row.code for row in EXIT_TABLE)
EXIT_CODES = {verdict: row.code for row in EXIT_TABLE for verdict in row.verdicts}
"""The exit code of every verdict that a command may come to."""
INTERRUPTED, BROKEN_PIPE = 130, 141
"""Exit codes, as a shell reports a process that died of SIGINT or SIGPIPE."""

COMMANDS = {
    "explain": "Explain what a configuration will train, with units.",
    "check": "List what is wrong with a configuration, with the nearest fixes.",
    "plan": "Show which completions each optimizer step trains on.",
    "diff": "Say how two configurations differ in meaning, largest effect first.",
    "convert": "Write a configuration in another framework's form, with an account.",
    "scale": "Find the same run on another number of devices.",
    "doctor": "Say what an error text means: its rule, and the nearest fixes.",
    "rule": "Explain a rule by its code: versions, an example, its fix.",
    "report": "Print a reading to paste into an issue, without secrets.",
    "run": "Start a training command that trains what its configuration means.",
    "schema": "Print a JSON Schema: of a framework's file, the specification, or --json.",
    "adapters": "List the installed adapters and what is wrong with plugins.",
    "new-adapter": "Begin an adapter for another framework.",
    "ledger": "Show, compare, verify or export the ledgers of runs.",
    "language-server": "Check in an editor, while one types.",
    "demo": "Write a recipe to try the other commands on.",
    "try": "Train a tiny model with a framework on this CPU, as it is and wrapped.",
}
"""Command name to its line in `--help`; its body is `command` of the module of that name, or of `BODIES`."""
BODIES = {"try": "try_it"}
"""Modules that cannot have their command's name, which is a word of Python's."""


EXAMPLES = {
    "explain": (
        "recipe.yaml --nodes 1 --gpus 8",
        "run.sh --framework-version 0.9.1 -v",
        "recipe.yaml --gpus 8 --html report.html",
    ),
    "check": (
        "recipe.yaml --world-size 8 --dataset-size 8000",
        "run.sh --nodes 2 --gpus 8 --env MODEL=base",
        "--framework trl --set num_generations=8 --set per_device_train_batch_size=4 --world-size 2",
    ),
    "plan": ("recipe.yaml --world-size 8 --dataset-size 8000 --step 3",),
    "diff": ("a.yaml b.yaml --world-size 8", "recipe.yaml --version-b 1.16.0"),
    "convert": ("recipe.yaml --world-size 8 --to verl -o run_verl.sh",),
    "scale": ("recipe.yaml --from 8 --world-size 6",),
    "doctor": ("error.txt", "'only support equal chunk. Got size of DataProto 500 and chunk 96' --config run.sh"),
    "rule": ("BB-TRL-021",),
    "report": ("recipe.yaml --framework-version 1.16.0 --world-size 8",),
    "run": ("--ledger runs/a -- python -m verl.trainer.main_ppo data.train_batch_size=64",),
    "schema": ("--framework trl --framework-version 0.18.0 -o trl.schema.json", "--table", "--json-output", ""),
    "adapters": ("",),
    "new-adapter": ("my_rl --from config.yaml",),
    "ledger": (
        "show runs/a --summary",
        "diff runs/a runs/b",
        "export runs/a --parquet run.parquet",
        "verify runs/a",
    ),
    "language-server": ("",),
    "demo": ("",),
    "try": ("trl", "verl --folder runs/tried"),
}
"""Arguments that a command's `--help` shows."""


def tip(word: str, known: Iterable[str], what: str) -> str:
    """`; tip: a similar command exists: 'check'`, or nothing."""
    from difflib import get_close_matches

    names = {name.lower().replace("-", "_"): name for name in known}
    near = get_close_matches(word.lower().replace("-", "_"), names, n=3, cutoff=0.7)
    said = ", ".join(repr(names[name]) for name in near)
    return f"; tip: {f'similar {what}s exist' if near[1:] else f'a similar {what} exists'}: {said}" if near else ""


def _shown(command: str, examples: Sequence[str]) -> str:
    return "\b\n" + "\n".join(["Examples:", *(f"  batchbridge {command} {words}".rstrip() for words in examples)])


class LazyGroup(click.Group):
    """A group whose commands stand in `COMMANDS`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """The names of the commands, in the table's order."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Imports the body."""
        if cmd_name not in COMMANDS:
            return None
        import importlib

        body = BODIES.get(cmd_name, cmd_name.replace("-", "_"))
        command = importlib.import_module(f"batchbridge.cli.{body}").command
        assert isinstance(command, click.Command)
        command.epilog = _shown(cmd_name, EXAMPLES[cmd_name])
        for name, part in command.commands.items() if isinstance(command, click.Group) else ():
            part.epilog = _shown(cmd_name, [words for words in EXAMPLES[cmd_name] if words.split()[0] == name])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Names the commands where one is unknown, without importing them."""
        unknown = bool(args) and args[0] not in COMMANDS and not args[0].startswith("-")
        if unknown and not ctx.resilient_parsing:  # a shell that completes is told nothing
            known = tip(args[0], COMMANDS, "command") or f"; commands: {', '.join(COMMANDS)}"
            ctx.fail(f"no such command: {args[0]!r}{known}")
        return super().resolve_command(ctx, args)

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        """The commands from the table: a press of the tab key imports no body but the one that is typed."""
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=text) for name, text in COMMANDS.items() if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands in the help, from the table: help needs no body."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=f"""\b
Examples:
  batchbridge check recipe.yaml --world-size 8
  batchbridge help check

Exit codes: {", ".join(f"{row.code} {row.word}" for row in EXIT_TABLE)}.""",
)
@click.version_option(__version__, "-V", "--version", message="batchbridge %(version)s", help="Show the version.")
def cli() -> None:
    """One meaning of batch size for TRL, verl, EasyR1, OpenRLHF and Open-Instruct."""


COMPLETE = "_BATCHBRIDGE_COMPLETE"
"""The variable by which a shell asks for completions; see docs/cli.md."""
_COLLECTED_AFTER = 1_000_000
"""Objects made before cycles are looked for. Python's default is 700: a command, which makes few cycles and ends soon,
would look for them again and again."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line and returns its exit code; the entry point of the distribution, which ends the process."""
    if arguments is not None:
        return _run(arguments)
    gc.set_threshold(_COLLECTED_AFTER)  # the process is the command's own
    code = _run(None)
    # As mypy ends: taking apart first what goes with the process takes time and changes nothing.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _run(arguments: Sequence[str] | None) -> int:
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed before the start
            setattr(sys, name, Path(os.devnull).open(mode))  # noqa: SIM115  # it stays open
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # a pipe in an ASCII locale must not crash on a user's text
            stream.reconfigure(errors="backslashreplace")
    if arguments is None and (asked := os.environ.get(COMPLETE)):
        from click.shell_completion import shell_complete

        return shell_complete(cli, {}, "batchbridge", COMPLETE, asked)
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] == ["help"]:
        words = [*words[1:], "--help"]
    try:
        # Not `cli.main`: it exits with 1 when a pipe breaks, and with 2, which means "invalid" here, for usage.
        with cli.make_context("batchbridge", words) as context:
            code = cli.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as done:
        return done.exit_code
    except click.UsageError as error:
        error.show()
        return USAGE
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return INTERRUPTED
    except BrokenPipeError:
        # The reader is gone (`| head`); what Python flushes at exit must not complain again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return code if isinstance(code, int) else FINE
