"""Completions that a run of TRL repeats, loses or alters, killed at random moments on two processes, or by turns on one
and two: `python benchmarks/kills.py [--kills 100] [--write]`.

Each round is a run of 12 optimizer steps, three rollouts of two passes, with a checkpoint after each step, once whole
and once killed until it ends (`tests/adapters/trl/native/restarting.py`); every other start may be killed in the middle
of a rollout. Rounds go on until so many kills are counted of each kind. Held against the whole run: each completion of
each optimizer step by prompt, sample, fingerprint, tokens, weight and advantage, as the ledger recorded it on its way
to the optimizer; and the parameters at the end, which do not come from the ledger. On the same processes both are equal
to the bit; on others within float32's noise. `tests/repository/test_kills.py` plants a repeated, a lost and an altered
completion. --write puts the table into `kills.json` and docs/resume.md after each round; --go-on adds to it. An
hour of two cores for 100 kills of each kind.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

from batchbridge_on_cpu.figures import commit_of

ROOT = Path(__file__).parents[1]
SCRIPT = ROOT / "tests/adapters/trl/native/restarting.py"
PAGE = ROOT / "docs/resume.md"
BLOCK = re.compile(r"(?<=<!-- written by benchmarks/kills.py --write -->\n).*?(?=<!-- end -->)", re.S)
KINDS = {"two processes": ("2",), "one and two by turns": ("2,1", "1,2")}
NOISE = 1e-5
"""Of a weight or an advantage on other processes: float32's, relative."""
NAMES = ("starts", "kills", "changes", "steps", "completions", "repeated", "lost", "altered", "largest")


class Seen(NamedTuple):
    """A completion in an optimizer step."""

    step: int
    prompt: int
    sample: int
    epoch: int
    of_pass: int


def seen(steps: Iterable[Mapping[str, Any]]) -> list[tuple[Seen, tuple[Any, ...], tuple[float, ...]]]:
    """Every completion of a ledger's steps: which one it is, what it is, and what it weighs."""
    found = []
    for step in steps:
        columns = ("prompt", "sample", "pass", "completion_fingerprint", "prompt_fingerprint", "response_tokens")
        for row in zip(*(step[name] for name in (*columns, "weights", "advantage")), strict=True):
            which = Seen(int(step["step"]), row[0], row[1], int(step["epoch"]), row[2])
            found.append((which, row[3:6], row[6:8]))
    return found


def compared(whole: Iterable[Mapping[str, Any]], killed: Iterable[Mapping[str, Any]], noise: float) -> dict[str, int]:
    """How many completions of the whole run the killed one repeats, loses and alters. noise: relative, of numbers."""
    first, second = seen(whole), seen(killed)
    wanted, there = Counter(which for which, *_ in first), Counter(which for which, *_ in second)
    right = {which: rest for which, *rest in first}
    altered = sum(
        1
        for which, is_what, numbers in second
        if which in right
        and (
            is_what != right[which][0]
            or any(not math.isclose(*two, rel_tol=noise) for two in zip(numbers, right[which][1], strict=True))
        )
    )
    return {
        "steps": len({which.step for which, *_ in second}),
        "completions": len(second),
        "repeated": (there - wanted).total(),
        "lost": (wanted - there).total(),
        "altered": altered,
    }


def one_round(ranks: str, seed: int) -> dict[str, Any]:
    """A run that is killed until it ends, held against the whole one."""
    import torch

    from batchbridge.ledger import diff, read_steps

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        command = [sys.executable, str(SCRIPT), place, ranks, str(seed), "still"]
        ran = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
        if ran.returncode:
            raise SystemExit(f"{ranks}, seed {seed}: {ran.stderr[-2000:]}")
        said = json.loads((folder / "said.json").read_text(encoding="utf-8"))
        if any(said["codes"]):
            raise SystemExit(f"{ranks}, seed {seed}: the run did not end well: {said}")
        exact = "," not in ranks
        first, second = (folder / name / "ledger" for name in ("whole", "killed"))
        found = compared(read_steps(first), read_steps(second), 0.0 if exact else NOISE)
        told = diff(first, second, exact=exact)
        if not told.equal and not (found["repeated"] or found["lost"] or found["altered"]):
            raise SystemExit(f"{ranks}, seed {seed}: `ledger diff` sees a difference: {told.text()}")
        whole, killed = (torch.load(folder / name / "end.pt", weights_only=True) for name in ("whole", "killed"))
        largest = float((whole - killed).abs().max() / whole.abs().max())
        if exact and not torch.equal(whole, killed):
            raise SystemExit(f"{ranks}, seed {seed}: the parameters at the end are not equal to the bit")
    used = said["ranks"]
    changes = sum(first != second for first, second in itertools.pairwise(used))
    return {"starts": said["starts"], "kills": said["starts"] - 1, "changes": changes, "largest": largest, **found}


def measured(kills: int, found: dict[str, Any], keep: Callable[[], None]) -> None:
    """Adds rounds of each kind to what was found, until so many kills are counted of each; the seed of a round is its
    number. keep: called after each."""
    for kind, orders in KINDS.items():
        total: dict[str, Any] = found["rows"].setdefault(kind, dict.fromkeys(("rounds", *NAMES), 0))
        while total["kills"] < kills:
            one = one_round(orders[total["rounds"] % len(orders)], total["rounds"] + 1)
            total |= {name: total[name] + one[name] for name in NAMES if name != "largest"}
            total |= {"rounds": total["rounds"] + 1, "largest": max(total["largest"], one["largest"])}
            print(kind, json.dumps(total), flush=True)
            keep()


def page(found: Mapping[str, Any]) -> str:
    """The table."""
    lines = [
        f"On {', '.join(found['commits'])}, {found['date']}, TRL {found['trl']} on a CPU:",
        "",
        "| processes | runs | kills | changes of their number | optimizer steps | completions in them "
        "| repeated | lost | altered | parameters at the end, largest difference |",
        "|---" * 10 + "|",
    ]
    for kind, row in found["rows"].items():
        cells = [f"{row[name]:,}" for name in ("rounds", *NAMES[1:-1])]
        end = "none: equal to the bit" if not row["largest"] else f"{row['largest']:.1e} of the largest"
        lines.append(f"| {' | '.join([kind, *cells, end])} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """The exit code is 1 if a completion was repeated, lost or altered."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100, help="of each kind, at least (%(default)s)")
    parser.add_argument("--write", action="store_true", help="put the table into kills.json and docs/resume.md")
    parser.add_argument("--go-on", action="store_true", help="add to the rounds that kills.json has")
    asked = parser.parse_args()
    file, head = Path(__file__).with_suffix(".json"), commit_of(ROOT, 8)
    found: dict[str, Any] = {"commits": [], "trl": version("trl"), "rows": {}}
    if asked.go_on:
        found = json.loads(file.read_text(encoding="utf-8"))
        if found["trl"] != version("trl"):
            raise SystemExit(f"{file.name} is of TRL {found['trl']}")
    found |= {"commits": [*dict.fromkeys((*found["commits"], head))], "date": datetime.now(UTC).date().isoformat()}

    def keep() -> None:
        if asked.write:
            file.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
            PAGE.write_text(BLOCK.sub(lambda _: page(found), PAGE.read_text(encoding="utf-8")), encoding="utf-8")

    measured(asked.kills, found, keep)
    keep()
    print(page(found))
    return int(any(row[name] for row in found["rows"].values() for name in ("repeated", "lost", "altered")))


if __name__ == "__main__":
    raise SystemExit(main())
