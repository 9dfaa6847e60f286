"""The names that `wrap(..., allow=...)` accepts on every framework, beside those of an adapter's own refusals.

What is still held once a name is allowed stands in docs/allow.md, with the adapters' names.
"""

from __future__ import annotations

from batchbridge.kit.proven import UNPROVEN

OWN_TERM = "own_term"
"""A term of a loss that does not come from the log-probabilities (`batchbridge.kit.own_terms`)."""

LEARNING_RATE, WEIGHT_DECAY, OPTIMIZER_SETTINGS = "learning_rate", "weight_decay", "optimizer_settings"
"""Values of an optimizer's groups that something else than its schedule writes
(`batchbridge.kit.optimizer_groups`)."""

GRADIENT_TRANSFORM = "gradient_transform"
"""A change of the gradients between backward and the update (`batchbridge.kit.gradient_sketches`)."""

ADVANTAGES = "advantages"
"""Advantages that a function of the user's own makes, where a rule would recompute them from the rewards: they are used
as they come (`batchbridge.kit.producers`). Each adapter that has them lists the name."""

OTHER_PROMPTS = "data"
"""Other prompts than those of the run that wrote a checkpoint (`batchbridge.kit.checkpoints`)."""

ON_EVERY_FRAMEWORK = frozenset(
    {UNPROVEN, OWN_TERM, LEARNING_RATE, WEIGHT_DECAY, OPTIMIZER_SETTINGS, GRADIENT_TRANSFORM, OTHER_PROMPTS}
)
"""The names that no adapter has to list."""
