"""What `test_critic_openrlhf` runs, one process per rank: OpenRLHF's real `CriticPPOTrainer` under DeepSpeed, and its
`ActorPPOTrainer` with advantages of single tokens, as GAE gives them.

    torchrun --nproc_per_node 2 critics.py FOLDER [packed]

Rank 0 leaves what it measured in FOLDER/measured.pt; the comparing process asserts. packed: samples are packed
(`ds.packing_samples`), with torch's own attention (sdpa).
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradients
import torch
from critic_oracle import CLIP, clipped, ppo, value_gradient, values
from critic_tampering import LOSSES, WAYS
from gradients import CASES, GROUP, PROMPTS, Bench, _moved, clean, spec_of
from tampering import Run

from batchbridge.contract.reading import Mode
from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.kit.patches import Patches
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Spec
from batchbridge.testing.oracle import Sample, double, relative_error, step_gradient
from batchbridge.testing.snapshots import watched
from batchbridge_on_cpu.leaving import leave
from batchbridge_on_cpu.openrlhf.workers import (
    critic_trainer,
    experience,
    full_gradient,
    plain_critic,
    save_critic,
    save_policy,
)
from batchbridge_openrlhf.critic import critics_orders
from batchbridge_openrlhf.critic_engine import OpenRlhfCriticLayer
from batchbridge_openrlhf.engine import install, remove
from batchbridge_openrlhf.inputs import mark_sent
from batchbridge_openrlhf.turns import IDENTITY

CRITIC = {
    "critic.adam.lr": 0.0,
    "critic.max_norm": 0.0,
    "critic.lr_scheduler": "constant",
    "critic.lr_warmup_ratio": 0.0,
}
PACKED: dict[str, Any] = {"ds.packing_samples": True, "ds.attn_implementation": "sdpa"}
TRAINERS: tuple[tuple[int, bool, tuple[str, ...]], ...] = (
    # ZeRO stage, the trainer's own dynamic batches, splits
    (2, False, ("fixed 1", "fixed 8", "budget 24")),
    (1, True, ("budget 60",)),
    (3, True, ("budget 24",)),
)


class CriticBench(Bench):
    """The completions, with values and returns, and the oracle's answers."""

    def __init__(self, folder: Path, policy: Path, critic: Path) -> None:
        super().__init__(folder, policy)
        self.critic = critic
        plain = plain_critic(critic)
        self.before = _moved(plain, 3, 0.05)
        """The critic that scored the rollout."""
        self.exact_critic, self.rough_critic = double(plain), plain.eval()

    def trainer(self, zero: int, dynamic: bool) -> Any:
        settings = {name: value for name, value in gradients.SHARED.items() if not name.startswith("actor.")} | {
            **CRITIC,
            "ds.zero_stage": zero,
            "train.dynamic_batch_enable": dynamic,
            "critic.value_clip": CLIP,
        }
        made = critic_trainer(self.critic, steps=10, **settings)
        self.rank, self.ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
        engine = made.critic
        # As `gradients` and `tampering` name a trainer's parts.
        made.actor, made.actor_loss_fn = SimpleNamespace(model=engine), made.critic_loss_fn

        def keep(*arguments: Any, **options: Any) -> None:
            if engine.is_gradient_accumulation_boundary():
                self.gradients.append(full_gradient(made))

        engine.step = watched(engine.step, keep)
        return made

    def policy_trainer(self, zero: int, dynamic: bool) -> Any:
        return super().trainer(zero, dynamic)

    def scored(self, prompt: int, number: int) -> tuple[Sample, torch.Tensor, torch.Tensor]:
        """A completion, its values before the rollout's training, and its returns."""
        sample = self.sample(prompt, number)
        with torch.no_grad():
            old = values(self.before, sample)
        generator = torch.Generator().manual_seed(97 * prompt + number)
        return sample, old, old + 0.6 * torch.randn(old.shape, generator=generator)

    def fill(
        self,
        trainer: Any,
        plan: Plan,
        rollout: int,
        *,
        owner_of: Callable[[int], int] | None = None,
        silent: bool = False,
    ) -> None:
        for position, prompt in enumerate(plan.rollout(rollout).prompts):
            for number in range(GROUP):
                if (owner_of or self.unevenly)(position * GROUP + number) != self.rank:
                    continue
                sample, old, returns = self.scored(prompt, number)
                if silent:
                    sample = dataclasses.replace(sample, loss_mask=[0] * len(sample.completion))
                made = experience(sample, (rollout, prompt, position, number))
                start = len(sample.prompt) - 1
                for name, column in (("values", old), ("returns", returns), ("advantages", returns - old)):
                    padded = torch.zeros(1, made.action_mask.shape[1])
                    padded[0, start:] = column
                    setattr(made, name, padded * made.action_mask)
                mark_sent(made)
                trainer.replay_buffer.append(made)

    def run(self, trainer: Any, coefficient: float = 0.0) -> None:
        self.gradients.clear()
        trainer.ppo_train(*(() if hasattr(trainer, "critic") else (coefficient,)))
        trainer.replay_buffer.clear()

    def critic_orders(self, spec: Spec, mode: Any = "enforce", **more: Any) -> Any:
        return critics_orders(self.orders(spec, mode, **more))

    def expected_values(self, members: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, float, float]:
        """The oracle's gradient of a step of the critic, the same code's error in float32, and the share of tokens
        whose value is clipped."""
        key = "critic", tuple(sorted(members))
        if key not in self.answers:
            rows = [self.scored(*member) for member in sorted(members)]
            exact, rough = (value_gradient(model, rows) for model in (self.exact_critic, self.rough_critic))
            self.answers[key] = exact, relative_error(rough, exact), clipped(self.rough_critic, rows)
        return self.answers[key]

    def expected_policy(self, members: Sequence[tuple[int, int]]) -> tuple[torch.Tensor, float, float]:
        """The oracle's gradient of a step of the policy, whose advantages are of single tokens."""
        key = "gae", tuple(sorted(members))
        if key not in self.answers:
            samples = []
            for member in sorted(members):
                sample, old, returns = self.scored(*member)
                samples.append(dataclasses.replace(sample, advantage=returns - old))  # of each token
            case = CASES["token_mean"]
            exact, rough = (
                step_gradient(model, samples, term=case.term, objective=case.objective, surrogate=ppo)
                for model in (self.exact, self.rough)
            )
            self.answers[key] = exact, relative_error(rough, exact), 0.0
        return self.answers[key]


def members_of(plan: Plan, step: int) -> list[tuple[int, int]]:
    return [(member.prompt, member.sample) for member in plan.step(step).members]


def wrapped(bench: CriticBench, trainer: Any, zero: int, dynamic: bool, splits: Sequence[str]) -> list[dict[str, Any]]:
    """Every split, step by step, two rollouts, of the critic or, without one, of the policy."""
    critic, results = hasattr(trainer, "critic"), []
    for split in splits:
        spec = critic_spec(split)
        plan = Plan(spec, PROMPTS)
        if critic:
            install(trainer, bench.critic_orders(spec), OpenRlhfCriticLayer)
        else:
            install(trainer, bench.orders(spec, settings=CASES["token_mean"].loss))
        found = []
        for rollout in range(2):
            bench.fill(trainer, plan, rollout)
            bench.run(trainer)
            found += bench.gradients
        remove(trainer)
        assert len(found) == plan.total_optimizer_steps == 6, len(found)
        for index, gradient in enumerate(found):
            expected, floor, off = (bench.expected_values if critic else bench.expected_policy)(members_of(plan, index))
            results.append(
                {
                    "of": "critic" if critic else "policy",
                    "trainer": f"ZeRO-{zero}{', dynamic' if dynamic else ''}",
                    "split": split,
                    "step": index,
                    "error": relative_error(gradient, expected),
                    "floor": floor,
                    "clipped": off,
                    "norm": float(expected.norm()),
                }
            )
    return results


def critic_spec(split: str, **changes: Any) -> Spec:
    """The run of `gradients`, with a critic."""
    from batchbridge.meaning.critic import Critic

    critic = Critic(completions_per_step=None, aggregation="token_mean", value_clip=CLIP)
    return dataclasses.replace(spec_of(CASES["token_mean"], split), critic=critic).replace(**changes)


def natively(bench: CriticBench, trainer: Any, alter: Callable[[Any, Patches], None] | None = None) -> float:
    """The unwrapped critic's first step: error over the bar, by the canonical weights of the rows of its first step.
    Rows are the plan's, in its order; the trainer's loader shuffles where batches are fixed, so that the step is the
    whole rollout's mean there."""
    patches, plan = Patches(), Plan(critic_spec("fixed 2"), PROMPTS)
    if alter is not None:
        alter(trainer, patches)
    seen: list[tuple[int, int]] = []
    bench.fill(trainer, plan, 0, owner_of=bench.natively)
    native = trainer.replay_buffer.collate_fn

    def collate(batch: Any) -> Any:
        items = batch[0] if trainer.replay_buffer.dynamic_batch else batch
        made = native(batch)
        made.members = SimpleNamespace(of=[tuple(int(value) for value in item.info[IDENTITY]) for item in items])
        return made

    step = trainer.training_step

    def training_step(made: Any, *given: Any) -> Any:
        if not bench.gradients:
            seen.extend((prompt, sample) for _, prompt, _, sample, _ in made.members.of)
        return step(made, *given)

    patches.set(trainer.replay_buffer, "collate_fn", collate, what="rows are told apart", why="control")
    patches.set(trainer, "training_step", training_step, what="rows are told apart", why="control")
    torch.manual_seed(3)  # of the loader's shuffle
    bench.run(trainer)
    patches.undo()
    everyone: list[Any] = [None] * bench.ranks
    torch.distributed.all_gather_object(everyone, seen)
    expected, floor, _ = bench.expected_values([member for rank in everyone for member in rank])
    return relative_error(bench.gradients[0], expected) / max(1e-6, 3 * floor)


def own_mean(trainer: Any, patches: Patches) -> None:
    """A value loss that is averaged over the tokens of its micro-batch, as releases before 0.10.4 do (BB-ORL-047)."""
    native = trainer.critic_loss_fn.forward

    def alone(*given: Any, action_mask: Any, **options: Any) -> Any:
        return native(*given, action_mask=action_mask)

    patches.set(trainer.critic_loss_fn, "forward", alone, what="its own mean", why="control")


def refused(bench: CriticBench, trainer: Any) -> dict[str, str]:
    """What `install` says of losses that weigh otherwise than the plan."""
    said = {}
    for name, alter in LOSSES.items():
        patches = Patches()
        alter(trainer, patches)
        try:
            install(trainer, bench.critic_orders(critic_spec("fixed 2")), OpenRlhfCriticLayer)
            said[name] = "accepted"
            remove(trainer)
        except CannotAttach as refusal:
            said[name] = " ".join(refusal.reasons)
        finally:
            patches.undo()
    return said


def attached(bench: CriticBench, trainer: Any) -> dict[str, list[str]]:
    """The names of what `install` has against measuring the trainer's own steps, by mode."""
    said: dict[str, list[str]] = {}
    modes: tuple[Mode, ...] = ("observe", "verify")
    for mode in modes:
        try:
            install(trainer, bench.critic_orders(critic_spec("fixed 2"), mode), OpenRlhfCriticLayer)
            said[mode] = []
        except CannotAttach as refusal:
            said[mode] = list(refusal.reasons)
        finally:
            remove(trainer)
    return said


def tampered(bench: CriticBench, trainer: Any, mode: Mode = "enforce") -> dict[str, dict[str, Any]]:
    """Of each way to tamper with step 3: what this rank was told, where, and how many updates were applied.

    Verified, the native run's steps of 6 completions have the plan's members; see `gradients.tampered`.
    """
    spec, found, script = critic_spec("fixed 2"), {}, bench.script
    if mode == "verify":
        spec = spec.replace(**{"optimizer_step.completions_per_step": 6})
        bench.script = dataclasses.replace(script, empty=frozenset())
    owner_of = bench.by_steps if mode == "verify" else None
    plan, applied, engine = Plan(spec, PROMPTS), set(), trainer.critic
    ways = {**{name: way for name, (way, _) in WAYS.items()}, "nobody": lambda run: None}
    counting = engine.optimizer.optimizer.register_step_pre_hook(lambda *_: applied.add(engine.global_steps))
    for name, way in ways.items():
        engine.global_steps = 0  # a run of its own
        install(trainer, bench.critic_orders(spec, mode), OpenRlhfCriticLayer)
        patches = Patches()
        way(Run.of(trainer, patches, mine=bench.rank == bench.ranks - 1))
        applied.clear()
        told = {"step": -1, "aspect": "", "detail": "trained to its end"}
        try:
            for rollout in range(2):
                bench.fill(trainer, plan, rollout, owner_of=owner_of)
                bench.run(trainer)
        except BatchDrift as drift:
            told = {"step": drift.step, "aspect": drift.aspect, "detail": str(drift)}
        finally:
            patches.undo()
            clean(trainer)
        found[name] = {**told, "applied": len(applied)}
    counting.remove()
    bench.script = script
    everyone: list[Any] = [None] * bench.ranks
    torch.distributed.all_gather_object(everyone, found)
    return {name: {"ranks": [one[name] for one in everyone]} for name in ways}


def main(folder: Path, *flags: str) -> None:
    if "packed" in flags:
        gradients.SHARED.update(PACKED)
    rank = os.environ.get("RANK", 0)  # every rank its own files: nobody waits for one
    policy, critic = folder / f"policy-{rank}", folder / f"critic-{rank}"
    save_policy(policy)
    save_critic(policy, critic)
    bench = CriticBench(folder, policy, critic)
    found: dict[str, Any] = {"wrapped": [], "natively": {}, "natively attached": {}}
    for zero, dynamic, splits in TRAINERS:
        trainer = bench.trainer(zero, dynamic)
        name = f"ZeRO-{zero}{', dynamic' if dynamic else ''}"
        found["natively"][name] = natively(bench, trainer)
        found["natively attached"][name] = attached(bench, trainer)
        if not dynamic:
            found["natively"]["own mean"] = natively(bench, trainer, own_mean)
        found["wrapped"] += wrapped(bench, trainer, zero, dynamic, splits)
        if zero == 2:
            found["refused"] = refused(bench, trainer)
            found["tampered"] = {"enforce": tampered(bench, trainer)}
        if zero == 3:
            found["tampered"]["verify"] = tampered(bench, trainer, "verify")
        del trainer
    trainer = bench.policy_trainer(2, False)
    found["wrapped"] += wrapped(bench, trainer, 2, False, ("fixed 2", "budget 24"))
    if bench.rank == 0:
        torch.save(found, folder / "measured.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
