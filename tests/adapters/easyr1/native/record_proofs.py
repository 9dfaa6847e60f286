"""The recorded proofs of one version, gradients_VERSION.json and runs_VERSION.json:

    python record_proofs.py RUNS ../recorded

RUNS is what `BATCHBRIDGE_EASYR1_RUNS` named while test_gradients_easyr1.py and test_runs_easyr1.py ran on that version.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

import proofs

NAMES = {"a": "two ranks", "b": "one rank", "n": "observed", "g": "predicted", "d": "resumed"}
"""Folder of test_runs_easyr1.py -> what its last finished run is."""


def parameters(folder: Path, name: str) -> torch.Tensor:
    kept = torch.load(folder / "weights" / f"{name}.pt", weights_only=True)
    return torch.cat([value.flatten() for value in kept.values()])


def moved(folder: Path) -> torch.Tensor:
    return parameters(folder, "last") - parameters(folder, "first")


def bare(argv: list[str]) -> list[str]:
    """Without the folders of the machine."""
    pairs = [word.partition("=") for word in argv]
    return [f"{key}{equals}{value.rsplit('/', 1)[-1]}" for key, equals, value in pairs]


def rounded(value: Any) -> Any:
    """Floats to nine digits, anywhere."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {name: rounded(inner) for name, inner in value.items()}
    return [rounded(inner) for inner in value] if isinstance(value, list) else value


def runs_of(place: Path) -> dict[str, Any]:
    """Finished runs by name, and how far their ends lie apart, over how far the first moved."""
    runs = {}
    for folder, name in NAMES.items():
        for answer in sorted((place / folder).glob("*.argv.json")):
            key = answer.name.partition(".")[0]
            code, _ = json.loads((place / folder / f"{key}.json").read_text(encoding="utf-8"))
            if code == 0:
                argv = json.loads(answer.read_text(encoding="utf-8"))
                runs[name] = {**proofs.summary(place / folder / f"ledger-{key}"), "argv": bare(argv)}
    base = moved(place / "a")
    ends = {
        name: float((moved(place / folder) - base).norm() / base.norm())
        for folder, name in NAMES.items()
        if folder in ("b", "n", "d") and name in runs
    }
    share = float(base.norm() / parameters(place / "a", "first").norm())
    return {"runs": runs, "moved": share, "ends_apart": ends}


def main(place: Path, out: Path) -> None:
    made = {}
    measured = {ranks: place / f"gradients-{ranks}" / "measured.json" for ranks in ("1", "2")}
    if all(file.exists() for file in measured.values()):
        found = {ranks: json.loads(file.read_text(encoding="utf-8")) for ranks, file in measured.items()}
        made[f"gradients_{found['1']['version']}"] = found
    if (place / "a").exists():
        runs = runs_of(place)
        made[f"runs_{runs['runs']['two ranks']['framework_version']}"] = runs
    for name, value in made.items():
        text = json.dumps(rounded(value), separators=(",", ":")) + "\n"
        (out / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
