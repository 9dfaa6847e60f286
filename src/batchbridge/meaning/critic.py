"""The critic: a value model that is trained beside the policy, in optimizer steps of its own."""

from typing import Annotated, Literal

from batchbridge.frozen import dataclass
from batchbridge.meaning.quantity import Aggregation, DenominatorScope, Quantity


@dataclass(frozen=True, kw_only=True)
class Critic:
    """The training of a critic, and what advantages it gives (GAE's, one for each token); a spec without one has None.

    Whatever is not said here is as the policy's: rollouts and their order, what a step may span, remainders, and the
    learning rate's clock. A token's value loss is half the squared difference of its value and its return, and where
    values are clipped the larger of that and the same of the clipped value. `advantage.scale` batch: advantages are
    whitened over all tokens of the rollout that are trained, their mean taken off and divided by their deviation; none:
    not divided.
    """

    completions_per_step: Annotated[
        int | None, Quantity("completions", "Completions in one optimizer step; None: sized as the policy's steps.", 1)
    ]
    aggregation: Annotated[Aggregation, Quantity("kind", "What tokens' value losses are averaged or summed over.")]
    passes_per_rollout: Annotated[int, Quantity("passes", "Times each rollout is trained on.", 1)] = 1
    rollout_shuffle: Annotated[
        Literal["none", "completions", "groups"], Quantity("kind", "What a pass permutes inside its rollout.")
    ] = "none"
    warmup_rollouts: Annotated[
        int, Quantity("rollouts", "First rollouts on which the critic trains and the policy does not.", 0)
    ] = 0
    denominator_scope: Annotated[DenominatorScope, Quantity("kind", "What the denominators are counted over.")] = (
        "optimizer_step"
    )
    constant: Annotated[int | None, Quantity("tokens", "c of sequence_sum_over_constant; None elsewhere.", 1)] = None
    count_empty: Annotated[bool, Quantity("flag", "Completions whose loss mask is all zero count in B.")] = True
    value_clip: Annotated[
        float | None, Quantity("value", "Most that a value is taken to move from the rollout's; None: not clipped.", 0)
    ] = None
    gamma: Annotated[float, Quantity("1", "GAE's discount of what comes one token later.", 0, 1)] = 1.0
    gae_lambda: Annotated[float, Quantity("1", "GAE's lambda: 1 trusts rewards, 0 the values.", 0, 1)] = 1.0
    learning_rate: Annotated[float | None, Quantity("1", "Peak learning rate; None: unknown.", 0)] = None
    max_gradient_norm: Annotated[
        float | None, Quantity("gradient norm", "Clipping bound; 0: off; None: unknown.", 0)
    ] = None
    completions_per_device: Annotated[int | None, Quantity("completions per device", "Fixed micro-batch.", 1)] = None
    tokens_per_device: Annotated[int | None, Quantity("tokens per device", "Token budget of a micro-batch.", 1)] = None
