"""Writes the page of a suite's run: `python report.py FOLDER [docs/equivalence.md]`; without a page it is printed."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

from matrix import CASES

HEAD = """\
# One run, every framework

Written by `tests/equivalence/native/report.py` from a run of the suite; no figure here is typed.

One source configuration is converted for every framework by `batchbridge convert`; each real framework then runs its
own native configuration in its own environment on CPU, with the same tiny policy and the same scripted rollouts, which
arrive in any order: once wrapped, to train what the source means, and once as it is (observed). Float32, and SGD where
a framework's command line has none, are injected by the testing kits.

Wrapped runs must have the same ledger. The gradient of every optimizer step is the float64 oracle's at the run's own
parameters within max(1e-6, 3 x the float32 noise), the bar; so are the differences of two runs' gradients, each taken
against the oracle at its own parameters, which float noise has parted after the first step. First gradients as they
are, and the way that the parameters went, agree within 1e-5 of the norm. The unwrapped runs are the negative control:
they must miss the bar of the trajectory more than tenfold.
"""


def page(results: dict[str, Any]) -> str:
    """The whole page."""
    return "\n".join([HEAD, *(line for name, result in results.items() for line in section(name, result))])


def section(name: str, result: dict[str, Any]) -> Iterator[str]:
    """One case."""
    case = CASES[name]
    yield f"## {name}\n"
    ran = ", ".join(f"{run} {version}" for run, version in result["versions"].items())
    yield f"Source: `tests/equivalence/native/sources/{case.source}` ({case.framework} {case.version}), {case.prompts} "
    yield f"prompts, {case.ranks} {'rank' if case.ranks == 1 else 'ranks'}, {case.optimizer}. Ran: {ran}.\n"
    rows = []
    for target, fields in result["accounts"].items():
        counted = Counter(field["status"] for field in fields)
        lost = [field["field"] for field in fields if field["status"] in ("inexpressible", "approximate")]
        patched = [field["field"] for field in fields if field["status"] == "patched"]
        rows.append([target, str(counted["exact"] + counted["equivalent"]), ", ".join(patched), ", ".join(lost)])
    yield from table(["converted to", "exact or equivalent", "patched by the wrapped run", "lost"], rows)
    for target, lost in result["refused"].items():
        yield f"Not run: {target}, which cannot say {'; '.join(f'{field} ({why})' for field, why in lost.items())}.\n"
    yield "Wrapped:\n"
    yield from table(
        ["pair", "ledgers", "first gradient apart", "any gradient, of the bar", "trajectories apart"],
        [
            [
                pair,
                "equal" if found["ledgers_equal"] else "different",
                figure(found["first_gradient"]),
                f"{found['gradients_of_the_bar']:.2f}",
                figure(found["trajectory"]),
            ]
            for pair, found in result["pairs"]["enforce"].items()
        ],
    )
    yield from table(
        ["run", "gradient against the oracle, worst step", "of its bar", "tokens clipped, most"],
        [
            [run, figure(found["error"]), f"{found['of_the_bar']:.2f}", f"{found['clipped']:.0%}"]
            for run, found in result["oracle"].items()
        ],
    )
    yield "As they are:\n"
    rows = []
    for pair, found in result["pairs"]["observe"].items():
        first = found["first_difference"] or {}
        also = ", ".join(first.get("also", {})) or "-"
        where = f"step {first.get('step')}: {first.get('aspect')}"
        rows.append([pair, where, str(first.get("detail")), also, figure(found["trajectory"])])
    yield from table(["pair", "first difference", "its size", "also", "trajectories apart"], rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """A Markdown table, and a blank line."""
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(row) + " |"
    yield ""


def figure(value: float | None) -> str:
    """Two digits."""
    return "-" if value is None else f"{value:.1e}" if value < 0.1 else f"{value:.2f}"


if __name__ == "__main__":
    text = page(json.loads((Path(sys.argv[1]) / "result.json").read_text(encoding="utf-8")))
    if len(sys.argv) > 2:
        Path(sys.argv[2]).write_text(text, encoding="utf-8")
    else:
        print(text)
