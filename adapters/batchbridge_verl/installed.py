"""The verl that is installed, from its files: two projects install a package of this name, and neither is imported.

EasyR1 is a fork whose distribution is also called `verl` and whose 0.3.x versions verl had too, so the version alone
says nothing; and a checkout between two releases carries the version of the one before.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Literal, NamedTuple

from batchbridge.kit.proven import folder_of

MARKERS: tuple[tuple[str, str, str | None], ...] = (
    # (file or folder of the package, first release that has it, last one)
    ("trainer/ppo/ray_trainer.py", "0.4.0", None),
    ("workers/actor/dp_actor.py", "0.4.0", "0.7.1"),
    ("workers/fsdp_workers.py", "0.4.0", "0.7.1"),
    ("trainer/config/_generated_ppo_trainer.yaml", "0.5.0", None),
    ("workers/engine_workers.py", "0.7.0", None),
    ("trainer/main_ppo_sync.py", "0.8.0", "0.8.0"),
    ("trainer/ppo/v1", "0.9.0", None),
)
"""Marks of the versions in the wheels verl 0.4.0 to 0.9.1."""

OF_A_FORK = "trainer/data_loader.py"
"""A file that EasyR1's package (0.3.0 to 0.3.3.dev0) has, and verl's has not."""


class CheckoutContents(NamedTuple):
    """The contents of the folder: the project, the version that its files say, and what speaks against it."""

    project: Literal["verl", "easyr1"]
    version: str | None
    doubts: tuple[str, ...] = ()


def installed() -> CheckoutContents | None:
    """The package `verl` of this environment; None where there is none."""
    package = folder_of("verl")
    return None if package is None else look(package)


def package_folder(version: str) -> Path | None:
    """The folder of the installed verl, where that is `version` and no doubt speaks against it."""
    package = folder_of("verl")
    return package if package is not None and _is(package, version) else None


@lru_cache(maxsize=16)
def _is(package: Path, version: str) -> bool:
    found = look(package)
    return found.project == "verl" and found.version == version and not found.doubts


def look(package: Path) -> CheckoutContents:
    """The project and version that the files of `package` say."""
    from packaging.version import InvalidVersion, Version  # in most environments there is no verl to look at

    if (package / OF_A_FORK).exists():
        return CheckoutContents("easyr1", None)
    try:
        version = (package / "version" / "version").read_text(encoding="utf-8").strip()
        parsed = Version(version)
    except (OSError, ValueError, InvalidVersion):
        return CheckoutContents("verl", None, ("it has no readable file version/version",))
    doubts = []
    for name, first, last in MARKERS:
        expected = Version(first) <= parsed and (last is None or parsed <= Version(last))
        if (package / name).exists() != expected:
            found, known = ("lacks", "has") if expected else ("has", "lacks")
            doubts.append(f"it {found} {name}, which {version} {known}")
    return CheckoutContents("verl", version, tuple(doubts))
