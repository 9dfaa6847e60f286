"""OpenRLHF's specification against OpenRLHF's own functions, and misreadings of its settings, each of which they tell.

No training: its parser, its groups of workers, its loop over prompts and rollouts, its strategy's sizes, its loop over
a rollout, its experiences, advantages and losses are called with prompts, rows and log-probabilities that are ours. Ray
and the engine are stand-ins: an engine answers a prompt with the prompt.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import queue
import threading
import warnings
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
import real_openrlhf
import torch
from openrlhf.trainer import ppo_trainer, ppo_trainer_async
from openrlhf.trainer.ppo_utils import experience_maker, samples_generator
from openrlhf.trainer.ppo_utils.experience import Experience
from openrlhf.trainer.ray import launcher, ppo_actor
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
CORRECTED = {"algo.advantage.is_correction_level": "token"}
KL = {"algo.kl.use_loss": True, "algo.kl.init_coef": 0.05}
ACTOR, LOSS, MAKER = "trainer/ray/ppo_actor.py: ", "models/loss.py: ", "trainer/ppo_utils/experience_maker.py: "
LOSSES = (
    f"{ACTOR}ActorPPOTrainer.training_step",
    f"{LOSS}PolicyLoss.forward",
    f"{LOSS}aggregate_loss",
    "utils/loss_utils.py: iter_grad_accum_global_norm",
)
SAMPLES, LOOP = "trainer/ppo_utils/samples_generator.py: ", "trainer/ppo_trainer.py: "
QUEUED = "trainer/ppo_trainer_async.py: "
TRAINED = (
    f"{ACTOR}ActorPPOTrainer.ppo_train",
    "utils/deepspeed/deepspeed.py: DeepspeedStrategy.setup_distributed",
)
FITTED = (
    f"{LOOP}prepare_datasets",
    f"{LOOP}PPOTrainer.fit",
    f"{SAMPLES}SamplesGenerator.generate_samples",
    f"{SAMPLES}_collect_prompt_batch",
)
FIT = ppo_trainer.PPOTrainer.__ray_metadata__.modified_class
"""The trainer's class below Ray's."""
ACTORS = [
    getattr(ppo_trainer_async, name).__ray_metadata__.modified_class
    for name in ("PPOTrainerAsync", "GenerateSamplesActor", "TrainingActor")
]
"""Those of the asynchronous trainer: what builds the queue, what generates into it, what trains out of it."""
ROLLOUTS = 12
"""Rollouts of a run whose ages are looked at: more than any case here is ahead."""
PATIENCE = 30.0
"""Seconds after which a loop that waits for the other one has failed."""


class OpenRlhfsFunctions(EvidenceContract):
    """What OpenRLHF's own code says of a case."""

    adapter_class = OpenRlhfAdapter
    package = "openrlhf"
    functions = {  # noqa: RUF012 - the contract's attribute
        "devices": ("trainer/ray/launcher.py: RayActorGroup._initiate_actors",),
        "rollouts": (*FITTED, *TRAINED),
        "prompts": FITTED,
        "steps": TRAINED,
        "advantages": (f"{MAKER}RemoteExperienceMaker.compute_advantages_and_returns",),
        "weights": LOSSES,
        "gradients": (*LOSSES, "models/utils.py: compute_approx_kl"),
        "ratio": LOSSES,
        "micro_batches": TRAINED,
        "kl_rewards": (
            f"{MAKER}RemoteExperienceMaker.make_experience",
            f"{MAKER}RemoteExperienceMaker.compute_advantages_and_returns",
            "models/utils.py: compute_approx_kl",
            "models/utils.py: compute_reward",
        ),
        "staleness": (
            f"{QUEUED}PPOTrainerAsync.__init__",
            f"{QUEUED}GenerateSamplesActor.fit",
            f"{QUEUED}TrainingActor.fit",
            f"{SAMPLES}SamplesGenerator.generate_samples",
        ),
        "truncated": (f"{SAMPLES}SamplesGenerator._process_response_into_experience",),
        "corrections": LOSSES[:2],
    }

    def native_devices(self, case: ValidCase) -> int:
        actor, args = mock.MagicMock(), parsed(case)
        with (
            mock.patch.object(launcher, "ray", mock.MagicMock(get=lambda one: ("address", 1))),
            mock.patch.object(launcher, "placement_group"),
            mock.patch.object(launcher, "PlacementGroupSchedulingStrategy"),
        ):
            made = launcher.RayActorGroup(args.actor.num_nodes, args.actor.num_gpus_per_node, actor)
        return len(made._actor_handlers)

    def native_rollouts(self, case: ValidCase, dataset_size: int) -> int:
        """The rollouts up to the last step: what fills none behind it is generated, and trains nothing."""
        args, (world, _, window) = parsed(case), self.trained(case)
        turns = args.rollout.n_samples_per_prompt * args.train.max_epochs
        shares = [len(one) * turns // (world * args.train.micro_batch_size) for one in fitted(args, dataset_size)]
        begun = [0, *itertools.accumulate(shares)]
        return sum(before < begun[-1] // window * window for before in begun[:-1])

    def native_prompts(self, case: ValidCase, dataset_size: int) -> Iterator[Sequence[int]]:
        args = parsed(case)
        args.train.num_episodes = 3
        return iter(fitted(args, dataset_size))

    def native_step_sizes(self, case: ValidCase) -> list[int]:
        world, micro_batches, window = self.trained(case)
        return [world * sum(micro_batches[at : at + window]) for at in range(0, len(micro_batches), window)]

    def native_micro_batches(self, case: ValidCase) -> list[int]:
        _, micro_batches, window = self.trained(case)
        return micro_batches[:window]

    def trained(self, case: ValidCase) -> tuple[int, list[int], int]:
        """The devices, the micro-batches of one of them over a rollout, and how many of those make a step."""
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
        return world, micro_batches, window

    def native_advantages(self, case: ValidCase, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        args, size = parsed(case), len(groups[0])
        rewards = torch.tensor([reward for group in groups for reward in group])
        alone = torch.ones(len(rewards), 1)
        experience = Experience(rewards=rewards, index=list(range(len(rewards))), action_mask=alone, kl=0 * alone)
        maker = object.__new__(experience_maker.RemoteExperienceMaker)
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

    def native_kl_rewards(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        args, found = parsed(case), []
        rows = [*tokens, *tokens[: -len(tokens) % args.rollout.n_samples_per_prompt]]
        said = {name: torch.tensor([[getattr(token, name)] for token in rows]) for name in ("old", "reference")}
        maker, alone = object.__new__(experience_maker.RemoteExperienceMaker), torch.ones(len(rows), 1)
        vars(maker).update(
            strategy=SimpleNamespace(args=args),
            advantage_estimator=args.algo.advantage.estimator,
            kl_ctl=SimpleNamespace(value=args.algo.kl.init_coef),
            actor_model_group="old",
            initial_model_group="reference",
            critic_model_group=None,
            _dispatch_forward=lambda group, sync, **words: group,
            _flatten_results=lambda group, factor: [said.get(group)],
        )
        made = Experience(
            sequences=alone, action_mask=alone, rewards=0 * alone[:, 0], index=list(range(len(rows))), info={}
        )

        def kept(*words: Any, **options: Any) -> torch.Tensor:
            found.append(native(*words, **options))
            return found[-1]

        native = experience_maker.compute_reward
        with (
            mock.patch.object(experience_maker, "ray", mock.Mock(put=lambda one: "none")),
            mock.patch.object(experience_maker, "compute_reward", kept),
        ):
            maker.compute_advantages_and_returns(maker.make_experience([made]))
        return found[0][: len(tokens), 0].tolist()

    def native_staleness(self, case: ValidCase) -> float | None:
        """Of a run out of a queue; what trains as it generates has none."""
        args = parsed(case)
        return float(oldest(args)) if args.train.async_enable else None

    def native_trained_tokens(
        self, case: ValidCase, lengths: Sequence[int], truncated: Sequence[bool]
    ) -> list[int | None]:
        args = parsed(case)
        generator = samples_generator.SamplesGenerator(SimpleNamespace(args=args), None, None, None, [])
        said: dict[str, Any] = {"rollout_log_probs": None, "prompt": "", "label": "", "reward": 0.0}
        return [
            int(
                generator._process_response_into_experience(
                    {**said, "observation_tokens": [1] * (length + 1), "action_ranges": [(1, length + 1)]}
                    | {"truncated": cut}
                ).action_mask.sum()
            )
            for length, cut in zip(lengths, truncated, strict=True)
        ]

    def native_sampler_factors(
        self, case: ValidCase, completions: Sequence[Sequence[tuple[float, float]]]
    ) -> list[list[float]]:
        rows = [
            [Token(logprob=old, old=old, reference=old, advantage=1.0) for old, _ in completion]
            for completion in completions
        ]
        sampled = [[one for _, one in completion] for completion in completions]
        corrected, plain = gradients(case, rows, kl=False, sampled=sampled), gradients(case, rows, kl=False)
        return [
            [one / other for one, other in zip(*both, strict=True)]
            for both in (
                (left[: len(row)], right[: len(row)]) for row, left, right in zip(rows, corrected, plain, strict=True)
            )
        ]


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


class Places(list[int]):
    """A dataset of prompts that are their places; of a dataset of OpenRLHF's it has what is asked of one."""

    def select(self, places: range) -> Places:
        return Places(self[place] for place in places)

    def collate_fn(self, places: Sequence[int]) -> tuple[Sequence[int], ...]:
        return places, places, places, places


def fitted(args: Any, dataset_size: int) -> list[list[int]]:
    """The prompts of each rollout of OpenRLHF's own loop, in which nothing is generated and nothing trained."""
    strategy, size = real_openrlhf.strategy_of(args, {}), args.rollout.n_samples_per_prompt
    rollouts: list[list[int]] = []

    def train(samples: Sequence[Any], step: int) -> tuple[dict[str, Any], int]:
        rollouts.append([one.prompt for one in samples[::size]])
        return {}, step + 1

    states = {"episode": 0, "global_step": 0, "total_consumed_prompts": 0, "data_loader_state_dict": {}}
    with generation(strategy, dataset_size) as generator:
        generator._dispatch_prompts_to_vllm = lambda prompts, *words, **options: list(prompts)
        generator._process_response_into_experience = lambda prompt, **options: SimpleNamespace(prompt=prompt)
        loader, trainer = generator.prompts_dataloader, object.__new__(FIT)
        vars(trainer).update(args=strategy.args, prompts_dataloader=loader, eval_dataloader=None, generate_kwargs={})
        vars(trainer).update(samples_generator=generator, wandb_logger=None, tensorboard_logger=None, train_step=train)
        vars(trainer).update(init_checkpoint_states=lambda: states, restore_best_checkpoint_state=lambda states: None)
        trainer.save_logs_and_checkpoints = lambda *words: None
        trainer.fit()
    return rollouts


@contextlib.contextmanager
def generation(strategy: Any, dataset_size: int) -> Iterator[Any]:
    """OpenRLHF's generator of samples over prompts that are numbers, in which an engine answers at once."""
    idle, size = mock.MagicMock(), strategy.args.rollout.n_samples_per_prompt
    with (
        mock.patch.object(ppo_trainer, "blending_datasets", return_value=Places(range(dataset_size))),
        mock.patch.object(ppo_trainer, "PromptDataset", lambda data, *words, **options: data),
        mock.patch.object(ppo_trainer, "tqdm", idle),
        mock.patch.object(ppo_trainer_async, "tqdm", idle),
        mock.patch.object(samples_generator, "tqdm", idle),
        mock.patch.object(samples_generator, "ray", mock.Mock(wait=waited, get=lambda ref: [ref] * size)),
        mock.patch.object(samples_generator, "batch_vllm_engine_call"),
        warnings.catch_warnings(action="ignore"),  # of torch about its own loader
    ):
        loader, _, _ = ppo_trainer.prepare_datasets(strategy, None)
        yield samples_generator.SamplesGenerator(strategy, loader, None, None, [])


class Waited(queue.Queue[Any]):
    """A queue that says when its taker can do nothing: `idle` is set while it waits for something."""

    def __init__(self, maxsize: int) -> None:
        super().__init__(maxsize)
        self.idle = threading.Event()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        with self.mutex:
            if not self._qsize():
                self.idle.set()
        return super().get(timeout=PATIENCE)

    def _put(self, item: Any) -> None:
        """Called while the queue's lock is held, so that `idle` is never set where something is there."""
        self.idle.clear()
        super()._put(item)


def oldest(args: Any) -> int:
    """The most updates that came between the generation of a rollout and its training, where OpenRLHF's own loops run
    beside each other, and the trainer updates only when the generator may go no further."""
    strategy, size = real_openrlhf.strategy_of(args, {}), args.rollout.n_samples_per_prompt
    ages: list[int] = []
    updates: list[int] = []

    def train(samples: Sequence[Any], step: int) -> tuple[dict[str, Any], int]:
        while not made.rollout_slots.idle.wait(0.01) and generating.is_alive():
            pass
        ages.extend(len(updates) - one.begun for one in samples[::size])
        updates.append(step)
        return {}, step + 1

    ray_of = {"ray": mock.MagicMock(), "VLLMLock": mock.MagicMock(), "Queue": Waited}
    actors = dict.fromkeys(("GenerateSamplesActor", "TrainingActor"), mock.DEFAULT)
    with (
        generation(strategy, ROLLOUTS * args.rollout.batch_size) as generator,
        mock.patch.multiple(ppo_trainer_async, **ray_of, **actors),
    ):
        generator._dispatch_prompts_to_vllm = lambda prompts, *words, **options: [len(updates)] * len(prompts)
        generator._process_response_into_experience = lambda begun, **options: SimpleNamespace(begun=begun)
        made, generates, trains = map(object.__new__, ACTORS)
        made.__init__(None, strategy, None, None, None, None, [])
        both = {"args": args, "_partial_rollout": False, "vllm_lock": mock.MagicMock(), "eval_dataloader": None}
        both |= {"rollout_queue": made.rollout_queue, "rollout_slots": made.rollout_slots}
        vars(generates).update(both, samples_generator=generator, generate_kwargs={})
        generates.prompts_dataloader = generator.prompts_dataloader
        vars(trains).update(both, wandb_logger=None, tensorboard_logger=None, train_step=train)
        trains.save_logs_and_checkpoints = lambda *words: None
        generating = threading.Thread(target=generates.fit, args=(0, 0), daemon=True)
        generating.start()
        trains.fit()
        generating.join(PATIENCE)
    assert len(updates) == ROLLOUTS, f"{len(updates)} of {ROLLOUTS} rollouts were trained"
    return max(ages)


def waited(refs: list[int], **options: Any) -> tuple[list[int], list[int]]:
    """What is ready of what is waited for, and the rest."""
    return refs[:1], refs[1:]


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


def gradients(
    case: ValidCase,
    rows: Sequence[Sequence[Token]],
    *,
    kl: bool = True,
    sampled: Sequence[Sequence[float]] | None = None,
) -> list[list[float]]:
    """The gradient of the loss of a step that is one micro-batch, at each token of each row. sampled: log-probabilities
    by the sampler; None: the old ones."""
    args, longest = parsed(case), max(map(len, rows))
    args.algo.kl.use_loss = args.algo.kl.use_loss and kl

    def padded(name: str) -> torch.Tensor:
        values = [[getattr(token, name) for token in row] + [0.0] * (longest - len(row)) for row in rows]
        return torch.tensor(values, dtype=torch.float64)

    beside = torch.tensor([[*row, *[0.0] * (longest - len(row))] for row in sampled or ()], dtype=torch.float64)

    class Policy(torch.nn.Module):
        def forward(self, *words: Any, **options: Any) -> tuple[torch.Tensor, Any]:
            return new, None

    new, mask = padded("logprob").requires_grad_(), [[float(at < len(row)) for at in range(longest)] for row in rows]
    experience = Experience(
        action_mask=torch.tensor(mask, dtype=torch.float64),
        sequences=torch.zeros(len(rows), longest),
        action_log_probs=padded("old"),
        base_action_log_probs=padded("reference"),
        rollout_log_probs=padded("old") if sampled is None else beside,
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
        case("KL in rewards, k1", algo__kl__init_coef=0.05, algo__kl__estimator="k1", train__num_episodes=3),
        case("KL in rewards, k3", algo__kl__init_coef=0.1, algo__kl__estimator="k3", train__micro_batch_size=4),
        case("a cap", **CORRECTED),
        case("a mask", **CORRECTED, algo__advantage__is_correction_mode="mask"),
        case("a queue", train__async_enable=True, train__async_queue_size=3),
        case("a generation of three rollouts", train__async_enable=True, rollout__vllm_generate_batch_size=24),
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
    "devices are nodes": ("devices", "group_norm", {"topology.world_size": 1}),
    "a run is one episode": ("rollouts", "KL in rewards, k1", {"horizon.epochs": 1.0}),
    "a remainder of prompts is dropped": ("rollouts", "group_norm", {"order.last_rollout": "drop"}),
    "a remainder of prompts wraps": ("prompts", "group_norm", {"order.last_rollout": "wrap"}),
    "prompts are in order": ("prompts", "group_norm", {"order.prompt_shuffle": "none"}),
    "a micro-batch is one of all devices": (
        "micro_batches",
        "KL in rewards, k3",
        {"micro_batch.completions_per_device": 2},
    ),
    "k3 in rewards is k1": ("kl_rewards", "KL in rewards, k3", {"objective.kl_estimator": "k1"}),
    "KL in the loss is in rewards": ("kl_rewards", "KL, k2", {"objective.kl_placement": "reward"}),
    "KL in rewards has no bound": ("kl_rewards", "KL in rewards, k1", {"objective.kl_clamp": None}),
    "truncated completions do not train": ("truncated", "group_norm", {"rollout.truncated_completions": "mask"}),
    "a mask is a cap": ("corrections", "a mask", {"objective.sampler_correction": "token_truncate [0.5, 5.0]"}),
    "a cap has no lower bound": ("corrections", "a cap", {"objective.sampler_correction": "token_truncate [-, 5.0]"}),
    "a queue has room for one": ("staleness", "a queue", {"staleness.maximum": 1}),
    "the queue alone is ahead": ("staleness", "a generation of three rollouts", {"staleness.maximum": 1}),
    "nothing is corrected": ("corrections", "a cap", {"objective.sampler_correction": None}),
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
