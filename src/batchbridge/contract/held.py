"""The laws of evidence by name, and the record of those that an adapter keeps."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from batchbridge.frozen import dataclass


@dataclass(frozen=True)
class LawOfEvidence:
    """A law of `batchbridge.testing.EvidenceContract`: what it holds of a specification, the method that asks the
    framework, and the test."""

    holds: str
    method: str
    test: str


LAWS: Mapping[str, LawOfEvidence] = {
    "devices": LawOfEvidence(
        "topology.world_size", "native_devices", "test_devices_are_those_that_the_framework_counts"
    ),
    "rollouts": LawOfEvidence(
        "horizon, order.last_rollout", "native_rollouts", "test_the_run_has_the_frameworks_number_of_rollouts"
    ),
    "prompts": LawOfEvidence(
        "order.prompt_shuffle, order.last_rollout",
        "native_prompts",
        "test_rollouts_have_the_prompts_that_the_framework_takes",
    ),
    "steps": LawOfEvidence("optimizer_step", "native_step_sizes", "test_a_rollout_is_trained_in_the_frameworks_steps"),
    "advantages": LawOfEvidence(
        "advantage", "native_advantages", "test_advantages_are_those_that_the_framework_computes"
    ),
    "weights": LawOfEvidence("loss.policy", "native_weights", "test_tokens_weigh_what_they_weigh_in_the_framework"),
    "gradients": LawOfEvidence("objective", "native_gradients", "test_a_token_has_the_frameworks_gradient"),
    "ratio": LawOfEvidence(
        "objective.ratio_level",
        "native_completion_gradient",
        "test_the_ratio_is_taken_over_what_the_framework_takes_it_over",
    ),
    "micro_batches": LawOfEvidence(
        "micro_batch.completions_per_device",
        "native_micro_batches",
        "test_a_micro_batch_has_the_frameworks_completions",
    ),
    "kl_rewards": LawOfEvidence(
        "objective.kl_placement", "native_kl_rewards", "test_rewards_have_the_frameworks_kl_penalty"
    ),
    "staleness": LawOfEvidence(
        "staleness.maximum", "native_staleness", "test_completions_are_as_old_as_the_framework_lets_them_be"
    ),
    "truncated": LawOfEvidence(
        "rollout.truncated_completions",
        "native_trained_tokens",
        "test_truncated_completions_train_as_in_the_framework",
    ),
    "corrections": LawOfEvidence(
        "objective.sampler_correction",
        "native_sampler_factors",
        "test_tokens_are_corrected_towards_the_sampler_as_in_the_framework",
    ),
}
"""By the names that `held.json` has for them."""


@dataclass(frozen=True)
class Held:
    """The framework's functions that an adapter's meaning was compared with: `held.json` in its package.

    version: the framework's. laws: name of a law to the framework's functions that answered, and their digests.
    """

    version: str
    laws: Mapping[str, Mapping[str, str]]

    @property
    def digest(self) -> str:
        """One digest of all functions, eight digits."""
        every = sorted({(key, one) for functions in self.laws.values() for key, one in functions.items()})
        return hashlib.blake2b(repr(every).encode(), digest_size=4).hexdigest()

    @property
    def holds(self) -> str:
        """The canonical fields, and groups of them, that the laws compare."""
        return _fields(self.laws)

    @property
    def unheld(self) -> str:
        """The canonical fields, and groups of them, that the laws without an answer would compare."""
        return _fields(self.said)

    @property
    def said(self) -> tuple[str, ...]:
        """The laws that nothing of the framework's answers: what they hold is the author's word."""
        return tuple(law for law in LAWS if law not in self.laws)


def _fields(laws: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(part for law in laws for part in LAWS[law].holds.split(", ")))
