"""The oracle: what an optimizer step's gradient is, in plain torch, one completion at a time, in float64.

No padding, no micro-batches, no ranks, no framework's loss code: the definition of the objective, spelled out. What a
framework's gradient is compared with. It is computed where the model is, on a CPU or on a GPU.
"""

from __future__ import annotations

import copy
import functools
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from batchbridge.kit.objectives import kl_losses, policy_losses
from batchbridge.meaning.candidates import CandidatePlan
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Advantage, LossTerm, Objective, Spec
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.testing.tiny import ScriptedRollouts

OracleSurrogate = Callable[[torch.Tensor, torch.Tensor, float], torch.Tensor]
"""Loss per token from the new and old log-probabilities and the completion's advantage."""


@dataclass(frozen=True, kw_only=True)
class Sample:
    """One completion of an optimizer step.

    prompt, completion: token ids. loss_mask: 1 per trained token. group: identifies its prompt's group. advantage: per
    completion. old_logprobs: per completion token; None means those of the current weights, detached. multiplier: of
    its tokens' policy losses, the KL term left as it is: a correction towards the sampler. inputs: what else the model
    is given, images say.
    """

    prompt: Sequence[int]
    completion: Sequence[int]
    loss_mask: Sequence[int]
    group: int
    advantage: float
    old_logprobs: torch.Tensor | None = None
    multiplier: torch.Tensor | None = None
    inputs: Mapping[str, torch.Tensor] | None = None


def double(model: Any) -> Any:
    """A float64 copy of `model`, in evaluation mode, gradients cleared."""
    twin = copy.deepcopy(model).double().eval()
    twin.zero_grad(set_to_none=True)
    return twin


def logprobs(model: Any, sample: Sample, *, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities of the completion's tokens, shape (completion tokens,), differentiable."""
    said = _distribution(model, sample, temperature)
    target = torch.tensor(list(sample.completion), device=said.device)
    return said.gather(1, target[:, None])[:, 0]


def entropies(model: Any, sample: Sample, *, temperature: float = 1.0) -> torch.Tensor:
    """Entropy of what the policy could say in place of each of the completion's tokens, shape (completion tokens,),
    differentiable."""
    said = _distribution(model, sample, temperature)
    return -(said.exp() * said).sum(-1)


def _distribution(model: Any, sample: Sample, temperature: float) -> torch.Tensor:
    weight = next(model.parameters())
    ids = torch.tensor([[*sample.prompt, *sample.completion]], device=weight.device)
    others = {
        name: one.to(weight) if one.is_floating_point() else one.to(weight.device)
        for name, one in (sample.inputs or {}).items()
    }
    logits = model(input_ids=ids, **others).logits[0, len(sample.prompt) - 1 : -1] / temperature
    return torch.log_softmax(logits, dim=-1)


def advantages(rewards: Sequence[float], group_size: int, rule: Advantage) -> list[float]:
    """Advantages of whole groups, in order; float64. `scale` batch takes the deviation over all given rewards."""
    groups = torch.tensor(list(rewards), dtype=torch.float64).view(-1, group_size)
    if rule.baseline == "group_mean":
        centred = groups - groups.mean(dim=1, keepdim=True)
    elif rule.baseline == "leave_one_out":
        centred = (groups - groups.mean(dim=1, keepdim=True)) * group_size / (group_size - 1)
    elif rule.baseline == "none":
        centred = groups
    else:
        raise ValueError(f"advantage.baseline = {rule.baseline}: rewards do not decide it")
    ddof = 1 if rule.ddof is None else rule.ddof
    if rule.scale == "group":
        centred = centred / (groups.std(dim=1, keepdim=True, correction=ddof) + (rule.epsilon or 0.0))
    elif rule.scale == "batch":
        centred = centred / (groups.std(correction=ddof) + (rule.epsilon or 0.0))
    elif rule.scale == "group_others":
        others = groups[:, [[other for other in range(group_size) if other != own] for own in range(group_size)]]
        alike = (others == others[..., :1]).all(-1)
        deviation = others.std(dim=-1, correction=ddof) + (rule.epsilon or 0.0)
        centred = torch.where(alike, centred, centred / deviation)
    if rule.minimum is not None or rule.maximum is not None:
        centred = centred.clamp(rule.minimum, rule.maximum)
    return [float(value) for value in centred.flatten()]


def token_losses(
    objective: Objective,
    new: torch.Tensor,
    old: torch.Tensor,
    reference: torch.Tensor | None,
    mask: torch.Tensor,
    advantage: float,
    surrogate: OracleSurrogate | None = None,
    multiplier: torch.Tensor | None = None,
) -> torch.Tensor:
    """Loss of each token of one completion, shape (tokens,), before weighting. Raises for an unknown surrogate.

    `surrogate` replaces the objective's: for those that the schema has no words for. `multiplier`: see `Sample`.
    """
    row, before, trained = new[None], old[None], mask[None]
    if surrogate is not None:
        loss = surrogate(new, old, advantage)
    else:
        loss = policy_losses(objective, row, before, trained, row.new_full((1, 1), advantage))[0]
    loss = loss if multiplier is None else loss * multiplier.to(loss)
    penalty = kl_losses(objective, row, before, None if reference is None else reference[None], trained)
    return loss if penalty is None else loss + penalty[0]


def step_gradient(
    model: Any,
    samples: Sequence[Sample],
    *,
    term: LossTerm,
    objective: Objective,
    reference: Any = None,
    temperature: float = 1.0,
    weights: Iterable[float] | None = None,
    surrogate: OracleSurrogate | None = None,
    entropy_coefficient: float = 0.0,
    beside: Callable[[Any], torch.Tensor] | None = None,
) -> torch.Tensor:
    """The gradient of one optimizer step with respect to the trainable parameters of `model`, flat, in their order.

    `model` and `reference` are used as they are: pass `double(model)` for the float64 oracle, a float32 copy for the
    noise floor. `weights` overrides the token weights that `term` gives, `surrogate` the objective's.
    `entropy_coefficient`: of a bonus, the mean of the entropies of the step's trained tokens. `beside`: of the model,
    another term of the step's loss.
    """
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.grad = None
    if weights is None:
        rows = [Row(tokens=sum(sample.loss_mask), group=sample.group) for sample in samples]
        weights = [float(weight) for weight in token_weights(term, rows)]
    for sample, weight in zip(samples, weights, strict=True):
        if not weight:
            continue
        new = logprobs(model, sample, temperature=temperature)
        mask = new.new_tensor(list(sample.loss_mask))
        old = new.detach() if sample.old_logprobs is None else sample.old_logprobs.to(new)
        base = None
        if reference is not None:
            with torch.no_grad():
                base = logprobs(reference, sample, temperature=temperature)
        losses = token_losses(objective, new, old, base, mask, sample.advantage, surrogate, sample.multiplier)
        (weight * (losses * mask).sum()).backward()
    if entropy_coefficient:
        tokens = sum(sum(sample.loss_mask) for sample in samples)
        for sample in samples:
            found = entropies(model, sample, temperature=temperature)
            mask = found.new_tensor(list(sample.loss_mask))
            (-entropy_coefficient / tokens * (found * mask).sum()).backward()
    if beside is not None:
        beside(model).backward()
    return torch.cat(
        [(torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten().clone() for p in parameters]
    )


def gradient_bar(*floors: float) -> float:
    """The most that a run's gradients may be off (see `relative_error`): 3 times what float32 alone is off at the same
    steps, their root mean square, and at least 1e-6.

    floors: a step's each. One step's rounding is one draw: on some processors half of what the next step's is.
    """
    return max(1e-6, 3 * math.hypot(*floors) / math.sqrt(len(floors) or 1))


def relative_error(measured: torch.Tensor, expected: torch.Tensor) -> float:
    """`norm(measured - expected) / norm(expected)`, in float64."""
    difference = torch.linalg.vector_norm(measured.double() - expected.double())
    return float(difference / torch.linalg.vector_norm(expected.double()))


@dataclass(frozen=True, kw_only=True)
class ScriptedRun:
    """The facts that the oracle needs to know of a run with scripted rollouts.

    tokenize: a prompt's token ids. policy_at(k): the policy with the weights before optimizer step k. reference: the
    reference policy, or None. surrogate: replaces the objective's (see `token_losses`). multiplier: of (prompt, sample,
    log-probabilities of the weights that generated it), of its tokens (see `Sample`). beside: of (optimizer step, the
    policy), another term of the step's loss. inputs: of (prompt, completion tokens), see `Sample`. keeps_all: a group
    filter drops nothing: for negative controls.
    """

    spec: Spec
    script: ScriptedRollouts
    tokenize: Callable[[str], Sequence[int]]
    policy_at: Callable[[int], Any]
    reference: Any = None
    surrogate: OracleSurrogate | None = None
    multiplier: Callable[[int, int, torch.Tensor], torch.Tensor] | None = None
    beside: Callable[[int, Any], torch.Tensor] | None = None
    inputs: Callable[[int, int], Mapping[str, torch.Tensor]] | None = None
    keeps_all: bool = False

    def sample(self, prompt: int, sample: int, advantage: float, generated_at_step: int, step: int) -> Sample:
        """One completion, trained at `step`; its old log-probabilities are those of the weights that generated it."""
        made = Sample(
            prompt=self.tokenize(self.script.prompt(prompt)),
            completion=self.script.completion(prompt, sample),
            loss_mask=self.script.loss_mask(prompt, sample),
            group=prompt,
            advantage=advantage,
            inputs=None if self.inputs is None else self.inputs(prompt, len(self.script.completion(prompt, sample))),
        )
        fresh = generated_at_step == step or self.spec.objective.old_logprobs == "detached"
        if fresh and self.multiplier is None:
            return made
        with torch.no_grad():
            old = logprobs(self.policy_at(generated_at_step), made, temperature=self._temperature)
        if self.multiplier is not None:
            made = replace(made, multiplier=self.multiplier(prompt, sample, old))
        return made if fresh else replace(made, old_logprobs=old)

    def planned(self, plan: Plan, step: int) -> list[Sample]:
        """The samples of optimizer step `step` of `plan`, in the plan's order; places are filled as `fills` says."""
        group = plan.completions_per_prompt
        values: dict[int, list[float]] = {}
        samples = []
        planned = plan.step(step)
        for member, position in zip(planned.members, planned.positions, strict=True):
            rollout = plan.rollout(member.rollout)
            prompts = self.fills(plan, member.rollout)
            if member.rollout not in values:
                scores = [self.script.reward(prompt, sample) for prompt in prompts for sample in range(group)]
                values[member.rollout] = advantages(scores, group, self.spec.advantage)
            advantage, prompt = values[member.rollout][position], prompts[position // group]
            samples.append(self.sample(prompt, member.sample, advantage, rollout.generated_at_step, step))
        return samples

    def fills(self, plan: Plan, rollout: int) -> tuple[int, ...]:
        """The prompts of a rollout. Those of a plan of places are the candidates whose rewards are not all equal, one
        after the other."""
        if not isinstance(plan, CandidatePlan):
            return plan.rollout(rollout).prompts
        size, samples = plan.prompts_per_rollout, range(plan.completions_per_prompt)
        candidates = (plan.candidates(number, number + 1)[0] for number in itertools.count())
        kept = (
            prompt
            for prompt in candidates
            if self.keeps_all or len({self.script.reward(prompt, sample) for sample in samples}) > 1
        )
        return tuple(itertools.islice(kept, rollout * size, (rollout + 1) * size))

    def recorded(self, record: Mapping[str, Any]) -> list[Sample]:
        """The samples of a ledger's merged step record. Advantages by group only: `scale` batch needs the rollout."""
        group, rule = self.spec.rollout.completions_per_prompt, self.spec.advantage
        if rule.scale == "batch":
            raise ValueError("advantage.scale = batch: a step's record does not hold the whole rollout")
        samples = []
        for prompt, sample, generated in zip(
            record["prompt"], record["sample"], record["generated_at_step"], strict=True
        ):
            scores = [self.script.reward(prompt, other) for other in range(group)]
            advantage = advantages(scores, group, rule)[sample]
            samples.append(self.sample(prompt, sample, advantage, generated, record["step"]))
        return samples

    def gradient(self, samples: Sequence[Sample], step: int) -> torch.Tensor:
        """The gradient of an optimizer step that trains `samples`, by the spec's own weights."""
        return step_gradient(
            self.policy_at(step),
            samples,
            term=self.spec.loss.policy,
            objective=self.spec.objective,
            reference=self.reference,
            temperature=self._temperature,
            surrogate=self.surrogate,
            entropy_coefficient=self.spec.objective.entropy_coefficient or 0.0,
            beside=None if self.beside is None else functools.partial(self.beside, step),
        )

    def clipped_share(self, samples: Sequence[Sample], step: int) -> float:
        """The share of trained tokens whose surrogate is clipped (no gradient flows) at `step`."""
        clipped, total = 0, 0
        low, high = self.spec.objective.clip_low or 0.0, self.spec.objective.clip_high or float("inf")
        for sample in samples:
            with torch.no_grad():
                new = logprobs(self.policy_at(step), sample, temperature=self._temperature)
            ratio = torch.ones_like(new) if sample.old_logprobs is None else (new - sample.old_logprobs.to(new)).exp()
            outside = ratio > 1 + high if sample.advantage > 0 else ratio < 1 - low
            mask = torch.tensor(list(sample.loss_mask), dtype=torch.bool, device=outside.device)
            clipped += int((outside & mask).sum())
            total += int(mask.sum())
        return clipped / max(total, 1)

    @property
    def _temperature(self) -> float:
        return self.spec.carried.temperature or 1.0
