"""What older releases of EasyR1 (0.3.0, 0.3.1) call otherwise, or have not, in configurations that tests write for the
newest. Imports nothing of theirs.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from batchbridge_easyr1.settings import holds

NEWER = {
    # beginnings of settings -> the releases that have them not
    "worker.actor.dynamic_batching=": "<0.3.2",
    "trainer.find_last_checkpoint=": "<0.3.2",
    "worker.actor.loss_avg_mode=": "<0.3.1",
}
RENAMED = {
    "worker.actor.ulysses_size=": "worker.actor.ulysses_sequence_parallel_size=",
    "worker.reward.reward_function=": "worker.reward.score_function=",
}
"""Settings, and what 0.3.0 calls them."""
RESUMES = "trainer.find_last_checkpoint=true"
SAVES = "trainer.save_checkpoint_path="
REWARD = "rollouts.py:reward"
"""Scores whole batches; a row by itself, as 0.3.0 wants it: `REWARD` + "_of_one"."""


def words_for(version: str, words: Iterable[str]) -> list[str]:
    """Settings as on the command line, for a release: without those that it has not. One that cannot look for the last
    checkpoint by itself is told where it is."""
    given, made = list(words), []
    for word in given:
        if any(word.startswith(start) and holds(which, version) for start, which in NEWER.items()):
            continue
        if holds("<0.3.1", version):
            for name, own in RENAMED.items():
                word = word.replace(name, own) if word.startswith(name) else word
            word = word + "_of_one" if word.endswith(REWARD) else word
            word = word.replace("prompts.jsonl", "prompts.parquet")
        made.append(word)
    if holds("<0.3.2", version) and RESUMES in given:
        folder = Path(next(word for word in reversed(given) if word.startswith(SAVES)).removeprefix(SAVES))
        made.append(f"trainer.load_checkpoint_path={folder / f'global_step_{last_saved(folder)}'}")
    return made


def last_saved(folder: Path) -> int:
    """The last step of which EasyR1 says that it is saved: 0.3.0 as text, 0.3.1 as JSON."""
    text, tracker = folder / "latest_global_step.txt", folder / "checkpoint_tracker.json"
    if text.exists():
        return int(text.read_text(encoding="utf-8"))
    return int(json.loads(tracker.read_text(encoding="utf-8"))["last_global_step"])
