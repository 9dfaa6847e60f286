"""Checkpoints as a run leaves them that is killed while it saves."""

from __future__ import annotations

import shutil
from pathlib import Path


def half_saved_beside_latest(folder: Path) -> None:
    """In a run's folder of DeepSpeed's checkpoints: beside the newest one, which `latest` names, its half written
    follower, without the last rank's file."""
    for latest in folder.rglob("latest"):
        name = latest.read_text(encoding="utf-8").strip()
        kind, number = name.rstrip("0123456789"), int(name[len(name.rstrip("0123456789")) :])
        made = half_saved(latest.parent / name, latest.parent / f"{kind}{number + 1}")
        max(made.iterdir()).unlink()


def half_saved(newest: Path, following: Path) -> Path:
    """`following`, a copy of the checkpoint `newest` in which every larger file ends halfway; no file that names the
    newest checkpoint names it."""
    shutil.rmtree(following, ignore_errors=True)
    shutil.copytree(newest, following)
    for file in following.rglob("*"):
        if file.is_file() and file.suffix in (".pt", ".safetensors"):
            content = file.read_bytes()
            file.write_bytes(content[: len(content) // 2])
    return following
