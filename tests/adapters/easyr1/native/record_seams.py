"""Digests of the functions that the running trainer relies upon, as proven.json has them.

    python record_seams.py CHECKOUT... > proven.json

Only after the proofs (test_gradients_easyr1.py, test_runs_easyr1.py) have passed on each of the checkouts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from batchbridge_easyr1.proven import digests
from batchbridge_verl.installed import look


def main(checkouts: list[str]) -> None:
    made = {}
    for checkout in checkouts:
        package = Path(checkout) / "verl"
        version = look(package).version
        made[version] = dict(digests(package))
        missing = [seam for seam, digest in made[version].items() if not digest]
        if missing:
            raise SystemExit(f"{checkout} lacks {', '.join(missing)}")
    print(json.dumps(made, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
