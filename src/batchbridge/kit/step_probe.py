"""The measuring of a model's optimizer steps, in every mode: what each framework's own measuring is built on.

Two places, neither of which knows an average of the framework's: the log-probabilities that its loss is made of (a hook
on the tensor), and one small weight (its own gradients of every micro-batch against what the optimizer finds). Imports
torch; knows no framework.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from batchbridge.kit.measuring import Tap
from batchbridge.kit.objectives import Surrogate
from batchbridge.kit.patches import Patches
from batchbridge.kit.sharded import ShardedWeight
from batchbridge.meaning.spec import Objective

MEASURED = "what a step trains is measured"
"""The reason of every change that measures."""


class StepProbe:
    """The measuring of one model's optimizer steps. objective: what its loss computes."""

    def __init__(self, objective: Objective, patches: Patches) -> None:
        self.objective, self._patches, self._observation = objective, patches, patches.observation
        self._tap = self.tap()
        self._weight: ShardedWeight | None = None
        self._clipping = 1.0
        """The factor that clipping put on the step's gradients."""

    def surrogates(self) -> Mapping[str, Surrogate]:
        """The framework's own surrogates, for which the schema has names and no formulas."""
        return {}

    def tap(self) -> Tap:
        """A new measurement of micro-batches, for this objective."""
        surrogate = self.surrogates().get(self.objective.surrogate or "")
        return Tap(self.objective, surrogate=surrogate, hook=self._observation.hook)

    def watch_weight(self, choose: Callable[[], ShardedWeight | None]) -> None:
        """Has the gradients of the weight that `choose` gives compared with what the optimizer finds. Of a run that is
        observed alone it is not asked for: nobody asks what it says, and it takes an exchange of all ranks."""
        weight = self._weight = None if self._observation.observes else choose()
        if weight is not None:
            self._patches.made(weight.name, weight.witness.remove, what="its gradients hooked", why=MEASURED)

    def clipped(self, norm: Any, limit: Any) -> None:
        """Notes the factor that a gradient of this norm was clipped by."""
        self._clipping = clipping_factor(norm, limit)

    def weight_objections(self, expected: float) -> list[str]:
        """Objections to what the optimizer finds of the watched weight: `expected` times the factor of clipping should
        be all that was done to it. Collective."""
        clipping, self._clipping = self._clipping, 1.0
        why = None if self._weight is None else self._weight.objection(clipping * expected)
        return [] if why is None else [why]

    def drop(self) -> None:
        """Forgets what was seen since the last step."""
        self._tap.drop()
        self._clipping = 1.0
        if self._weight is not None:
            self._weight.witness.drop()


def clipping_factor(norm: Any, limit: Any) -> float:
    """The factor that a gradient of this norm is clipped by. Collective where the norm is in parts. Source:
    torch.nn.utils.clip_grad_norm_ and FSDP's own, whose factor has this epsilon."""
    most = float(limit)
    return min(1.0, most / (float(whole_norm(norm)) + 1e-6)) if math.isfinite(most) else 1.0


def whole_norm(norm: Any) -> Any:
    """A norm that FSDP2 may hold in parts. Collective where it does."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
