"""Settings in what people paste: the log of a run, with what its framework printed of them.

Three forms are known: a configuration that a driver printed as a Python literal, as JSON or as argparse's namespace
(verl, EasyR1, OpenRLHF), the words of Hydra's "Error executing job with overrides", and the block "***** Running
training *****" of transformers. A literal is parsed, never evaluated.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from batchbridge.contract.reading import RecordedNumber, RunRecord, Source
from batchbridge.meaning.findings import Finding, Where
from batchbridge.reading.arguments import argument_keys
from batchbridge.reading.past_runs import of_overrides
from batchbridge.reading.wandb_runs import namespace_in
from batchbridge.reading.yaml_json import MAX_DEPTH, MAX_NODES

ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\))")
"""Sequences that colour, move or link: CSI and OSC."""
PREFIX = re.compile(
    r"(?:^|(?<=\r))(?:\([^()\n]{1,80}pid=\d+[^()\n]{0,80}\) |\[(?:default)?\d*\]:|\[rank\d+\]: ?|\[transformers\] )+",
    re.MULTILINE,
)
"""The mark that Ray, torchrun (`--tee`, `[default0]:`), PyTorch (`[rank0]:`) and transformers put before a line."""
OVERRIDES = "Error executing job with overrides:"
TRAINING = "***** Running training *****"
KINDS = {
    "printed": "the configuration that a run printed",
    "overrides": "the overrides that Hydra names of a run that ended in an error",
    "training": "what transformers printed at the start of a training",
}
_LARGEST_LITERAL = 1 << 20
_LONGEST = 20_000
"""Most lines of a printed configuration."""
_NAMESPACE = re.compile(r"\s*[Nn]amespace\(\w+=")
"""The look of argparse's options where a program prints them, as OpenRLHF does."""
_OPENING = re.compile(r"""\{\s*(?:['"][A-Za-z_]|$)""")


@dataclass
class _Lines:
    """A log, line by line: the mark before each line, and the line without it."""

    marks: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> _Lines:
        made = cls()
        for line in text.split("\n"):
            line = ESCAPES.sub("", line).rstrip("\r")
            mark = PREFIX.match(line)
            made.marks.append(mark[0] if mark else "")
            made.texts.append(line[mark.end() :] if mark else line)
        return made

    def from_line(self, start: int) -> Iterator[int]:
        """The places of a line and of those behind it with the same mark: other processes may print between them."""
        end = min(len(self.texts), start + 4 * _LONGEST)
        return (place for place in range(start, end) if self.marks[place] == self.marks[start])


def read_pasted(text: str, path: Path | None) -> Source | None:
    """The settings in a log; None where it has none. A configuration that was printed whole goes before what only
    names parts of it; of several the last one counts, with a finding where they differ."""
    lines = _Lines.of(text)
    for read in (_printed, _overrides, _training):
        found = list(read(lines, path))
        if found:
            last = found[-1]
            if any(one.values != last.values for one in found):
                place = Where(file=None if path is None else str(path), line=min(last.lines.values(), default=None))
                message = f"the text has {len(found)} configurations of runs, which differ; the last one is read"
                problem = Finding("BB012", "warning", "config", message, (place,))
                last = Source(**{**vars(last), "problems": (problem,)})
            return last
    return None


# ---- a configuration that was printed


def _printed(lines: _Lines, path: Path | None) -> Iterator[Source]:
    beyond = -1
    for start, text in enumerate(lines.texts):
        if _NAMESPACE.match(text) and isinstance(values := namespace_in(text[:_LARGEST_LITERAL].strip()), dict):
            yield Source(values=values, lines=dict.fromkeys(values, start + 1), path=path, record=_record("printed"))
            continue
        if start <= beyond or (opening := _OPENING.search(text)) is None or len(text[: opening.start()].split()) > 4:
            continue
        places, literal = _balanced(lines, start, opening.start())
        if literal is None or (read := _read_literal(literal, places)) is None:
            continue
        beyond = places[-1]
        values, numbers = read
        if any(isinstance(value, Mapping) for value in values.values()):
            yield Source(values=values, lines=numbers, path=path, record=_record("printed"))


def _record(kind: str) -> RunRecord:
    return RunRecord(kind=KINDS[kind])


def _balanced(lines: _Lines, start: int, column: int) -> tuple[list[int], str | None]:
    """The places of the lines of a literal that opens at a line's column, and the literal; None: it does not end."""
    depth, size, quote = 0, 0, ""
    places: list[int] = []
    parts: list[str] = []
    for place in lines.from_line(start):
        text = lines.texts[place][column if place == start else 0 :]
        size += len(text)
        if size > _LARGEST_LITERAL or len(parts) > _LONGEST:
            break
        at = 0
        for mark in re.finditer(r"\\.|['\"]|[\[\](){}]", text):
            word, at = mark[0], mark.end()
            if quote:
                quote = "" if word == quote else quote
            elif word in "'\"":
                quote = word
            elif word in "[({":
                depth += 1
            elif word in "])}":
                depth -= 1
                if depth == 0:
                    return [*places, place], "\n".join([*parts, text[:at]])
            if depth > MAX_DEPTH:
                return places, None
        quote = ""  # neither form has texts over several lines
        places.append(place)
        parts.append(text)
    return places, None


def _read_literal(literal: str, places: Sequence[int]) -> tuple[dict[str, Any], dict[str, int]] | None:
    """(values, line of each dotted key) of a Python literal or of JSON; None where it is neither."""
    text = literal.lstrip()
    if re.search(r'"\s*:', text) and not re.search(r"'\s*:", text):
        text = re.sub(r"\b(null|true|false)\b(?=\s*[,}\]\n])", lambda one: _JSON[one[1]], text)
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    lines: dict[str, int] = {}
    left = [MAX_NODES]

    def value_of(node: ast.expr, key: str) -> Any:
        left[0] -= 1
        if left[0] < 0:
            raise ValueError("too many values")
        if isinstance(node, ast.Dict):
            found = {}
            for name, part in zip(node.keys, node.values, strict=True):
                if isinstance(name, ast.Constant) and isinstance(name.value, str):
                    below = f"{key}.{name.value}" if key else name.value
                    lines[below] = places[min(name.lineno, len(places)) - 1] + 1
                    found[name.value] = value_of(part, below)
            return found
        if isinstance(node, ast.List | ast.Tuple):
            return [value_of(part, key) for part in node.elts]
        try:
            return ast.literal_eval(node)
        except ValueError:  # an object's repr, say
            return ast.unparse(node)[:200]

    try:
        values = value_of(tree, "")
    except (ValueError, RecursionError):
        return None
    return (values, lines) if isinstance(values, dict) and values else None


_JSON = {"null": "None", "true": "True", "false": "False"}


# ---- Hydra's error, and transformers' block


def _overrides(lines: _Lines, path: Path | None) -> Iterator[Source]:
    """The command lines that Hydra's errors repeat, as a list of Python's behind `OVERRIDES`."""
    for start, text in enumerate(lines.texts):
        place = text.lower().find(OVERRIDES.lower())
        if place < 0:
            continue
        behind = text[place + len(OVERRIDES) :]
        try:
            words = ast.literal_eval(behind.strip()[:_LARGEST_LITERAL])
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            continue
        if isinstance(words, list) and words and all(isinstance(word, str) for word in words):
            numbers = {key: start + 1 for key, _, _ in argument_keys(words)}
            yield of_overrides(words, numbers, path, KINDS["overrides"], _program_of_traceback(lines, start))


_FRAME = re.compile(r'\s*File "([^"\n]+\.py)", line \d+, in (?:main\b|<module>)')
_NOT_THEIRS = re.compile(r"(?:^|/)(?:runpy\.py$|hydra/)")
"""Files of frames above the user's own, which Hydra prints where it was asked for the whole error."""
_TRACED = 40
"""Lines behind the error in which its traceback begins."""


def _program_of_traceback(lines: _Lines, start: int) -> str | None:
    """The program whose function `main` Hydra called, by its frame in the traceback that follows; a worker's has none.
    Source: hydra-core 1.3.2 utils.run_and_report."""
    for place in list(itertools.islice(lines.from_line(start), _TRACED)):
        if (found := _FRAME.match(lines.texts[place])) and not _NOT_THEIRS.search(found[1]):
            return found[1]
    return None


_OF_BLOCK = {
    "Num examples": "examples",
    "Instantaneous batch size per device": "per_device_train_batch_size",
    "Total train batch size (w. parallel, distributed & accumulation)": "total",
    "Gradient Accumulation steps": "gradient_accumulation_steps",
    "Total optimization steps": "steps",
}
"""Names that transformers prints, with what each is. Source: transformers 4.48.3 to 5.24.0 Trainer, the start of
training."""


def _training(lines: _Lines, path: Path | None) -> Iterator[Source]:
    for start, text in enumerate(lines.texts):
        if TRAINING not in text:
            continue
        numbers: dict[str, int] = {}
        at: dict[str, int] = {}
        for place in list(lines.from_line(start))[1:12]:
            name, _, number = lines.texts[place].rpartition("=")
            key = next((key for said, key in _OF_BLOCK.items() if name.strip().endswith(said)), None)
            digits = number.strip().replace(",", "")
            if key is not None and digits.isdecimal() and len(digits) < 16:
                numbers[key], at[key] = int(digits), place + 1
        settings = ("per_device_train_batch_size", "gradient_accumulation_steps")
        if any(not numbers.get(key) for key in settings):
            continue
        values = {key: numbers[key] for key in settings}
        places = {key: at[key] for key in settings}
        if numbers.get("steps"):  # whether epochs or steps were asked for, it does not say; this many are trained
            values["max_steps"], places["max_steps"] = numbers["steps"], at["steps"]
        record = RunRecord(
            kind=KINDS["training"],
            partial=True,
            world_size=_devices(numbers, at),
            dataset_size=_said(numbers, at, "examples"),
            steps=_said(numbers, at, "steps"),
            told=tuple(f"{name} = {numbers[key]:,}" for name, key in _OF_BLOCK.items() if key in numbers),
        )
        yield Source(values=values, lines=places, path=path, record=record)


def _said(numbers: Mapping[str, int], at: Mapping[str, int], key: str) -> RecordedNumber | None:
    return RecordedNumber(numbers[key], f"line {at[key]} of the log") if numbers.get(key) else None


def _devices(numbers: Mapping[str, int], at: Mapping[str, int]) -> RecordedNumber | None:
    """Devices that share a step: the total by what one of them has."""
    share = numbers["per_device_train_batch_size"] * numbers["gradient_accumulation_steps"]
    total = numbers.get("total", 0)
    if total <= 0 or total % share:
        return None
    return RecordedNumber(total // share, f"line {at['total']} of the log, by what one device has")
