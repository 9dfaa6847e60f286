"""The recorded files of an installed package as a release of next week may have them: a function written otherwise."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

from batchbridge.kit import Package, proven


def with_a_statement_more(package: Package, folder: Path, file: str, function: str) -> Path:
    """Copies the files of `package` that the records name to `folder`; `function` (CLASS.NAME or NAME) of `file` has a
    statement more, which changes nothing."""
    home = proven.package_folder(package)
    assert home is not None
    for name in package.functions:
        if (home / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(home / name, folder / name)
    text = (folder / file).read_text(encoding="utf-8")
    found: ast.AST = ast.parse(text)
    for part in function.split("."):
        found = next(one for one in ast.walk(found) if getattr(one, "name", None) == part)
    assert isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef)
    first = found.body[0]
    lines = text.splitlines(keepends=True)
    lines.insert(first.lineno - 1, f"{' ' * first.col_offset}another_release = True\n")
    (folder / file).write_text("".join(lines), encoding="utf-8")
    return folder
