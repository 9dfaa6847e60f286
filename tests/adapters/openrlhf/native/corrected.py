"""What `test_corrected_openrlhf` runs, one process per rank: `gradients.py`'s trainer with each correction towards the
sampler that this OpenRLHF has, set by its own options and wrapped by its own configuration.

    torchrun --nproc_per_node 2 corrected.py FOLDER

The sampler's log-probabilities are scripted: the old ones, moved by as much as makes each correction take out a part.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gradients
import torch
from corrections import NEW, RATIO, VARIANTS, Correction, moved
from gradients import GROUP, PPO, SEQUENCES, TOKENS, Bench, Case, clean
from tampering import STEP, Run

from batchbridge import unwrap, wrap
from batchbridge.errors import BatchDrift
from batchbridge.kit.patches import Patches
from batchbridge.meaning.plan import Plan
from batchbridge.testing.oracle import Sample, relative_error
from batchbridge_on_cpu.leaving import leave
from batchbridge_on_cpu.openrlhf.workers import save_policy
from batchbridge_openrlhf.turns import IDENTITY

PENALISED = {"algo.kl.use_loss": True, "algo.kl.estimator": "k2"}
BY_SEQUENCE = {"actor.loss_agg_mode": "seq-mean-token-mean"} if NEW else {}
PACKED = {"ds.packing_samples": True, "ds.attn_implementation": "sdpa"}
RUNS: dict[str, tuple[str, int, bool, dict[str, Any]]] = {
    # name: variant, ZeRO stage, the trainer's own dynamic batches, further options
    **{variant: (variant, 2, False, {}) for variant in VARIANTS},
    "truncated, k2": ("truncated", 2, False, PENALISED | BY_SEQUENCE),
    "truncated, ZeRO-3, packed": ("truncated", 3, True, PACKED),
    "masked, ZeRO-3, packed": ("masked", 3, True, PACKED),
}
BY_ROUNDING = "binary_kl, token"
"""Refused: see `test_by_binary_kl_of_tokens_...`."""


class Engine(Bench):
    """Completions with the sampler's log-probabilities, and the oracle's factors of their losses."""

    correction: Correction | None = None

    def sample(self, prompt: int, number: int) -> Sample:
        made = super().sample(prompt, number)
        if self.correction is None:
            return made
        assert made.old_logprobs is not None
        factor = self.correction.factor(made.old_logprobs, self.sampled(made, number), made.loss_mask)
        return dataclasses.replace(made, multiplier=factor)

    def sampled(self, made: Sample, number: int) -> torch.Tensor:
        """The sampler's log-probabilities of a completion's tokens."""
        assert made.old_logprobs is not None
        return moved(made.old_logprobs, made.group, number)

    def fill(self, trainer: Any, plan: Plan, rollout: int, **options: Any) -> None:
        super().fill(trainer, plan, rollout, **options)
        for item in trainer.replay_buffer.items:
            _, prompt, _, number, start = (int(value) for value in item.info[IDENTITY])
            made = Bench.sample(self, prompt, number)
            item.rollout_log_probs = torch.zeros_like(item.action_log_probs)
            item.rollout_log_probs[start - 1 :] = self.sampled(made, number)


def trained(bench: Engine, name: str) -> dict[str, Any]:
    """Errors of every step over the bar: against the oracle, and against the oracle without the correction."""
    variant, zero, dynamic, more = RUNS[name]
    correction, options = VARIANTS[variant]
    trainer = _trainer(bench, zero, dynamic, options | more)
    wrap(trainer, allow=["sampler_correction"] if name == BY_ROUNDING else [])
    plan, spec = trainer.batchbridge.plan, trainer.batchbridge.request.spec
    found: list[torch.Tensor] = []
    for rollout in range(2):
        bench.fill(trainer, plan, rollout)
        bench.run(trainer, 0.1 if more.get("algo.kl.use_loss") else 0.0)
        found += bench.gradients
    unwrap(trainer)
    objective = dataclasses.replace(PPO, **(gradients._kl("k2") if "algo.kl.use_loss" in more else {}))
    case = Case(name, SEQUENCES if spec.loss.policy.aggregation == "sequence_mean" else TOKENS, objective)
    errors: dict[str, list[float]] = {"with": [], "without": []}
    floors = []
    for index, gradient in enumerate(found):
        members = [(member.prompt, member.sample) for member in plan.step(index).members]
        for side in errors:
            bench.correction = correction if side == "with" else None
            bench.answers.clear()
            expected, floor, _ = bench.expected(case, members)
            errors[side].append(relative_error(gradient, expected) / max(1e-6, 3 * floor))
            if side == "with":
                floors.append(floor)
    bench.correction = correction
    factors = [bench.sample(prompt, number) for prompt in range(gradients.PROMPTS) for number in range(GROUP)]
    bench.correction = None
    values = torch.cat([one.multiplier[torch.tensor(one.loss_mask).bool()] for one in factors])  # type: ignore[index]
    raw = torch.cat([_ratios(bench, one)[torch.tensor(one.loss_mask).bool()] for one in factors])
    return {
        **errors,
        "steps": len(found),
        "floor": max(floors),
        "word": spec.objective.sampler_correction,
        "touched": float((values - raw).abs().gt(1e-9).double().mean()),
    }


def _ratios(bench: Engine, made: Sample) -> torch.Tensor:
    number = next(n for n in range(GROUP) if bench.script.completion(made.group, n) == made.completion)
    assert made.old_logprobs is not None
    return (made.old_logprobs.double() - bench.sampled(made, number).double()).exp()


def _trainer(bench: Engine, zero: int, dynamic: bool, options: dict[str, Any]) -> Any:
    before = dict(gradients.SHARED)
    gradients.SHARED.update(options)
    try:
        return bench.trainer(zero, dynamic)
    finally:
        gradients.SHARED.clear()
        gradients.SHARED.update(before)


# ---- tampering


def _of_the_loss(change: Callable[[Any, dict[str, Any], torch.Tensor], dict[str, Any]]) -> Callable[[Run], None]:
    def tamper(run: Run) -> None:
        def make(native: Callable[..., Any]) -> Callable[..., Any]:
            def forward(new: Any, old: Any, *given: Any, **options: Any) -> Any:
                if run.mine and run.now:
                    options = change(run.trainer.actor_loss_fn, options, old)
                return native(new, old, *given, **options)

            return forward

        run.replace(run.trainer.actor_loss_fn, "forward", make)

    return tamper


def _bounds(loss: Any, options: dict[str, Any], old: torch.Tensor) -> dict[str, Any]:
    name = "is_correction_threshold" if NEW else "vllm_is_truncated_threshold"
    setattr(loss, name, [0.8, 1.1])
    return options


TAMPERED: Mapping[str, Callable[[Run], None]] = {
    "no correction": _of_the_loss(lambda loss, options, old: {**options, "rollout_log_probs": old}),
    "another sampler": _of_the_loss(
        lambda loss, options, old: {**options, "rollout_log_probs": options["rollout_log_probs"] + 0.05}
    ),
    "another bound": _of_the_loss(_bounds),
    "nobody": lambda run: None,
}


def tampered(bench: Engine) -> dict[str, dict[str, Any]]:
    """What this rank is told of a step whose correction is another one, and how many updates were applied."""
    trainer = _trainer(bench, 2, False, VARIANTS["truncated"][1])
    engine, applied, found = trainer.actor.model, set(), {}
    engine.optimizer.optimizer.register_step_pre_hook(lambda *_: applied.add(engine.global_steps))
    for name, way in TAMPERED.items():
        engine.global_steps = 0  # a run of its own
        applied.clear()
        wrap(trainer)
        plan, patches = trainer.batchbridge.plan, Patches()
        way(Run.of(trainer, patches, mine=bench.rank == bench.ranks - 1))
        told = {"step": -1, "aspect": "trained to its end"}
        try:
            for rollout in range(2):
                # Every rank has rows of every step, that show a weight.
                bench.fill(trainer, plan, rollout, owner_of=lambda row: row % bench.ranks)
                bench.run(trainer, 0.0)
        except BatchDrift as drift:
            told = {"step": drift.step, "aspect": drift.aspect}
        finally:
            patches.undo()
            unwrap(trainer)
            clean(trainer)
        found[name] = {**told, "applied": len(applied)}
        bound = "is_correction_threshold" if NEW else "vllm_is_truncated_threshold"
        setattr(trainer.actor_loss_fn, bound, list(RATIO))
    return found


def main(folder: Path) -> None:
    policy = folder / f"policy-{os.environ.get('RANK', 0)}"  # every rank its own: nobody waits for a file
    save_policy(policy)
    bench = Engine(folder, policy)
    found: dict[str, Any] = {"runs": {name: trained(bench, name) for name in RUNS}}
    mine, everyone = tampered(bench), [None] * bench.ranks
    torch.distributed.all_gather_object(everyone, mine)
    found |= {"tampered": everyone, "step": STEP}
    if bench.rank == 0:
        torch.save(found, folder / "measured.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
