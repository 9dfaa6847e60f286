"""What `test_images_openrlhf` runs, one process per rank: `gradients.py`'s trainer with a policy that reads images, of
which each prompt has one.

    torchrun --nproc_per_node 2 images.py FOLDER
"""

from __future__ import annotations

import copy
import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import gradients
import torch
from gradients import CASES, GROUP, KL_COEFFICIENT, PROMPTS, Bench, spec_of
from seeing import GRIDS, freeze, image_of, positions, save, seeing_policy, with_image

from batchbridge.kit.patches import Patches
from batchbridge.meaning.plan import Plan
from batchbridge.testing.leaving import leave
from batchbridge.testing.oracle import Sample, advantages, double, entropies, logprobs, relative_error
from batchbridge.testing.tiny import Script, tiny_tokenizer
from batchbridge_on_cpu.openrlhf import workers
from batchbridge_openrlhf.engine import install, remove

CASE = CASES["sequence_mean, k2 and entropy"]
RUNS: dict[str, tuple[int, str, bool]] = {
    # name: ZeRO stage, split, whether the vision tower is frozen
    "one completion": (2, "fixed 1", False),
    "eight completions": (2, "fixed 8", False),
    "token budgets": (1, "budget 60", False),
    "frozen": (2, "fixed 2", True),
    "frozen, ZeRO-3": (3, "fixed 2", True),
    "ZeRO-3": (3, "budget 60", False),
}


def runs(ranks: int) -> list[str]:
    """Under ZeRO-3 on several ranks the tower's weights are not always loaded; see the refusal `images`."""
    return [name for name, (zero, _, _) in RUNS.items() if zero < 3 or ranks == 1]


def _gradient(trainer: Any) -> torch.Tensor:
    """As `workers.full_gradient`, of what is trained."""
    from deepspeed.utils import safe_get_full_grad

    trained = [p for p in trainer.actor.model.module.parameters() if p.requires_grad]
    return torch.cat([safe_get_full_grad(p).double().flatten() for p in trained])


def _experience(sample: Sample, member: Any, **options: Any) -> Any:
    made = workers.experience(sample, member, **options)
    made.mm_train_inputs = [image_of(sample.group)]
    return made


gradients.full_gradient, gradients.experience = _gradient, _experience


class Seeing(Bench):
    """Completions of prompts with images, and the oracle's answers; `frozen`: without the vision tower's gradient."""

    def __init__(self, folder: Path, policy: Path, *, frozen: bool) -> None:
        self.folder, self.saved = folder, policy
        self.script, self.tokenizer = Script(), tiny_tokenizer()
        self.policy = seeing_policy()
        if frozen:
            freeze(self.policy)
        self.behind, self.reference = (
            gradients._moved(self.policy, 1, 0.015),
            gradients._moved(self.policy, 2, 0.01),
        )
        self.exact, self.rough = double(self.policy), copy.deepcopy(self.policy).eval()
        self.gradients: list[torch.Tensor] = []
        self.answers: dict[Any, tuple[torch.Tensor, float, float]] = {}
        self.shown: dict[int, int] = {}
        """Prompts that the oracle shows another image of the same size: the control."""

    def sample(self, prompt: int, number: int) -> Sample:
        completion = self.script.completion(prompt, number)
        tokens = with_image(prompt, self.tokenizer(self.script.prompt(prompt))["input_ids"])
        rewards = [self.script.reward(prompt, other) for other in range(GROUP)]
        places = positions(prompt, len(tokens) + len(completion))
        made = Sample(
            prompt=tokens,
            completion=completion,
            loss_mask=self.script.loss_mask(prompt, number),
            group=prompt,
            advantage=advantages(rewards, GROUP, gradients._rule())[number],
            inputs={**image_of(prompt), "position_ids": places},
        )
        with torch.no_grad():
            made = dataclasses.replace(made, old_logprobs=logprobs(self.behind, made))
        shown = image_of(self.shown.get(prompt, prompt))
        return dataclasses.replace(made, inputs={**shown, "position_ids": places})


def entropy_gradient(model: Any, samples: Any) -> torch.Tensor:
    """The gradient of the mean of the policy's entropies over the samples' trained tokens."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = None
    total = sum(sum(sample.loss_mask) for sample in samples)
    for sample in samples:
        found = entropies(model, sample)
        ((found * found.new_tensor(list(sample.loss_mask))).sum() / total).backward()
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).flatten().clone() for p in parameters])


gradients.entropy_gradient = entropy_gradient


def trained(folder: Path, policy: Path, name: str) -> list[dict[str, float]]:
    """Every step's error over the bar, against the oracle and against the oracle that is shown other images."""
    zero, split, frozen = RUNS[name]
    bench = Seeing(folder, policy, frozen=frozen)
    patches = Patches()
    if frozen:
        from openrlhf.models import Actor

        native = Actor.__init__
        patches.set(
            Actor,
            "__init__",
            lambda self, *given, **options: native(self, *given, **options, freeze_visual_encoder=True),
            what="as PolicyModelActor builds it",
            why="actor.freeze_visual_encoder",
        )
    try:
        trainer = bench.trainer(zero, dynamic=False)
    finally:
        patches.undo()
    assert trainer.actor.is_vlm
    spec = spec_of(CASE, split)
    plan = Plan(spec, PROMPTS)
    install(trainer, bench.orders(spec, settings={**CASE.loss, KL_COEFFICIENT: CASE.coefficient}))
    found: list[torch.Tensor] = []
    for rollout in range(2):
        bench.fill(trainer, plan, rollout)
        bench.run(trainer, 0.0)
        found += bench.gradients
    remove(trainer)
    results = []
    for index, gradient in enumerate(found):
        members = [(member.prompt, member.sample) for member in plan.step(index).members]
        expected, floor, _ = bench.expected(CASE, members)
        bar = max(1e-6, 3 * floor)
        bench.answers.clear()
        bench.shown = {prompt: prompt + len(GRIDS) for prompt in range(PROMPTS)}
        other, _, _ = bench.expected(CASE, members)
        bench.answers.clear()
        bench.shown = {}
        results.append(
            {"with": relative_error(gradient, expected) / bar, "without": relative_error(gradient, other) / bar}
        )
    return results


def main(folder: Path) -> None:
    policy = folder / f"policy-{os.environ.get('RANK', 0)}"  # every rank its own: nobody waits for a file
    save(policy)
    found = {name: trained(folder, policy, name) for name in runs(int(os.environ.get("WORLD_SIZE", 1)))}
    if int(os.environ.get("RANK", 0)) == 0:
        torch.save(found, folder / "measured.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
