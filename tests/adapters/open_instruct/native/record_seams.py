"""Digests of the functions that the running trainer relies upon, as proven.json has them.

    python record_seams.py DATE=CHECKOUT... > proven.json

Only after the proofs of this folder have passed on each of the checkouts.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from batchbridge_open_instruct.proven import digests


def main(checkouts: list[str]) -> None:
    made = {}
    for word in checkouts:
        date, _, checkout = word.partition("=")
        made[date] = dict(digests(Path(checkout) / "open_instruct"))
        missing = [seam for seam, digest in made[date].items() if not digest]
        if missing:
            raise SystemExit(f"{checkout} lacks {', '.join(missing)}")
    print(json.dumps(made, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
