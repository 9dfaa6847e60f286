"""The side of a training worker that holds a critic: its optimizer steps, as those of the policy's worker (`engine`).

What is measured are its values: the gradient that arrives there is a token's weight times that of its value loss. The
plan is of the critic's own run (`run_of_critic`), whose ledger stands beside the policy's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import torch

from batchbridge import CannotAttach
from batchbridge.kit import Objective, Surrogate
from batchbridge.kit.carried_rows import response_length
from batchbridge.kit.measuring import Tap
from batchbridge.kit.patches import Patches
from batchbridge.kit.workers import facts
from batchbridge_verl.engine import VerlEngineLayer
from batchbridge_verl.settings import holds
from batchbridge_verl.watching import VerlStepInputs, VerlStepProbe, padded_column

VALUE = "value"
"""The surrogate that a value loss is, in place of a policy's."""


def value_loss(clip: float) -> Surrogate:
    """The halves of values' squared errors, the larger ones of clipped and unclipped. `advantages` are returns. Source:
    verl 0.8.0 to 0.9.1 core_algos.compute_value_loss."""

    def loss(new: torch.Tensor, old: torch.Tensor, advantages: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        clipped = torch.max(torch.min(new, old + clip), old - clip)
        return 0.5 * torch.max((new - advantages) ** 2, (clipped - advantages) ** 2)

    return loss


class VerlCriticStepProbe(VerlStepProbe):
    """The measuring of a critic's optimizer steps."""

    output: ClassVar[str] = "values"

    def __init__(self, engine: Any, config: Any, patches: Patches) -> None:
        super().__init__(engine, Objective(surrogate=VALUE), config, patches)
        self.shows = True

    def tap(self) -> Tap:
        """The tap of a critic's values, as in `VerlStepProbe.tap`."""
        return Tap(self.objective, surrogate=value_loss(float(self._config.cliprange_value)))


class VerlCriticLayer(VerlEngineLayer):
    """The patches of a training worker that holds a critic."""

    model = "critic"

    def _watching(self, patches: Patches) -> VerlStepProbe:
        if not self._is_proven:
            name = type(self._engine).__name__
            raise CannotAttach({"engine": f"the critic's {name}: a critic is measured on FSDP alone"})
        return VerlCriticStepProbe(self._engine, self._config, patches)

    def apply_settings(self) -> None:
        """Those of the policy's worker; where a value loss counts a micro-batch alone, the step's denominators."""
        super().apply_settings()
        if holds("<0.9.0", self._orders.framework_version):
            self._patches.set(
                self._worker,
                "loss_fn",
                functools.partial(
                    _over_the_step,
                    self._worker.loss_fn,
                    config=self._config,
                    constant=self._orders.spec.loss.policy.constant,
                ),
                what="denominators of the whole optimizer step",
                why="critic.denominator_scope of the spec",
            )

    def _given(self, data: Any, everyone: Sequence[tuple[Any, ...]]) -> VerlStepInputs:
        mask, returns, values = (padded_column(data, name) for name in ("loss_mask", "returns", "values"))
        return VerlStepInputs(mask, returns, values, None, None, None)

    def _facts(self, data: Any, row: int) -> dict[str, Any]:
        """Returns stand where a policy has its advantages, values where it has old log-probabilities."""
        ids, length = data["input_ids"][row], response_length(data, row)
        mask = data["loss_mask"][row][:length].bool()
        return facts(
            prompt=ids[: len(ids) - length].tolist(),
            completion=data["responses"][row][:length].tolist(),
            trained=data["returns"][row][:length][mask].tolist(),
            old_logprobs=data["values"][row][:length].float().tolist(),
            reward=None,
        )


def _over_the_step(
    native: Callable[..., Any], model_output: Any, data: Any, dp_group: Any = None, *, config: Any, constant: int | None
) -> Any:
    """verl's value loss with the step's denominators, which 0.8.0 takes of each micro-batch and rank alone."""
    from verl.trainer.ppo import core_algos

    aggregate = core_algos.agg_loss
    core_algos.agg_loss = functools.partial(
        aggregate,
        dp_size=data["dp_size"],
        batch_num_tokens=data["batch_num_tokens"],
        global_batch_size=data["global_batch_size"],
        loss_scale_factor=constant,
    )
    try:
        return native(model_output=model_output, data=data, dp_group=dp_group)
    finally:
        core_algos.agg_loss = aggregate
