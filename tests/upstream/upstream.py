"""The weekly look at upstream: is the newest release of every package still the code that BatchBridge knows?

    nox -s upstream                 fetch, compare, print
    nox -s upstream -- --write      and record releases that are new in each adapter's `proven.json`
    nox -s upstream -- --checkout verl=CHECKOUT/verl    and a framework's main branch; it is never recorded

What lies below the frameworks (Ray, TransferQueue, tensordict, peft, torch, vLLM) is looked at, too; see `beneath`.
Fetched with pip, alone: nothing is built, installed or imported, and neither torch nor a GPU is needed. Exit code 1
says that a release is new whose code or settings differ; docs/versions.md says what to do then.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import beneath
from record import ROOT, code_of, fetched, record

from batchbridge.contract.evidence import Code, Evidence, Package
from batchbridge.kit import declared, proven

WATCHED: Mapping[str, tuple[str, ...]] = {
    "trl": ("trl", "transformers", "accelerate", "deepspeed"),
    "verl": ("verl",),
    "openrlhf": ("openrlhf", "deepspeed"),
}
"""Adapter to the packages whose newest release is fetched."""
MAIN = "main"
"""The version of a checkout."""
NEW = "new"
"""In the place of a status: nothing is recorded of this release."""


@dataclass(frozen=True)
class Row:
    """One package's newest release, compared. settings: what its configuration declares otherwise, as text."""

    adapter: str
    package: Package
    version: str
    status: str
    evidence: Evidence
    settings: str = ""

    @property
    def asks(self) -> bool:
        """Whether somebody has to read something that was not recorded before."""
        return (self.status == NEW and bool(self.evidence.control or self.evidence.loss)) or bool(self.settings)

    @property
    def status_to_write(self) -> str:
        """ "read" where no function differs from a known one, so that there is nothing to read; else "seen"."""
        return "seen" if self.evidence.control or self.evidence.loss else "read"

    def text(self) -> str:
        """The row, and below it what differs."""
        lines = [f"{self.package.title:13} {self.version:10} {self.status:12} {self.evidence.grade}"]
        for what, names in (
            ("control flow", self.evidence.control),
            ("loss", self.evidence.loss),
            ("known by reading", self.evidence.read),
        ):
            lines += [f"    {what}: {name.removeprefix(self.package.title + ' ')}" for name in names]
        lines += [f"    settings: {self.settings}"] if self.settings else []
        return "\n".join(lines)


def compared(adapter: str, code: Code, package: Package, folder: Path, version: str, settings: str = "") -> Row:
    """One release, held against what is recorded."""
    known = proven.records(code.home).get(package.record, proven.Record({}, {}))
    alone = Code(code.framework, code.home, (package,))
    found = proven.evidence(alone, {package.name: folder}, installed={package.name: version})
    return Row(adapter, package, version, known.labels.get(version, NEW), found, settings)


def settings_of(adapter: str, folders: Mapping[str, Path | None]) -> str:
    """What the configuration in `folders` declares otherwise than the adapter's newest tables."""
    if adapter == "verl":
        from batchbridge_verl.composed import difference_in

        return difference_in(Path(str(folders["verl"])))
    from importlib import import_module

    module: Any = import_module(f"batchbridge_{adapter}.declared")
    return declared.difference(module.known(), module.declared_in(folders))


def look(folders: Mapping[str, tuple[Path, str]], beside: Mapping[str, tuple[Path, str]] | None = None) -> list[Row]:
    """Every watched package in `folders` (name to folder and version), compared. beside: packages that some settings
    are declared in, where `folders` has none (TRL's stand in transformers, too)."""
    rows = []
    for adapter, names in WATCHED.items():
        code = code_of(adapter)
        here = {name: folders[name][0] for name in names if name in folders}
        for package in (*code.packages, *code.parts):
            if package.name in here:
                first = package.record == names[0]
                others = {name: beside[name][0] for name in names if beside and name in beside}
                settings = settings_of(adapter, {**dict.fromkeys(names), **others, **here}) if first else ""
                rows.append(compared(adapter, code, package, *folders[package.name], settings))
    return rows


def write(rows: list[Row], folders: Mapping[str, tuple[Path, str]], root: Path = ROOT) -> list[str]:
    """Records every release that is not recorded yet, and says which."""
    told = []
    for row in rows:
        if row.status == NEW and row.version != MAIN:
            folder, status = folders[row.package.name][0], row.status_to_write
            record(row.adapter, row.package.record, row.version, folder, status, root)
            told.append(f"{row.package.title} {row.version}: recorded as {status} for {row.adapter}")
    return told


def look_beneath(work: Path, only: Collection[str]) -> list[beneath.LibraryRow]:
    """The libraries below, each in its newest release."""
    record_of = beneath.known()
    wanted = [package for package in beneath.LIBRARIES if not only or package.name in only]
    rows = [beneath.compared(one, *fetched(one.name, None, work, one.distribution), record_of) for one in wanted]
    return rows if only else [*rows, *beneath.by_version()]


def checkouts(named: Iterable[str]) -> dict[str, tuple[Path, str]]:
    """The folders of `NAME=FOLDER` words. Raises `ValueError` where one holds no such package."""
    found = {}
    for word in named:
        name, _, folder = word.partition("=")
        if not (Path(folder) / "__init__.py").is_file():
            raise ValueError(f"--checkout {word}: {folder or '(nothing)'} is no folder of the package {name}")
        found[name] = Path(folder), MAIN
    return found


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("--write", action="store_true", help="record releases that are new")
    parser.add_argument("--only", action="append", metavar="PACKAGE", help="default: every watched one")
    parser.add_argument("--checkout", action="append", default=[], metavar="PACKAGE=FOLDER", help="a main branch, too")
    asked = parser.parse_args(words)
    every = dict.fromkeys(name for group in WATCHED.values() for name in group)  # adapters may watch one together
    names = [name for name in every if not asked.only or name in asked.only]
    with tempfile.TemporaryDirectory() as work:
        folders = {name: fetched(name, None, Path(work)) for name in names}
        rows = look(folders)
        below = look_beneath(Path(work), asked.only or ())
        print("\n".join(row.text() for row in (*rows, *below)))
        if asked.checkout:
            ahead = look(checkouts(asked.checkout), folders)
            print("\n".join(row.text() for row in ahead))
            rows += ahead
        if asked.write:
            told = [*write(rows, folders), *beneath.see(below)]
            print("\n".join(told) or "every release is recorded already")
    return int(any(row.asks for row in (*rows, *below)))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
