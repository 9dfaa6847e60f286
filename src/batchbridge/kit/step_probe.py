"""The measuring of a model's optimizer steps, in every mode: what each framework's own measuring is built on.

Two places, neither of which knows an average of the framework's: the log-probabilities that its loss is made of (a hook
on the tensor), and every trained parameter (its own gradients of every micro-batch against what the optimizer finds).
Imports torch; knows no framework.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from batchbridge.kit.gradient_sketches import Sketches, updated_by
from batchbridge.kit.measuring import Tap
from batchbridge.kit.objectives import Surrogate
from batchbridge.kit.patches import Patches
from batchbridge.meaning.spec import Objective

MEASURED = "what a step trains is measured"
"""The reason of every change that measures."""


class StepProbe:
    """The measuring of one model's optimizer steps. objective: what its loss computes."""

    def __init__(self, objective: Objective, patches: Patches) -> None:
        self.objective, self._patches, self._observation = objective, patches, patches.observation
        self._tap = self.tap()
        self._sketches: Sketches | None = None
        self._clipping = 1.0
        """The factor that clipping put on the step's gradients."""

    def surrogates(self) -> Mapping[str, Surrogate]:
        """The framework's own surrogates, for which the schema has names and no formulas."""
        return {}

    def tap(self) -> Tap:
        """A new measurement of micro-batches, for this objective."""
        surrogate = self.surrogates().get(self.objective.surrogate or "")
        return Tap(self.objective, surrogate=surrogate, valued=self.valued(), hook=self._observation.hook)

    def valued(self) -> Objective | None:
        """The objective whose value the framework's loss has, where its gradient is another one's; None: it is not."""
        return None

    def hear_loss(self, target: Any, attribute: str, ours: Callable[..., Any]) -> Any:
        """Has `ours` stand where a framework's code gives, or takes, the loss of a micro-batch, so that its value is
        compared (`Tap.returned`). Not of a run that is observed alone: nobody asks for it."""
        if self._observation.observes:
            return None
        return self._patches.read(target, attribute, ours, what="the value of each loss is recorded", why=MEASURED)

    def differentiating(self) -> contextlib.AbstractContextManager[None]:
        """The span in which a framework differentiates its losses; see `Tap.differentiating`."""
        return contextlib.nullcontext() if self._observation.observes else self._tap.differentiating()

    @property
    def loss_values(self) -> Sequence[float | None]:
        """The values of the losses of the step that was looked at last; see `Tap.values`."""
        return self._tap.values

    def watch_gradients(self, make: Callable[[], Sketches | None]) -> None:
        """Has the gradients of every parameter compared with what the optimizer finds, by the sketches that `make`
        gives. Of a run that is observed alone it is not asked for: nobody asks what it says, and it takes an exchange
        of all ranks."""
        sketches = self._sketches = None if self._observation.observes else make()
        if sketches is not None:
            many = f"{len(sketches.names)} parameters"
            self._patches.made(many, sketches.remove, what="their gradients hooked", why=MEASURED)

    @property
    def gradient_ratio(self) -> float | None:
        """The norm of what the optimizer found in the last step over that of what micro-batches gave, clipping apart;
        None: not known."""
        return None if self._sketches is None else self._sketches.ratio

    def clipped(self, norm: Any, limit: Any) -> None:
        """Notes the factor that a gradient of this norm was clipped by."""
        self._clipping = clipping_factor(norm, limit)

    def gradient_objections(self, expected: float, optimizer: Any = None) -> list[str]:
        """Objections to what the optimizer finds: `expected` times the factor of clipping should be all that was done
        to any gradient. optimizer: of torch's kind; its parameters count alone. Collective."""
        clipping, self._clipping = self._clipping, 1.0
        if self._sketches is None:
            return []
        return [*self._sketches.compare(clipping * expected, updated_by(optimizer))]

    @contextlib.contextmanager
    def attempt(self) -> Iterator[None]:
        """The span of one micro-batch, forward and backward; where it fails, nothing was seen of it."""
        with self._tap.attempt(), contextlib.nullcontext() if self._sketches is None else self._sketches.attempt():
            yield

    def drop(self) -> None:
        """Forgets what was seen since the last step."""
        self._tap.drop()
        self._clipping = 1.0
        if self._sketches is not None:
            self._sketches.drop()


def clipping_factor(norm: Any, limit: Any) -> float:
    """The factor that a gradient of this norm is clipped by, rounded as the norm's type has it. Collective where the
    norm is in parts. Source: torch.nn.utils.clip_grad_norm_ and FSDP's own, whose factor has this epsilon."""
    most = float(limit)
    return min(1.0, float(most / (whole_norm(norm) + 1e-6))) if math.isfinite(most) else 1.0


def whole_norm(norm: Any) -> Any:
    """A norm that FSDP2 may hold in parts. Collective where it does."""
    return norm.full_tensor() if hasattr(norm, "full_tensor") else norm
