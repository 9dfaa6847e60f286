"""The reported cases (`reported.yaml`), read by our adapters at their versions, and the page that lists them.

`python tests/cases/judging.py > docs/reported_cases.md` writes the page again.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

import batchbridge
from batchbridge.contract import plugins
from batchbridge.meaning.findings import Finding

FILE = Path(__file__).with_name("reported.yaml")

HEAD = """\
# Reported cases

Configurations from issue threads (status reported) and from the frameworks' own files (status derived), with what was
reported about them and what BatchBridge says of them. Written by `python tests/cases/judging.py`, from
`tests/cases/reported.yaml` and the adapters themselves; a test keeps it so.

| case | status | reported | read as | BatchBridge |
|---|---|---|---|---|
"""
DISAGREEMENTS = """
## Reports that we could not reproduce

What was reported, and why BatchBridge does not say the same.

| case | reported | why not | doctor |
|---|---|---|---|
"""
ADDED = """
## What was added

Threads seldom give a whole configuration. What was added or replaced so that a case could be read, and why:

| case | because |
|---|---|
"""


@cache
def cases() -> tuple[dict[str, Any], ...]:
    """Every case of `reported.yaml`, in its order."""
    return tuple(yaml.safe_load(FILE.read_text(encoding="utf-8"))["cases"])


def readings(case: Mapping[str, Any], changes: Mapping[str, Any] | None = None) -> dict[str, batchbridge.Reading]:
    """What each of the case's versions makes of it; `changes` replace settings."""
    read = case["read"]
    return {
        str(version): batchbridge.read(
            {**read["settings"], **(changes or {})},
            framework=read["framework"],
            version=str(version),
            world_size=read["world_size"],
            dataset_size=read.get("dataset_size"),
        )
        for version in read["versions"]
    }


def said(case: Mapping[str, Any], reading: batchbridge.Reading) -> Finding | None:
    """The finding that says what was told; None where the case names none, or it is not there."""
    found = [finding for finding in reading.findings if finding.code == case["expect"].get("code")]
    return found[0] if found else None


def answer(case: Mapping[str, Any], version: str, how: str) -> Any:
    """The number of ours that answers a told one; see the head of `reported.yaml`."""
    reading = readings(case)[version]
    if how.startswith("fixes."):
        finding, key = said(case, reading), how.removeprefix("fixes.")
        return sorted({fix.changes[key] for fix in finding.fixes if set(fix.changes) == {key}}) if finding else None
    if how.startswith("weight "):
        return _weight(case, version, how.removeprefix("weight "))
    numbers = [reading.derived.get(name) for name in how.split(" / ")]
    return numbers[0] / numbers[1] if len(numbers) == 2 and all(numbers) else numbers[0]


def _weight(case: Mapping[str, Any], version: str, run: str) -> float | None:
    """The weight of a token of the first completion, in the run's first optimizer step."""
    read = case["read"]
    reading = readings(case, read["runs"][run])[version]
    lengths = {(0, sample): tokens for sample, tokens in enumerate(read["response_tokens"])}
    step = next(iter(plugins.adapters()[read["framework"]].native_steps(reading, 1, lengths)))
    weights = [row.weight for row in step.rows if row.sample == 0]
    return None if weights[0] is None else float(weights[0])


# ---- the page


def page() -> str:
    """docs/reported_cases.md."""
    lines = [HEAD.rstrip("\n")]
    lines += [_row(case) for case in cases() if "read" in case]
    lines.append(DISAGREEMENTS.rstrip("\n"))
    lines += [_disagreement(case) for case in cases() if "disagreement" in case]
    lines.append(ADDED.rstrip("\n"))
    because = [(case["id"], case["read"].get("because")) for case in cases() if "read" in case]
    lines += [_cells(name, reason) for name, reason in because if reason]
    return "\n".join(lines) + "\n"


def _row(case: Mapping[str, Any]) -> str:
    read = case["read"]
    where = f"{read['framework']} {', '.join(map(str, read['versions']))}; {read['world_size']} devices"
    return _cells(_linked(case), case["told"]["status"], _told(case["told"]), where, _ours(case))


def _disagreement(case: Mapping[str, Any]) -> str:
    return _cells(_linked(case), _told(case["told"]), case["disagreement"], case.get("doctor", ""))


def _linked(case: Mapping[str, Any]) -> str:
    source = case["told"]["source"]
    return f"[{case['id']}]({source})" if source.startswith("https://") else case["id"]


def _told(told: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{key} = {value}" for key, value in told["settings"].items() if value is not None)
    text = f"{told['framework']} {told['version'] or ''}".strip() + f": {settings}: {told['outcome']}"
    if "message" in told:
        text += f', "{told["message"]}"'
    return text + "".join(f"; {name} {_shown(value)}" for name, value in told.get("numbers", {}).items())


def _ours(case: Mapping[str, Any]) -> str:
    """Verdict, finding and numbers: once where every version says the same."""
    texts = []
    for version, reading in readings(case).items():
        finding = said(case, reading)
        parts = [reading.verdict, *([f"{finding.code} ({finding.phase})"] if finding else [])]
        for name, how in case["expect"].get("answers", {}).items():
            parts.append(f"{name} {_shown(answer(case, version, how))}")
        texts.append("; ".join(parts))
    if len(set(texts)) == 1:
        return texts[0]
    return "; ".join(f"{version}: {text}" for version, text in zip(readings(case), texts, strict=True))


def _shown(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cells(*cells: str) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"


if __name__ == "__main__":
    sys.stdout.write(page())
