"""One run as verl sees it: its settings, the code path that the version takes, and the batch arithmetic."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from batchbridge import Finding
from batchbridge.kit.records import dataclass
from batchbridge_verl.settings import ACTOR, CRITIC, PARALLEL, ROLLOUT, holds, megatron_sizes

NODES, GPUS, TOTAL_EPOCHS = "trainer.nnodes", "trainer.n_gpus_per_node", "trainer.total_epochs"
PROMPTS, GROUP = "data.train_batch_size", "actor_rollout_ref.rollout.n"
GENERATION = "data.gen_batch_size"
TOTAL_STEPS, MOST_PROMPTS = "trainer.total_training_steps", "data.train_max_samples"
MINI, EPOCHS = f"{ACTOR}ppo_mini_batch_size", f"{ACTOR}ppo_epochs"
MICRO, GLOBAL_MICRO = f"{ACTOR}ppo_micro_batch_size_per_gpu", f"{ACTOR}ppo_micro_batch_size"
DYNAMIC, BUDGET = f"{ACTOR}use_dynamic_bsz", f"{ACTOR}ppo_max_token_len_per_gpu"
TRAINER_MODE, THRESHOLD = "trainer.v1.trainer_mode", "trainer.v1.sampler.max_off_policy_threshold"
STRATEGY = "trainer.v1.sampler.max_off_policy_strategy"
FORWARD_BUDGET = f"{ROLLOUT}log_prob_max_token_len_per_gpu"
FULLY_ASYNC, REQUIRED = "fully_async", "async_training.require_batches"

FSDP_CONTEXT = f"{ACTOR}fsdp_config.ulysses_sequence_parallel_size"
CRITIC_WARMUP = "trainer.critic_warmup"
"""The rollout, counted from 1, from which on the policy trains."""
_SIZES = (GROUP, MINI, EPOCHS)


@dataclass(frozen=True)
class VerlRun:
    """Settings by native key with the version, the engine, the trainer's entry point, and the devices.

    `entry`: main_ppo, main_ppo_sync, one_step_off or fully_async. `own_program`: a module of a user's own that starts
    it. `given_keys`: keys that the user said. `file_alone`: they are a file's, and no command that starts it was seen,
    which may say what the file leaves out.
    """

    native: Mapping[str, Any]
    version: str
    engine: str
    entry: str
    world: int
    given_keys: frozenset[str] = frozenset()
    prompts_in_dataset: int | None = None
    own_program: str | None = None
    file_alone: bool = False

    def __getitem__(self, key: str) -> Any:
        return self.native[key]

    @property
    def v1(self) -> bool:
        """The trainer on TransferQueue. Source: verl 0.9.0 main_ppo, `trainer.use_v1`; 0.8.0 main_ppo_sync."""
        if self.entry == "main_ppo_sync":
            return True
        return self.entry == "main_ppo" and holds(">=0.9.0", self.version) and bool(self["trainer.use_v1"])

    @property
    def ahead(self) -> bool:
        """Whether generation goes on over the ends of rollouts. Source: verl 0.9.0 ppo/v1/trainer_colocate_async.py."""
        return self.v1 and self.entry == "main_ppo" and self[TRAINER_MODE] == "colocate_async"

    @property
    def legacy(self) -> bool:
        """Denominators per micro-batch (dp_actor, megatron_actor). Source: verl 0.7.1 `use_legacy_worker_impl`: auto is
        the legacy one; 0.8.0 has the engine workers only."""
        if holds(">=0.8.0", self.version):
            return False
        return not (holds(">=0.7.1", self.version) and self["trainer.use_legacy_worker_impl"] == "disable")

    @property
    def parallel(self) -> tuple[int, int, int]:
        """Tensor, pipeline and context parallel sizes (devices)."""
        tensor, pipeline = (1 if key is None else self[key] for key in PARALLEL[self.engine][:2])
        return tensor, pipeline, self[self.context_key]

    @property
    def context_key(self) -> str:
        """The key of the context-parallel size. Engine workers read FSDP's from fsdp_config, where the actor's own, if
        above 1, overwrites it. Source: verl 0.9.1 FSDPActorConfig.__post_init__."""
        key = PARALLEL[self.engine][2]
        if self.engine == "fsdp" and not self.legacy and self[key] <= 1:
            return FSDP_CONTEXT
        return key

    @property
    def replicas(self) -> int | None:
        """Data-parallel size D; None where the devices do not divide."""
        shared = math.prod(self.parallel)
        if shared < 1 or self.world < 1 or min(self.parallel) < 1 or self.world % shared:
            return None
        return self.world // shared

    @property
    def critic(self) -> bool:
        """Whether a critic is trained. Source: verl 0.6.0 to 0.9.1 need_critic; before, gae alone decided."""
        said = self[f"{CRITIC}enable"] if holds(">=0.6.0", self.version) else None
        return bool(said) if said is not None else bool(self["algorithm.adv_estimator"] == "gae")

    @property
    def reference(self) -> bool:
        """Whether the reference policy is needed. Source: verl 0.9.1 need_reference_policy."""
        return bool(self[f"{ACTOR}use_kl_loss"] or self["algorithm.use_kl_in_reward"])

    @property
    def critic_replicas(self) -> int | None:
        """Data-parallel size of the critic; None where the devices do not divide or the engine is not read.

        Source: verl 0.8.0 to 0.9.1 FSDPCriticConfig.__post_init__, FSDPEngine: of the keys of sequence parallelism that
        of fsdp alone is read; 0.7.1's engine workers have it in model.fsdp_config.
        """
        engine_workers = not self.legacy and holds(">=0.8.0", self.version)
        keys = {
            "fsdp": (f"{CRITIC}{'fsdp.' if engine_workers else ''}ulysses_sequence_parallel_size",),
            "megatron": megatron_sizes(CRITIC),
        }.get(self.engine)
        if keys is None or min(self[key] for key in keys) < 1:
            return None
        devices = math.prod([int(self[key]) for key in keys])
        return self.world // devices if self.world >= 1 and self.world % devices == 0 else None

    @property
    def plain(self) -> bool:
        """Every size is positive, so that products and quotients mean something."""
        sizes = [self.prompts_per_rollout, *(self[key] for key in _SIZES)]
        return self.world >= 1 and min(self.parallel) >= 1 and min(sizes) >= 1

    @property
    def prompts_per_rollout(self) -> int:
        """The prompts trained before more are generated; with fully_async, those taken from the queue at once."""
        return int(self[MINI] * self[REQUIRED] if self.entry == FULLY_ASYNC else self.fetched)

    @property
    def fetched(self) -> int:
        """The prompts of each batch of the data loader, which RayPPOTrainer takes for a rollout.

        The V1 trainer gathers `data.train_batch_size` of them; so do DAPO's recipe and what is made from it, which is
        why a program of a user's own is taken to. Source: verl 0.4.0 to 0.9.1 ray_trainer.py _create_dataloader.
        """
        gathers = self.v1 or self.entry == FULLY_ASYNC or self.own_program is not None
        return int(self[PROMPTS] if gathers or self[GENERATION] is None else self[GENERATION])

    @property
    def fetched_by(self) -> str:
        """The key that says `fetched`."""
        return PROMPTS if self.fetched == self[PROMPTS] else GENERATION

    @property
    def completions_per_rollout(self) -> int:
        return int(self.prompts_per_rollout * self[GROUP])

    @property
    def asked_per_step(self) -> int:
        """Completions per optimizer step as the configuration asks: mini-batch (prompts) x group."""
        return int(self[MINI] * self[GROUP])

    @property
    def share(self) -> int | None:
        """Completions per optimizer step and replica. Legacy workers floor (verl 0.7.1 fsdp_workers.py:250), engine
        workers assert (0.9.1 engine_workers.py:267)."""
        return self.asked_per_step // self.replicas if self.replicas else None

    @property
    def completions_per_step(self) -> int:
        """The completions that one optimizer step really has."""
        if self.legacy and self.share and self.replicas:
            return self.share * self.replicas
        return self.asked_per_step

    @property
    def micro(self) -> int | None:
        """Completions per device and micro-batch; None with a token budget, or unset. The deprecated global size is
        read by legacy workers only (verl 0.7.1 fsdp_workers.py:257)."""
        if self[DYNAMIC]:
            return None
        if self[MICRO] is not None:
            return int(self[MICRO])
        if self.legacy and self[GLOBAL_MICRO] is not None and self.replicas:
            return int(self[GLOBAL_MICRO]) // self.replicas or None
        return None

    @property
    def steps_per_rollout(self) -> Fraction:
        """Optimizer steps per rollout before padding, all passes."""
        return Fraction(self.completions_per_rollout * self[EPOCHS], self.completions_per_step)

    @property
    def surrogate(self) -> str:
        return str(self[f"{ACTOR}policy_loss.loss_mode"])


def left_open(finding: Finding) -> Finding:
    """The finding that a file lacks a setting, where the command that starts the run may say it."""
    text = f"{finding.message}; the command that starts the run may say it"
    return dataclasses.replace(finding, message=text, undecided=True)
