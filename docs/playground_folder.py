"""Puts the playground together, a folder of static files: `python docs/playground_folder.py [FOLDER]`, by default
docs/play, where the site takes it from; no commit has it. With `--if-npm`, where npm or node is missing or brings
nothing, that is said, and the folder has the page and the answer about its first example alone.

In it: the page of the package, the package itself with what it imports as they are installed here (not editable), and
Pyodide and bash's grammar from npm, each of one version with one digest. A server that sends files is all it needs.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent / "play"
DISTRIBUTIONS = ("batchbridge", "PyYAML", "Jinja2", "MarkupSafe", "pluggy", "packaging")
"""What a browser's Python imports: plain Python alone, compiled parts of it are left out."""
COMPILED = (".so", ".pyd", ".pyc", ".dylib")
FROM_NPM = {
    "pyodide@0.29.5": (
        "pyodide",
        "sha512-TkYrUv9m8QmfImADKRmpwZulL48E0uUaBSO+dvRQKyAJc0qh9gu7jn8btyHPh3NZm1r2IH2YrJhIr7Q2B9urAw==",
        ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json"),
    ),
    "web-tree-sitter@0.25.10": (
        "bash",
        "sha512-Y09sF44/13XvgVKgO2cNDw5rGk6s26MgoZPXLESvMXeefBf7i6/73eFurre0IsTW6E14Y0ArIzhUMmjoc7xyzA==",
        ("tree-sitter.js", "tree-sitter.wasm"),
    ),
    "tree-sitter-bash@0.25.1": (
        "bash",
        "sha512-7hMytuYIMoXOq24yRulgIxthE9YmggZIOHCyPTTuJcu6EU54tYD+4G39cUb28kxC6jMf/AbPfWGLQtgPTdh3xw==",
        ("tree-sitter-bash.wasm",),
    ),
}
"""A package with its version: folder, digest of its archive, and the files of it that the page loads."""

ARCHIVE = "packages.zip"
COMPILE = """
import fs from "node:fs";
const folder = process.argv.at(-1);
const { loadPyodide } = await import(`${folder}/pyodide/pyodide.mjs`);
const python = await loadPyodide();
python.FS.writeFile("/packages.zip", new Uint8Array(fs.readFileSync(`${folder}/packages.zip`)));
python.runPython(`
import importlib.util, pathlib, py_compile, zipfile
unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
with zipfile.ZipFile("/packages.zip") as archive:
    archive.extractall("/before")
with zipfile.ZipFile("/after.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
    def add(name, file):
        archive.writestr(zipfile.ZipInfo(name), pathlib.Path(file).read_bytes(), zipfile.ZIP_DEFLATED, 9)
    for file in sorted(pathlib.Path("/before").rglob("*")):
        name = str(file.relative_to("/before"))
        named_by_itself = file.name == "__init__.py"
        if file.suffix == ".py":
            made = py_compile.compile(str(file), "/made.pyc", name, doraise=True, invalidation_mode=unchecked)
            add(importlib.util.cache_from_source(name) if named_by_itself else f"{name}c", made)
        if file.is_file() and (file.suffix != ".py" or named_by_itself):
            add(name, file)
`);
fs.writeFileSync(`${folder}/packages.zip`, python.FS.readFile("/after.zip"));
"""
"""What the browser would compile at every visit, compiled once, by the same Python. Of packages the source stays: some
read in it what they offer (`batchbridge.lazily`)."""


def make(folder: Path) -> None:
    """Writes the playground into `folder`, which is emptied first; what answers in a browser comes last."""
    from batchbridge.playground.serving import page_files

    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, data in page_files().items():
        (folder / name).write_bytes(data)
    (folder / "first.json").write_text(json.dumps(first_answer()), encoding="utf-8")
    (folder / "versions.txt").write_text("".join(f"{line}\n" for line in versions()), encoding="utf-8")
    (folder / ARCHIVE).write_bytes(packages())
    for package, (inside, digest, files) in FROM_NPM.items():
        archive = from_npm(package, digest)
        (folder / inside).mkdir(exist_ok=True)
        with tarfile.open(fileobj=io.BytesIO(archive)) as opened:
            for name in files:
                member = opened.extractfile(f"package/{name}")
                assert member is not None, f"{package} has no file {name}"
                (folder / inside / name).write_bytes(member.read())
    words = ("node", "--input-type=module", "--eval", COMPILE, str(folder.resolve()))
    try:
        subprocess.run(words, check=True, timeout=300)
    except (OSError, subprocess.SubprocessError) as error:
        raise SystemExit(f"node does not compile the packages ({error})") from None


def first_answer() -> dict[str, Any]:
    """What the page shows until its Python has started: the answers about its first example."""
    from batchbridge.playground import answer
    from batchbridge.playground.serving import page_files

    example = json.loads(page_files()["examples.json"])[0]
    return {want: answer({"want": want, "width": 880, **example}) for want in ("meaning", "strip")}


def packages() -> bytes:
    """The installed distributions as one archive."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in DISTRIBUTIONS:
            files = [file for file in metadata.distribution(name).files or () if file.suffix not in COMPILED]
            inside = sorted(file for file in files if not file.is_absolute() and ".." not in file.parts)
            if not any(file.suffix == ".py" for file in inside):
                raise SystemExit(f"{name} is installed as a link to its sources; install it whole: pip install .")
            for file in inside:
                entry = zipfile.ZipInfo(file.as_posix(), (1980, 1, 1, 0, 0, 0))
                entry.compress_type = zipfile.ZIP_DEFLATED
                archive.writestr(entry, Path(str(file.locate())).read_bytes())
    return made.getvalue()


def from_npm(package: str, digest: str) -> bytes:
    """The archive of an npm package; stops where it is not the one that is known."""
    with tempfile.TemporaryDirectory() as folder:
        words = ("npm", "pack", "--silent", "--pack-destination", folder, package)
        try:
            subprocess.run(words, check=True, cwd=folder, capture_output=True, timeout=300)
        except (OSError, subprocess.SubprocessError) as error:
            raise SystemExit(f"{package}: npm does not bring it ({error})") from None
        (found,) = Path(folder).glob("*.tgz")
        data = found.read_bytes()
    is_of = "sha512-" + base64.b64encode(hashlib.sha512(data).digest()).decode()
    if is_of != digest:
        raise SystemExit(f"{package}: the archive is another one ({is_of}) than {digest}")
    return data


def versions() -> list[str]:
    """What the folder holds, with versions."""
    installed = [f"{name} {metadata.version(name)}" for name in DISTRIBUTIONS]
    return [*installed, *(package.replace("@", " ") for package in FROM_NPM)]


if __name__ == "__main__":
    named = [word for word in sys.argv[1:] if word != "--if-npm"]
    try:
        make(Path(named[0]) if named else FOLDER)
    except SystemExit as refused:
        if "--if-npm" not in sys.argv:
            raise
        print(f"the playground answers nothing but its first example: {refused}", file=sys.stderr)
