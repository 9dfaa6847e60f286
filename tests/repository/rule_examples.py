"""The smallest configuration that breaks each rule: `python tests/repository/rule_examples.py` writes them anew.

The adapters' own tests hold configurations for every rule (the contract's cases, and tables beside them). This script
runs those tests, notes what they read, and takes away setting by setting what a rule does not need of its candidates.
`examples.json` beside each adapter's rules has the results, for the pages of rules and `batchbridge rule`; a test
executes each one and its fixes.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from batchbridge.contract import plugins
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.meaning.findings import Fix
from batchbridge.reading import read as reader
from batchbridge.reading.arguments import changed_source
from batchbridge.reading.read import as_read
from batchbridge.rule_page import ExampleSettings, broken_by, read_example
from batchbridge.testing.laws_of_findings import mends

ROOT = Path(__file__).parents[2]
FRAMEWORKS = ("trl", "verl", "easyr1", "openrlhf", "open_instruct")
TESTS = [f"tests/adapters/{name}" for name in FRAMEWORKS]
MOST = 24
"""Candidates for a rule that are looked at, the smallest first."""
LARGEST = 4000
"""Characters of a candidate."""
OF_A_MACHINE = ("/tmp", str(ROOT.parent), "pytest-of")

Found = dict[tuple[str, str], dict[str, ExampleSettings]]


class Recorder:
    """A plugin of pytest that notes what is read: framework and code to examples, by their text."""

    def __init__(self) -> None:
        self.found: Found = defaultdict(dict)

    def pytest_sessionstart(self) -> None:
        """Puts the recorder around the one place where readings are made, and around the adapters' own `check`."""
        whole = reader.read_source

        def read_source(source: Source, adapter: Adapter, context: Context) -> Reading:
            reading = whole(source, adapter, context)
            self.note(adapter.framework, source, context, reading)
            return reading

        reader.read_source = read_source
        for adapter in plugins.adapters().values():
            self.around(type(adapter))

    def around(self, adapter: type[Adapter]) -> None:
        """Notes what tests read by an adapter alone."""
        own = adapter.read

        def read(self_: Adapter, source: Source, context: Context) -> Reading:
            reading = own(self_, source, context)
            try:
                findings = tuple(self_.check(reading))
            except Exception:  # what a test of broken adapters raises is the test's
                return reading
            both = dataclasses.replace(reading, findings=(*reading.findings, *findings))
            self.note(self_.framework, source, context, both)
            return reading

        adapter.read = read  # type: ignore[method-assign]  # for the time of the tests

    def note(self, framework: str, source: Source, context: Context, reading: Reading) -> None:
        """One reading, for each of its codes."""
        if source.native is not None or framework not in FRAMEWORKS:
            return
        said: dict[str, Any] = {"argv": list(source.argv)} if source.argv else {"values": dict(source.values)}
        said |= {"version": reading.framework_version, "world_size": context.world_size}
        try:
            text = json.dumps(said | {"dataset_size": context.dataset_size}, allow_nan=False)
        except (TypeError, ValueError):  # an object or a number that no file has
            return
        if len(text) > LARGEST or any(mark in text for mark in OF_A_MACHINE) or json.loads(text)["version"] is None:
            return
        for code in broken_by(reading):
            self.found[framework, code][text] = json.loads(text)


def smallest(framework: str, code: str, candidates: dict[str, ExampleSettings]) -> ExampleSettings | None:
    """The best candidate, reduced: one whose fix mends, with few other errors, and short."""
    judged = [
        (rank, len(text), text)
        for text in sorted(candidates, key=lambda text: (absurd(candidates[text]), len(text)))[:MOST]
        if (rank := rank_of(framework, code, candidates[text])) is not None
    ]
    if not judged:
        return None
    rank, _, text = min(judged)
    example, changed = candidates[text], True
    while changed:
        changed = False
        for shorter in reductions(framework, example):
            if (other := rank_of(framework, code, shorter)) is not None and other <= rank:
                example, rank, changed = shorter, other, True
                break
    return example


def absurd(example: ExampleSettings) -> bool:
    """Whether no person would write it: sizes and keys that tests try because they are strange."""
    sizes = [size for name in ("world_size", "dataset_size") if (size := example.get(name)) is not None]
    keys = [key.replace(".", "").replace("_", "") for key in example.get("values", ())]
    text = json.dumps(example)
    plain = all(key.isalnum() and key.isascii() and len(key) > _LETTERS for key in keys) and "\\" not in text
    plain = plain and max(map(len, re.findall(r"\d+", text)), default=0) <= _DIGITS
    return not plain or not example["version"] or not all(0 < size <= _MOST_OF_ANY for size in sizes)


_MOST_OF_ANY, _DIGITS, _LETTERS = 512, 5, 3


def rank_of(framework: str, code: str, example: ExampleSettings) -> tuple[bool, bool, int, int] | None:
    """Whether it is absurd, whether a fix does not mend it, how few fixes it has, and how many other errors; None where
    the rule is not broken."""
    try:
        reading = read_example(framework, example)
    except Exception:  # a reduction may be nothing that can be read
        return None
    if code not in broken_by(reading):
        return None
    others = sum(one.severity == "error" and one.code != code for one in reading.findings)
    fixes = [fix for one in reading.findings if one.code == code for fix in one.fixes if fix.changes]
    unmended = not all(mended(framework, code, example, fix) for fix in fixes)
    return absurd(example), unmended, -min(len(fixes), 2), others


def mended(framework: str, code: str, example: ExampleSettings, fix: Fix) -> bool:
    """Whether the fix's changes mend the example, as the contract's law has it."""
    changes = dict(fix.changes)
    devices = changes.pop("num_processes", None) if framework == "trl" else None
    source, context = as_read(example)
    source, adapter = changed_source(source, changes), plugins.adapters()[framework]
    before = read_example(framework, example).findings
    contexts = (replace(context, world_size=devices or context.world_size), replace(context, world_size=None))
    return any(mends(code, before, reader.read_source(source, adapter, one).findings) for one in contexts)


def reductions(framework: str, example: ExampleSettings) -> Iterator[ExampleSettings]:
    """The example under the newest release; without one setting, one word, or one size."""
    newest = (plugins.adapters()[framework].releases or (example["version"],))[-1]
    if example["version"] != newest:
        yield {**example, "version": newest}
    if example.get("dataset_size") is not None:
        yield {**example, "dataset_size": None}
    for place in range(len(example.get("argv", ()))):
        for words in (2, 1):
            argv = example["argv"]
            yield {**example, "argv": argv[:place] + argv[place + words :]}
    for key in example.get("values", ()):
        yield {**example, "values": {name: value for name, value in example["values"].items() if name != key}}


def main() -> None:
    """Runs the tests, and writes a file for each framework."""
    recorder = Recorder()
    native = [f"--ignore-glob=*/{folder}/*" for folder in ("native", "by_hand")]
    pytest.main(
        [
            "-q",
            "-p",
            "no:cacheprovider",
            "-W",
            "ignore::pytest.PytestAssertRewriteWarning",
            *native,
            "-k",
            "contract or rules or config or history",
            *TESTS,
        ],
        [recorder],
    )
    taken: set[str] = set()
    for framework in FRAMEWORKS:
        file = ROOT / "adapters" / f"batchbridge_{framework}" / "rules" / "examples.json"
        before = json.loads(file.read_text("utf-8")) if file.is_file() else {}
        found = {code: example for code, example in before.items() if "program" in example}  # written by hand
        for (name, code), candidates in sorted(recorder.found.items()):
            if name == framework and code not in taken and (example := smallest(name, code, candidates)) is not None:
                found[code] = {key: value for key, value in example.items() if value is not None}
        taken |= {code for code in found if not code.startswith("BB-")}
        lines = ",\n".join(f"{json.dumps(code)}: {json.dumps(example)}" for code, example in sorted(found.items()))
        file.write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")
        print(framework, len(found))


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    os.environ["CI"] = "1"  # hypothesis tries the same examples every time
    main()
