"""What `test_inputs_easyr1` runs: EasyR1's real `RayPPOTrainer.fit` without Ray, on one rank, in modes enforce and
verify; in the second rollout something has a hand in what rows carry from their producer to the loss.

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 1 tampered_inputs.py FOLDER

Leaves FOLDER/inputs.json: mode, tampering, what ended the run (empty: nothing did), and the updates that it made.
"""

from __future__ import annotations

from batchbridge_on_cpu.easyr1 import cpu

cpu.start()

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch.distributed as dist
from verl.trainer import core_algos

from batchbridge import unwrap, wrap
from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.ledger import read_steps
from batchbridge_on_cpu.easyr1.local import trainer

TWO = ["trainer.max_steps=2", "trainer.val_freq=-1"]
ESTIMATOR = "grpo"
Tamper = Callable[[Any], None]


def in_second(made: Any) -> bool:
    return int(made.global_step) == 2


def before_it_is_sent(change: Callable[[Any], None]) -> Tamper:
    """In the trainer's process, between the advantages and the workers."""

    def tamper(made: Any) -> None:
        group = made.actor_rollout_ref_wg
        native = group.update_actor

        def update_actor(batch: Any) -> Any:
            if in_second(made):
                change(batch.batch)
            return native(batch)

        group.update_actor = update_actor

    return tamper


def on_its_way(change: Callable[[Any], None]) -> Tamper:
    """Between the trainer's process and the worker."""

    def tamper(made: Any) -> None:
        worker = made.actor_rollout_ref_wg.worker
        native = worker.update_actor

        def update_actor(data: Any) -> Any:
            if in_second(made):
                change(data.batch)
            return native(data)

        worker.update_actor = update_actor

    return tamper


def in_the_model(change: Callable[[dict[str, Any], float], tuple[dict[str, Any], float]]) -> Tamper:
    """Of each micro-batch that the policy is trained on."""

    def tamper(made: Any) -> None:
        actor = made.actor_rollout_ref_wg.worker.actor
        native = actor._forward_micro_batch

        def forward(micro: Any, temperature: float) -> Any:
            if in_second(made) and "advantages" in micro:
                micro, temperature = change(dict(micro), temperature)
            return native(micro, temperature=temperature)

        actor._forward_micro_batch = forward

    return tamper


def larger(batch: Any) -> None:
    batch["advantages"] *= 1.05


def exchanged(batch: Any) -> None:
    """The advantages of two rows that differ."""
    values, mask = batch["advantages"], batch["response_mask"]
    each = [float(row[kept.bool()][0]) if bool(kept.any()) else 0.0 for row, kept in zip(values, mask, strict=True)]
    first = next(row for row, one in enumerate(each) if one)
    other = next(row for row, one in enumerate(each) if one not in (0.0, each[first]))
    values[first], values[other] = each[other] * mask[first], each[first] * mask[other]


def older(batch: Any) -> None:
    batch["old_log_probs"] -= 0.1 * batch["response_mask"]


def other_token(batch: Any) -> None:
    batch["input_ids"][0, -1 - int((~batch["attention_mask"][0].flip(0).bool()).long().argmin())] ^= 1


def other_tokens(micro: dict[str, Any], temperature: float) -> tuple[dict[str, Any], float]:
    ids = micro["input_ids"].clone()
    ids[:, -10] = ids[:, -10] % 50 + 3
    return {**micro, "input_ids": ids}, temperature


def hotter(micro: dict[str, Any], temperature: float) -> tuple[dict[str, Any], float]:
    return micro, temperature * 1.05


def setting_changed(made: Any) -> None:
    """By code that runs between two rollouts."""
    native = made.actor_rollout_ref_wg.prepare_rollout_engine

    def prepare() -> Any:
        if in_second(made):
            made.config.worker.rollout.temperature = 1.3
        return native()

    made.actor_rollout_ref_wg.prepare_rollout_engine = prepare


def estimator_replaced(made: Any) -> None:
    """Once the trainer is wrapped."""
    core_algos.ADV_ESTIMATOR_MAP[ESTIMATOR] = of_ones_own(core_algos.ADV_ESTIMATOR_MAP[ESTIMATOR])


def of_ones_own(native: Callable[..., Any]) -> Callable[..., Any]:
    def own(**given: Any) -> Any:
        advantages, returns = native(**given)
        return advantages * 1.05, returns

    return own


TAMPERS: dict[str, Tamper] = {
    "nothing": lambda made: None,
    "advantages": before_it_is_sent(larger),
    "exchanged advantages": before_it_is_sent(exchanged),
    "old log-probabilities": before_it_is_sent(older),
    "advantages on their way": on_its_way(larger),
    "exchanged advantages on their way": on_its_way(exchanged),
    "old log-probabilities on their way": on_its_way(older),
    "tokens on their way": on_its_way(other_token),
    "tokens of the model": in_the_model(other_tokens),
    "temperature of the model": in_the_model(hotter),
    "a setting": setting_changed,
    "the estimator": estimator_replaced,
}


def run(folder: Path, mode: Any, name: str) -> dict[str, Any]:
    """What ended a run, and the optimizer steps in its ledger."""
    ledger, said = folder / f"{mode} {name}", ""
    native = dict(core_algos.ADV_ESTIMATOR_MAP)
    made = trainer(folder, [*TWO, f"trainer.save_checkpoint_path={ledger}-checkpoints"])
    wrap(made, mode=mode, ledger=ledger)
    try:
        made.init_workers()
        TAMPERS[name](made)
        made.fit()
    except BatchDrift as drift:
        said = str(drift)
    finally:
        core_algos.ADV_ESTIMATOR_MAP.update(native)
        unwrap(made)
    steps = [step["step"] for step in read_steps(ledger)] if any(ledger.glob("rank-*")) else []
    return {"mode": mode, "name": name, "said": said, "steps": steps}


def own_estimator(folder: Path) -> dict[str, Any]:
    """A function of the user's own, registered over EasyR1's before the trainer is wrapped: the refusal, and the
    advantages that an enforced run trains on where it is allowed, over those of EasyR1's function."""
    native = dict(core_algos.ADV_ESTIMATOR_MAP)
    core_algos.ADV_ESTIMATOR_MAP[ESTIMATOR] = of_ones_own(native[ESTIMATOR])
    ledger = folder / "own estimator"
    made = trainer(folder, [*TWO, f"trainer.save_checkpoint_path={ledger}-checkpoints"])
    reasons: dict[str, str] = {}
    try:
        wrap(made, ledger=ledger)
    except CannotAttach as refused:
        reasons = dict(refused.reasons)
    try:
        wrap(made, ledger=ledger, allow=("advantages",))
        made.init_workers()
        made.fit()
    finally:
        core_algos.ADV_ESTIMATOR_MAP.update(native)
        unwrap(made)
    found = [step["advantage"] for step in read_steps(ledger)]
    return {"reasons": reasons, "advantages": found}


def main(folder: Path) -> None:
    os.environ["BATCHBRIDGE_WEIGHTS"], os.environ["BATCHBRIDGE_SEEDS"] = str(folder / "weights"), str(folder / "seeds")
    found = [run(folder, mode, name) for mode in ("enforce", "verify") for name in TAMPERS]
    told = {"runs": found, "own": own_estimator(folder)}
    native = [step["advantage"] for step in read_steps(folder / "enforce nothing")]
    (folder / "inputs.json").write_text(json.dumps({**told, "native": native}, indent=1), encoding="utf-8")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
