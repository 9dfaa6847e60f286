"""The facts that TRL's rules look at, what a row of them is, and how the rows name settings and sources."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from batchbridge import Reading
from batchbridge_trl.epochs import EpochLength, epoch, sampler_of
from batchbridge_trl.meaning import loss_types
from batchbridge_trl.settings import holds
from batchbridge_trl.sizes import ACCUMULATION, BATCH, GENERATIONS, MICRO, STEPS, RolloutSizes, TrlSizes
from batchbridge_trl.starting import StartOfRun
from batchbridge_trl.world import KEY as WORLD

EVAL_MICRO, EVAL_GENERATIONS = "per_device_eval_batch_size", "num_generations_eval"
SIZES = (MICRO, WORLD, ACCUMULATION, STEPS, BATCH, GENERATIONS)

# In the rows' sources.
POST_INIT = "GRPOConfig.__post_init__"
ALL = "trl 0.18.0 to 1.16.0"
INIT, LOSS = "GRPOTrainer.__init__", "GRPOTrainer._compute_loss"
SCORES = "GRPOTrainer._generate_and_score_completions"
ARGUMENTS = "transformers 4.51.3, 4.57.6 and 5.23.0"
ARGUMENTS_CHECKED = f"{ARGUMENTS} TrainingArguments.__post_init__ and _validate_args"


class TrlFacts(NamedTuple):
    """The facts that the rules look at. `rollout` is None where the sizes give none; `prompts`: of the dataset, None:
    unknown."""

    native: Mapping[str, Any]
    sizes: TrlSizes
    rollout: RolloutSizes | None
    prompts: int | None
    version: str
    start: StartOfRun | None = None
    """The way in which the run is started; None: the settings are those of an object, which was started already."""
    of_swift: bool = False
    """Whether ms-swift's trainer has them, which shuffles no rollout."""

    @property
    def from_object(self) -> bool:
        """Whether the settings are those of a constructed config."""
        return self.start is None

    @property
    def micro_steps_per_rollout(self) -> int:
        """Micro-batches that one rollout feeds, all passes; 0 without a rollout."""
        return 0 if self.rollout is None else self.rollout.steps_per_generation * self.sizes.iterations

    @property
    def loss(self) -> Any:
        """The row of the loss type, or None."""
        return loss_types(self.version).get(self.native["loss_type"])

    @property
    def liger(self) -> bool:
        """Whether Liger's kernel computes the loss: its own switch before 0.25, which wins up to 0.27."""
        own = self.native.get("use_liger_loss")
        return bool(own) if own is not None else bool(self.native["use_liger_kernel"])

    @property
    def streams(self) -> bool:
        """Whether the dataset is streamed."""
        return bool(self.native.get("dataset_streaming") or self.native.get("streaming"))

    @property
    def groups_per_micro_step(self) -> bool:
        """Whether each micro-batch, over all devices, must hold whole groups: before 0.17."""
        return holds("<0.17", self.version)

    @property
    def epoch(self) -> EpochLength | None:
        """The epochs of the dataset; None while there is none, or nothing is trained on it."""
        if self.prompts is None or self.rollout is None or self.sizes.iterations < 1:
            return None
        drop_last = bool(self.native["dataloader_drop_last"])
        return epoch(self.sizes, self.rollout, self.prompts, self.version, drop_last=drop_last)

    @property
    def unplanned_end(self) -> int | None:
        """The optimizer steps after which the run ends, where it trains short steps at the ends of epochs that
        transformers does not plan, or has fewer steps in its epochs than are planned for max_steps; else None: the
        settings say when it ends."""
        found, native = self.epoch, self.native
        if found is not None and native["max_steps"] > 0 and sampler_of(self.version).counts_dropped:
            stop, epochs = found.stops(0, native["max_steps"])
            trained = epochs * (found.real // found.window)
            return trained if 0 < trained < stop else None
        if found is None or native["max_steps"] > 0 or found.loop.plans_short_steps:
            return None
        if found.real % found.window == 0 or found.real != found.promised:
            return None
        return found.stops(native["num_train_epochs"], 0)[0]

    @property
    def evaluates(self) -> bool:
        """Whether there are evaluations: transformers turns do_eval on by itself where there is a strategy."""
        return bool(self.native["eval_strategy"] != "no")

    @property
    def evaluation_completions(self) -> int:
        """Completions of a batch of an evaluation, over all devices."""
        return int(self.native[EVAL_MICRO] * self.sizes.world)

    @property
    def evaluation_generations(self) -> int:
        """Completions per prompt of an evaluation. 0.26.0 has a setting for them, and its check does not look at it."""
        own = None if holds("==0.26.0", self.version) else self.native[EVAL_GENERATIONS]
        return own or self.sizes.generations


def facts_of(reading: Reading) -> TrlFacts | None:
    """The facts of a reading; None while they are unknown, or a default stands where a value could not be read."""
    facts: TrlFacts | None = getattr(reading, "run", None)
    return None if facts is None else facts._replace(prompts=reading.dataset_size)
