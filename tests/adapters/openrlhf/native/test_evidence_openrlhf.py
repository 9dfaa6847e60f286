"""OpenRLHF's specification against OpenRLHF's own functions, and misreadings of its settings, each of which they tell.

No training: its parser, its strategy's sizes, its loop over a rollout, its advantages and its losses are called with
rows and log-probabilities that are ours. Prompts and rollouts come out of an engine, and are other tests' matter.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import real_openrlhf
import torch
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ppo_utils.experience_maker import RemoteExperienceMaker
from openrlhf.trainer.ray import ppo_actor
from openrlhf.utils.loss_utils import iter_grad_accum_global_norm

from batchbridge.contract.held import LAWS
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.testing import EvidenceContract, Token, ValidCase
from batchbridge_openrlhf.config import OpenRlhfAdapter

RUN: dict[str, Any] = {
    "actor.num_nodes": 1,
    "actor.num_gpus_per_node": 2,
    "rollout.batch_size": 8,
    "rollout.n_samples_per_prompt": 4,
    "rollout.micro_batch_size": 2,
    "train.batch_size": 16,
    "train.micro_batch_size": 2,
    "algo.advantage.estimator": "group_norm",
    "algo.kl.init_coef": 0.0,
}
KL = {"algo.kl.use_loss": True, "algo.kl.init_coef": 0.05}
ACTOR, LOSS, MAKER = "trainer/ray/ppo_actor.py: ", "models/loss.py: ", "trainer/ppo_utils/experience_maker.py: "
LOSSES = (
    f"{ACTOR}ActorPPOTrainer.training_step",
    f"{LOSS}PolicyLoss.forward",
    f"{LOSS}aggregate_loss",
    "utils/loss_utils.py: iter_grad_accum_global_norm",
)


class OpenRlhfsFunctions(EvidenceContract):
    """What OpenRLHF's own code says of a case."""

    adapter_class = OpenRlhfAdapter
    package = "openrlhf"
    functions = {  # noqa: RUF012 - the contract's attribute
        "steps": (
            f"{ACTOR}ActorPPOTrainer.ppo_train",
            "utils/deepspeed/deepspeed.py: DeepspeedStrategy.setup_distributed",
        ),
        "advantages": (f"{MAKER}RemoteExperienceMaker.compute_advantages_and_returns",),
        "weights": LOSSES,
        "gradients": (*LOSSES, "models/utils.py: compute_approx_kl"),
        "ratio": LOSSES,
    }

    def native_step_sizes(self, case: ValidCase) -> list[int]:
        args = parsed(case)
        world = args.actor.num_nodes * args.actor.num_gpus_per_node
        micro_batches: list[int] = []
        with real_openrlhf.world_of(world):
            strategy = real_openrlhf.strategy_of(args, {})
            strategy.setup_distributed()
            strategy.all_reduce = lambda status: status
            trainer = trainer_of(args, strategy)
            rows = args.rollout.batch_size * args.rollout.n_samples_per_prompt // world
            trainer.replay_buffer = Rows(rows, args.train.micro_batch_size)

            def step(experience: Any, *others: Any) -> dict[str, Any]:
                micro_batches.append(len(experience.action_mask))
                losses = {"metrics": {"policy_loss": torch.zeros(())}, "weights": {"policy_loss": "token"}}
                return {**losses, "num_action_tokens": 1.0, "num_samples": 1.0}

            trainer.training_step = step
            with mock.patch.object(torch.cuda, "current_device", return_value="cpu"):
                trainer.ppo_train(0.0)
            window = strategy.accumulated_gradient
        return [world * sum(micro_batches[at : at + window]) for at in range(0, len(micro_batches), window)]

    def native_advantages(self, case: ValidCase, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        args, size = parsed(case), len(groups[0])
        rewards = torch.tensor([reward for group in groups for reward in group])
        alone = torch.ones(len(rewards), 1)
        experience = Experience(rewards=rewards, index=list(range(len(rewards))), action_mask=alone, kl=0 * alone)
        maker = object.__new__(RemoteExperienceMaker)
        vars(maker).update(
            strategy=SimpleNamespace(args=args),
            advantage_estimator=args.algo.advantage.estimator,
            kl_ctl=SimpleNamespace(value=0.0),
        )
        (found,) = maker.compute_advantages_and_returns([experience])
        return found.advantages[:, 0].view(-1, size).tolist()

    def native_weights(self, case: ValidCase, lengths: Sequence[int]) -> list[float]:
        token = Token(logprob=0.0, old=0.0, reference=0.0, advantage=-1.0)
        return [row[0] for row in gradients(case, [[token] * length for length in lengths], kl=False)]

    def native_gradients(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return [row[0] * len(tokens) for row in gradients(case, [[token] for token in tokens])]

    def native_completion_gradient(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return gradients(case, [tokens])[0]


class Rows:
    """A replay buffer of so many rows of one token."""

    def __init__(self, rows: int, micro_batch: int) -> None:
        self.rows, self.sample_batch_size = rows, micro_batch

    def __len__(self) -> int:
        return self.rows

    def __getitem__(self, place: int) -> int:
        return place

    def collate_fn(self, places: Sequence[int]) -> Experience:
        return Experience(action_mask=torch.ones(len(places), 1))


def parsed(case: ValidCase) -> Any:
    words = [f"--{key}" if value is True else f"--{key}={value}" for key, value in case.source.values.items()]
    found = real_openrlhf.run(words)
    assert not isinstance(found, str), found
    return found


def trainer_of(args: Any, strategy: Any, actor: Any = None) -> Any:
    made = object.__new__(ppo_actor.ActorPPOTrainer)
    scheduler = SimpleNamespace(get_last_lr=lambda: [0.0])
    with (
        mock.patch.object(ppo_actor, "NaiveReplayBuffer"),
        mock.patch.object(ppo_actor, "torch_dist_barrier_and_cuda_sync"),
    ):
        made.__init__(strategy, actor, None, None, scheduler, dataloader_pin_memory=False)
    return made


def gradients(case: ValidCase, rows: Sequence[Sequence[Token]], *, kl: bool = True) -> list[list[float]]:
    """The gradient of the loss of a step that is one micro-batch, at each token of each row."""
    args, longest = parsed(case), max(map(len, rows))
    args.algo.kl.use_loss = args.algo.kl.use_loss and kl

    def padded(name: str) -> torch.Tensor:
        values = [[getattr(token, name) for token in row] + [0.0] * (longest - len(row)) for row in rows]
        return torch.tensor(values, dtype=torch.float64)

    class Policy(torch.nn.Module):
        def forward(self, *words: Any, **options: Any) -> tuple[torch.Tensor, Any]:
            return new, None

    new, mask = padded("logprob").requires_grad_(), [[float(at < len(row)) for at in range(longest)] for row in rows]
    experience = Experience(
        action_mask=torch.tensor(mask, dtype=torch.float64),
        sequences=torch.zeros(len(rows), longest),
        action_log_probs=padded("old"),
        base_action_log_probs=padded("reference"),
        rollout_log_probs=padded("old"),
        advantages=padded("advantage"),
    )
    strategy = SimpleNamespace(
        args=args,
        ring_attn_group=None,
        backward=lambda loss, *others: loss.backward(),
        optimizer_step=lambda *words, **options: None,
        get_grad_norm=lambda actor: 0.0,
    )
    trainer = trainer_of(args, strategy, Policy())
    ((one, counted),) = iter_grad_accum_global_norm([experience], strategy, 1, lambda each: each.action_mask)
    trainer.training_step(one, args.algo.kl.init_coef, 0, counted)
    return new.grad.tolist()


def case(name: str, **values: Any) -> ValidCase:
    """A case by its settings, of which `__` stands for a dot."""
    said = {**RUN, **{key.replace("__", "."): value for key, value in values.items()}}
    return ValidCase(name=name, source=Source(values=said), context=Context(framework_version="0.11.2"))


class TestOpenRlhf(OpenRlhfsFunctions):
    """OpenRLHF's adapter against them."""

    valid = (
        case("group_norm"),
        case("sequences", actor__loss_agg_mode="seq-mean-token-mean", rollout__n_samples_per_prompt=2),
        case("rloo, two passes", algo__advantage__estimator="rloo", train__max_epochs=2),
        case("dr_grpo, dual clip", algo__advantage__estimator="dr_grpo", actor__dual_clip=3.0),
        case("KL, k2", **KL, algo__kl__estimator="k2"),
        case("KL, k3", **KL, algo__kl__estimator="k3"),
        case("gspo", actor__policy_loss_type="gspo"),
    )


MISREADINGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # what is misread: (the law that tells, the case that it is told on, the fields as they are misread)
    "a step is counted in prompts": (
        "steps",
        "group_norm",
        {"optimizer_step.completions_per_step": 4},
    ),
    "max_epochs counts nothing": (
        "steps",
        "rloo, two passes",
        {"optimizer_step.passes_per_rollout": 1},
    ),
    "the deviation is biased": (
        "advantages",
        "group_norm",
        {"advantage.ddof": 0},
    ),
    "the mean has the completion itself in it": (
        "advantages",
        "rloo, two passes",
        {"advantage.baseline": "group_mean"},
    ),
    "dr_grpo divides by the deviation": (
        "advantages",
        "dr_grpo, dual clip",
        {"advantage.scale": "group"},
    ),
    "sequences are tokens": (
        "weights",
        "sequences",
        {"loss.policy.aggregation": "token_mean"},
    ),
    "tokens are sequences": (
        "weights",
        "group_norm",
        {"loss.policy.aggregation": "sequence_mean"},
    ),
    "k2 is k3": ("gradients", "KL, k2", {"objective.kl_estimator": "k3"}),
    "no bound of the estimate": (
        "gradients",
        "KL, k3",
        {"objective.kl_clamp": None, "objective.kl_log_ratio_clamp": None},
    ),
    "no dual clip": ("gradients", "dr_grpo, dual clip", {"objective.dual_clip": None}),
    "the ratio is a token's": (
        "ratio",
        "gspo",
        {"objective.ratio_level": "token"},
    ),
}


@pytest.mark.parametrize("misread", MISREADINGS)
def test_a_misreading_is_told_by_openrlhfs_own_functions(misread: str) -> None:
    """A misread field that is the specification's alone: written twice, the contract of an adapter cannot see it."""
    law, named, wrong = MISREADINGS[misread]

    class Misreading(OpenRlhfAdapter):
        def read(self, source: Source, context: Context) -> Reading:
            reading = super().read(source, context)
            assert reading.spec is not None
            assert {path: reading.spec.values[path] for path in wrong} != wrong, "nothing is misread"
            return dataclasses.replace(reading, spec=reading.spec.replace(**wrong))

    class Held(OpenRlhfsFunctions):
        adapter_class = Misreading

    (one,) = (one for one in TestOpenRlhf.valid if one.name == named)
    with pytest.raises(AssertionError, match="nativ"):
        getattr(Held(), LAWS[law].test)(one)
