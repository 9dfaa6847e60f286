"""verl's specification against verl's own functions; and misreadings of its settings, each of which they tell.

No training: verl's configuration, loader, iterator, advantages and losses are called as its trainer and workers call
them. Steps that run are the other tests' matter.
"""

from __future__ import annotations

import asyncio
import contextlib
import copy
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import torch
from tensordict import TensorDict

from batchbridge.contract.held import LAWS
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.meaning.spec import Spec
from batchbridge.testing import EvidenceContract, Token, ValidCase
from batchbridge_on_cpu.verl.workers import compose
from batchbridge_verl.config import VerlAdapter

pytestmark = pytest.mark.filterwarnings("default")  # verl's dependencies deprecate each other

ACTOR, ROLLOUT = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout."
RUN: dict[str, Any] = {
    "algorithm.adv_estimator": "grpo",
    "data.train_batch_size": 8,
    f"{ROLLOUT}name": "vllm",
    f"{ROLLOUT}n": 4,
    f"{ACTOR}ppo_mini_batch_size": 4,
    f"{ACTOR}ppo_micro_batch_size_per_gpu": 2,
    f"{ROLLOUT}log_prob_micro_batch_size_per_gpu": 2,
    f"{ROLLOUT}tensor_model_parallel_size": 1,
    "data.seed": 7,
    "trainer.nnodes": 2,
    "trainer.n_gpus_per_node": 2,
    "trainer.total_epochs": 2,
}
KL = {f"{ACTOR}use_kl_loss": True, "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 2}
KL_IN_REWARD = {"algorithm.use_kl_in_reward": True, "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 2}
CORRECTION = "algorithm.rollout_correction."
CORRECTED = {f"{ROLLOUT}calculate_log_probs": True, f"{CORRECTION}rollout_is_threshold": 3.0}
AHEAD = {"trainer.use_v1": True, "trainer.v1.trainer_mode": "colocate_async"}
THRESHOLD = "trainer.v1.sampler.max_off_policy_threshold"

PPO, LOADER = "trainer/ppo/core_algos.py: ", "trainer/ppo/ray_trainer.py: RayPPOTrainer._create_dataloader"
LOSSES = (f"{PPO}compute_policy_loss_vanilla", f"{PPO}compute_policy_loss_gspo", f"{PPO}agg_loss")
STEPS = (
    "trainer/ppo/ray_trainer.py: RayPPOTrainer._update_actor",
    "workers/engine_workers.py: TrainingWorker.train_mini_batch",
    "utils/tensordict_utils.py: make_iterator",
)
LOOPS = "experimental/agent_loop/"
CORRECTIONS = "trainer/ppo/rollout_corr_helper.py: "
FUNCTIONS = {
    "devices": (
        "trainer/main_ppo_v0.py: BaseTaskRunner.init_resource_pool_mgr",
        "single_controller/ray/base.py: ResourcePoolManager.get_n_gpus",
    ),
    "rollouts": (LOADER,),
    "prompts": (LOADER, "trainer/ppo/utils.py: create_rl_sampler"),
    "steps": STEPS,
    "advantages": (f"{PPO}compute_grpo_outcome_advantage", f"{PPO}compute_rloo_outcome_advantage"),
    "weights": (f"{PPO}agg_loss",),
    "gradients": (*LOSSES, f"{PPO}kl_penalty", f"{PPO}kl_penalty_forward"),
    "ratio": LOSSES,
    "micro_batches": (
        *STEPS,
        "workers/engine_workers.py: TrainingWorker.train_batch",
        "workers/engine/utils.py: prepare_micro_batches",
    ),
    "kl_rewards": (
        "trainer/ppo/ray_trainer.py: apply_kl_penalty",
        f"{PPO}kl_penalty",
        f"{PPO}kl_penalty_forward",
        f"{PPO}get_kl_controller",
    ),
    "staleness": (
        "trainer/ppo/v1/trainer_base.py: PPOTrainer._build_replay_buffer",
        "trainer/ppo/v1/replay_buffer.py: ReplayBufferAsync._terminal_eviction_reasons",
        "trainer/ppo/v1/replay_buffer.py: ReplayBufferAsync._stale_terminal_keys",
    ),
    "truncated": (
        f"{LOOPS}single_turn_agent_loop.py: SingleTurnAgentLoop.run",
        f"{LOOPS}agent_loop.py: AgentLoopBase.ct_merge_assistant_token",
        "utils/tokenizer/continuous_token.py: ContinuousTokenBuilder.align_response_metadata",
    ),
    "corrections": (
        f"{CORRECTIONS}compute_rollout_correction_and_add_to_batch",
        f"{CORRECTIONS}compute_rollout_correction_weights",
        f"{PPO}compute_policy_loss_vanilla",
    ),
}


class Enough(Exception):
    """The way out of the trainer once it has said what is asked for."""


def composed(case: ValidCase) -> Any:
    return copy.deepcopy(_composed(*(f"{key}={value}" for key, value in case.source.values.items())))


_composed = functools.cache(compose)


def loaded(case: ValidCase, dataset_size: int) -> Any:
    """verl's trainer, as far as its loader and its number of steps are made."""
    from verl.trainer.ppo.ray_trainer import RayPPOTrainer

    prompts = list(range(dataset_size))
    trainer = SimpleNamespace(config=composed(case))
    trainer.config.data.dataloader_num_workers = 0
    RayPPOTrainer._create_dataloader(trainer, prompts, prompts, list, None)
    return trainer


def aggregated(case: ValidCase, losses: torch.Tensor, mask: torch.Tensor, groups: int) -> torch.Tensor:
    """verl's loss of a step whose rows lie in one micro-batch."""
    from verl.trainer.ppo.core_algos import agg_loss

    actor = composed(case).actor_rollout_ref.actor
    counted = {"batch_num_tokens": int(mask.sum()), "global_batch_size": len(mask)}
    return agg_loss(losses, mask, actor.loss_agg_mode, loss_scale_factor=actor.loss_scale_factor, **counted)


class VerlsFunctions(EvidenceContract):
    """What verl's own code says of a case."""

    adapter_class = VerlAdapter
    package = "verl"
    functions = FUNCTIONS

    def native_devices(self, case: ValidCase) -> int:
        from verl.trainer.main_ppo_v0 import BaseTaskRunner

        return int(BaseTaskRunner().init_resource_pool_mgr(composed(case)).get_n_gpus())

    def native_rollouts(self, case: ValidCase, dataset_size: int) -> int:
        return int(loaded(case, dataset_size).total_training_steps)

    def native_prompts(self, case: ValidCase, dataset_size: int) -> Iterator[Sequence[int]]:
        loader = loaded(case, dataset_size).train_dataloader
        while True:
            yield from loader

    def native_step_sizes(self, case: ValidCase) -> list[int]:
        return [sum(step) for step in trained(composed(case), replicas=1)]

    def native_micro_batches(self, case: ValidCase) -> list[int]:
        return trained(composed(case), replicas=self.native_devices(case))[0]

    def native_advantages(self, case: ValidCase, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        import numpy
        from verl.trainer.ppo.core_algos import get_adv_estimator_fn

        algorithm, size = composed(case).algorithm, len(groups[0])
        rewards = torch.tensor([reward for group in groups for reward in group])[:, None]
        found, _ = get_adv_estimator_fn(algorithm.adv_estimator)(
            token_level_rewards=rewards,
            response_mask=torch.ones_like(rewards),
            index=numpy.array([place // size for place in range(len(rewards))]),
            config=algorithm,
            **(
                {"norm_adv_by_std_in_grpo": algorithm.norm_adv_by_std_in_grpo}
                if algorithm.adv_estimator == "grpo"
                else {}
            ),
        )
        return found[:, 0].view(-1, size).tolist()

    def native_weights(self, case: ValidCase, lengths: Sequence[int]) -> list[float]:
        mask = torch.tensor([[float(place < length) for place in range(max(lengths))] for length in lengths])
        losses = torch.zeros_like(mask).requires_grad_()
        aggregated(case, losses, mask, len(lengths)).backward()
        return losses.grad[:, 0].tolist()

    def native_gradients(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return [row[0] * len(tokens) for row in gradients(case, [[token] for token in tokens])]

    def native_completion_gradient(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return gradients(case, [tokens])[0]

    def native_kl_rewards(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        from verl import DataProto
        from verl.trainer.ppo.core_algos import get_kl_controller
        from verl.trainer.ppo.ray_trainer import apply_kl_penalty

        algorithm = composed(case).algorithm
        if not algorithm.use_kl_in_reward:  # as `RayPPOTrainer.fit` asks
            return [0.0] * len(tokens)
        old, reference = (
            torch.tensor([[getattr(token, name)] for token in tokens], dtype=torch.float64)
            for name in ("old", "reference")
        )
        tensors = {"response_mask": torch.ones_like(old), "token_level_scores": torch.zeros_like(old)}
        data = DataProto.from_dict(tensors={**tensors, "old_log_probs": old, "ref_log_prob": reference})
        controller = get_kl_controller(algorithm.kl_ctrl)
        penalised, _ = apply_kl_penalty(data, kl_ctrl=controller, kl_penalty=algorithm.kl_penalty)
        return penalised.batch["token_level_rewards"][:, 0].tolist()

    def native_staleness(self, case: ValidCase) -> float | None:
        """Rollouts between the one that a group was begun in and the newest that it may be trained in."""
        config = composed(case)
        if not config.trainer.use_v1 or config.trainer.v1.trainer_mode == "sync":  # its buffer bounds nothing
            return None
        from verl.trainer.ppo.v1.trainer_base import PPOTrainer

        made = SimpleNamespace(config=config, trainer_mode=config.trainer.v1.trainer_mode)
        vars(made).update(_resolve_filter_groups_metric=lambda: None, _add_prompts_to_generate=None)
        buffer, now = PPOTrainer._build_replay_buffer(made), 100
        begun = {str(step): step for step in range(1, now + 1)}
        buffer.prompt_global_steps["train"] = begun
        buffer.finished_keys["train"] = set(begun)
        left = buffer._sampleable_terminal_keys("train", buffer._terminal_eviction_reasons(now, "train"))
        return math.inf if left == set(begun) else now - min(begun[one] for one in left)

    def native_trained_tokens(
        self, case: ValidCase, lengths: Sequence[int], truncated: Sequence[bool]
    ) -> list[int | None]:
        """A completion that was cut has no end of its text."""
        from verl.experimental.agent_loop.single_turn_agent_loop import SingleTurnAgentLoop
        from verl.utils.tokenizer.continuous_token import ContinuousTokenBuilder
        from verl.workers.rollout.replica import TokenOutput

        rollout = composed(case).actor_rollout_ref.rollout
        end, asked = 2, iter(zip(lengths, truncated, strict=True))

        async def generate(**options: Any) -> Any:
            length, cut = next(asked)
            return TokenOutput(token_ids=[1] * (length - 1) + [1 if cut else end], stop_reason="completed")

        async def run() -> Any:
            made = object.__new__(SingleTurnAgentLoop)
            vars(made).update(
                rollout_config=rollout,
                response_length=rollout.response_length,
                loop=asyncio.get_running_loop(),
                server_manager=SimpleNamespace(generate=generate),
                continuous_token_builder=object.__new__(ContinuousTokenBuilder),
                process_multi_modal_info=mock.AsyncMock(return_value={}),
                ct_build_initial_tokens=mock.AsyncMock(return_value=[0]),
                _get_mm_processor_kwargs=lambda audios: {},
            )
            return await made.run({}, raw_prompt=[])

        return [sum(asyncio.run(run()).response_mask) for _ in lengths]

    def native_sampler_factors(
        self, case: ValidCase, completions: Sequence[Sequence[tuple[float, float]]]
    ) -> list[list[float]]:
        from verl import DataProto
        from verl.trainer.ppo.rollout_corr_helper import compute_rollout_correction_and_add_to_batch

        longest = max(map(len, completions))
        old, sampled, mask = (
            torch.tensor([[of(token) for token in row] + [0.0] * (longest - len(row)) for row in completions])
            for of in (lambda token: token[0], lambda token: token[1], lambda token: 1.0)
        )
        tensors = {"old_log_probs": old, "rollout_log_probs": sampled, "response_mask": mask}
        said = composed(case).algorithm.rollout_correction
        batch = compute_rollout_correction_and_add_to_batch(DataProto.from_dict(tensors=tensors), said)[0].batch
        found, plain = (
            policy_gradient(case, old, batch["response_mask"], weights)
            for weights in (batch.get("rollout_is_weights"), None)
        )
        return [(left / right)[: len(row)].tolist() for row, left, right in zip(completions, found, plain, strict=True)]


def trained(config: Any, *, replicas: int) -> list[list[int]]:
    """The completions of each micro-batch of each optimizer step that one replica makes of a rollout."""
    from verl.trainer.ppo import ray_trainer
    from verl.workers.engine.utils import prepare_micro_batches
    from verl.workers.engine_workers import TrainingWorker

    actor, steps = config.actor_rollout_ref.actor, []
    engine = SimpleNamespace(get_data_parallel_size=lambda: replicas, get_data_parallel_rank=lambda: 0)
    engine.train_mode = lambda **options: contextlib.nullcontext()
    engine.is_mp_src_rank_with_outputs = lambda: False
    engine.lr_scheduler_step = lambda: None
    engine.train_batch = lambda data, **options: steps.append([len(one) for one in prepare_micro_batches(data)[0]])
    profiler = SimpleNamespace(step=lambda: None, rank=0, check_enable=lambda: False)
    worker = SimpleNamespace(engine=engine, profiler=profiler, model_config={}, loss_fn="the actor's")
    worker.engine_config = SimpleNamespace(  # as ActorRolloutRefWorker.init_model fills it
        forward_only=False,
        use_dynamic_bsz=actor.use_dynamic_bsz,
        max_token_len_per_gpu=actor.ppo_max_token_len_per_gpu,
        micro_batch_size_per_gpu=actor.ppo_micro_batch_size_per_gpu,
        use_fused_kernels=False,
    )
    worker.train_batch = lambda data: TrainingWorker.train_batch(worker, data)

    def update(data: Any) -> None:
        TrainingWorker.train_mini_batch(worker, data)
        raise Enough

    rows = config.data.train_batch_size * config.actor_rollout_ref.rollout.n // replicas
    batch = SimpleNamespace(
        meta_info={}, to_tensordict=lambda: TensorDict({"row": torch.arange(rows)}, batch_size=[rows])
    )
    trainer = SimpleNamespace(config=config, actor_rollout_wg=SimpleNamespace(update_actor=update))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(ray_trainer, "left_right_2_no_padding", lambda data: data)  # rows have no tokens here
        with contextlib.suppress(Enough):
            ray_trainer.RayPPOTrainer._update_actor(trainer, batch)
    return steps


def policy_gradient(
    case: ValidCase, logprobs: torch.Tensor, mask: torch.Tensor, weights: torch.Tensor | None
) -> torch.Tensor:
    """The gradient of verl's policy loss at each token, before the first update. weights: the sampler's correction."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn
    from verl.utils.config import omega_conf_to_dataclass

    actor = omega_conf_to_dataclass(composed(case).actor_rollout_ref.actor)
    new = logprobs.clone().requires_grad_()
    named = {"old_log_prob": logprobs, "log_prob": new, "advantages": torch.ones_like(new), "response_mask": mask}
    named |= {"loss_agg_mode": "token-mean", "config": actor, "rollout_is_weights": weights}
    get_policy_loss_fn(actor.policy_loss.loss_mode)(**named)[0].backward()
    assert new.grad is not None
    return new.grad


def gradients(case: ValidCase, rows: Sequence[Sequence[Token]]) -> list[list[float]]:
    """The gradient of the mean loss of all tokens, rows being completions of one length, at each of them."""
    from verl.trainer.ppo.core_algos import get_policy_loss_fn, kl_penalty
    from verl.utils.config import omega_conf_to_dataclass

    actor = omega_conf_to_dataclass(composed(case).actor_rollout_ref.actor)
    new, old, reference, advantages = (
        torch.tensor([[getattr(token, name) for token in row] for row in rows], dtype=torch.float64)
        for name in ("logprob", "old", "reference", "advantage")
    )
    new.requires_grad_()
    named = {"old_log_prob": old, "log_prob": new, "advantages": advantages, "response_mask": torch.ones_like(old)}
    loss, _ = get_policy_loss_fn(actor.policy_loss.loss_mode)(**named, loss_agg_mode="token-mean", config=actor)
    if actor.use_kl_loss:
        loss = loss + kl_penalty(new, reference, actor.kl_loss_type).mean() * actor.kl_loss_coef
    loss.backward()
    return new.grad.tolist()


def case(name: str, **values: Any) -> ValidCase:
    """A case by its settings, of which `__` stands for a dot."""
    said = {**RUN, **{key.replace("__", "."): value for key, value in values.items()}}
    return ValidCase(name=name, source=Source(values=said), context=Context(framework_version="0.9.1"))


class TestVerl(VerlsFunctions):
    """verl's adapter against them."""

    valid = (
        case("token mean"),
        case("in order, no deviation", data__shuffle=False, algorithm__norm_adv_by_std_in_grpo=False),
        case("sequences", **{f"{ACTOR}loss_agg_mode": "seq-mean-token-mean", f"{ROLLOUT}n": 2}),
        case(
            "sums, one micro-batch",
            **{f"{ACTOR}loss_agg_mode": "seq-mean-token-sum", f"{ACTOR}ppo_micro_batch_size_per_gpu": 4},
        ),
        case("two passes, rloo", algorithm__adv_estimator="rloo", **{f"{ACTOR}ppo_epochs": 2}),
        case("KL, low_var_kl", **KL),
        case("KL, k1", **KL, **{f"{ACTOR}kl_loss_type": "kl", f"{ACTOR}kl_loss_coef": 0.05}),
        case("KL, k2, clip", **KL, **{f"{ACTOR}kl_loss_type": "mse", f"{ACTOR}clip_ratio_high": 0.28}),
        case("KL in rewards, k1", **KL_IN_REWARD, algorithm__kl_ctrl__kl_coef=0.05),
        case("KL in rewards, low_var_kl", **KL_IN_REWARD, algorithm__kl_penalty="low_var_kl"),
        case("a cap of tokens", **CORRECTED, **{f"{CORRECTION}rollout_is": "token"}),
        case("a cap of sequences", **CORRECTED, **{f"{CORRECTION}rollout_is": "sequence"}),
        case("ahead, three rollouts", **AHEAD, **{THRESHOLD: 3}),
        case("ahead, waiting", **AHEAD, **{THRESHOLD: 3, "trainer.v1.sampler.max_off_policy_strategy": "wait"}),
        case("gspo", **{f"{ACTOR}policy_loss.loss_mode": "gspo", f"{ACTOR}clip_ratio_low": 0.03}),
    )


Wrong = Callable[[Spec], dict[str, Any]]
MISREADINGS: dict[str, tuple[str, str, Wrong]] = {
    # what is misread: (the law that tells, the case that it is told on, the fields as they are misread)
    "devices are nodes": ("devices", "token mean", lambda spec: {"topology.world_size": 2}),
    "an average of tokens is one of sequences": (
        "weights",
        "token mean",
        lambda spec: {"loss.policy.aggregation": "sequence_mean"},
    ),
    "a step is counted in prompts": (
        "steps",
        "token mean",
        lambda spec: {"optimizer_step.completions_per_step": spec.optimizer_step.completions_per_step // 4},
    ),
    "the deviation is the batch's": ("advantages", "token mean", lambda spec: {"advantage.scale": "batch"}),
    "the deviation is biased": ("advantages", "token mean", lambda spec: {"advantage.ddof": 0}),
    "the mean has the completion itself in it": (
        "advantages",
        "two passes, rloo",
        lambda spec: {"advantage.baseline": "group_mean"},
    ),
    "prompts are permuted": (
        "prompts",
        "in order, no deviation",
        lambda spec: {"order.prompt_shuffle": "epoch_permutation"},
    ),
    "prompts are in order": ("prompts", "token mean", lambda spec: {"order.prompt_shuffle": "none"}),
    "a remainder of prompts is kept": ("rollouts", "token mean", lambda spec: {"order.last_rollout": "short"}),
    "a remainder of prompts wraps": ("prompts", "token mean", lambda spec: {"order.last_rollout": "wrap"}),
    "four passes": ("steps", "token mean", lambda spec: {"optimizer_step.passes_per_rollout": 4}),
    "k3 is k1": ("gradients", "KL, low_var_kl", lambda spec: {"objective.kl_estimator": "k1"}),
    "no bound of the estimate": (
        "gradients",
        "KL, low_var_kl",
        lambda spec: {"objective.kl_clamp": None, "objective.kl_log_ratio_clamp": None},
    ),
    "the ratio is a token's": ("ratio", "gspo", lambda spec: {"objective.ratio_level": "token"}),
    "one bound of the ratio": ("gradients", "KL, k2, clip", lambda spec: {"objective.clip_high": 0.2}),
    "a micro-batch is a replica's share of a step": (
        "micro_batches",
        "token mean",
        lambda spec: {"micro_batch.completions_per_device": 4},
    ),
    "the penalty of KL is in the loss": (
        "kl_rewards",
        "KL in rewards, k1",
        lambda spec: {"objective.kl_placement": "loss"},
    ),
    "the loss's KL is in the reward": ("kl_rewards", "KL, k1", lambda spec: {"objective.kl_placement": "reward"}),
    "the reward's k3 is k1": (
        "kl_rewards",
        "KL in rewards, low_var_kl",
        lambda spec: {"objective.kl_estimator": "k1"},
    ),
    "the threshold counts a group's own rollout": (
        "staleness",
        "ahead, three rollouts",
        lambda spec: {"staleness.maximum": 3},
    ),
    "waiting bounds the age": (
        "staleness",
        "ahead, waiting",
        lambda spec: {"staleness.mode": "bounded", "staleness.maximum": 2},
    ),
    "truncated completions do not train": (
        "truncated",
        "token mean",
        lambda spec: {"rollout.truncated_completions": "mask"},
    ),
    "tokens are corrected without a cap": (
        "corrections",
        "a cap of tokens",
        lambda spec: {"objective.sampler_correction": "token_truncate [-, -]"},
    ),
    "tokens beyond the cap are masked": (
        "corrections",
        "a cap of tokens",
        lambda spec: {"objective.sampler_correction": "token_mask [-, 3.0]"},
    ),
    "whole completions are tokens": (
        "corrections",
        "a cap of sequences",
        lambda spec: {"objective.sampler_correction": "token_truncate [-, 3.0]"},
    ),
    "nothing is corrected": (
        "corrections",
        "a cap of tokens",
        lambda spec: {"objective.sampler_correction": None},
    ),
    "epochs are rollouts": (
        "rollouts",
        "token mean",
        lambda spec: {"horizon.epochs": None, "horizon.rollouts": 2},
    ),
}


@pytest.mark.parametrize("misread", MISREADINGS)
def test_a_misreading_is_told_by_verls_own_functions(misread: str) -> None:
    """A misread field that is the specification's alone: written twice, the contract of an adapter cannot see it."""
    law, named, wrong = MISREADINGS[misread]

    class Misreading(VerlAdapter):
        def read(self, source: Source, context: Context) -> Reading:
            reading = super().read(source, context)
            assert reading.spec is not None
            return dataclasses.replace(reading, spec=reading.spec.replace(**wrong(reading.spec)))

    class Held(VerlsFunctions):
        adapter_class = Misreading

    test = getattr(Held(), LAWS[law].test)
    (one,) = (one for one in TestVerl.valid if one.name == named)
    with pytest.raises(AssertionError, match="nativ"):
        test(one)
