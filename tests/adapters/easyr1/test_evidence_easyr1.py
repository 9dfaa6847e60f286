"""EasyR1's specification against EasyR1's own functions, and misreadings of its settings, each of which they tell.

EasyR1 is on no package index: where BATCHBRIDGE_EASYR1's checkout is on the path, its functions are asked (`nox -s
easyr1`); elsewhere `evidence.json` has what they answered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from batchbridge.contract.held import LAWS
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.kit.patches import rebound
from batchbridge.testing import EvidenceContract, Token, ValidCase
from batchbridge_easyr1.config import EasyR1Adapter

ACTOR, ROLLOUT = "worker.actor.", "worker.rollout."
RUN: dict[str, Any] = {
    "data.rollout_batch_size": 8,
    "data.seed": 7,
    f"{ROLLOUT}n": 4,
    f"{ROLLOUT}tensor_parallel_size": 1,
    f"{ACTOR}global_batch_size": 4,
    f"{ACTOR}micro_batch_size_per_device_for_update": 2,
    f"{ACTOR}micro_batch_size_per_device_for_experience": 2,
    f"{ACTOR}dynamic_batching": False,
    "trainer.nnodes": 2,
    "trainer.n_gpus_per_node": 2,
    "trainer.total_epochs": 2,
    "algorithm.disable_kl": True,
}
KL = {"algorithm.disable_kl": False, "algorithm.use_kl_loss": True}
KL_IN_REWARD = {"algorithm.disable_kl": False, "algorithm.use_kl_loss": False}
TRAINER, ALGOS, LOADER = "trainer/ray_trainer.py: ", "trainer/core_algos.py: ", "trainer/data_loader.py: "
UPDATE = "workers/actor/dp_actor.py: DataParallelPPOActor.update_policy"
LOSSES = (UPDATE, f"{ALGOS}compute_policy_loss", f"{ALGOS}average_loss")


class EasyR1sFunctions(EvidenceContract):
    """What EasyR1's own code says of a case."""

    adapter_class = EasyR1Adapter
    package = "verl"
    marker = "trainer/core_algos.py"
    version = "0.3.3.dev0 (b44b311)"
    record = Path(__file__).parent / "evidence.json"
    functions = {  # noqa: RUF012 - the contract's attribute
        "devices": (f"{TRAINER}ResourcePoolManager.get_num_gpus",),
        "rollouts": (f"{LOADER}create_dataloader", f"{TRAINER}RayPPOTrainer.__init__"),
        "prompts": (f"{LOADER}create_dataloader",),
        "steps": (UPDATE, "workers/fsdp_workers.py: FSDPWorker._init_dist_mesh", "protocol.py: DataProto.split"),
        "advantages": (f"{ALGOS}compute_grpo_outcome_advantage", f"{ALGOS}compute_rloo_outcome_advantage"),
        "weights": LOSSES,
        "gradients": (*LOSSES, f"{ALGOS}compute_kl"),
        "ratio": LOSSES,
        "micro_batches": (
            UPDATE,
            "workers/fsdp_workers.py: FSDPWorker._init_dist_mesh",
            "protocol.py: DataProto.split",
        ),
        "kl_rewards": (f"{TRAINER}apply_kl_penalty", f"{ALGOS}get_kl_controller", f"{ALGOS}compute_kl"),
        "truncated": ("utils/torch_functional.py: get_response_mask",),
    }

    def native_devices(self, case: ValidCase) -> int:
        from verl.trainer.ray_trainer import ResourcePoolManager

        trainer = configured(case).trainer
        pools = {"global_pool": [trainer.n_gpus_per_node] * trainer.nnodes}
        return int(ResourcePoolManager(resource_pool_spec=pools, mapping={}).get_num_gpus())

    def native_rollouts(self, case: ValidCase, dataset_size: int) -> int:
        from verl.trainer.ray_trainer import RayPPOTrainer

        loader = loaded(case, dataset_size)
        return int(RayPPOTrainer(configured(case), None, None, loader, None, {}, None).training_steps)

    def native_prompts(self, case: ValidCase, dataset_size: int) -> Iterator[Sequence[int]]:
        loader = loaded(case, dataset_size)
        while True:
            yield from loader

    def native_step_sizes(self, case: ValidCase) -> list[int]:
        ranks, steps = trained(case)
        return [ranks * sum(map(len, step)) for step in steps]

    def native_micro_batches(self, case: ValidCase) -> list[int]:
        return [len(one) for one in trained(case)[1][0]]

    def native_advantages(self, case: ValidCase, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        import numpy
        import torch
        from verl.protocol import DataProto
        from verl.trainer.ray_trainer import compute_advantage

        rewards, size = torch.tensor([reward for group in groups for reward in group])[:, None], len(groups[0])
        data = DataProto.from_dict(
            tensors={"token_level_rewards": rewards, "response_mask": torch.ones_like(rewards)},
            non_tensors={"uid": numpy.array([str(place // size) for place in range(len(rewards))], dtype=object)},
        )
        found = compute_advantage(data, configured(case).algorithm.adv_estimator).batch["advantages"]
        return found[:, 0].view(-1, size).tolist()

    def native_weights(self, case: ValidCase, lengths: Sequence[int]) -> list[float]:
        token = Token(logprob=0.0, old=0.0, reference=0.0, advantage=-1.0)
        return [row[0] for row in one_step(case, [[token] * length for length in lengths], use_kl_loss=False)]

    def native_gradients(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return [row[0] * len(tokens) for row in one_step(case, [[token] for token in tokens])]

    def native_completion_gradient(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return one_step(case, [tokens])[0]

    def native_kl_rewards(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        import torch
        from verl.protocol import DataProto
        from verl.trainer.core_algos import get_kl_controller
        from verl.trainer.ray_trainer import apply_kl_penalty

        algorithm = configured(case).algorithm
        if algorithm.disable_kl or algorithm.use_kl_loss:  # as `RayPPOTrainer.fit` asks
            return [0.0] * len(tokens)
        old, reference = (
            torch.tensor([[getattr(token, name)] for token in tokens], dtype=torch.float64)
            for name in ("old", "reference")
        )
        tensors = {"response_mask": torch.ones_like(old), "token_level_scores": torch.zeros_like(old)}
        data = DataProto.from_dict(tensors={**tensors, "old_log_probs": old, "ref_log_probs": reference})
        penalised, _ = apply_kl_penalty(data, get_kl_controller(algorithm), algorithm.kl_penalty)
        return penalised.batch["token_level_rewards"][:, 0].tolist()

    def native_trained_tokens(
        self, case: ValidCase, lengths: Sequence[int], truncated: Sequence[bool]
    ) -> list[int | None]:
        """A completion that was cut has no end of its text, and fills its row."""
        import torch
        from verl.utils.torch_functional import get_response_mask

        end = 2
        rows = [[1] * (length - 1) + [1 if cut else end] for length, cut in zip(lengths, truncated, strict=True)]
        longest = max(lengths)
        padded = [row if row[-1] != end else row + [0] * (longest - len(row)) for row in rows]
        return [int(get_response_mask(torch.tensor([row]), end).sum()) for row in padded]


if EasyR1sFunctions.package_folder() is not None:
    from batchbridge_on_cpu.easyr1 import cpu

    cpu.start()


def configured(case: ValidCase) -> Any:
    """EasyR1's own configuration, as its main function makes it."""
    from omegaconf import OmegaConf
    from verl.trainer.config import PPOConfig

    words = [f"{key}={value}" for key, value in case.source.values.items()]
    made = OmegaConf.to_object(OmegaConf.merge(OmegaConf.structured(PPOConfig()), OmegaConf.from_dotlist(words)))
    made.deep_post_init()
    return made


class Places(list):  # type: ignore[type-arg]
    """A dataset of EasyR1's, whose items are their places."""

    def __init__(self, *, data_path: Any, **options: Any) -> None:
        super().__init__(range(int(data_path)))


def loaded(case: ValidCase, dataset_size: int) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer import data_loader

    data = configured(case).data
    data.train_files = data.val_files = str(dataset_size)
    made = rebound(
        data_loader.create_dataloader,
        RLHFDataset=Places,
        collate_fn=list,
        StatefulDataLoader=lambda **options: StatefulDataLoader(**{**options, "num_workers": 0}),
        print=lambda *words: None,
    )
    return made(data, None, None)[0]


def meshed(config: Any, ranks: int) -> None:
    """EasyR1's own sizes of a worker among so many."""
    from verl.workers import fsdp_workers

    worker = object.__new__(fsdp_workers.FSDPWorker)
    vars(worker).update(config=config.worker, print_rank0=lambda *words: None)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(fsdp_workers, "dist", SimpleNamespace(get_world_size=lambda: ranks))
        patched.setattr(fsdp_workers, "init_device_mesh", lambda *words, **options: None)
        worker._init_dist_mesh(config.worker.actor, "actor")


def one_step(case: ValidCase, rows: Sequence[Sequence[Token]], **others: Any) -> list[list[float]]:
    """The gradient of the loss of a step that is one micro-batch, at each token of each row."""
    actor = configured(case).worker.actor
    vars(actor).update(others)
    actor.global_batch_size_per_device = actor.micro_batch_size_per_device_for_update = len(rows)
    actor.ppo_epochs = 1
    ((made,),) = updated(actor, rows)
    return made


def trained(case: ValidCase) -> tuple[int, list[list[list[list[float]]]]]:
    """The devices, and what one of them makes of a rollout of tokens that are alike."""
    config = configured(case)
    ranks, actor = config.trainer.nnodes * config.trainer.n_gpus_per_node, config.worker.actor
    meshed(config, ranks)
    rows = config.data.rollout_batch_size * config.worker.rollout.n // ranks
    return ranks, updated(actor, [[Token(logprob=0.0, old=0.0, reference=0.0, advantage=-1.0)]] * rows)


def updated(actor: Any, rows: Sequence[Sequence[Token]]) -> list[list[list[list[float]]]]:
    """The gradients at the log-probabilities of each row, by steps and micro-batches, of EasyR1's `update_policy`."""
    import torch
    from verl.protocol import DataProto
    from verl.workers.actor import dp_actor

    longest = max(map(len, rows))

    def padded(name: str) -> torch.Tensor:
        values = [[getattr(token, name) for token in row] + [0.0] * (longest - len(row)) for row in rows]
        return torch.tensor(values, dtype=torch.float64)

    new, leaves, steps = padded("logprob"), [], []

    def forward(inputs: Any, temperature: float) -> torch.Tensor:
        places = inputs["input_ids"][:, 0]
        leaves.append(new[places].requires_grad_())
        return leaves[-1]

    def update() -> torch.Tensor:
        steps.append([leaf.grad.tolist() for leaf in leaves])
        leaves.clear()
        return torch.zeros(())

    mask = torch.tensor([[int(place < len(row)) for place in range(longest)] for row in rows])
    tensors = {name: torch.ones_like(mask) for name in ("attention_mask", "position_ids", "responses")}
    tensors |= {"old_log_probs": padded("old"), "ref_log_probs": padded("reference"), "advantages": padded("advantage")}
    tensors |= {"response_mask": mask, "input_ids": torch.arange(len(rows))[:, None].expand(mask.shape).contiguous()}
    worker = object.__new__(dp_actor.DataParallelPPOActor)
    vars(worker).update(config=actor, rank=1, world_size=1, actor_module=SimpleNamespace(train=lambda: None))
    vars(worker).update(_forward_micro_batch=forward, _optimizer_step=update)
    alone = SimpleNamespace(all_reduce=lambda *words, **options: None, ReduceOp=SimpleNamespace(SUM=None))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dp_actor, "dist", alone)
        worker.update_policy(DataProto.from_dict(tensors=tensors, meta_info={"temperature": 1.0}))
    return steps


def case(name: str, **values: Any) -> ValidCase:
    """A case by its settings, of which `__` stands for a dot."""
    said = {**RUN, **{key.replace("__", "."): value for key, value in values.items()}}
    return ValidCase(name=name, source=Source(values=said), context=Context(framework_version="0.3.3.dev0"))


class TestEasyR1(EasyR1sFunctions):
    """EasyR1's adapter against them."""

    valid = (
        case("token mean"),
        case("in order, sequences", data__shuffle=False, **{f"{ACTOR}loss_avg_mode": "seq", f"{ROLLOUT}n": 2}),
        case("two passes, rloo", algorithm__adv_estimator="rloo", **{f"{ACTOR}ppo_epochs": 2}),
        case("three rollouts", trainer__max_steps=3, **{f"{ACTOR}clip_ratio_high": 0.2, f"{ACTOR}clip_ratio_low": 0.1}),
        case("KL, kl", **KL, algorithm__kl_penalty="kl", algorithm__kl_coef=0.05),
        case("KL, mse", **KL, algorithm__kl_penalty="mse", algorithm__kl_coef=0.05),
        case("KL, low_var_kl", **KL, algorithm__kl_penalty="low_var_kl", algorithm__kl_coef=0.01),
        case("KL in rewards, low_var_kl", **KL_IN_REWARD, algorithm__kl_penalty="low_var_kl", algorithm__kl_coef=0.05),
        case("gspo", **{f"{ACTOR}loss_type": "gspo"}),
        case("cispo", **{f"{ACTOR}loss_type": "cispo"}),
    )


MISREADINGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # what is misread: (the law that tells, the case that it is told on, the fields as they are misread)
    "devices are nodes": ("devices", "token mean", {"topology.world_size": 2}),
    "max_steps ends nothing": ("rollouts", "three rollouts", {"horizon.rollouts": None, "horizon.epochs": 2.0}),
    "a remainder of prompts is kept": ("rollouts", "token mean", {"order.last_rollout": "short"}),
    "a remainder of prompts wraps": ("prompts", "token mean", {"order.last_rollout": "wrap"}),
    "prompts are in order": ("prompts", "token mean", {"order.prompt_shuffle": "none"}),
    "prompts are permuted": ("prompts", "in order, sequences", {"order.prompt_shuffle": "epoch_permutation"}),
    "a step is counted in completions": ("steps", "token mean", {"optimizer_step.completions_per_step": 4}),
    "four passes": ("steps", "two passes, rloo", {"optimizer_step.passes_per_rollout": 4}),
    "the deviation is the batch's": ("advantages", "token mean", {"advantage.scale": "batch"}),
    "the deviation is biased": ("advantages", "token mean", {"advantage.ddof": 0}),
    "the mean has the completion itself in it": (
        "advantages",
        "two passes, rloo",
        {"advantage.baseline": "group_mean"},
    ),
    "an average of tokens is one of sequences": ("weights", "token mean", {"loss.policy.aggregation": "sequence_mean"}),
    "a group is of another size": ("steps", "token mean", {"rollout.completions_per_prompt": 8}),
    "seq is an average of tokens": ("weights", "in order, sequences", {"loss.policy.aggregation": "token_mean"}),
    "k3 is k1": ("gradients", "KL, low_var_kl", {"objective.kl_estimator": "k1"}),
    "no bound of the estimate": (
        "gradients",
        "KL, low_var_kl",
        {"objective.kl_clamp": None, "objective.kl_log_ratio_clamp": None},
    ),
    "a micro-batch is a replica's share of a step": (
        "micro_batches",
        "token mean",
        {"micro_batch.completions_per_device": 4},
    ),
    "the penalty of KL is in the loss": ("kl_rewards", "KL in rewards, low_var_kl", {"objective.kl_placement": "loss"}),
    "the loss's KL is in the reward": ("kl_rewards", "KL, kl", {"objective.kl_placement": "reward"}),
    "the reward's k3 is k1": ("kl_rewards", "KL in rewards, low_var_kl", {"objective.kl_estimator": "k1"}),
    "truncated completions do not train": ("truncated", "token mean", {"rollout.truncated_completions": "mask"}),
    "clip_ratio_high is clip_ratio_low": ("gradients", "three rollouts", {"objective.clip_high": 0.1}),
    "no dual clip": ("gradients", "token mean", {"objective.dual_clip": None}),
    "the ratio is a token's": ("ratio", "gspo", {"objective.ratio_level": "token"}),
}


@pytest.mark.parametrize("misread", MISREADINGS)
def test_a_misreading_is_told_by_easyr1s_own_functions(misread: str) -> None:
    """A misread field that is the specification's alone: written twice, the contract of an adapter cannot see it."""
    law, named, wrong = MISREADINGS[misread]
    if law in ("gradients", "ratio", "kl_rewards"):
        pytest.importorskip("torch")

    class Misreading(EasyR1Adapter):
        def read(self, source: Source, context: Context) -> Reading:
            reading = super().read(source, context)
            assert reading.spec is not None
            assert {path: reading.spec.values[path] for path in wrong} != wrong, "nothing is misread"
            return dataclasses.replace(reading, spec=reading.spec.replace(**wrong))

    class Held(EasyR1sFunctions):
        adapter_class = Misreading

    (one,) = (one for one in TestEasyR1.valid if one.name == named)
    with pytest.raises(AssertionError, match="nativ"):
        getattr(Held(), LAWS[law].test)(one)
