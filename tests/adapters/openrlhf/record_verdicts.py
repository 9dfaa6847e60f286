"""Records what the parser of each OpenRLHF release knows and says of random command lines, and compares it with us.

    python tests/adapters/openrlhf/record_verdicts.py WHEELS [--count 200] [--seed 0] [--write]

WHEELS: a folder of openrlhf-*.whl (`pip download --no-deps openrlhf==VERSION`). Of each wheel the statements of
cli/train_ppo_ray.py's main block run, up to the call of `train`, and utils/config.py's `hierarchize`; nothing else of
it is imported, so that no framework is needed. Modelscope, which --use_ms imports, counts as installed. --write
replaces parser_verdicts.jsonl by a sample that has every outcome and release, and parser_options.json by every option
with kind, default and choices, each release by what differs from the one before; without it nothing is written. Exit
code 1: at least one command line on which we disagree. Run it with Python 3.11, whose argparse is meant.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import io
import json
import os
import sys
import types
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from unittest import mock

from orl_commands import commands
from orl_outcomes import ACCEPTED, actions_of, named, ours, shape

from batchbridge_openrlhf.settings import RELEASES

RECORD = Path(__file__).parent / "parser_verdicts.jsonl"
OPTIONS = Path(__file__).parent / "parser_options.json"
KEPT_PER_OUTCOME = {ACCEPTED: 60, "BB-ORL-003": 30, "BB-ORL-004": 60}
"""Rows of the record by outcome; of every other one `KEPT`."""
KEPT = 20


def block_of(wheel: Path) -> tuple[types.CodeType, dict[str, types.ModuleType]]:
    """The parser block of a wheel, and the modules that it imports."""
    archive = zipfile.ZipFile(wheel)
    tree = ast.parse(_text(archive, "openrlhf/cli/train_ppo_ray.py"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If) and "__name__" in ast.unparse(node.test)]
    body = [node for node in block.body if not ast.unparse(node).startswith("train(")]
    code = compile(ast.Module(body=body, type_ignores=[]), wheel.name, "exec")
    modules = {"modelscope": types.ModuleType("modelscope"), "modelscope.utils": types.ModuleType("utils")}
    modules["modelscope.utils.hf_util"] = types.ModuleType("hf_util")
    modules["modelscope.utils.hf_util"].patch_hub = lambda: None  # type: ignore[attr-defined]  # a stand-in
    with contextlib.suppress(StopIteration):  # releases with flat names have none
        config = types.ModuleType("openrlhf.utils.config")
        exec(_text(archive, "openrlhf/utils/config.py"), config.__dict__)
        modules |= {"openrlhf": types.ModuleType("openrlhf"), "openrlhf.utils": types.ModuleType("utils")}
        modules["openrlhf.utils.config"] = config
    return code, modules


def parser_of(wheel: Path) -> Callable[[Sequence[str]], str]:
    """The parser block of a wheel as a function: words to `ACCEPTED`, argparse's last line, or `Type: message`."""
    code, modules = block_of(wheel)

    def run(argv: Sequence[str]) -> str:
        names = {"argparse": argparse, "os": os, "datetime": datetime}
        return outcome(lambda: exec(code, names), argv, modules)

    return run


def outcome(run: Callable[[], object], argv: Sequence[str], modules: dict[str, types.ModuleType]) -> str:
    """What `run` says of the command line `argv`: `ACCEPTED`, argparse's last line, or `Type: message`."""
    error = io.StringIO()
    with (
        mock.patch.object(sys, "argv", ["train_ppo_ray.py", *argv]),
        mock.patch.dict(sys.modules, modules),
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(error),
    ):
        try:
            run()
        except SystemExit:
            return error.getvalue().strip().splitlines()[-1]
        except Exception as raised:  # whatever it says, it is what a user would see
            return f"{type(raised).__name__}: {raised}"
    return ACCEPTED


def _text(archive: zipfile.ZipFile, path: str) -> str:
    return archive.read(next(name for name in archive.namelist() if name.endswith(path))).decode()


def main() -> int:
    """See the module's docstring."""
    parser = argparse.ArgumentParser()
    parser.add_argument("wheels", type=Path)
    parser.add_argument("--count", type=int, default=200, help="command lines per release")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--write", action="store_true")
    asked = parser.parse_args()
    rows: list[dict[str, object]] = []
    disagreements = 0
    for version in RELEASES:
        (wheel,) = asked.wheels.glob(f"openrlhf-{version}-*.whl")
        run = parser_of(wheel)
        for argv in commands(asked.seed, asked.count, version):
            native = named(run(argv), version)
            rows.append({"version": version, "argv": argv, "native": native})
            if native != (mine := ours(argv, version)):
                disagreements += 1
                if disagreements <= 20:
                    print(version, native, "ours:", mine, json.dumps(argv, ensure_ascii=False))
    tally = Counter(row["native"] for row in rows)
    print(f"{len(rows)} command lines, {disagreements} disagreements;", dict(sorted(tally.items())))
    if asked.write:
        lines = [f"{json.dumps(version)}: {json.dumps(changes)}" for version, changes in _changes(asked.wheels).items()]
        OPTIONS.write_text("{\n" + ",\n".join(lines) + "\n}\n")
        RECORD.write_text("".join(json.dumps(row) + "\n" for row in _sample(rows)))
    return 1 if disagreements else 0


def _changes(wheels: Path) -> dict[str, dict[str, object]]:
    """Release to the options that differ from the release before: name to kind, default and choices; null: gone."""
    found: dict[str, dict[str, object]] = {}
    before: dict[str, object] = {}
    for version in RELEASES:
        (wheel,) = wheels.glob(f"openrlhf-{version}-*.whl")
        code, _ = block_of(wheel)
        names = {"argparse": argparse, "os": os, "datetime": datetime}
        now = {name: shape(action) for name, action in actions_of(lambda: exec(code, names)).items()}  # noqa: B023  # at once
        changed = {name: value for name, value in now.items() if before.get(name) != value}
        found[version] = {**changed, **dict.fromkeys(before.keys() - now.keys())}
        before = now
    return found


def _sample(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    """Rows of every outcome, taken from the releases in turn."""
    kept: list[dict[str, object]] = []
    counts: Counter[object] = Counter()
    per_version: Counter[object] = Counter()
    for row in sorted(rows, key=lambda row: len(row["argv"])):  # short ones read better
        key = (row["native"], row["version"])
        limit = KEPT_PER_OUTCOME.get(str(row["native"]), KEPT)
        if counts[row["native"]] < limit and per_version[key] < max(limit // 12, 1):
            counts[row["native"]] += 1
            per_version[key] += 1
            kept.append(row)
    return sorted(kept, key=lambda row: RELEASES.index(str(row["version"])))


if __name__ == "__main__":
    sys.exit(main())
