"""What `test_whole_runs_openrlhf` runs, in one process without Ray's: `PPOTrainer.fit`, wrapped, whose producer or
optimizer something else has a hand in once a rollout is trained.

    python whole_fits.py FOLDER

What each run said is left in FOLDER/said.json: the aspect, the step, how many updates there were.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fits import PROMPTS, BatchDrift, Bench, CannotAttach, save_policy, wrap

from batchbridge.testing.tiny import ScriptedRollouts


def later(owner: Any, name: str, change: Callable[..., Any]) -> None:
    """Puts `change(native, ...)` in the place of a function of an object, from its second call on."""
    native, calls = getattr(owner, name), []

    def changed(*given: Any, **options: Any) -> Any:
        calls.append(1)
        return native(*given, **options) if len(calls) == 1 else change(native, *given, **options)

    setattr(owner, name, changed)


def setting(path: str, value: Any) -> Callable[[Bench], None]:
    """A callback's change of a setting, after the first rollout's updates."""

    def tamper(bench: Bench) -> None:
        def change() -> None:
            *owners, name = path.split(".")
            target = bench.args
            for owner in owners:
                target = getattr(target, owner)
            setattr(target, name, value)

        native = bench.worker.fit

        def fit(*given: Any, **options: Any) -> Any:
            result = native(*given, **options)
            change()
            return result

        bench.worker.fit = fit

    return tamper


def scaled(experiences: list[Any]) -> list[Any]:
    for experience in experiences:
        experience.advantages = experience.advantages * 1.05
    return experiences


def exchanged(experiences: list[Any]) -> list[Any]:
    first, *_, last = experiences
    values = [float(each.advantages.sum() / each.action_mask.sum().clamp(min=1)) for each in (first, last)]
    for each, value in zip((first, last), (values[1], values[0] + 0.25), strict=True):
        each.advantages = value * each.action_mask.float()
    return experiences


def producer(change: Callable[[list[Any]], list[Any]]) -> Callable[[Bench], None]:
    """Another hand behind OpenRLHF's own computation of advantages."""

    def tamper(bench: Bench) -> None:
        maker = bench.trainer.experience_maker
        later(maker, "compute_advantages_and_returns", lambda native, found: change(native(found)))

    return tamper


def rate(bench: Bench) -> None:
    """One and a half times the learning rate, from the second rollout on."""

    def fit(native: Any, *given: Any, **options: Any) -> Any:
        for group in bench.worker.trainer.actor.model.optimizer.param_groups:
            group["lr"] *= 1.5
        return native(*given, **options)

    later(bench.worker, "fit", fit)


def nothing(bench: Bench) -> None:
    return


AFTER: dict[str, Callable[[Bench], None]] = {
    # once the trainer is wrapped
    "nothing": nothing,
    "samples": setting("rollout.n_samples_per_prompt", 2),
    "temperature": setting("rollout.temperature", 0.5),
    "estimator": setting("algo.advantage.estimator", "rloo"),
    "scaled": producer(scaled),
    "exchanged": producer(exchanged),
    "rate": rate,
}


def said(folder: Path, before: Callable[[Bench], None], after: Callable[[Bench], None], **options: Any) -> list[Any]:
    bench = Bench(folder)
    before(bench)
    wrap(bench.trainer, **options)
    after(bench)
    try:
        bench.fit()
    except BatchDrift as drift:
        return [drift.aspect, drift.step, int(bench.worker.trainer.actor.model.global_steps)]
    return ["", None, int(bench.worker.trainer.actor.model.global_steps)]


def main(folder: Path) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.setdefault("MASTER_PORT", "29517")
    script = ScriptedRollouts()
    save_policy(folder / "policy")
    lines = [f'{{"input": "{script.prompt(index)}", "label": ""}}\n' for index in range(PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    found = {name: said(folder, nothing, tamper) for name, tamper in AFTER.items()}
    own = producer(scaled)
    found["own, allowed"] = said(folder, own, nothing, allow=("advantages", "unproven_code"))
    try:
        said(folder, own, nothing)
    except CannotAttach as refusal:
        found["own"] = sorted(refusal.reasons)
    (folder / "said.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
