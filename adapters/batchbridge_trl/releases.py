"""Names and forms of the code that the patches use, which differ between the releases whose trainers can be wrapped.

Formulas are none of it. What TRL and transformers divide a loss by has changed several times; the step's micro-batches
are therefore put where either reads a window (`watching.window`), and the weight probe holds what comes out against the
plan. Source of every row: each wheel from trl 0.18.0 to 1.16.0, GRPOTrainer, and transformers 4.52.3 to 5.24.0,
Trainer, read; docs/trl.md says on which of them trainers ran.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchbridge.kit.versions import version as installed_version
from batchbridge_trl.meaning import loss_types
from batchbridge_trl.settings import holds


class LogprobMethod(NamedTuple):
    """The method that makes log-probabilities. values: how many it returns; one comes bare, several as a tuple."""

    versions: str
    name: str
    values: int

    def logprobs(self, result: Any) -> Any:
        """The log-probabilities, (rows, completion width), in what the method returned."""
        return result if self.values == 1 else result[0]

    def returned(self, logprobs: Any, entropies: Any = None, router_loss: Any = None) -> Any:
        """The log-probabilities, and what comes with them, as the method returns them."""
        return logprobs if self.values == 1 else (logprobs, entropies, router_loss)[: self.values]


PRODUCERS = (
    LogprobMethod("<0.20", "_get_per_token_logps", 1),
    LogprobMethod(">=0.20,<1.7", "_get_per_token_logps_and_entropies", 2),
    LogprobMethod(">=1.7", "_get_per_token_logps_and_entropies", 3),
)


class Attribute(NamedTuple):
    """An attribute of TRL's trainer, or of its args, that some trainers have not.

    versions: the releases that have it. without: its value where they do the same without it. swift: whether ms-swift's
    trainer has it.
    """

    versions: str
    without: Any
    swift: bool = True


ATTRIBUTES: Mapping[str, Attribute] = {
    "use_vllm": Attribute(">=0.15", False, swift=False),
    "mask_truncated_completions": Attribute(">=0.17", False, swift=False),
    "top_entropy_quantile": Attribute(">=0.20", 1.0),
    "importance_sampling_level": Attribute(">=0.20", "token"),
    "tools": Attribute(">=0.26", None, swift=False),
    "use_bias_correction_kl": Attribute(">=0.26", False),
    "off_policy_mask_threshold": Attribute(">=0.27", None, swift=False),
    "multi_objective_aggregation": Attribute(">=0.27", "sum_then_normalize", swift=False),
    "environments": Attribute(">=0.29", None, swift=False),
    "pad_to_multiple_of": Attribute(">=1.0", None),
    "aux_loss_enabled": Attribute(">=1.7", False),
    "_entropy_bonus_enabled": Attribute(">=1.8", False),
}

HAS_CALCULATE_REWARDS = ">=0.19"
"""Releases of TRL that compute rewards in a method of their own."""
TIMES_STEPS = ">=0.26"
"""Releases of TRL whose `training_step` is timed."""
HAS_GET_GRAD_NORM = ">=5.3"
"""Releases of transformers that ask `_get_grad_norm` for the norm; others have one where they clip."""


def has(versions: str, distribution: str = "trl") -> bool:
    """Whether the installed release lies in `versions`."""
    return holds(versions, installed_version(distribution))


def producer() -> LogprobMethod:
    """The row of the installed release."""
    return next(row for row in PRODUCERS if has(row.versions))


def lacks(attribute: str, release: str | None = None) -> bool:
    """Whether a release has no such attribute yet; None: the installed one."""
    row = ATTRIBUTES.get(attribute)
    return row is not None and not holds(row.versions, release or installed_version("trl"))


def value(target: Any, attribute: str) -> Any:
    """An attribute of `ATTRIBUTES`. Raises `AttributeError` where the release should have it, and has not."""
    hasattr(target, attribute)  # asked first: `foretold` learns here that the trainer is looked at
    from batchbridge_trl.ms_swift import is_swift

    row = ATTRIBUTES.get(attribute)
    if row is not None and (lacks(attribute) or (not (row.swift or hasattr(target, attribute)) and is_swift(target))):
        return row.without
    return getattr(target, attribute)


def has_loss(loss_type: str) -> bool:
    """Whether the installed release has this `loss_type`."""
    return loss_type in loss_types(installed_version("trl"))
