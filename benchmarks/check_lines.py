"""How much `batchbridge check` prints about published scripts: lines, by quartiles, and the longest one.

    python benchmarks/check_lines.py CHECKOUT [--framework-version 0.7.1] [--commit C] [--write]

CHECKOUT: a checkout of verl; every script (*.sh) in it that names main_ppo is checked as it lies there. Nothing runs.
--write puts the figures into check_lines.json beside this file, and into docs/cli.md.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import statistics
from pathlib import Path
from typing import Any

from batchbridge import check
from batchbridge_on_cpu.figures import commit_of

HERE = Path(__file__).parent
PAGE = HERE.parent / "docs" / "cli.md"
BLOCK = re.compile(r"(?<=<!-- written by benchmarks/check_lines.py --write -->\n).*?(?=<!-- end -->)", re.S)


def scripts(folder: Path) -> list[Path]:
    """The launch scripts of verl's trainer."""
    return [file for file in sorted(folder.rglob("*.sh")) if "main_ppo" in file.read_text("utf-8", errors="replace")]


def measured(folder: Path, version: str | None) -> dict[str, Any]:
    """What `check` prints about each script, in lines and in characters of its longest line."""
    files = [file.relative_to(folder) for file in scripts(folder)]
    before = Path.cwd()
    os.chdir(folder)
    try:
        said = [check(file, framework="verl", version=version) for file in files]
        texts = [str(one).splitlines() for one in said]
    finally:
        os.chdir(before)
    verdicts = [one.verdict for one in said]
    return {
        "version": version,
        "scripts": len(files),
        "verdicts": {verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
        "lines": quartiles([len(text) for text in texts]),
        "valid": quartiles([len(text) for text, verdict in zip(texts, verdicts, strict=True) if verdict == "valid"]),
        "longest": max(len(line) for text in texts for line in text),
    }


def quartiles(numbers: list[int]) -> list[float]:
    """Lower quartile, median and upper quartile."""
    return statistics.quantiles(numbers, n=4, method="inclusive") if len(numbers) > 1 else numbers * 3


def sentence(found: dict[str, Any]) -> str:
    """The figures as docs/cli.md has them."""
    counts = ", ".join(f"{count} {verdict}" for verdict, count in found["verdicts"].items())
    low, median, high = (f"{number:g}" for number in found["lines"])
    of_valid = f"{found['valid'][1]:g}"
    return (
        f"Of the {found['scripts']} scripts in verl {found['commit']} that start `main_ppo`, judged under verl\n"
        f"{found['version']} ({counts}), `check` prints {median} lines about one (median; quartiles {low}\n"
        f"and {high}), {of_valid} about a valid one; the longest line has {found['longest']} characters.\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", type=Path)
    parser.add_argument("--framework-version", default="0.7.1")
    parser.add_argument("--commit", help="of the checkout, where git does not know it")
    parser.add_argument("--write", action="store_true")
    told = parser.parse_args()
    found = measured(told.checkout, told.framework_version)
    found["commit"] = told.commit or commit_of(told.checkout, 7)
    print(sentence(found))
    if told.write:
        (HERE / "check_lines.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(BLOCK.sub(sentence(found), page), encoding="utf-8")


if __name__ == "__main__":
    main()
