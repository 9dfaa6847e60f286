"""An adapter of a framework that is started by a command line: `ArgparseAdapter`, a `TableAdapter` of options.

A row's key is the option's name as the framework's parser declares it, without the dashes in front (`num-rollout`).
Every option that the parser knows, also one without a row, stands in `options`, with how many words it takes:
`batchbridge new-adapter --options` writes that table from the framework's source, by its syntax tree.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar

from batchbridge.contract.reading import Source
from batchbridge.kit.command_line import CommandLine, OptionArity, parse, refusals
from batchbridge.kit.config_texts import option_words
from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import WrongValue
from batchbridge.kit.suggested_keys import suggested_keys
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge.kit.values import shown
from batchbridge.meaning.findings import Finding, Fix, Phase, Severity
from batchbridge.reading.arguments import set_on_top


def arities(words_of: Mapping[str, int]) -> dict[str, OptionArity]:
    """Option to the words that it takes, from a table of numbers: 0 is a flag, -1 any number of words, at least one."""
    flag, several = OptionArity(0, True), OptionArity(None, least=1)
    return {
        name: flag if words == 0 else several if words < 0 else OptionArity(words) for name, words in words_of.items()
    }


class ArgparseAdapter(TableAdapter):
    """An adapter of options. A command is read as argparse reads it, `--set` counts on top of it, and what is written
    is a command."""

    start: ClassVar[str]
    """The words in front of the options of a command that is written: `python3 train.py`. A row of
    `launched` stands in it as `{row}`: `torchrun --nproc_per_node={gpus} train.py`."""
    options: ClassVar[Mapping[str, OptionArity]] = {}
    """Every option that the framework's parser declares, see `arities`. A row that is not in it takes one word; of the
    kind `flag` none."""
    ignores_unknown: ClassVar[bool] = False
    """Whether the framework passes over an option that it does not know (`parse_known_args`): such a slip trains
    silently, and is a warning. Otherwise it is an error."""
    abbreviates: ClassVar[bool] = True
    """Whether the beginning of a name stands for it (`allow_abbrev`)."""
    launched: ClassVar[Mapping[str, str]] = {}
    """Numbers of the launcher ("nproc_per_node", "nnodes", "num_processes", as `Source.launcher` has them) to the rows
    that they are: the devices of a framework that torchrun starts."""
    parser: ClassVar[str] = "argparse"
    """The place where the options were read: release, file and function."""

    no_file: ClassVar[str] = "it takes a command line"

    def settings_of(self, source: Source, rows: Mapping[str, Key]) -> Source:
        """The options of a command as `values`, what argparse refuses of them as `problems`; see `TableAdapter`."""
        told = ((row, source.launcher.get(name, "")) for name, row in self.launched.items())
        launched = {row: int(number) for row, number in told if number.isdigit()}
        if not source.argv or "=" in source.argv[0].lstrip("-"):  # settings alone
            return dataclasses.replace(source, values={**launched, **source.values}, argv=())
        line = parse(
            source.argv[self._program_ends(source.argv) :],
            self._arities(rows),
            self._objection(rows),
            shown,
            source,
            self.abbreviates,
        )
        found = [*refusals(line, self.codes, self.parser), *self._unknown(line, rows)]
        values = {name: self._value(rows[name], value) for name, value in line.values.items() if name in rows}
        on_top = {key: value for key, value in set_on_top(source.values, source.argv).items() if key in rows}
        lines = {key: place.line for key, place in line.places.items() if place.line is not None}
        return dataclasses.replace(
            source,
            values={**launched, **values, **on_top},
            lines={**source.lines, **lines},
            argv=(),
            problems=(*source.problems, *found),
        )

    def _program_ends(self, words: Sequence[str]) -> int:
        """The place behind the program, which is the last word of `start`; else that of the first option."""
        program = PurePosixPath(self.start.split()[-1]).name
        named = (place + 1 for place, word in enumerate(words) if PurePosixPath(word).name == program)
        return next(named, next((place for place, word in enumerate(words) if word.startswith("--")), len(words)))

    def _arities(self, rows: Mapping[str, Key]) -> dict[str, OptionArity]:
        of_rows = {key: OptionArity(0, True) if row.kind.name == "flag" else OptionArity() for key, row in rows.items()}
        return {**of_rows, **self.options}

    def _objection(self, rows: Mapping[str, Key]) -> Any:
        def objection(name: str, words: Any) -> tuple[str, str] | None:
            row = rows.get(name)
            if row is None:
                return None
            try:
                row.kind.convert(self._value(row, words))
            except WrongValue as wrong:
                native = wrong.native or f"argparse: error: argument --{name}: invalid value"
                return f"--{name} {shown(words)}: expected {wrong.expected}", native
            return None

        return objection

    def _value(self, row: Key, words: Any) -> Any:
        """The words of an option as its kind takes them: as they are, else as numbers."""
        return next((one for one in _as_numbers(words) if row.kind.takes(one)), words)

    def _unknown(self, line: CommandLine, rows: Mapping[str, Key]) -> Iterator[Finding]:
        known = {*rows, *self.options}
        names = [name for name in line.values if name not in known]
        near = suggested_keys(names, known, 0.6, taken=line.values) if names else {}
        severity: Severity = "warning" if self.ignores_unknown else "error"
        phase: Phase = "never" if self.ignores_unknown else "config"
        ending = "it is ignored without a word" if self.ignores_unknown else "argparse: error: unrecognized arguments"
        for name in names:
            text = f"{self.framework} has no option --{name}"
            renamed = (Fix(f"write --{one}", {name: None, one: line.values[name]}) for one in near.get(name, ()))
            fixes = (*renamed, Fix(f"remove --{name}", {name: None}))
            where = (line.places[name],)
            yield Finding(self.codes.unknown_key, severity, phase, text, where, fixes, ending, source=self.parser)
        words = [word for word in line.strays if not word.startswith("$")]  # of what is open BB011 tells
        if words:
            text, fix = f"no option takes {' '.join(words)[:120]!r}", Fix(f"remove {' '.join(words)[:120]!r}")
            yield Finding(self.codes.unknown_key, severity, phase, text, (), (fix,), ending, source=self.parser)

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        """The command: one word a line ("argv"), and for a shell ("sh"). No word says that an option is null."""
        takes = self._arities({row.key: row for row in self.keys})
        of_launcher = {*self.launched.values()}
        said = {name: value for name, value in values.items() if value is not None and name not in of_launcher}
        words = [_words(name, value, takes[name]) for name, value in said.items()]
        start = self.start.format_map(values)
        argv = [*shlex.split(start), *(word for said in words for word in said)]
        command = " \\\n  ".join([start, *map(shlex.join, filter(None, words))])
        return {"sh": f"# for {self.framework} {version}\n{command}\n", "argv": "\n".join(argv) + "\n"}


def _words(name: str, value: Any, takes: OptionArity) -> list[str]:
    if takes.number == 0:
        return [f"--{name}"] if value == takes.constant else []
    if isinstance(value, (list, tuple)):
        return [f"--{name}", *map(str, value)]
    return option_words(name, value)


def _as_numbers(words: Any) -> Iterator[Any]:
    """The values that the words of an option may be: text, whole numbers, numbers."""
    yield words
    for kind in (int, float):
        try:
            yield [kind(word) for word in words] if isinstance(words, list) else kind(words)
        except (TypeError, ValueError, OverflowError):
            continue
