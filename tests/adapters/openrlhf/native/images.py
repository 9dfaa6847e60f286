"""What `test_images_openrlhf` runs, one process per rank: `gradients.py`'s trainer with a policy that reads images, of
which each prompt has one, or on one rank some have none; and ways to show it others.

    torchrun --nproc_per_node 2 images.py FOLDER
"""

from __future__ import annotations

import copy
import dataclasses
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gradients
import torch
from gradients import CASES, GROUP, KL_COEFFICIENT, PROMPTS, Bench, spec_of
from seeing import GRIDS, freeze, image_of, positions, save, seeing_policy, with_image
from tampering import Run, _of_experience

from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.kit.patches import Patches
from batchbridge.meaning.plan import Plan
from batchbridge.testing.oracle import Sample, advantages, double, entropies, logprobs, relative_error
from batchbridge.testing.tiny import ScriptedRollouts, tiny_tokenizer
from batchbridge_on_cpu.leaving import leave
from batchbridge_on_cpu.openrlhf import workers
from batchbridge_openrlhf.answers import mark
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


BLIND = frozenset({1, 4})
"""Prompts without an image, where some have none."""
SOME_BLIND: dict[str, tuple[int, str, bool]] = {
    "some without": (2, "fixed 2", False),
    "some without, ZeRO-1": (1, "budget 60", False),
}


def runs(ranks: int) -> dict[str, tuple[int, str, bool]]:
    """On several ranks, and under ZeRO-3, a run in which some prompts have no image is refused."""
    return RUNS if ranks > 1 else {**RUNS, **SOME_BLIND}


def _gradient(trainer: Any) -> torch.Tensor:
    """As `workers.full_gradient`, of what is trained."""
    from deepspeed.utils import safe_get_full_grad

    trained = [p for p in trainer.actor.model.module.parameters() if p.requires_grad]
    return torch.cat([safe_get_full_grad(p).double().flatten() for p in trained])


def _experience(sample: Sample, member: Any, **options: Any) -> Any:
    made = workers.experience(sample, member, **options)
    shown = image_of(sample.group) if "pixel_values" in sample.inputs else None
    made.mm_train_inputs = [shown]
    start, trained = len(sample.prompt), [place for place, one in enumerate(sample.loss_mask) if one]
    answer = {
        "observation_tokens": [*sample.prompt, *sample.completion],
        "action_ranges": [(start + place, start + place + 1) for place in trained],
        "mm_train_inputs": shown,
    }
    return mark(made, answer)


gradients.full_gradient, gradients.experience = _gradient, _experience


class Seeing(Bench):
    """Completions of prompts with images, and the oracle's answers; `frozen`: without the vision tower's gradient.
    blind: prompts without one."""

    def __init__(self, folder: Path, policy: Path, *, frozen: bool, blind: frozenset[int] = frozenset()) -> None:
        self.folder, self.saved, self.blind = folder, policy, blind
        self.script, self.tokenizer = ScriptedRollouts(), tiny_tokenizer()
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
        words = self.tokenizer(self.script.prompt(prompt))["input_ids"]
        tokens = words if prompt in self.blind else with_image(prompt, words)
        rewards = [self.script.reward(prompt, other) for other in range(GROUP)]
        places = positions(prompt, len(tokens) + len(completion))
        made = Sample(
            prompt=tokens,
            completion=completion,
            loss_mask=self.script.loss_mask(prompt, number),
            group=prompt,
            advantage=advantages(rewards, GROUP, gradients._rule())[number],
            inputs={} if prompt in self.blind else {**image_of(prompt), "position_ids": places},
        )
        with torch.no_grad():
            made = dataclasses.replace(made, old_logprobs=logprobs(self.behind, made))
        if prompt in self.blind:
            return made
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


@_of_experience
def pixels(experience: Any) -> None:
    """The images of a micro-batch are brighter, and of the same sizes."""
    shown = experience.mm_train_inputs
    experience.mm_train_inputs = [{**one, "pixel_values": one["pixel_values"] + 0.5} for one in shown]


@_of_experience
def none(experience: Any) -> None:
    """Nothing is shown: the tokens of images are read as words."""
    experience.mm_train_inputs = []


@_of_experience
def order(experience: Any) -> None:
    """A completion is shown the next one's image, which has as many tokens."""
    experience.mm_train_inputs = [image_of(GRIDS.index(_grid(one)) + len(GRIDS)) for one in experience.mm_train_inputs]


def _grid(shown: Mapping[str, Any]) -> tuple[int, int]:
    _, high, wide = shown["image_grid_thw"][0].tolist()
    return high, wide


def buffered(run: Run) -> None:
    """Completions come to the replay buffer with another prompt's image of their size."""
    append = run.trainer.replay_buffer.append

    def other(experience: Any) -> None:
        if run.mine and run.now:
            (shown,) = experience.mm_train_inputs
            experience.mm_train_inputs = [image_of(GRIDS.index(_grid(shown)) + len(GRIDS))]
        append(experience)

    run.patches.set(run.trainer.replay_buffer, "append", other, what="tampered with", why="control")


WAYS: Mapping[str, tuple[Callable[[Run], None], str]] = {
    # name: (what tampers, the aspect of the `BatchDrift` that stops it)
    "pixels": (pixels, "gradient"),
    "no image": (none, "gradient"),
    "another prompt's image": (order, "gradient"),
    "image in the buffer": (buffered, "membership"),
}


TAMPERED = {1: 2, 2: 3}
"""Ranks -> ZeRO stage under which a run is tampered with."""


def tampered(folder: Path, policy: Path, zero: int) -> dict[str, list[dict[str, Any]]]:
    """Of each way to tamper with step 3 on the last rank, or on all: what every rank was told, and how many updates it
    applied."""
    bench, found = Seeing(folder, policy, frozen=False), {}
    trainer = bench.trainer(zero, dynamic=False)
    spec, engine = spec_of(CASES["token_mean"], "fixed 2"), trainer.actor.model
    plan, applied = Plan(spec, PROMPTS), set()
    counting = engine.optimizer.optimizer.register_step_pre_hook(lambda *_: applied.add(engine.global_steps))
    for name, way in {**{name: way for name, (way, _) in WAYS.items()}, "nobody": lambda run: None}.items():
        engine.global_steps = 0  # a run of its own
        install(trainer, bench.orders(spec))
        patches = Patches()
        # One rank that does not run the vision tower leaves the others waiting for it under ZeRO-3.
        way(Run.of(trainer, patches, mine=bench.rank == bench.ranks - 1 or name == "no image"))
        applied.clear()
        told = {"step": -1, "aspect": "", "detail": "trained to its end"}
        try:
            for rollout in range(2):
                bench.fill(trainer, plan, rollout)
                bench.run(trainer, 0.0)
        except BatchDrift as drift:
            told = {"step": drift.step, "aspect": drift.aspect, "detail": str(drift)}
        finally:
            patches.undo()
            gradients.clean(trainer)
        found[name] = {**told, "applied": len(applied)}
    counting.remove()
    everyone: list[Any] = [None] * bench.ranks
    torch.distributed.all_gather_object(everyone, found)
    return {name: [one[name] for one in everyone] for name in found}


def refused(folder: Path, policy: Path, zero: int) -> list[str]:
    """What every rank is told of a run in which some prompts have no image."""
    bench = Seeing(folder, policy, frozen=False, blind=BLIND)
    trainer, spec = bench.trainer(zero, dynamic=False), spec_of(CASES["token_mean"], "fixed 2")
    install(trainer, bench.orders(spec))
    told = "trained"
    try:
        for rollout in range(2):
            bench.fill(trainer, Plan(spec, PROMPTS), rollout)
            bench.run(trainer, 0.0)
    except CannotAttach as refusal:
        told = refusal.reasons.get("images", str(refusal))
    everyone: list[Any] = [None] * bench.ranks
    torch.distributed.all_gather_object(everyone, told)
    return everyone


def of_the_tower(folder: Path, policy: Path, zero: int) -> dict[str, list[float]]:
    """Norms of the vision tower's gradients in the unwrapped steps of a rollout with images, and of the next one, which
    has none."""
    plan = Plan(spec_of(CASES["token_mean"], "fixed 2"), PROMPTS)
    bench = Seeing(folder, policy, frozen=False, blind=frozenset(plan.rollout(1).prompts))
    bench.script = dataclasses.replace(bench.script, empty=frozenset())  # alone, each micro-batch must have a token
    trainer, found = bench.trainer(zero, dynamic=False), {}
    install(trainer, bench.orders(plan.spec, "observe"))
    parameters = dict(trainer.actor.model.module.named_parameters())
    sizes = [getattr(one, "ds_numel", one.numel()) for one in parameters.values()]
    for rollout, name in enumerate(("with images", "without")):
        bench.fill(trainer, plan, rollout)
        bench.run(trainer, 0.0)
        parts = [dict(zip(parameters, gradient.split(sizes), strict=True)) for gradient in bench.gradients]
        found[name] = [sum(float(one.norm()) for key, one in part.items() if "visual" in key) for part in parts]
    remove(trainer)
    return found


def trained(folder: Path, policy: Path, name: str, ranks: int) -> list[dict[str, float]]:
    """Every step's error over the bar, against the oracle and against the oracle that is shown other images."""
    zero, split, frozen = runs(ranks)[name]
    bench = Seeing(folder, policy, frozen=frozen, blind=BLIND if name in SOME_BLIND else frozenset())
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
            {
                "with": relative_error(gradient, expected) / bar,
                "without": relative_error(gradient, other) / bar,
                "images": float(any(prompt not in bench.blind for prompt, _ in members)),
            }
        )
    return results


def main(folder: Path) -> None:
    policy = folder / f"policy-{os.environ.get('RANK', 0)}"  # every rank its own: nobody waits for a file
    save(policy)
    ranks = int(os.environ.get("WORLD_SIZE", 1))
    found: dict[str, Any] = {name: trained(folder, policy, name, ranks) for name in runs(ranks)}
    found["tampered"] = tampered(folder, policy, TAMPERED[ranks])
    found["refused"] = refused(folder, policy, 2 if ranks > 1 else 3)
    if ranks == 1:
        found["tower"] = {zero: of_the_tower(folder, policy, zero) for zero in (1, 2, 3)}
    if int(os.environ.get("RANK", 0)) == 0:
        torch.save(found, folder / "measured.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
