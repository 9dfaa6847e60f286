"""Part of what `processes.py` runs: steps with a teacher whose distance is the only reward (on-policy distillation)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from gradients import CASES, PROMPTS, SPLITS, STEPS, Bench, spec_of
from tampering import TAMPERED, as_it_was, forward, last_rank
from verl.trainer.distillation import distillation_ppo_loss
from verl.workers.config import DistillationConfig, DistillationLossConfig

from batchbridge.errors import BatchDrift
from batchbridge.kit import Row, token_weights
from batchbridge.kit.identified_rows import PROMPT, SAMPLE
from batchbridge.kit.objectives import policy_losses
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Objective
from batchbridge.testing.oracle import Sample, logprobs, relative_error, step_gradient
from batchbridge_on_cpu.steps import bar
from batchbridge_verl.engine import install, probe, remove

BOUND = 0.2
"""Of a distance; some are above."""
CASE = CASES[0]


class Taught(Bench):
    """A worker whose loss is that of a distillation. The teacher is the steps' reference policy."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        loss = DistillationLossConfig(
            loss_mode="k1", use_policy_gradient=True, use_task_rewards=False, loss_max_clamp=BOUND
        )
        told = DistillationConfig(distillation_loss=loss)
        object.__setattr__(told, "enabled", True)  # said afterwards: no server of a teacher is described, or started
        config = self.worker.loss_fn.keywords["config"]
        self.worker.set_loss_fn(functools.partial(distillation_ppo_loss, config=config, distillation_config=told))

    def arriving(self, samples: Sequence[Sample], members: Sequence[Any]) -> None:
        """Has the rows of every call carry the teacher's log-probabilities of prompt and response, as V1 sends them."""
        native = self.worker.train_mini_batch
        taught = {
            (member[1], member[3]): self.reference_logprobs(sample)
            for sample, member in zip(samples, members, strict=True)
        }

        def train_mini_batch(data: Any) -> Any:
            rows = []
            for prompt, sample, ids, own in zip(
                data[PROMPT].tolist(),
                data[SAMPLE].tolist(),
                data["input_ids"].unbind(),
                data["responses"].unbind(),
                strict=True,
            ):
                row = torch.zeros(len(ids))
                row[len(ids) - len(own) - 1 : -1] = taught.get((prompt, sample), torch.zeros(len(own)))
                rows.append(row[:, None])
            data["teacher_logprobs"] = torch.nested.as_nested_tensor(rows, layout=torch.jagged)
            return native(data)

        self.worker.train_mini_batch = train_mini_batch


def surrogate(teacher: torch.Tensor, objective: Objective) -> Callable[..., torch.Tensor]:
    """The oracle's loss of one completion's tokens: PPO's, over the negative distance to the teacher."""

    def loss(new: torch.Tensor, old: torch.Tensor, advantage: float) -> torch.Tensor:
        distance = (new.detach() - teacher.to(new)).clamp(-BOUND, BOUND)
        mask = torch.ones_like(new)[None]
        return policy_losses(objective, new[None], old[None], mask, -distance[None])[0]

    return loss


def expected(bench: Bench, spec: Any, samples: Sequence[Sample]) -> tuple[torch.Tensor, float]:
    """The oracle's gradient, and the same code's error in float32. One completion has one teacher, so that the step is
    put together from completions, each with its weight in the step."""
    rows = [Row(tokens=sum(sample.loss_mask), group=sample.group) for sample in samples]
    weights = [float(weight) for weight in token_weights(spec.loss.policy, rows)]
    found = []
    for model in (bench.exact, bench.rough):
        total: torch.Tensor | None = None
        for sample, weight in zip(samples, weights, strict=True):
            with torch.no_grad():
                teacher = logprobs(bench.reference, sample)
            part = step_gradient(
                model,
                [sample],
                term=spec.loss.policy,
                objective=spec.objective,
                weights=[weight],
                surrogate=surrogate(teacher, spec.objective),
            )
            total = part if total is None else total + part
        assert total is not None
        found.append(total)
    return found[0], relative_error(found[1], found[0])


def wrapped_distillation(bench: Taught) -> list[dict[str, Any]]:
    """Every aggregation and split, step by step; and how far the estimator's own advantages would be."""
    results = []
    for aggregation in CASE.aggregations:
        spec = spec_of(CASE, aggregation)
        plan = Plan(spec, PROMPTS)
        for split in ("fixed 2", "budget 40"):
            install(bench.worker, bench.orders(spec, CASE))
            probe(bench.worker)
            for index in STEPS:
                samples, members = bench.step(plan, index)
                with as_it_was(bench):
                    bench.arriving(samples, members)
                    bench.send(samples, members, index, SPLITS[split])
                meant, floor = expected(bench, spec, samples)
                plain, rough, _ = bench.expected(CASE, spec, index, samples)
                assert bench.gradient is not None
                results.append(
                    {
                        "case": aggregation,
                        "error": relative_error(bench.gradient, meant),
                        "floor": floor,
                        "norm": float(meant.norm()),
                        "plain": relative_error(bench.gradient, plain) / bar(rough),
                    }
                )
            remove(bench.worker)
    return results


def teacher_touched(bench: Bench) -> None:
    def change(native: Any, micro_batch: Any, options: dict[str, Any]) -> Any:
        micro_batch["teacher_logprobs"].values().add_(0.05)
        return native(micro_batch, **options)

    if last_rank(bench):
        forward(bench, change)


def tampered_distillation(bench: Taught, tamper: Callable[[Bench], None]) -> dict[str, Any]:
    spec, said, before = spec_of(CASE, "token_mean"), "", bench.updates
    install(bench.worker, bench.orders(spec, CASE))
    try:
        samples, members = bench.step(Plan(spec, PROMPTS), TAMPERED)
        with as_it_was(bench):
            bench.arriving(samples, members)
            tamper(bench)
            bench.send(samples, members, TAMPERED, SPLITS["fixed 1"])
    except BatchDrift as drift:
        said = str(drift)
    finally:
        remove(bench.worker)
    return {"said": said, "updates": bench.updates - before}


def distillation(folder: Path) -> dict[str, Any]:
    """Everything that is measured of a teacher."""
    bench = Taught(folder)
    return {
        "wrapped": wrapped_distillation(bench),
        "tampering": {
            "nothing": tampered_distillation(bench, lambda bench: None),
            "the teacher": tampered_distillation(bench, teacher_touched),
        },
    }
