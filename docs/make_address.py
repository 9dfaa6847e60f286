"""Writes the project's address into the texts that name it: `python docs/make_address.py`. Its source is
`src/batchbridge/address.py`, which the owner sets; README.md's own links become whole where the wheel is built
(`hatch_build.py`).
"""

from __future__ import annotations

import re
from pathlib import Path

from batchbridge import address

ROOT = Path(__file__).parents[1]
PAGES = ("docs/ci.md", "docs/howto/check_in_ci.md", "RELEASING.md", "CITATION.cff")
REPOSITORY = re.compile(r"(?<=repo: )https://\S+|(?<=repository-code: )https://\S+|(?<=git\+)https://[^\s@]+")
"""Where a text names the repository."""
ACTION = re.compile(r"[\w.-]+/[\w.-]+(?=@REVISION)")
"""Where it names the action: without the host."""


def written(text: str, source: str) -> str:
    """A text with the repository's address as it is in `source`."""
    return ACTION.sub("/".join(source.split("/")[-2:]), REPOSITORY.sub(source, text))


def main() -> None:
    for name in PAGES:
        page = ROOT / name
        page.write_text(written(page.read_text(encoding="utf-8"), address.SOURCE), encoding="utf-8")


if __name__ == "__main__":
    main()
