"""GRPO trainers that other people keep a copy of (R1-V's family): which of them are observed and verified, and what
their settings mean. Nothing is imported.

Such a trainer is a class on transformers' `Trainer` whose `compute_loss` generates, scores and weighs by itself. Known
of it is what the kind has in common: `_get_per_token_logps...` makes log-probabilities, `reward_funcs` score,
`generate` of the model writes completions, and `generation_config.num_return_sequences` says whether a row of the
loader becomes a group. Everything else is measured, and held against the reading below where a run is verified. Source:
Deep-Agent/R1-V bbbbe3d src/r1-v/src/open_r1/trainer/grpo_trainer.py, om-ai-lab/VLM-R1 90052f4
src/open-r1-multimodal/src/open_r1/trainer/grpo_trainer.py, and R1-V's copies that `whose_trainer` names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge.kit.values import FieldValue, by
from batchbridge_trl.forks import COPY, fork_of

LOGPROBS = "_get_per_token_logps"
"""The beginning of the names of methods that make log-probabilities."""
GENERATES = "_generate_and_score_completions"
"""The method of copies of later releases, whose result has the advantages; those of TRL 0.14 have none."""
_FRAMEWORKS = ("transformers", "trl")
_NEEDED = ("reward_funcs", "num_generations", "generation_config", "args", "accelerator", "train_dataset", "model")
SAMPLING = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
"""Settings that TRL hands its engine, whichever that is."""
_AS_NOTHING: Mapping[str, Any] = {
    # Settings of TRL's that change a rollout or the loss -> their value where nothing reads them.
    "loss_type": "grpo",
    "scale_rewards": True,
    "importance_sampling_level": "token",
    "mask_truncated_completions": False,
    "top_entropy_quantile": 1.0,
    "multi_objective_aggregation": "sum_then_normalize",
    "delta": None,
    "entropy_coef": 0.0,
    "use_adaptive_entropy": False,
    "use_bias_correction_kl": False,
    "off_policy_mask_threshold": None,
    "use_vllm": False,
    "use_liger_kernel": False,
    "use_liger_loss": False,
    "shuffle_dataset": True,
}
_HIDDEN = ("generation_batch_size", "steps_per_generation")
"""Settings of later releases that no copy reads."""


def producers(trainer: object) -> tuple[str, ...]:
    """The trainer's own methods that make log-probabilities."""
    names = (name for cls in type(trainer).__mro__ if _is_own(cls) for name in vars(cls) if name.startswith(LOGPROBS))
    return tuple(dict.fromkeys(names))


def unknown(trainer: object) -> str | None:
    """The part that a copy lacks of its kind, as a sentence; None where it can be observed."""
    loss = next((cls for cls in type(trainer).__mro__ if "compute_loss" in vars(cls)), object)
    if not _is_own(loss):
        return "it has no compute_loss of its own"
    if not producers(trainer):
        return f"no method {LOGPROBS} of its own makes log-probabilities"
    lacks = [name for name in _NEEDED if not hasattr(trainer, name)]
    return f"it has no {', '.join(lacks)}" if lacks else None


def is_followed(trainer: object) -> bool:
    """Whether a trainer is a copy that is observed, and verified on demand."""
    return fork_of(trainer) is COPY and unknown(trainer) is None


def repeats(trainer: Any) -> bool:
    """Whether a row of the loader becomes a group: TRL 0.14 and its copies generate `num_generations` completions of
    each; later ones have a sampler that repeats rows."""
    return int(getattr(trainer.generation_config, "num_return_sequences", None) or 1) > 1


class CopySettings:
    """The settings of a copy by TRL's names: sizes as the trainer has them, and nothing that its kind does not read."""

    def __init__(self, trainer: Any) -> None:
        self._trainer, self._args = trainer, trainer.args

    @property
    def repeats(self) -> bool:
        """Whether each row of the loader becomes a group; see the function."""
        return repeats(self._trainer)

    def __getattr__(self, name: str) -> Any:
        if name in _HIDDEN or name.startswith("vllm_"):
            raise AttributeError(name)
        if name in _AS_NOTHING:
            return _AS_NOTHING[name]
        if name == "per_device_train_batch_size":
            return self._args.per_device_train_batch_size * (self._group if self.repeats else 1)
        if name == "num_generations":
            return self._group
        if name in ("num_iterations", "beta"):
            return getattr(self._trainer, name, 1 if name == "num_iterations" else 0.0)
        sampled = getattr(self._trainer.generation_config, name, None) if name in SAMPLING else None
        return getattr(self._args, name) if sampled is None else sampled

    @property
    def _group(self) -> int:
        return int(self._trainer.num_generations)


def meaning(told: Mapping[str, FieldValue], *, repeats: bool) -> dict[str, FieldValue]:
    """The canonical values of a TRL run with some settings, where a copy's are others."""
    own = {"optimizer_step.rollout_shuffle": by("none", "a copy trains a rollout in the order of its prompts")}
    if repeats:
        own["order.last_rollout"] = by("short", "transformers' loader keeps every prompt")
    return {**told, **own}


def _is_own(cls: type) -> bool:
    return cls is not object and cls.__module__.partition(".")[0] not in _FRAMEWORKS
