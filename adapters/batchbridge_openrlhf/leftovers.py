"""The completions of a rollout that fill no optimizer step, in a wrapped run whose specification is the trainer's own.

OpenRLHF trains them in the next rollout's or pass's first step, where they weigh as a shorter step of their own would:
they are divided by the tokens or completions that they hold themselves (BB-ORL-044). A wrapped run makes them that
shorter step. It is the nearest that a plan can say: every completion is trained, and weighs what it weighs natively.
Dropping them would leave some of the data untrained.

Source: openrlhf 0.11.2 ActorPPOTrainer.ppo_train, loss_utils.iter_grad_accum_global_norm; deepspeed 0.19.6
DeepSpeedEngine.is_gradient_accumulation_boundary.
"""

from __future__ import annotations

from batchbridge import Spec

SAID = (
    "completions of a rollout that fill no optimizer step are a shorter step of their own, where openrlhf trains them "
    "in the next one's first step; a specification (--spec) may drop them (step_may_span none, last_optimizer_step "
    "drop)"
)


def settled(spec: Spec, prompts: int | None) -> Spec:
    """The specification whose steps end with their pass over a rollout, where some would draw from two rollouts or a
    critic's warm-up ends between them; else `spec`.

    Also `spec`: where no rollout fills a step. Steps of one rollout each would then be more and smaller ones than
    openrlhf's, and another run. prompts: of the dataset; None: any number.
    """
    rollout, step = spec.rollout, spec.optimizer_step
    if step.step_may_span != "run" or not rollout.prompts_per_rollout or not step.completions_per_step:
        return spec
    group, size = rollout.completions_per_prompt, step.completions_per_step
    whole = rollout.prompts_per_rollout if prompts is None else min(rollout.prompts_per_rollout, prompts)
    short = spec.order.last_rollout == "short"
    last = 1 if prompts is None else prompts % rollout.prompts_per_rollout
    left = [rollout.prompts_per_rollout, *([last] if short else [])]
    crosses = any(count * group * step.passes_per_rollout % size for count in left)
    warms_up = spec.critic is not None and spec.critic.warmup_rollouts > 0
    if not (crosses or warms_up) or whole * group < size:
        return spec
    return spec.replace(**{"optimizer_step.step_may_span": "none", "order.last_optimizer_step": "short"})
