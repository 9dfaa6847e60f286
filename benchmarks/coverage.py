"""What share of real launch commands `run` and `wrap` would follow, and what stands in the way of the others.

    python benchmarks/coverage.py [COMMANDS.jsonl ...] [FRAMEWORK=CHECKOUT ...] [--dataset-size N] [--write]

COMMANDS.jsonl: lines {"repository": ..., "path": ..., "commands": [[word, ...], ...]}. FRAMEWORK=CHECKOUT: every launch
script (*.sh) of a checkout. Each command is asked what `batchbridge check --json` says of it, with no release named: it
is judged under every known one, and counted under the newest in which it is valid. Nothing runs. --write puts the
tables into coverage.json and .md beside this file. A report, never a gate.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import batchbridge
from batchbridge.contract import plugins

HERE = Path(__file__).parent
Asked = tuple[str, dict[str, Any]]
"""A command's framework, and what `check --json` says."""


def of_corpus(file: Path, dataset_size: int) -> Iterator[Asked]:
    """The commands of a file of argument vectors."""
    for line in file.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        for words in row["commands"]:
            said = batchbridge.check(words, dataset_size=dataset_size)
            yield said.reading.framework, said.to_dict()


def of_checkout(framework: str, folder: Path, dataset_size: int) -> Iterator[Asked]:
    """The training commands of every launch script in a folder."""
    for file in sorted(folder.rglob("*.sh")):
        number = 1
        while True:
            found = batchbridge.read(file, framework=framework, command=number)
            codes = {finding.code for finding in found.findings}
            if not found.native and codes & {"BB010", "BB012"}:
                break  # no training command, or none of that number
            said = batchbridge.check(file, framework=framework, command=number, dataset_size=dataset_size)
            if not any(finding.code in plugins.adapters()[framework].no_run for finding in said.findings):
                yield framework, said.to_dict()  # else it trains nothing, or fine-tunes
            number += 1


ASYNCHRONOUS = {"asynchronous", "one_step_off", "fully_async", "BB-VERL-052"}
"""Names of what says that the trainer does not wait for a rollout's completions, so that timing decides."""


def table(asked: list[Asked]) -> dict[str, Any]:
    """Counts by framework."""
    said: dict[str, Any] = {}
    for framework in sorted({framework for framework, _ in asked} - {"unknown"}):
        verdicts: Counter[str] = Counter()
        any_of, alone, evidence, engines = Counter[str](), Counter[str](), Counter[str](), Counter[str]()
        newest, left = Counter[str](), Counter[str]()
        for found in (found for which, found in asked if which == framework):
            if found["verdict"] == "invalid":
                verdicts["invalid"] += 1
                continue
            enforcement = found["enforcement"]
            verdicts[enforcement["verdict"]] += 1
            releases = found.get("releases")  # where no version is named
            if releases and found["framework_version"] == releases[-1]["last"]:
                newest.update(("valid", enforcement["verdict"]))
            if enforcement["verdict"] == "enforced":
                evidence[enforcement["evidence"] or "no evidence"] += 1
            names = {obstacle["name"] for obstacle in enforcement["obstacles"]}
            engine = "another engine" if "unproven_engine" in names else "its first engine"
            kind = "asynchronous" if ASYNCHRONOUS & names else engine
            if enforcement["verdict"] == "unknown" and kind == "its first engine":
                kind = "undecided"  # which engine and trainer it has is in what is not read
            engines[kind] += 1
            if kind == "its first engine" and enforcement["verdict"] != "enforced":
                left[", ".join(f"`{name}`" for name in sorted(names))] += 1
            any_of.update(names)
            if len(names) == 1:
                alone.update(names)
        said[framework] = {
            "commands": sum(verdicts.values()),
            "verdicts": dict(verdicts),
            "evidence": dict(evidence),
            "engines": dict(engines),
            "left": dict(left.most_common()),
            "newest": {"valid": newest["valid"], "enforced": newest["enforced"]},
            "obstacles": {name: [count, alone[name]] for name, count in any_of.most_common()},
        }
    return said


COLUMNS = ("enforced", "with_allow", "unknown", "refused", "invalid")


def valid_of(said: dict[str, Any]) -> int:
    """Commands that are valid under any release."""
    return int(said["commands"] - said["verdicts"].get("invalid", 0))


def page(counted: dict[str, dict[str, Any]]) -> str:
    """The tables as markdown."""
    lines = [
        "# What share of published launch commands is enforced",
        "",
        "Written by `python benchmarks/coverage.py ... --write`. Each command is judged under every known release and",
        "counted under the newest in which it is valid; of valid: the enforced ones of those that are not invalid.",
    ]
    for source, frameworks in counted.items():
        lines += ["", f"## {source}", "", "| framework | commands | enforced | of valid | with --allow |"]
        lines[-1] += " the trainer decides | refused | invalid |"
        lines.append("|---|---|---|---|---|---|---|---|")
        for framework, said in frameworks.items():
            of = [said["verdicts"].get(column, 0) for column in COLUMNS]
            valid = valid_of(said)
            share = f"{100 * of[0] / valid:.0f} %" if valid else "-"
            lines.append(
                f"| {framework} | {said['commands']} | {of[0]} | {share} | " + " | ".join(map(str, of[1:])) + " |"
            )
        for framework, said in frameworks.items():
            if others := said["engines"].get("another engine"):
                first, done = said["engines"].get("its first engine", 0), said["verdicts"].get("enforced", 0)
                asynchronous, undecided = (said["engines"].get(kind, 0) for kind in ("asynchronous", "undecided"))
                told = ", ".join(f"{count} {way}" for way, count in said["left"].items())
                lines += [
                    "",
                    f"{framework}: {asynchronous} of the valid ones have an asynchronous trainer, and {others} others",
                ]
                lines[-1] += " another engine than FSDP, of which none is enforced;"
                if undecided:
                    lines.append(
                        f"of {undecided} neither is known: what decides is in a package or file that is not there."
                    )
                lines.append(
                    f"Of the other {first} {done} are ({100 * done / max(first, 1):.0f} %); not: {told or 'none'}."
                )
            newest = said.get("newest", {"valid": valid_of(said)})
            if 0 < newest["valid"] < valid_of(said):
                share = f"{100 * newest['enforced'] / newest['valid']:.0f} %"
                lines += [
                    "",
                    f"{framework}: the newest release takes {newest['valid']} of the {valid_of(said)} valid ones, and",
                ]
                lines[-1] += f" {newest['enforced']} of these are enforced ({share})."
        lines += ["", "| framework | what stands in the way of valid commands: in how many, and alone in how many |"]
        lines.append("|---|---|")
        for framework, said in frameworks.items():
            ways = ", ".join(f"`{name}` {count}, {alone}" for name, (count, alone) in said["obstacles"].items())
            lines.append(f"| {framework} | {ways or '-'} |")
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--dataset-size", type=int, default=17398, help="prompts; decides leftovers alone")
    parser.add_argument("--write", action="store_true")
    told = parser.parse_args()
    asked: dict[str, list[Asked]] = defaultdict(list)
    for source in told.sources:
        framework, _, folder = source.partition("=")
        if folder:
            asked["Launch scripts of checkouts"] += of_checkout(framework, Path(folder), told.dataset_size)
        else:
            asked["Commands of the corpus"] += of_corpus(Path(source), told.dataset_size)
    counted = {source: table(found) for source, found in asked.items()}
    print(page(counted))
    if told.write:
        (HERE / "coverage.json").write_text(json.dumps(counted, indent=1) + "\n", encoding="utf-8")
        (HERE / "coverage.md").write_text(page(counted), encoding="utf-8")


if __name__ == "__main__":
    main()
