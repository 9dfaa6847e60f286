"""Records that were made again against the committed ones: `python compare.py verdicts.jsonl` or `steps.jsonl`.

Exits 1 and names what differs. Errors and rows are compared exactly, weights to 1e-6 of themselves.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any


def records(path: Path) -> list[dict[str, Any]]:
    """One record per line."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def same(one: object, other: object) -> bool:
    """Equal, floats nearly so."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, (int, float)):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-9)
    return one == other


def key(record: dict[str, Any]) -> str:
    """What was asked: everything but the answer."""
    return json.dumps({name: value for name, value in record.items() if name not in ("error", "steps")}, sort_keys=True)


def main(path: Path) -> int:
    """Compares the records of `path` with those of its name beside this script."""
    known = {key(record): record for record in records(Path(__file__).parent / path.name)}
    made, wrong = records(path), 0
    for record in made:
        answer = "error" if "error" in record else "steps"
        committed = known.get(key(record))
        if committed is None or not same(committed[answer], record[answer]):
            wrong += 1
            print("differs:" if committed else "not recorded:", key(record))
    print(f"{len(made)} records, {wrong} differ")
    return 1 if wrong or not made else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
