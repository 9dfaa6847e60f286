"""Whether the installed package `verl` is EasyR1's, and which; from its files, nothing is imported.

EasyR1 is a fork whose distribution is also called `verl` and whose 0.3.x versions verl had too, so the version alone
says nothing.

Its own file: it reads files only, so `detect` can import it without EasyR1.
"""

from __future__ import annotations

import re
from pathlib import Path

from batchbridge.kit.proven import folder_of

FILES = ("trainer/ray_trainer.py", "trainer/data_loader.py", "workers/config.py")
"""Files of EasyR1's package (0.3.0 to 0.3.3.dev0) that verl's has not."""


def installed_version() -> str | None:
    """EasyR1's version in this environment; None where the package `verl` is missing, verl's own, or has none."""
    package = folder_of("verl")
    return None if package is None else version_in(package)


def version_in(package: Path) -> str | None:
    """EasyR1's version, from the files of a package `verl`; None where that is verl's own, or says none."""
    if not all((package / name).exists() for name in FILES):
        return None
    try:
        text = (package / "__init__.py").read_text(encoding="utf-8")
    except (OSError, ValueError):
        return None
    said = re.search(r"""^\s*__version__\s*=\s*["']?(.*?)["']?\s*$""", text, re.MULTILINE)
    return None if said is None else said[1]
