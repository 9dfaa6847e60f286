"""What native/videos.py measures, made once and kept in a folder: see video_proofs.py. Its figures are kept by

    python video_runs.py CHECKOUT RUNS

as keep_figures.py keeps the others.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent))

import image_runs
import video_proofs
from keep_figures import FIGURES
from started import version_of

from batchbridge_on_cpu.figures import keep


def gradients(place: Path, checkout: Path, ranks: int, name: str) -> dict[str, Any]:
    """What videos.py measures of a case, unless it was kept."""
    folder = place / f"videos-{ranks}-{name.replace(' ', '-')}"
    if not (folder / "videos.json").exists():
        folder.mkdir(parents=True, exist_ok=True)
        family, settings = video_proofs.cases_of(ranks)[name]
        words = (str(image_runs.HERE / "videos.py"), str(folder), family, json.dumps(settings))
        ran = image_runs.torchrun(ranks, *words, env=image_runs.environment_of(checkout))
        assert ran.returncode == 0, ran.stdout[-20000:]
    found: dict[str, Any] = json.loads((folder / "videos.json").read_text(encoding="utf-8"))
    return found


def main(checkout: Path, place: Path) -> None:
    measured = {f"{name}, {ranks}": gradients(place, checkout, ranks, name) for name, ranks in video_proofs.CASES}
    keep(FIGURES, version_of(checkout), "videos", video_proofs.figures(measured))


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:3]))
