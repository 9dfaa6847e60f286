"""Writes the figures of hand-written pages from committed records: `python docs/make_figures.py [--check]`.

A figure is a number that was measured or counted. It stands in a page that a script writes whole, which names the
script in its first lines ("Written by `python benchmarks/x.py --write`"), or in a block of a page between the lines

    <!-- written by benchmarks/x.py --write -->
    <!-- end -->

`tests/docs/test_figures.py` finds figures elsewhere. The blocks of this script are `BLOCKS`: each is named in its first
line (`<!-- written by docs/make_figures.py trl -->`), and is made from records of runs and benchmarks by
`figures_of_records.py`; nothing is measured here. `--check` writes nothing, and names the pages that are stale.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import figures_of_records as records

ROOT = Path(__file__).parents[1]
OWN = "docs/make_figures.py"
BLOCK = re.compile(
    r"(?ms)^<!-- written by (?P<script>\S+\.py)(?: (?P<words>[^\n]*?))? -->\n(?P<text>.*?)^<!-- end -->$"
)
"""A block: the script that writes it, the words behind the script, and what it wrote."""
BLOCKS = {
    "trl": records.trl,
    "trl-examples": records.trl_examples,
    "trl-history": records.trl_history,
    "verl": records.verl,
    "openrlhf": records.openrlhf,
    "easyr1": records.easyr1,
    "easyr1-against": records.easyr1_against,
    "open_instruct-published": records.open_instruct_published,
    "check-cost": records.check_cost,
    "gradient-noise": records.gradient_noise,
    "gpu": records.gpu,
    "nemo_rl": records.nemo_rl,
    "skyrl": records.skyrl,
    "readme": records.readme,
    "readme-in-chinese": records.readme_in_chinese,
}
PAGES = (
    "README.md",
    "README.zh.md",
    "docs/**/*.md",
    "plugins/*/README.md",
    "adapters/*/README.md",
    "examples/*/README.md",
)


def pages() -> Iterator[Path]:
    """The pages that may have blocks; those of rules have none."""
    for pattern in PAGES:
        yield from (page for page in sorted(ROOT.glob(pattern)) if "rules" not in page.parts)


def filled(text: str) -> str:
    """A page with this script's blocks as the records are now.

    Raises:
        ValueError: a block has a name that is not in `BLOCKS`.
    """

    def written(block: re.Match[str]) -> str:
        if block["script"] != OWN:
            return block[0]
        if block["words"] not in BLOCKS:
            raise ValueError(f"{block[0].splitlines()[0]}: the blocks are {', '.join(BLOCKS)}")
        before = block.start("text") - block.start()
        return f"{block[0][:before]}\n{BLOCKS[block['words']]()}\n\n<!-- end -->"

    return BLOCK.sub(written, text)


def main() -> int:
    """Writes every page that is stale, or with `--check` only names it; the exit code is then 1."""
    stale = []
    for page in pages():
        text = page.read_text(encoding="utf-8")
        if (now := filled(text)) != text:
            stale.append(page.relative_to(ROOT).as_posix())
            if "--check" not in sys.argv:
                page.write_text(now, encoding="utf-8")
    print(*stale, sep="\n", end="\n" if stale else "")
    return int(bool(stale) and "--check" in sys.argv)


if __name__ == "__main__":
    sys.exit(main())
