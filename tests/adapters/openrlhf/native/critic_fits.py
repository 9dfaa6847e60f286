"""What `test_critic_openrlhf` runs beside `critics.py`, in one process without Ray's: OpenRLHF's real `PPOTrainer.fit`
with gae on one rank, its critic trained beside the policy; see `fits`.

    python critic_fits.py FOLDER

What was measured is left in FOLDER/measured.pt.
"""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import sys
from pathlib import Path
from typing import Any

import torch
from critic_oracle import CLIP, clipped, gae, ppo, value_gradient, values, whitened
from fits import GROUP, PROMPTS, Bench, Handle, plan_of, policy_of
from packaging.version import Version
from packed_fits import DYNAMIC, PACKED

from batchbridge import wrap
from batchbridge.errors import BatchDrift, CannotAttach
from batchbridge.kit.patches import Patches
from batchbridge.ledger import read_steps
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import LossTerm, Objective
from batchbridge.testing.oracle import Sample, double, logprobs, relative_error, step_gradient
from batchbridge.testing.snapshots import watched
from batchbridge.testing.tiny import ScriptedRollouts, tiny_tokenizer
from batchbridge_on_cpu.openrlhf.workers import full_gradient, full_parameters, plain_critic, save_critic, save_policy
from batchbridge_openrlhf.critic import critics_spec
from batchbridge_openrlhf.turns import IDENTITY

GAMMA, LAMBDA = 0.95, 0.9
CRITIC: dict[str, Any] = {
    "algo.advantage.estimator": "gae",
    "algo.advantage.gamma": GAMMA,
    "algo.advantage.lambd": LAMBDA,
    "critic.value_clip": CLIP,
    "critic.adam.lr": 2e-2,
    "critic.adam.weight_decay": 0.0,
    "critic.lr_scheduler": "constant",
    "critic.lr_warmup_ratio": 0.0,
    "critic.max_norm": 0.0,
    "critic.num_gpus_per_node": 1,
}
DIVIDED_TWICE = Version(importlib.metadata.version("openrlhf")) < Version("0.11.2")
ALONE = {"train.micro_batch_size": 6 if DIVIDED_TWICE else 2}
"""Alone, each micro-batch must have a token, and where DeepSpeed divides the critic's gradients by their number twice,
several to a step are refused."""


class Seen(list[Any]):
    """A replay buffer's items; the advantages of those that come are written down."""

    def __init__(self, advantages: dict[tuple[int, ...], torch.Tensor]) -> None:
        super().__init__()
        self._advantages = advantages

    def extend(self, items: Any) -> None:
        for item in items:
            if IDENTITY in item.info:
                place = tuple(int(value) for value in item.info[IDENTITY][:4])
                self._advantages[place] = item.advantages[item.action_mask.bool()].double()
        super().extend(items)


class CriticFit(Bench):
    """A run with a critic, and what each step of the critic applied."""

    def __init__(self, folder: Path, **changes: Any) -> None:
        self.critic_gradients: list[torch.Tensor] = []
        self.critic_weights: list[torch.Tensor] = []
        self.trained: dict[tuple[int, ...], torch.Tensor] = {}
        """Of each completion, the advantages that its trained tokens came to the policy's replay buffer with."""
        path = str(folder / "critic")
        super().__init__(folder, **{**CRITIC, "critic.model_name_or_path": path, **changes})
        begin = self._start

        def start() -> None:
            begin()
            self.critic.init_model_from_pretrained(self.strategy, path, self.trainer.max_steps)
            engine, trainer = self.critic.trainer.critic, self.critic.trainer

            def keep(*given: Any, **options: Any) -> None:
                if engine.is_gradient_accumulation_boundary():
                    self.critic_weights.append(full_parameters(trainer))
                    self.critic_gradients.append(full_gradient(trainer))

            engine.step = watched(engine.step, keep)
            self.worker.trainer.replay_buffer.items = Seen(self.trained)

        self._start = start

    def critic_group(self) -> Any:
        from openrlhf.trainer.ray.launcher import RayActorGroup
        from openrlhf.trainer.ray.ppo_critic import CriticModelActor

        self.critic = object.__new__(CriticModelActor.__ray_metadata__.modified_class)
        group = object.__new__(RayActorGroup)
        group._actor_handlers, group.duplicate_actors = [Handle(self.critic)], 1
        return group

    def fit(self) -> CriticFit:
        super().fit()
        self.critic_weights.append(full_parameters(self.critic.trainer))
        return self


class Oracle:
    """The same run in plain torch, from the weights that it had."""

    def __init__(self, bench: CriticFit, plan: Plan, folder: Path, *, rough: bool) -> None:
        self.bench, self.plan, self.rough = bench, plan, rough
        self.critics = Plan(critics_spec(plan.spec), plan.dataset_size)
        self.script, self.tokenizer, self.plain = ScriptedRollouts(), tiny_tokenizer(), plain_critic(folder / "critic")
        self.rollouts: dict[int, dict[tuple[int, int], tuple[Sample, torch.Tensor, torch.Tensor]]] = {}

    def policy(self, step: int) -> Any:
        made = policy_of(self.bench.weights[step])
        return made.float() if self.rough else made

    def critic(self, step: int) -> Any:
        made, start = double(self.plain), 0
        with torch.no_grad():
            for parameter in made.parameters():
                count = parameter.numel()
                parameter.copy_(self.bench.critic_weights[step][start : start + count].view_as(parameter))
                start += count
        return made.float() if self.rough else made

    def rollout(self, index: int) -> dict[tuple[int, int], tuple[Sample, torch.Tensor, torch.Tensor]]:
        """(prompt, sample) -> the completion with its tokens' advantages, its values and its returns."""
        if index in self.rollouts:
            return self.rollouts[index]
        planned = self.plan.rollout(index)
        policy = self.policy(planned.generated_at_step)
        critic = self.critic(self.critics.rollout(index).generated_at_step)
        rows, found = [], {}
        for prompt in planned.prompts:
            for number in range(GROUP):
                sample = Sample(
                    prompt=self.tokenizer(self.script.prompt(prompt), add_special_tokens=False)["input_ids"],
                    completion=self.script.completion(prompt, number),
                    loss_mask=self.script.loss_mask(prompt, number),
                    group=prompt,
                    advantage=0.0,
                )
                with torch.no_grad():
                    old, before = values(critic, sample), logprobs(policy, sample)
                count = sum(sample.loss_mask)
                reward = self.script.reward(prompt, number)
                own = gae(old[:count], reward, gamma=GAMMA, lambda_=LAMBDA)
                rows.append(((prompt, number), dataclasses.replace(sample, old_logprobs=before), old, own))
        for (place, sample, old, own), scaled in zip(rows, whitened([row[-1] for row in rows]), strict=True):
            advantage, returns = torch.zeros_like(old), old.clone()
            advantage[: len(own)], returns[: len(own)] = scaled, old[: len(own)] + own
            found[place] = dataclasses.replace(sample, advantage=advantage), old, returns
        self.rollouts[index] = found
        return found

    def rows(self, plan: Plan, index: int) -> list[tuple[Sample, torch.Tensor, torch.Tensor]]:
        return [self.rollout(member.rollout)[member.prompt, member.sample] for member in plan.step(index).members]

    def policys(self, index: int, of: Plan | None = None) -> torch.Tensor:
        """The gradient of the policy's step. of: the plan that says its completions, in place of the policy's."""
        return step_gradient(
            self.policy(index),
            [sample for sample, _, _ in self.rows(of or self.plan, index)],
            term=LossTerm(aggregation="token_mean"),
            objective=Objective(),
            surrogate=ppo,
        )

    def critics_step(self, index: int) -> tuple[torch.Tensor, float]:
        """The gradient of the critic's step, and the share of values that are clipped."""
        rows, critic = self.rows(self.critics, index), self.critic(index)
        return value_gradient(critic, rows), clipped(critic, rows)


def against_the_oracle(bench: CriticFit, ledger: Path, folder: Path) -> dict[str, Any]:
    """Each step's gradients, and every token's advantage, against what the plan says."""
    plan = plan_of(ledger)
    exact, rough = (Oracle(bench, plan, folder, rough=rough) for rough in (False, True))
    policys, critics = [], []
    assert len(bench.gradients) == plan.total_optimizer_steps
    assert len(bench.critic_gradients) == exact.critics.total_optimizer_steps
    for index, recorded in enumerate(read_steps(ledger)):
        expected, floor = exact.policys(index), rough.policys(index)
        policys.append(
            {
                "error": relative_error(bench.gradients[index], expected),
                "floor": relative_error(floor, expected),
                "norm": float(expected.norm()),
                "planned": _as_planned(recorded, plan, index),
            }
        )
    for index, recorded in enumerate(read_steps(ledger / "critic")):
        (expected, off), (floor, _) = exact.critics_step(index), rough.critics_step(index)
        tokens = sum(recorded["response_tokens"])
        rows = zip(recorded["weights"], recorded["response_tokens"], strict=True)
        weighed = all(weight is None or abs(weight * tokens - bool(count)) < 1e-5 for weight, count in rows)
        critics.append(
            {
                "error": relative_error(bench.critic_gradients[index], expected),
                "floor": relative_error(floor, expected),
                "norm": float(expected.norm()),
                "clipped": off,
                "planned": _as_planned(recorded, exact.critics, index) and weighed,
            }
        )
    apart = []
    for (rollout, prompt, _, number), found in bench.trained.items():
        sample, _, _ = exact.rollout(rollout)[prompt, number]
        apart.append(float((found - sample.advantage[: len(found)]).abs().max()) if len(found) else 0.0)
    return {"policy": policys, "critic": critics, "advantages": max(apart), "completions": len(apart)}


def _as_planned(recorded: Any, plan: Plan, index: int) -> bool:
    columns = (recorded[name] for name in ("rollout", "pass", "prompt", "sample"))
    trained = sorted(zip(*columns, strict=True))
    return recorded["step"] == index and trained == sorted(tuple(member) for member in plan.step(index).members)


def enforced(folder: Path, name: str, asked: dict[str, Any] | None = None, **changes: Any) -> tuple[CriticFit, Path]:
    """A run on its own configuration, or on a specification that differs by `asked`."""
    bench, ledger = CriticFit(folder, **changes), folder / name
    like = None
    if asked is not None:
        from batchbridge.reading.read import read

        own = read(bench.trainer, framework="openrlhf").spec
        assert own is not None
        like = own.replace(**asked)
    wrap(bench.trainer, like, ledger=ledger)
    bench.fit()
    return bench, ledger


WARMUP = {"critic.freezing_steps": 0}
"""One rollout on which the critic trains alone."""


def warmed_up(folder: Path) -> dict[str, Any]:
    """A run with a warm-up: against the oracle, and against one that trains the policy on the warm-up, too; where it
    ends, also asked for by a specification, resumed behind the warm-up, and unwrapped."""
    kept = {"ckpt.path": str(folder / "warmed"), "ckpt.save_steps": 1, "ckpt.max_num": 9}
    bench, ledger = enforced(folder, "warmup", **WARMUP, **kept)
    found = against_the_oracle(bench, ledger, folder)
    oracle = Oracle(bench, plan_of(ledger), folder, rough=False)
    found |= {
        "instead": [
            relative_error(gradient, oracle.policys(step, of=oracle.critics))
            for step, gradient in enumerate(bench.gradients)
        ],
        "rollouts": [sorted({*step["rollout"]}) for step in read_steps(ledger)],
        "critic's rollouts": [sorted({*step["rollout"]}) for step in read_steps(ledger / "critic")],
    }
    ends = {"own": bench}
    ends["asked for"], _ = enforced(folder, "asked", {"critic.warmup_rollouts": 1})
    for name in ("_actor", "_critic"):
        (folder / "warmed" / name / "latest").write_text("global_step1", encoding="utf-8")
    ends["resumed"], resumed = enforced(folder, "resumed", **WARMUP, **kept, **{"ckpt.load_enable": True})
    found["resumed"] = [step["step"] for step in read_steps(resumed)]
    alone = CriticFit(folder, **WARMUP, **ALONE)
    wrap(alone.trainer, mode="observe", ledger=folder / "kept")
    ends["alone"] = alone.fit()
    found["alone"] = [sorted({*step["rollout"]}) for step in read_steps(folder / "kept")]
    found["ends"] = {name: {"policy": one.weights[-1], "critic": one.critic_weights[-1]} for name, one in ends.items()}
    found["begin"] = {"policy": bench.weights[0], "critic": bench.critic_weights[0]}
    found["warm"] = bench.critic_weights[2]
    return found


def trained_too_early(folder: Path) -> list[str]:
    """What ends a run whose policy is trained in the warm-up, and one whose policy gets the warm-up's completions; and
    how many of the policy's updates came before."""
    said = []
    for way in ("policy", "rows"):
        bench = CriticFit(folder, **WARMUP)
        wrap(bench.trainer)
        if way == "policy":
            bench.trainer.args.critic.freezing_steps = -1
        else:
            native = bench.critic.append

            def both(experience: Any, native: Any = native, bench: Any = bench) -> None:
                if not bench.critic_gradients:
                    bench.worker.append(experience)
                native(experience)

            bench.critic.append = both
        try:
            bench.fit()
        except (BatchDrift, CannotAttach) as stopped:
            said.append(str(stopped))
        said.append(str(len(bench.gradients)))
    return said


def tampered(folder: Path) -> list[str]:
    """What ends a run whose critic trains on other returns from its second rollout on, and how many of the critic's
    updates came before."""
    bench, patches = CriticFit(folder), Patches()
    wrap(bench.trainer)
    native, calls = bench.critic.append, []

    def append(experience: Any) -> None:
        calls.append(True)
        if len(calls) > 1:
            bench.critic.trainer.replay_buffer.collate_fn = other(bench.critic.trainer.replay_buffer.collate_fn)
        native(experience)

    def other(collate: Any) -> Any:
        def changed(batch: Any) -> Any:
            made = collate(batch)
            made.returns = made.returns + 1
            return made

        return changed

    patches.set(bench.critic, "append", append, what="tampered with", why="control")
    try:
        bench.fit()
    except BatchDrift as drift:
        return [str(drift), str(len(bench.critic_gradients))]
    return ["trained to its end"]


def main(folder: Path) -> None:
    os.environ |= {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1"}
    os.environ.setdefault("MASTER_PORT", "29517")
    script = ScriptedRollouts()
    save_policy(folder / "policy")
    save_critic(folder / "policy", folder / "critic")
    lines = [f'{{"input": "{script.prompt(index)}", "label": ""}}\n' for index in range(PROMPTS)]
    (folder / "prompts.jsonl").write_text("".join(lines), encoding="utf-8")
    found: dict[str, Any] = {"ends": {}}
    runs: dict[str, dict[str, Any]] = {
        "own": {},
        "micro": {"train.micro_batch_size": 3, "rollout.micro_batch_size": 5, "ds.zero_stage": 1},
        "packed": {**DYNAMIC, **PACKED, "ds.zero_stage": 3},
        "passes": {"train.max_epochs": 2, "train.batch_size": 5, "train.micro_batch_size": 5},
    }
    for name, changes in runs.items():
        bench, ledger = enforced(folder, name, **changes)
        found[name] = against_the_oracle(bench, ledger, folder)
        found["ends"][name] = {"policy": bench.weights[-1], "critic": bench.critic_weights[-1]}
        if name == "own":
            found["start"] = {"policy": bench.weights[0], "critic": bench.critic_weights[0]}
        print(name, flush=True)
    found["tampered"] = tampered(folder)
    found["warmup"] = warmed_up(folder)
    found["too early"] = trained_too_early(folder)
    print("warmup", flush=True)
    bench = CriticFit(folder, **ALONE)
    wrap(bench.trainer, mode="observe", ledger=folder / "observed")
    bench.fit()
    found["observed"] = sum(len(step["sample"]) for step in read_steps(folder / "observed" / "critic"))
    found["ends"]["observed"] = {"policy": bench.weights[-1], "critic": bench.critic_weights[-1]}
    torch.save(found, folder / "measured.pt")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
