"""Copies what a Chinese page shares with its English one: code blocks, and tables and lists that scripts write.

`python docs/make_chinese.py [--check]`, after every other script: the n-th block of a Chinese page is the n-th of its
English page, so that no command, output or number of one language is another's. Prose is written by hand, in both;
`tests/docs/test_chinese_pages.py` holds numbers, commands and links of both together.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CHINESE = "docs/zh"
"""The folder of the Chinese pages, which stand there as the English ones do in docs/."""
ONLY_CHINESE = ("docs/zh/index.md",)
"""Pages without an English one."""
BLOCK = re.compile(r"(?ms)^```[^\n]*\n.*?^```$|^<!-- written by (?P<script>\S+)[^\n]*-->\n.*?^<!-- end -->$")
OWN_WORDS = "docs/make_figures.py"
"""The script whose blocks have Chinese words: it writes those of both languages."""


def pairs() -> dict[Path, Path]:
    """Chinese page to English page."""
    found = {ROOT / "README.zh.md": ROOT / "README.md"}
    for page in sorted((ROOT / CHINESE).glob("**/*.md")):
        if page.relative_to(ROOT).as_posix() not in ONLY_CHINESE:
            found[page] = ROOT / "docs" / page.relative_to(ROOT / CHINESE)
    return found


def copied(chinese: str, english: str) -> str:
    """The Chinese page with the blocks of the English one.

    Raises:
        ValueError: They have not as many blocks.
    """
    blocks = list(BLOCK.finditer(english))
    if len(blocks) != (has := len(BLOCK.findall(chinese))):
        raise ValueError(f"the English page has {len(blocks)} blocks, the Chinese one {has}")
    following = iter(blocks)

    def block(own: re.Match[str]) -> str:
        other = next(following)
        return own[0] if other["script"] == OWN_WORDS else other[0]

    return BLOCK.sub(block, chinese)


def main() -> int:
    """Writes every page that is stale, or with `--check` only names it; the exit code is then 1."""
    stale = []
    for chinese, english in pairs().items():
        text = chinese.read_text(encoding="utf-8")
        now = copied(text, english.read_text(encoding="utf-8"))
        if now != text:
            stale.append(chinese.relative_to(ROOT).as_posix())
            if "--check" not in sys.argv:
                chinese.write_text(now, encoding="utf-8")
    print("\n".join(stale) or "every Chinese page is as its English one")
    return 1 if stale and "--check" in sys.argv else 0


if __name__ == "__main__":
    sys.exit(main())
