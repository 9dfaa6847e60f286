"""A run whose critic is trained beside its policy: the float64 oracle of both, and the same run in plain torch.

The oracle computes what advantages come from itself: values of the critic as it was when a rollout began, GAE, returns,
and the whitening over a rollout's trained tokens. Needs torch.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from subjects import of_text

from batchbridge.kit.objectives import policy_losses
from batchbridge.ledger import read_headers
from batchbridge.meaning.critic_run import run_of_critic
from batchbridge.meaning.plan import Completion, Plan
from batchbridge.meaning.spec import Objective, Spec
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.testing.oracle import Sample, logprobs, step_gradient
from batchbridge.testing.snapshots import Snapshot, snapshots
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy
from batchbridge_on_cpu.value_oracle import ValueSample, clipped_share, value_gradient, values
from batchbridge_on_cpu.valuing import value_model

Fault = Literal["swapped", "weight", "undiscounted"]
FAULTS: tuple[Fault, ...] = ("swapped", "weight", "undiscounted")
"""What is put into the middle of a run, for both models. swapped: an optimizer step trains, in place of its first
completion, one of an earlier step. weight: one completion weighs 1 % more. undiscounted: the advantages and returns of
one rollout are GAE's without its discount."""
PROMPTS, SAMPLES = 12, 4
"""Of the completions by whose values ends are compared."""
Pair = tuple[Sample, ValueSample]
"""A completion as the policy trains it, with an advantage for each of its tokens, and as the critic does."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ValuedRun:
    """policy_at, critic_at: the models with the weights before an optimizer step of theirs. ddof, gamma: of some
    rollouts, instead of the spec's, for controls."""

    spec: Spec
    prompts: int
    policy_at: Callable[[int], Any]
    critic_at: Callable[[int], Any]
    script: ScriptedRollouts = dataclasses.field(default_factory=ScriptedRollouts)
    ddof: int | None = None
    gamma: Mapping[int, float] = dataclasses.field(default_factory=dict)
    rollouts: dict[int, dict[tuple[int, int], Pair]] = dataclasses.field(default_factory=dict)

    @functools.cached_property
    def plan(self) -> Plan:
        """The policy's optimizer steps."""
        return Plan(self.spec, self.prompts)

    @functools.cached_property
    def critics(self) -> Plan:
        """The critic's."""
        return Plan(run_of_critic(self.spec), self.prompts)

    def rollout(self, index: int) -> dict[tuple[int, int], Pair]:
        """(prompt, sample) -> the completion, of a whole rollout."""
        if index not in self.rollouts:
            policy, critic = (
                at(plan.rollout(index).generated_at_step)
                for at, plan in ((self.policy_at, self.plan), (self.critic_at, self.critics))
            )
            group = range(self.plan.completions_per_prompt)
            names = [(prompt, sample) for prompt in self.plan.rollout(index).prompts for sample in group]
            valued = [self._valued(policy, critic, index, *name) for name in names]
            ddof = self.spec.advantage.ddof if self.ddof is None else self.ddof
            scaled = whitened([plain for _, _, plain in valued], 1 if ddof is None else ddof)
            self.rollouts[index] = {
                name: (dataclasses.replace(policy_s, advantage=spread(own, policy_s)), critic_s)
                for name, (policy_s, critic_s, _), own in zip(names, valued, scaled, strict=True)
            }
        return self.rollouts[index]

    def _valued(
        self, policy: Any, critic: Any, rollout: int, prompt: int, sample: int
    ) -> tuple[Sample, ValueSample, torch.Tensor]:
        told = self.spec.critic
        assert told is not None
        both: dict[str, Any] = {
            "prompt": of_text().shown["tokenize"](self.script.prompt(prompt)),
            "completion": self.script.completion(prompt, sample),
            "loss_mask": self.script.loss_mask(prompt, sample),
            "group": prompt,
        }
        made = Sample(**both, advantage=0.0)
        with torch.no_grad():
            made = dataclasses.replace(made, old_logprobs=logprobs(policy, made))
            old = values(critic, ValueSample(**both, returns=torch.empty(0), old_values=torch.empty(0)))
        trained = old[: sum(made.loss_mask)]  # a script's masks are all one or all zero
        gamma = self.gamma.get(rollout, told.gamma)
        plain = gae(trained, self.script.reward(prompt, sample), gamma=gamma, lam=told.gae_lambda)
        returns = torch.cat([trained + plain, old[len(trained) :]])
        return made, ValueSample(**both, returns=returns, old_values=old), plain

    def members(self, plan: Plan, step: int) -> tuple[Completion, ...]:
        """What an optimizer step trains."""
        return tuple(plan.step(step).members)

    def pairs(self, members: Sequence[Completion]) -> list[Pair]:
        """They, as they are trained."""
        return [self.rollout(member.rollout)[member.prompt, member.sample] for member in members]

    def policy_gradient(self, step: int, pairs: Sequence[Pair], factors: Mapping[int, float] | None = None) -> Any:
        """Of the policy's optimizer step. factors: of the weights of some rows."""
        term = self.spec.loss.policy
        return step_gradient(
            self.policy_at(step),
            [policy for policy, _ in pairs],
            term=term,
            objective=self.spec.objective,
            temperature=self.spec.carried.temperature or 1.0,
            surrogate=surrogate_of(self.spec.objective),
            weights=weights_of(term, [policy for policy, _ in pairs], factors or {}),
        )

    def critic_gradient(self, step: int, pairs: Sequence[Pair], factors: Mapping[int, float] | None = None) -> Any:
        """Of the critic's."""
        told, term = self.spec.critic, self.critics.spec.loss.policy
        assert told is not None
        samples = [critic for _, critic in pairs]
        weights = weights_of(term, samples, factors or {})
        return value_gradient(self.critic_at(step), samples, term=term, clip=told.value_clip, weights=weights)

    def clipped(self, step: int, pairs: Sequence[Pair]) -> float:
        """The share of the policy's trained tokens that are clipped."""
        found, total, policy = 0, 0, self.policy_at(step)
        low, high = self.spec.objective.clip_low or 0.0, self.spec.objective.clip_high or math.inf
        for sample, _ in pairs:
            with torch.no_grad():
                ratio = (logprobs(policy, sample) - sample.old_logprobs).exp()
            advantage: Any = sample.advantage
            outside = torch.where(advantage > 0, ratio > 1 + high, ratio < 1 - low)
            mask = torch.tensor(sample.loss_mask, dtype=torch.bool)
            found, total = found + int((outside & mask).sum()), total + int(mask.sum())
        return found / max(total, 1)

    def values_clipped(self, step: int, pairs: Sequence[Pair]) -> float:
        """The share of the critic's trained tokens whose value has moved further than its clip."""
        told = self.spec.critic
        assert told is not None
        clip = math.inf if told.value_clip is None else told.value_clip
        return clipped_share(self.critic_at(step), [critic for _, critic in pairs], clip)


def gae(values: torch.Tensor, reward: float, *, gamma: float, lam: float) -> torch.Tensor:
    """Advantages of a completion's trained tokens, the reward being that of the last: the sum over later tokens of
    (gamma lambda)^k times how much better each was than its value said."""
    found, following, after = torch.zeros_like(values), 0.0, 0.0
    for place in reversed(range(len(values))):
        earned = reward if place == len(values) - 1 else 0.0
        found[place] = after = earned + gamma * following - values[place] + gamma * lam * after
        following = values[place]
    return found


def whitened(advantages: Sequence[torch.Tensor], ddof: int) -> list[torch.Tensor]:
    """Less the mean of all tokens, over their deviation."""
    every = torch.cat(list(advantages))
    return [(one - every.mean()) / every.std(correction=ddof) for one in advantages]


def spread(own: torch.Tensor, sample: Sample) -> Any:
    """Advantages of trained tokens, by token of the completion."""
    return torch.cat([own, own.new_zeros(len(sample.completion) - len(own))])


def surrogate_of(objective: Objective) -> Callable[[torch.Tensor, torch.Tensor, Any], torch.Tensor]:
    """The objective's, of advantages of single tokens."""

    def loss(new: torch.Tensor, old: torch.Tensor, advantage: Any) -> torch.Tensor:
        return policy_losses(objective, new[None], old[None], torch.ones_like(new)[None], advantage.to(new)[None])[0]

    return loss


def weights_of(term: Any, samples: Sequence[Any], factors: Mapping[int, float]) -> list[float]:
    """Of each row's tokens."""
    rows = [Row(tokens=sum(sample.loss_mask), group=sample.group) for sample in samples]
    return [float(weight) * factors.get(row, 1.0) for row, weight in enumerate(token_weights(term, rows))]


def says(parameters: torch.Tensor) -> torch.Tensor:
    """The values that a critic with these parameters (flat) gives every token of the script's completions, float64."""
    critic, script, said = at(value_model, parameters, torch.float64), ScriptedRollouts(), []
    for prompt in range(PROMPTS):
        for sample in range(SAMPLES):
            completion = script.completion(prompt, sample)
            one = ValueSample(
                prompt=of_text().shown["tokenize"](script.prompt(prompt)),
                completion=completion,
                loss_mask=[1] * len(completion),
                group=prompt,
                returns=torch.empty(0),
                old_values=torch.empty(0),
            )
            with torch.no_grad():
                said.append(values(critic, one))
    return torch.cat(said)


def at(make: Callable[[], Any], parameters: torch.Tensor, dtype: torch.dtype) -> Any:
    """A model with these parameters (flat)."""
    model = make().to(dtype).eval()
    torch.nn.utils.vector_to_parameters(parameters.to(dtype), model.parameters())
    return model


# ---- a finished run


@dataclasses.dataclass(frozen=True)
class Finished:
    """A wrapped run with a critic: what it was told, and both models' optimizer steps."""

    spec: Spec
    prompts: int
    policy: list[Snapshot]
    critic: list[Snapshot]

    @classmethod
    def at(cls, folder: Path) -> Finished:
        """The run that left this folder."""
        header = read_headers(folder / "ledger")[0]
        steps = folder / "steps"
        return cls(
            Spec.from_dict(header["spec"]), header["dataset_size"], snapshots(steps), snapshots(steps / "critic")
        )

    def again(self, dtype: torch.dtype, **changes: Any) -> ValuedRun:
        """The oracle of it, at its own parameters."""
        return ValuedRun(
            spec=self.spec,
            prompts=self.prompts,
            policy_at=lambda step: at(tiny_policy, self.policy[step].before, dtype),
            critic_at=lambda step: at(value_model, self.critic[step].before, dtype),
            **changes,
        )

    @property
    def whitening(self) -> float:
        """What the first rollout's advantages, and so the first gradient, are in proportion to: the square root of the
        trained tokens that its deviation is over."""
        pairs = self.again(torch.float64).rollout(0).values()
        tokens = sum(sum(policy.loss_mask) for policy, _ in pairs)
        return math.sqrt(tokens - (1 if self.spec.advantage.ddof is None else self.spec.advantage.ddof))


# ---- the same run in plain torch

Ends = dict[str, tuple[torch.Tensor, torch.Tensor]]
"""Model -> its parameters at the start and at the end, flat, float64."""


@functools.cache
def led(spec: Spec, prompts: int, fault: Fault | None = None, *, noise: float = 0.0) -> Ends:
    """Where the plan leads both models with plain descent. noise: of every parameter at the start, relative to it."""
    drawn = torch.Generator().manual_seed(0)
    models = {"policy": tiny_policy().double().eval(), "critic": value_model().double().eval()}
    for model in models.values():
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1 + noise * torch.randn(parameter.shape, generator=drawn, dtype=torch.float64))
    start = {name: flat(model) for name, model in models.items()}
    assert spec.critic is not None
    rates = {"policy": spec.carried.learning_rate, "critic": spec.critic.learning_rate}
    norms = {"policy": spec.carried.max_gradient_norm, "critic": spec.critic.max_gradient_norm}
    run = ValuedRun(
        spec=spec, prompts=prompts, policy_at=lambda step: models["policy"], critic_at=lambda step: models["critic"]
    )
    middle = run.plan.total_rollouts // 2
    if fault == "undiscounted":
        run = dataclasses.replace(run, gamma={middle: 1.0}, rollouts={})
    plans = {"policy": (run.plan, run.policy_gradient), "critic": (run.critics, run.critic_gradient)}
    assert run.plan.total_optimizer_steps == run.critics.total_optimizer_steps
    for step in range(run.plan.total_optimizer_steps):
        # Both models' rollouts begin at the same steps, so that each is valued before either model trains on it.
        gradients = {}
        for name, (plan, gradient) in plans.items():
            pairs, factors = run.pairs(run.members(plan, step)), {}
            if step == plan.total_optimizer_steps // 2 and fault == "swapped":
                pairs = [earlier(run, plan, step), *pairs[1:]]
            if step == plan.total_optimizer_steps // 2 and fault == "weight":
                factors = {longest(pairs): 1.01}
            gradients[name] = gradient(step, pairs, factors)
        for name, model in models.items():
            descend(model, gradients[name], rates[name], norms[name])
    return {name: (start[name], flat(model)) for name, model in models.items()}


def earlier(run: ValuedRun, plan: Plan, step: int) -> Pair:
    """A completion of an earlier optimizer step that this one does not train."""
    now = {(member.prompt, member.sample) for member in run.members(plan, step)}
    for before in reversed(range(step)):
        for member in run.members(plan, before):
            pair = run.rollout(member.rollout)[member.prompt, member.sample]
            if (member.prompt, member.sample) not in now and any(pair[0].loss_mask):
                return pair
    raise ValueError(f"optimizer step {step}: no earlier one trains another completion")


def longest(pairs: Sequence[Pair]) -> int:
    """The row of the most trained tokens."""
    return max(range(len(pairs)), key=lambda row: sum(pairs[row][0].loss_mask))


def descend(model: Any, gradient: torch.Tensor, rate: float | None, max_norm: float | None) -> None:
    """One step of plain descent, the gradient clipped."""
    assert rate is not None
    scale = min(1.0, max_norm / (float(gradient.norm()) + 1e-6)) if max_norm else 1.0
    with torch.no_grad():
        torch.nn.utils.vector_to_parameters(flat(model) - rate * scale * gradient, model.parameters())


def flat(model: Any) -> torch.Tensor:
    """A copy of all parameters, in order."""
    return copy.deepcopy(torch.nn.utils.parameters_to_vector(model.parameters()).detach())
