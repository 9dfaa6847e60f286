"""What `test_again_openrlhf` runs, in one process: fits of the real `PPOTrainer` that are evaluated in the middle,
logged, begun a second time, interrupted and wrapped again, and resumed with other micro-batches.

    python again.py FOLDER

What is real and what is replaced: see `fits.py`. What was measured is left in FOLDER/again.pt.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fits  # first: it prepares the process
import torch

from batchbridge import unwrap, wrap
from batchbridge.errors import BatchBridgeError
from batchbridge.ledger import read_headers, read_steps
from batchbridge.meaning.spec import MicroBatch
from batchbridge.reading.read import read
from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge_on_cpu.openrlhf.workers import full_parameters, save_policy

Logs = list[dict[str, float]]


class Interrupted(Exception):
    """Raised between two rollouts, as by a user."""


def logged(bench: fits.Bench, *, stop_after: int | None = None) -> Logs:
    """What OpenRLHF logs of each rollout from now on; `stop_after`: rollouts, after which logging fails."""
    native = bench.trainer.save_logs_and_checkpoints
    kept: Logs = []

    def keep(step: int, status: Any = None, states: Any = None) -> None:
        kept.append({name: float(value) for name, value in status.items() if isinstance(value, (int, float))})
        if len(kept) == stop_after:
            raise Interrupted
        native(step, status, states)

    bench.trainer.save_logs_and_checkpoints = keep
    return kept


def ran(folder: Path, name: str, tokens: int | None = None, **changes: Any) -> dict[str, Any]:
    """A wrapped fit: what was logged, and where it ended. The first one leaves where it began."""
    bench = fits.Bench(folder, **changes)
    spec = None
    if tokens is not None:
        own = read(bench.trainer, framework="openrlhf").spec
        assert own is not None
        micro = MicroBatch(tokens_per_device=tokens, forward_tokens_per_device=tokens, cap="soft")
        spec = own.replace(micro_batch=micro)
    wrap(bench.trainer, spec, ledger=folder / name)
    logs = logged(bench)
    evaluations: list[tuple[int, Any]] = []
    native, start = bench.trainer.evaluate, folder / "start.pt"

    def evaluate(step: int, **options: Any) -> Any:
        evaluations.append((step, native(step, **options)))
        return evaluations[-1][1]

    bench.trainer.evaluate = evaluate
    bench.fit()
    if not start.exists():
        torch.save(bench.weights[0], start)
    return {
        "logs": logs,
        "end": bench.weights[-1],
        "evaluations": evaluations,
        "report": bench.trainer.batchbridge.report(),
        "micro-batches": sum(trains for trains, _, _ in bench.passes),
    }


def said(call: Callable[[], object]) -> str:
    """What it raises."""
    try:
        call()
    except (BatchBridgeError, Interrupted) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def twice(folder: Path) -> dict[str, Any]:
    """`fit` of a run that is over, begun once more; then unwrapped, wrapped and begun."""
    bench = fits.Bench(folder)
    wrap(bench.trainer, ledger=folder / "twice")
    bench.fit()
    found: dict[str, Any] = {"said": said(bench.trainer.fit)}
    found["equal"] = bool(torch.equal(full_parameters(bench.worker.trainer), bench.weights[-1]))
    found |= ledger_of(folder / "twice")
    unwrap(bench.trainer)
    found["wrapped anew"] = said(lambda: wrap(bench.trainer, ledger=folder / "anew"))
    found["fit anew"] = said(bench.trainer.fit)
    found["moved"] = not torch.equal(full_parameters(bench.worker.trainer), bench.weights[-1])
    return {**found, "anew": ledger_of(folder / "anew")}


def ledger_of(ledger: Path) -> dict[str, Any]:
    """Headers and steps."""
    if not ledger.exists():
        return {"headers": 0, "steps": []}
    return {"headers": len(read_headers(ledger)), "steps": [step["step"] for step in read_steps(ledger)]}


def interrupted(folder: Path, name: str, *, wrapped_again: bool, unwrapped: bool = False) -> dict[str, Any]:
    """A fit that an exception ends after its first rollout, and what is trained after it."""
    bench = fits.Bench(folder)
    wrap(bench.trainer, ledger=folder / name)
    logged(bench, stop_after=1)
    found: dict[str, Any] = {"first": said(bench.fit)}
    del bench.trainer.save_logs_and_checkpoints
    before = bench.trainer.batchbridge
    if unwrapped:
        unwrap(bench.trainer)
    if wrapped_again:
        found["wrapped again"] = said(lambda: wrap(bench.trainer, ledger=folder / f"{name} again"))
        found["stands"] = getattr(bench.trainer, "batchbridge", None) is before
    found["fit"] = said(bench.trainer.fit)
    found["end"] = full_parameters(bench.worker.trainer)
    return {**found, "ledger": ledger_of(folder / name), "again": ledger_of(folder / f"{name} again")}


def main(folder: Path) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.setdefault("MASTER_PORT", "29517")
    # The stand-in for vLLM's class has what it is given; the real one has no seed unless it gets one, as in evaluation.
    from openrlhf.trainer.ppo_utils import samples_generator

    samples_generator.SamplingParams.seed = None
    script = ScriptedRollouts()
    save_policy(folder / "policy")
    lines = [f'{{"input": "{script.prompt(index)}", "label": ""}}\n' for index in range(fits.PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    found: dict[str, Any] = {}

    checkpoints = {"ckpt.path": str(folder / "checkpoints"), "ckpt.save_steps": 1, "ckpt.max_num": 9}
    threes = {"train.micro_batch_size": 3, "rollout.micro_batch_size": 5}
    found["whole"] = ran(folder, "whole", **checkpoints)
    found["threes"] = ran(folder, "threes", **threes)
    found["tokens"] = ran(folder, "tokens", tokens=60)
    evaluation = {"eval.dataset": str(folder / "prompts.jsonl"), "eval.steps": 1, "eval.n_samples_per_prompt": 2}
    # The best checkpoint is saved after an evaluation.
    found["evaluated"] = ran(folder, "evaluated", **evaluation, **{"ckpt.path": str(folder / "best")})

    # As if the run had been killed after its second rollout.
    (folder / "checkpoints" / "_actor" / "latest").write_text("global_step2", encoding="utf-8")
    found["resumed"] = ran(folder, "resumed", **{**checkpoints, **threes, "ckpt.load_enable": True})
    found["twice"] = twice(folder)
    found["interrupted"] = interrupted(folder, "interrupted", wrapped_again=False)
    found["wrapped"] = interrupted(folder, "wrapped", wrapped_again=True)
    found["unwrapped"] = interrupted(folder, "unwrapped", wrapped_again=True, unwrapped=True)
    torch.save(found, folder / "again.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
