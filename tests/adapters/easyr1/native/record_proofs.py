"""The recorded proofs of one version, gradients_VERSION.json and runs_VERSION.json:

    python record_proofs.py RUNS ../recorded

RUNS is what `BATCHBRIDGE_EASYR1_RUNS` named while the tests of this folder ran on that version.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent.parent))

import proofs

FITS = {1: ("predicted", "enforced", "seq"), 2: ("enforced", "seq", "observed", "resumed")}
"""Scenarios of fits.py, by ranks."""


def parameters(file: Path) -> torch.Tensor:
    return torch.cat([value.flatten() for value in torch.load(file, weights_only=True).values()])


def moved(folder: Path) -> torch.Tensor:
    return parameters(folder / "last.pt") - parameters(folder / "first.pt")


def bare(argv: list[str]) -> list[str]:
    """Without folders."""
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
    """Finished runs by name, and how far their ends lie from the stock entry's, over how far that moved."""
    runs, ends = {}, {}
    stock = place / "a" / "weights"
    start, base = parameters(stock / "first.pt"), moved(stock)
    for ledger in sorted((place / "a").glob("ledger*")):
        runs["stock entry, 2"] = proofs.summary(ledger)
    for ranks, names in FITS.items():
        folder = place / f"fits-{ranks}"
        for name in names:
            if not (folder / f"{name}.done").exists():
                continue
            run = proofs.summary(folder / ("killed" if name == "resumed" else name))
            runs[f"{name}, {ranks}"] = {**run, "argv": bare(proofs.argv_of(name, ranks))}
            if name in ("enforced", "observed", "resumed"):
                end = parameters(folder / f"{name}-weights" / "last.pt") - start
                ends[f"{name}, {ranks}"] = float((end - base).norm() / base.norm())
    return {"runs": runs, "moved": float(base.norm() / start.norm()), "ends_apart": ends}


def main(place: Path, out: Path) -> None:
    made = {}
    measured = {ranks: place / f"gradients-{ranks}" / "measured.json" for ranks in ("1", "2")}
    if all(file.exists() for file in measured.values()):
        found = {ranks: json.loads(file.read_text(encoding="utf-8")) for ranks, file in measured.items()}
        made[f"gradients_{found['1']['version']}"] = found
    if (place / "a").exists():
        runs = runs_of(place)
        made[f"runs_{runs['runs']['stock entry, 2']['framework_version']}"] = runs
    for name, value in made.items():
        text = json.dumps(rounded(value), separators=(",", ":")) + "\n"
        (out / f"{name}.json").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
