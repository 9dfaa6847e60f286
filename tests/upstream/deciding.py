"""The `deciding.json` of an adapter: digests of upstream's functions that decide a run's numbers, by release.

    python tests/upstream/deciding.py verl 0.4.0=UNPACKED/verl 0.4.1=UNPACKED/verl ...

Each release is named with the folder of its package, of a wheel that `tests/upstream/record.py` fetches, or of a
checkout. Releases that are on record and not named stay as they are.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

from batchbridge.kit.function_forms import forms_in
from batchbridge.kit.own_copy import CopyFacts

ROOT = Path(__file__).parents[2] / "adapters"


def facts_of(adapter: str) -> CopyFacts:
    """The facts of an adapter."""
    found: CopyFacts = importlib.import_module(f"batchbridge_{adapter}.copies").FACTS
    return found


def record(facts: CopyFacts, folders: dict[str, Path], before: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    """`file: function` -> digest -> releases, of what was recorded before and of `folders`."""
    table: dict[str, dict[str, list[str]]] = {}
    for file, names in facts.functions.items():
        for name in names:
            known = before.get(f"{file}: {name}", {})
            table[f"{file}: {name}"] = {digest: said.split() for digest, said in known.items()}
    for release, folder in folders.items():
        for key, digest in forms_in(folder, facts.functions).items():
            for said in table[key].values():
                if release in said:
                    said.remove(release)
            table[key].setdefault(digest, []).append(release)
    return {
        key: {digest: " ".join(said) for digest, said in known.items() if said} for key, known in sorted(table.items())
    }


def main(words: list[str]) -> None:
    """The command."""
    adapter, *named = words
    facts, file = facts_of(adapter), ROOT / f"batchbridge_{adapter}" / "deciding.json"
    before = json.loads(file.read_text("utf-8"))["functions"] if file.is_file() else {}
    folders = {release: Path(folder) for release, _, folder in (word.partition("=") for word in named)}
    made = {"source": f"files of {facts.package} of each release", "functions": record(facts, folders, before)}
    file.write_text(json.dumps(made, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
