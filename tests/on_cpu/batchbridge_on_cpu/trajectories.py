"""Where runs of the tiny policy end, compared so that the verdict does not depend on the processor.

Float32 kernels of two processors, of two micro-batch sizes and of two numbers of ranks round differently: some 1e-6 of
a gradient's norm. Two things make more of that than a comparison of the runs' parameters can bear:

- AdamW divides each gradient by its own size. A parameter whose gradient is all rounding noise moves by a whole
  learning rate wherever the noise points; one such parameter of 22,688 parted two runs of verl by 1.9e-5 of their
  movement on a processor with AVX-512, and by 2e-6 on another. Trajectories are therefore run with `ADAM_EPSILON`.
- A parameter is stored in float32, rounded by some 3e-8 of itself at every step, whatever moved it: up to 1e-5 of the
  movement of a run that moves by 1 %. Ends are therefore compared by what the policies say: the log-probabilities, in
  float64, of the script's completions. The learned part of a movement shows there in full, the rounding hardly.

`reference_run` is the same run in plain torch, float64: what an end is held against, sound and with one fault in it.
What the comparisons came to under different kernels is in docs/testing.md, written by tests/kernels/record.py.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from batchbridge.meaning.plan import Plan
from batchbridge.meaning.weights import Row, token_weights
from batchbridge.testing.equivalence import ADAM_EPSILON, CONTROL, LEAST_MOVEMENT, TRAJECTORY_BAR
from batchbridge.testing.oracle import Sample, ScriptedRun, relative_error, step_gradient
from batchbridge.testing.tiny import ScriptedRollouts
from batchbridge.testing.trajectories import ModelInputs, double_policy, log_probabilities, tokens

FIGURES = "BATCHBRIDGE_TRAJECTORIES"
"""The environment variable that names a file for the figures of every comparison, one JSON object per line."""

Parameters: TypeAlias = "torch.Tensor | Mapping[str, torch.Tensor]"
"""All parameters of a tiny policy: flat, in the model's order, or by name."""
Fault = Literal["swapped", "weight", "kept", "altered"]
"""swapped: an optimizer step trains, in place of its first completion, one of an earlier step. weight: one
completion weighs 1 % more; it is the one with the median share of its step's loss. kept: the step trains the first
candidates, those too that a group filter drops. altered: that one completion is another, see `reference_run`."""
FAULTS: tuple[Fault, ...] = ("swapped", "weight")
"""Of every plan; `kept` is one where groups are filtered, `altered` one where there is something to alter."""


@dataclass(frozen=True)
class Distance:
    """How far two ends are apart. said: log-probabilities, relative to how far the second run's moved. parameters: the
    same of the parameters themselves, which is measured and not judged. moved: of the second run's parameters, relative
    to their norm at the start."""

    said: float
    parameters: float
    moved: float


def distance(
    start: Parameters, a: Parameters, b: Parameters, says: Callable[[torch.Tensor], torch.Tensor] | None = None
) -> Distance:
    """How far the ends `a` and `b` of two runs from `start` are apart. says: of parameters, what their policy says; the
    tiny policy's by default."""
    before, ends = whole(start), (whole(a), whole(b))
    said = [(says or log_probabilities)(values) for values in (before, *ends)]
    return Distance(
        said=relative_error(said[1] - said[0], said[2] - said[0]),
        parameters=relative_error(ends[0] - before, ends[1] - before),
        moved=float((ends[1] - before).norm() / before.norm()),
    )


def assert_same_end(case: str, start: Parameters, a: Parameters, b: Parameters) -> Distance:
    """Fails where the ends of two runs are further apart than the bar, or where there is too little to compare. case:
    what the figures are kept under."""
    found = _kept(case, "sound", distance(start, a, b))
    assert found.moved >= LEAST_MOVEMENT, f"{case}: the parameters moved by {found.moved:.1e}: too little to compare"
    assert found.said <= TRAJECTORY_BAR, f"{case}: apart by {found.said:.2e}, bar {TRAJECTORY_BAR:.0e}"
    return found


def assert_other_end(case: str, start: Parameters, a: Parameters, b: Parameters) -> Distance:
    """Fails where a negative control misses the bar less than tenfold."""
    found = _kept(case, "control", distance(start, a, b))
    assert found.said > CONTROL, f"{case}: apart by {found.said:.2e} only, and must be by more than {CONTROL:.0e}"
    return found


def whole(parameters: Parameters) -> torch.Tensor:
    """Flat, float64, in the model's order."""
    if isinstance(parameters, torch.Tensor):
        return parameters.detach().double().flatten()
    names = [name for name, _ in double_policy().named_parameters()]
    return torch.cat([parameters[name].detach().double().flatten() for name in names])


# ---- the same run in plain torch


def adamw(
    learning_rate: float, betas: tuple[float, float] = (0.9, 0.999)
) -> Callable[[Iterable[Any]], torch.optim.Optimizer]:
    """AdamW as trajectories are run with it. betas: torch's own by default; OpenRLHF's second one is 0.95."""
    return functools.partial(torch.optim.AdamW, lr=learning_rate, betas=betas, eps=ADAM_EPSILON, weight_decay=0.0)


def sgd(learning_rate: float) -> Callable[[Iterable[Any]], torch.optim.Optimizer]:
    """Plain descent: its movement is linear in the gradients, and so shows a factor that AdamW hides."""
    return functools.partial(torch.optim.SGD, lr=learning_rate)


def reference_run(
    plan: Plan,
    optimizer: Callable[[Iterable[Any]], torch.optim.Optimizer],
    *,
    steps: int | None = None,
    max_norm: float | None = None,
    rates: Sequence[float] | None = None,
    start: Any = None,
    reference: Any = None,
    fault: Fault | None = None,
    script: ScriptedRollouts | None = None,
    tokenize: Callable[[str], Sequence[int]] | None = None,
    inputs: ModelInputs | None = None,
    altered: Callable[[Sample], Sample] | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Parameters at the start and at the end of a run of `plan` over `script` in plain torch, float64, flat.

    steps: optimizer steps; all of the plan's by default. max_norm: of the gradient; None: no clipping. rates: the
    learning rate of each step; the optimizer's own by default. start, reference: policies; the tiny policy by default
    (the reference only where the plan's loss has a KL term). fault: is put into the optimizer step in the middle.
    tokenize: a prompt's token ids; the tiny tokenizer's by default. inputs: what the policy is given beside tokens.
    altered: what the fault of that name makes of a completion.
    """
    spec = plan.spec
    policy = copy.deepcopy(double_policy() if start is None else start).double().eval()
    if spec.objective.kl_coefficient:
        reference = copy.deepcopy(double_policy() if reference is None else reference).double().eval()
    else:
        reference = None
    states: list[dict[str, torch.Tensor]] = []
    count = plan.total_optimizer_steps if steps is None else steps
    assert count is not None, "a plan without an end: give steps"

    def policy_at(step: int) -> Any:
        if step == len(states) - 1:
            return policy
        earlier = copy.deepcopy(policy)
        earlier.load_state_dict(states[step])
        return earlier

    run = ScriptedRun(
        spec=spec,
        script=script or ScriptedRollouts(),
        tokenize=tokenize or tokens,
        policy_at=policy_at,
        reference=reference,
        inputs=inputs,
    )
    parameters, first = list(policy.parameters()), _flat(policy)
    stepper = optimizer(parameters)
    for step in range(count):
        states.append(copy.deepcopy(policy.state_dict()))
        kept = fault == "kept" and step == count // 2
        samples = dataclasses.replace(run, keeps_all=kept).planned(plan, step)
        if fault == "swapped" and step == count // 2:
            samples = [_of_an_earlier_step(run, plan, step, samples), *samples[1:]]
        rows = [Row(tokens=sum(sample.loss_mask), group=sample.group) for sample in samples]
        weights = [float(weight) for weight in token_weights(spec.loss.policy, rows)]
        if fault == "weight" and step == count // 2:
            weights[_median_share(samples, weights)] *= 1.01
        if fault == "altered" and step == count // 2:
            assert altered is not None, "say what a completion becomes"
            place = _median_share(samples, weights)
            samples[place] = altered(samples[place])
        gradient = step_gradient(
            policy,
            samples,
            term=spec.loss.policy,
            objective=spec.objective,
            reference=reference,
            temperature=spec.carried.temperature or 1.0,
            weights=weights,
        )
        for parameter, values in zip(parameters, gradient.split([one.numel() for one in parameters]), strict=True):
            parameter.grad = values.view_as(parameter).clone()
        if max_norm is not None:
            torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        for group in stepper.param_groups:
            group["lr"] = group["lr"] if rates is None else rates[step]
        stepper.step()
    return first, _flat(policy)


def _of_an_earlier_step(run: ScriptedRun, plan: Plan, step: int, samples: Sequence[Sample]) -> Sample:
    trained = {(sample.group, tuple(sample.completion)) for sample in samples}
    for earlier in reversed(range(step)):
        for sample in run.planned(plan, earlier):
            if (sample.group, tuple(sample.completion)) not in trained and any(sample.loss_mask):
                return sample
    raise ValueError(f"optimizer step {step}: no earlier step trains another completion")


def _median_share(samples: Sequence[Sample], weights: Sequence[float]) -> int:
    shares = [
        abs(weight * sample.advantage) * sum(sample.loss_mask) for weight, sample in zip(weights, samples, strict=True)
    ]
    trained = sorted((share, place) for place, share in enumerate(shares) if share)
    return trained[len(trained) // 2][1]


def _flat(policy: Any) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten().clone() for parameter in policy.parameters()])


def _kept(case: str, kind: str, found: Distance) -> Distance:
    if file := os.environ.get(FIGURES):
        line = json.dumps({"case": case, "kind": kind, **asdict(found)})
        with Path(file).open("a", encoding="utf-8") as figures:  # one short write: processes do not mix
            figures.write(line + "\n")
    return found
