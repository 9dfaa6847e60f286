"""What the built metadata says beyond pyproject.toml: the addresses, and README.md with links that lead there.

PyPI shows README.md alone, so that a link such as `docs/start.md` leads nowhere; here it becomes the file of the
version's tag. All addresses are made of the two constants of `src/batchbridge/address.py`. With BATCHBRIDGE_RELEASE in
the environment a build fails where these are not set.
"""

from __future__ import annotations

import os
import re
import runpy
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

ROOT = Path(__file__).parent
ADDRESS = ROOT / "src" / "batchbridge" / "address.py"
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<to>[^)\s]+)\)")
PLAYGROUND = "docs/playground.md"


def addresses(said: dict[str, Any], version: str) -> dict[str, str]:
    """`[project.urls]`, from the constants. The changelog is that of the version."""
    source, site = said["SOURCE"], said["SITE"]
    return {
        "Documentation": f"{site}/",
        "Playground": f"{site}/playground/",
        "Changelog": f"{source}/blob/v{version}/CHANGELOG.md",
        "Issues": f"{source}/issues",
        "Source": source,
    }


def with_whole_links(text: str, said: dict[str, Any], version: str) -> str:
    """A Markdown text of the repository's root, read elsewhere: its links to files are addresses of the version's tag,
    the playground's is that of the site, where it can be opened."""

    def whole(found: re.Match[str]) -> str:
        to = found["to"]
        if re.match(r"[a-z]+:|#", to):
            return found[0]
        kind = "raw" if found["picture"] else "blob"
        address = f"{said['SOURCE']}/{kind}/v{version}/{to}"
        if to == PLAYGROUND:
            address = addresses(said, version)["Playground"]
        return f"{found['picture']}[{found['text']}]({address})"

    return LINK.sub(whole, text)


class CustomMetadataHook(MetadataHookInterface):
    """The hook that hatchling calls."""

    def update(self, metadata: dict[str, Any]) -> None:
        said = runpy.run_path(str(ADDRESS))
        if os.environ.get("BATCHBRIDGE_RELEASE") and not said["are_set"]():
            raise ValueError(f"{ADDRESS.relative_to(ROOT)} has no address yet: set SOURCE and SITE before a release")
        version = str(metadata["version"])
        text = (ROOT / "README.md").read_text(encoding="utf-8")
        metadata["urls"] = addresses(said, version)
        metadata["readme"] = {"content-type": "text/markdown", "text": with_whole_links(text, said, version)}
