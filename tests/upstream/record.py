"""Digests of a release's functions, written into the `proven.json` of every adapter that depends on the package.

    python tests/upstream/record.py [--status tested|read|seen] trl==1.16.0 transformers==5.23.0 ...
    python tests/upstream/record.py --status tested --folder open_instruct==2026.8.20=CHECKOUT/open_instruct

A release is fetched with pip, alone and without being built or imported; `--folder` takes an unpacked one, a checkout
say (`verl==0.3.2=CHECKOUT/verl --adapter easyr1`). What one feature of a package depends on has a record of its own
(`openrlhf:asynchronous==0.11.2`). Statuses are those of `batchbridge.kit.proven`: "tested" only for
what the native tests run on, which tests/upstream/test_upstream.py holds against the sessions' pins.
"""

from __future__ import annotations

import argparse
import importlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from packaging.version import Version

from batchbridge.contract.evidence import Code, Package
from batchbridge.kit import fingerprints

ADAPTERS = ("trl", "verl", "openrlhf", "easyr1", "open_instruct")
ROOT = Path(__file__).parents[2] / "adapters"
OLDER = "3.12"
"""A Python whose wheels are taken where there is none for the newest: OpenRLHF 0.11.2 has them up to it."""


def code_of(adapter: str) -> Code:
    """The table of one adapter."""
    found: Code = importlib.import_module(f"batchbridge_{adapter}.proven").CODE
    return found


def fetched(name: str, version: str | None, into: Path, distribution: str | None = None) -> tuple[Path, str]:
    """The folder of a package, and its version: the newest where none is named. Nothing is installed.

    distribution: its name on the index, where that is another.
    """
    target = into / f"{name}-{version or 'newest'}"
    requirement = distribution or name if version is None else f"{distribution or name}=={version}"
    alone = ("download", "--quiet", "--no-deps", "--dest", str(target), requirement)
    here = ("--no-build-isolation", "--ignore-requires-python")  # verl 0.9.1 is for Python below 3.13
    for words in (here, ("--only-binary", ":all:", "--python-version", OLDER)):
        ran = subprocess.run([sys.executable, "-m", "pip", *alone, *words], check=words is not here)
        if not ran.returncode:
            break
    (archive,) = target.iterdir()
    return unpacked(archive, name, target / "unpacked"), version_in(archive.name)


def version_in(archive: str) -> str:
    """The version in the name of a wheel or a source distribution."""
    found = re.match(r"[A-Za-z0-9_.]+?-([0-9][^-]*?)(?:-.*\.whl|\.tar\.gz)$", archive)
    if found is None:
        raise ValueError(f"{archive} names no version")
    return found[1]


def unpacked(archive: Path, package: str, into: Path) -> Path:
    """The folder of `package`, from a wheel or a source distribution: its Python and YAML files."""
    for name, text in _members(archive):
        parts = PurePosixPath(name).parts
        if package in parts[:3] and parts[-1].endswith((".py", ".yaml", "version")):
            file = into.joinpath(*parts[parts.index(package) :])
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(text)
    if not (into / package / "__init__.py").is_file():
        raise ValueError(f"{archive.name} holds no package {package}")
    return into / package


def _members(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist() if not name.endswith("/"))
        return
    with tarfile.open(archive) as source:
        for member in source:
            if member.isfile() and (held := source.extractfile(member)) is not None:
                yield member.name, held.read()


def recorded(made: Mapping[str, Any], package: Package, label: str, folder: Path, status: str) -> dict[str, Any]:
    """The JSON of one package with the release `label` in it; an earlier record of that release is replaced.

    A function that is new in the table is unknown in releases that were recorded without it: record them again.
    """
    labels = {**made.get("labels", {}), label: status}
    order = sorted(labels, key=Version)
    functions = {}
    for key, digest in fingerprints.of_package(package, folder).items():
        known = {one: set(text.split()) - {label} for one, text in made.get("functions", {}).get(key, {}).items()}
        known.setdefault(digest, set()).add(label)
        functions[key] = {one: " ".join(sorted(having, key=order.index)) for one, having in known.items() if having}
    return {"labels": {one: labels[one] for one in order}, "functions": functions}


def record(adapter: str, name: str, label: str, folder: Path, status: str, root: Path = ROOT) -> bool:
    """Writes one release into an adapter's `proven.json`; False where it has no such record.

    name: that of a package, or `package:feature`.
    """
    code = code_of(adapter)
    every = (*code.packages, *code.parts)
    package = next((one for one in every if one.record == name), None)
    if package is None:
        return False
    file = root / code.home / "proven.json"
    made = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    made[name] = recorded(made.get(name, {}), package, label, folder, status)
    ordered = {one.record: made[one.record] for one in every if one.record in made}
    file.write_text(json.dumps(ordered, indent=1) + "\n", encoding="utf-8")
    return True


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description="See the module.")
    parser.add_argument("--status", choices=("tested", "read", "seen"), default="seen")
    parser.add_argument("--adapter", action="append", choices=ADAPTERS, help="default: every one that has the package")
    parser.add_argument("--folder", action="append", default=[], metavar="NAME==VERSION=FOLDER")
    parser.add_argument("releases", nargs="*", metavar="NAME==VERSION")
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as work:
        for release in [*asked.folder, *asked.releases]:
            name, _, rest = release.partition("==")
            version, _, place = rest.partition("=")
            folder = Path(place) if place else fetched(name.partition(":")[0], version, Path(work))[0]
            into = asked.adapter or [one for one in ADAPTERS if not (one == "easyr1" and name == "verl")]
            done = [adapter for adapter in into if record(adapter, name, version, folder, asked.status)]
            print(f"{name} {version}: {asked.status}; {', '.join(done) or 'no adapter depends on it'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
