"""AReaL's specification against AReaL's own functions, and misreadings of its settings, each of which they tell.

Where its checkout is on the path (`PYTHONPATH`), with torch and lark, its modules are run (`areals_code`). Elsewhere
`evidence.json` has what they answered.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the module beside it, wherever pytest was started

import areals_code
from areals_code import StandIn, module
from batchbridge import Reading, Source
from batchbridge.contract.held import LAWS
from batchbridge.kit import Context
from batchbridge.testing import EvidenceContract, Token, ValidCase
from batchbridge_areal.config import ArealAdapter
from batchbridge_areal.settings import MANDATORY

NORM = "actor.reward_norm"
RUN: dict[str, Any] = {
    **MANDATORY,
    "actor.backend": "fsdp:d2t2",
    "train_dataset.batch_size": 4,
    "rollout.consumer_batch_size": 4,
    "gconfig.n_samples": 4,
    "actor.ppo_n_minibatches": 2,
    "actor.kl_ctl": 0.0,
    "total_train_epochs": 3,
}
BY_GROUP = {"mean_level": "group", "std_level": "group", "group_size": 4}
DECOUPLED = {"actor.use_decoupled_loss": True}
REJECTION = "actor.rejection_sampling"
CASES: dict[str, dict[str, Any]] = {
    "groups": {NORM: BY_GROUP},
    "in the file's order": {"train_dataset.shuffle": False, NORM: {**BY_GROUP, "std_unbiased": False, "eps": 0.1}},
    "no deviation": {NORM: {**BY_GROUP, "std_level": None}, "actor.ppo_n_minibatches": 1},
    "the others": {NORM: {**BY_GROUP, "std_level": None, "mean_leave1out": True}, "actor.ppo_n_minibatches": 8},
    "the others, scaled": {NORM: {**BY_GROUP, "mean_leave1out": True, "eps": 0.05}, "total_train_steps": 5},
    "plain rewards": {"actor.backend": "megatron:(attn:d2t2|ffn:d1e4)", "actor.eps_clip_higher": 0.28},
    "dual": {"actor.c_clip": 3.0, "actor.eps_clip": 0.4, "actor.backend": "archon:d4c2"},
    "sapo": {"actor.use_sapo_loss": True, NORM: {**BY_GROUP, "std_level": None}},
    "sequences": {"actor.importance_sampling_level": "sequence", "actor.eps_clip": 0.003, **DECOUPLED},
    "KL of a reference": {"actor.kl_ctl": 0.1, "actor.kl_estimator": "k3", "ref": {"path": "x"}},
    "KL, k1": {"actor.kl_ctl": 0.05, "ref": {"path": "x"}, "actor.mask_no_eos_with_zero": False},
    "capped": {**DECOUPLED, REJECTION: {"metric": "ratio", "action": "clamp", "upper": 2.0, "lower": 0.5}},
    "masked": {**DECOUPLED, REJECTION: {"metric": "ratio", "action": "mask", "upper": 5.0}},
    "for metrics": {REJECTION: {"metric": "ratio", "action": "mask", "upper": 2.0}, "actor.recompute_logprob": True},
    "two versions": {"rollout.max_head_offpolicyness": 2},
    "more are admitted": {"rollout.consumer_batch_size": 8, "actor.mb_spec.n_mbs": 2},
    "one replica": {"actor.backend": "megatron:d1p2t2", "actor.ppo_n_minibatches": 4},
}
DATA, PACK, ACTOR = "utils/data.py: ", "utils/seqpack.py: ", "trainer/ppo/actor.py: "
LOSS = ("utils/functional/functional.py: ppo_actor_loss_fn", "utils/functional/functional.py: sapo_loss_fn")


def case(name: str, **changes: Any) -> ValidCase:
    said = {**RUN, **CASES[name], **changes}
    return ValidCase(name=name, source=Source(values=said), context=Context(framework_version="1.0.4"))


def actor_of(case: ValidCase, *, alone: bool = True) -> Any:
    """AReaL's PPOActor with the case's settings, beside an engine that keeps what it is to train on."""
    classes = module("api/cli_args.py")
    own = {key.removeprefix("actor."): value for key, value in case.source.values.items() if key.startswith("actor.")}
    said = {key: value for key, value in own.items() if not key.startswith("mb_spec.")}
    for key, name in (("reward_norm", "NormConfig"), ("adv_norm", "NormConfig"), ("rejection_sampling", None)):
        if said.get(key) is not None:
            said[key] = getattr(classes, name or "RejectionSamplingConfig")(**said[key])
    config = classes.PPOActorConfig(**said)
    engine = SimpleNamespace(trained=[], train=lambda: None, get_version=lambda: 0)
    engine.train_batch = lambda batch, **_: engine.trained.append(batch) or {}
    return module("trainer/ppo/actor.py").PPOActor(config, engine)


def rollout(rewards: Sequence[float], lengths: Sequence[int] | None = None) -> dict[str, Any]:
    """A batch as AReaL's workflows make it: a prompt of one token, and completions of so many."""
    import torch

    sizes = torch.tensor([1 + length for length in lengths or [1] * len(rewards)])
    places = torch.arange(int(sizes.max()))[None, :]
    inside = (places < sizes[:, None]).int()
    shape = inside.shape
    return {
        "input_ids": torch.zeros(shape, dtype=torch.long),
        "attention_mask": inside,
        "loss_mask": inside * (places > 0),
        "logprobs": torch.zeros(shape),
        "prox_logp": torch.zeros(shape),
        "rewards": torch.tensor([float(reward) for reward in rewards]),
        "versions": torch.zeros(shape, dtype=torch.int),
    }


class ArealsFunctions(EvidenceContract):
    """What AReaL's own code says of a case."""

    adapter_class = ArealAdapter
    package = "areal"
    marker = areals_code.MARKER
    version = "1.0.4 (4aef98d)"
    record = Path(__file__).with_name("evidence.json")
    valid = tuple(map(case, CASES))
    functions: ClassVar[Mapping[str, Sequence[str]]] = {
        "devices": ("api/alloc_mode.py: ModelAllocation.from_str", "api/alloc_mode.py: ParallelStrategy.world_size"),
        "rollouts": ("trainer/rl_trainer.py: PPOTrainer.train", "utils/dataloader.py: create_dataloader"),
        "prompts": (
            "utils/dataloader.py: create_dataloader",
            f"{DATA}cycle_dataloader",
            "infra/workflow_executor.py: WorkflowExecutor.prepare_batch",
        ),
        "steps": (
            "infra/controller/train_controller.py: _dispatch_tensors",
            f"{PACK}balanced_greedy_partition",
            f"{ACTOR}PPOActor._ppo_update",
            f"{DATA}split_padded_tensor_dict_into_mb_list",
            f"{PACK}_ffd_allocate",
        ),
        "advantages": (f"{ACTOR}PPOActor._compute_advantages",),
        "weights": (
            "engine/core/train_engine.py: compute_total_loss_weight",
            "engine/fsdp_engine.py: FSDPEngine._compute_logprobs_and_loss",
            *LOSS,
        ),
        "gradients": LOSS,
        "ratio": (
            LOSS[0],
            "utils/functional/functional.py: _compute_sequence_level_ratio_and_advantages",
        ),
        "micro_batches": (f"{DATA}split_padded_tensor_dict_into_mb_list", f"{PACK}_ffd_allocate"),
        "kl_rewards": (f"{ACTOR}PPOActor._compute_advantages", f"{DATA}KLEstimator._compute_approx_kl"),
        "staleness": tuple(
            f"infra/staleness_manager.py: StalenessManager.{name}"
            for name in ("get_capacity", "on_rollout_submitted", "on_rollout_accepted")
        ),
        "truncated": ("workflow/rlvr.py: RLVRWorkflow.arun_episode", f"{ACTOR}PPOActor._compute_advantages"),
        "corrections": (
            f"{ACTOR}PPOActor._compute_advantages",
            f"{ACTOR}grpo_loss_fn",
            *LOSS[:1],
            "utils/functional/functional.py: apply_rejection_sampling",
        ),
    }

    def native_devices(self, case: ValidCase) -> int:
        allocation = module("api/alloc_mode.py").ModelAllocation.from_str(case.source.values["actor.backend"])
        return int(allocation.parallel.world_size)

    def native_rollouts(self, case: ValidCase, dataset_size: int) -> int:
        trained: list[Any] = []
        values = case.source.values
        engines = {"critic": None, "ref": None, "teacher": None, "recover_info": None}
        config = SimpleNamespace(
            total_train_epochs=values["total_train_epochs"],
            total_train_steps=values.get("total_train_steps"),
            gconfig=SimpleNamespace(n_samples=4),
            actor=SimpleNamespace(should_compute_prox_logp=lambda: False),
            memory_profiler=None,
            dynamic_bs=False,
        )
        beside = {f"_should_offload_{name}": False for name in ("rollout", "actor", "critic", "ref", "teacher")}
        actor = Trained(trained)
        trainer = Around(
            config=config,
            actor=actor,
            train_dataloader=loader(case, dataset_size),
            eval_rollout=None,
            **engines,
            **beside,
        )
        module("trainer/rl_trainer.py").PPOTrainer.train(trainer, workflow="any")
        return len(trained)

    def native_prompts(self, case: ValidCase, dataset_size: int) -> Iterator[Sequence[int]]:
        executor = module("infra/workflow_executor.py").WorkflowExecutor
        executor.prepare_batch.__globals__["cycle_dataloader"] = module("utils/data.py").cycle_dataloader

        def first_in(generator: Any, batch_size: int, dynamic_bs: bool) -> list[Any]:
            taken = itertools.islice(generator, batch_size)
            return [SimpleNamespace(trajectory=task.data) for task in taken]

        dispatcher, data = SimpleNamespace(active_submit_and_wait=first_in), loader(case, dataset_size)
        running = SimpleNamespace(dispatcher=dispatcher, _task_id_generator=SimpleNamespace(next=lambda: 0))
        while True:
            yield executor.prepare_batch(running, data, workflow=None)

    def native_step_sizes(self, case: ValidCase) -> list[int]:
        replicas = [[batch["input_ids"].shape[0] for batch in steps] for steps in areals_steps(case)]
        return [sum(step) for step in itertools.zip_longest(*replicas, fillvalue=0)]

    def native_advantages(self, case: ValidCase, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        data = actor_of(case)._compute_advantages(rollout([reward for group in groups for reward in group]))
        flat, size = data["advantages"][:, 0].tolist(), len(groups[0])
        return [flat[at : at + size] for at in range(0, len(flat), size)]

    def native_weights(self, case: ValidCase, lengths: Sequence[int]) -> list[float]:
        """A step of two replicas, with two micro-batches each; FSDP takes the mean of the replicas' gradients."""
        import torch

        if case.source.values.get("actor.importance_sampling_level") == "sequence":
            return self.native_weights(dataclasses.replace(case, source=Source(values=RUN)), lengths)
        rows = [torch.zeros(length, requires_grad=True) for length in lengths]
        quarter = len(rows) // 4
        parts = [rows[at : at + quarter] for at in range(0, len(rows), quarter)]
        batches = [{"loss_mask": torch.ones(sum(map(len, part)))} for part in parts]
        total = module("engine/core/train_engine.py").compute_total_loss_weight
        counted = total.__globals__ | {"dist": SimpleNamespace(all_reduce=lambda *_, **__: None)}
        total.__globals__.update(counted)

        def weigh(batch: Mapping[str, Any]) -> Any:
            return batch["loss_mask"].count_nonzero()

        weight = total(SimpleNamespace(mbs=batches), weigh, None)
        engine = module("engine/fsdp_engine.py").FSDPEngine
        loss = torch.zeros(())
        for part, batch in zip(parts, batches, strict=True):
            flat = torch.cat(part)
            around = SimpleNamespace(
                config=SimpleNamespace(is_critic=False),
                enable_tree_training=False,
                _compute_logprobs_entropy=lambda logits, *_: (logits, logits),
                _get_vocab_min_max_logits=lambda logits, *_: (logits, logits),
            )
            context = SimpleNamespace(mb_input=batch, model_inputs=None, ulysses_pad_size=0, pad_length=0)

            def of_tokens(new: Any, entropy: Any, batch: Mapping[str, Any], **_: Any) -> Any:
                return losses(case, new, torch.zeros_like(new), -torch.ones_like(new), batch["loss_mask"].bool())

            scaled = engine._compute_logprobs_and_loss(around, flat, context, of_tokens, weigh, weight, 2)
            loss = loss + scaled / 2
        loss.backward()
        return [float(row.grad[0]) for row in rows]

    def native_gradients(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return gradients(case, [[token] for token in tokens])

    def native_completion_gradient(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return [one / len(tokens) for one in gradients(case, [list(tokens)])]

    def native_micro_batches(self, case: ValidCase) -> list[int]:
        """A replica's share of a step, as `PPOActor._ppo_update` hands it to its engine, cut by the engine."""
        first = areals_steps(case)[0][0]
        spec = module("api/cli_args.py").MicroBatchSpec
        said = {key.rpartition(".")[2]: value for key, value in case.source.values.items() if ".mb_spec." in key}
        cut = module("utils/data.py").split_padded_tensor_dict_into_mb_list(first, spec(**said))
        return [one["input_ids"].shape[0] for one in cut.mbs]

    def native_kl_rewards(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        """What the rewards of completions of one token are, where the task's are 0."""
        import torch

        rows = [*tokens, *tokens[: -len(tokens) % 4]]  # whole groups
        data = rollout([0.0] * len(rows))
        for name in ("logprobs", "prox_logp"):
            data[name] = torch.tensor([[row.old] * 2 for row in rows])
        if case.source.values.get("ref") is not None:
            data["ref_logp"] = torch.tensor([[row.reference] * 2 for row in rows])
        return actor_of(case)._compute_advantages(data)["tot_rewards"][: len(tokens), 0].tolist()

    def native_staleness(self, case: ValidCase) -> float:
        """The versions between the one in which a prompt is admitted, as early as it may be, and the one whose rollout
        it is trained in; without a bound where that goes on growing."""
        values, lag = case.source.values, {}
        batch = values["train_dataset.batch_size"]
        said = {key.removeprefix("rollout."): value for key, value in values.items() if key.startswith("rollout.")}
        config = module("api/cli_args.py").InferenceEngineConfig(**said)
        for versions in (100, 200):
            weights = SimpleNamespace(get_version=lambda: version)  # noqa: B023 - the loop's of now
            manager = module("infra/staleness_manager.py").StalenessManager(
                version_provider=weights,
                max_concurrent_rollouts=10**6,
                consumer_batch_size=config.consumer_batch_size,
                max_staleness=config.max_head_offpolicyness,
            )
            manager.rollout_stat = module("api/io_struct.py").RolloutStat()
            admitted: list[int] = []
            for version in range(versions):
                while manager.get_capacity() > 0:
                    manager.on_rollout_enqueued()
                    manager.on_rollout_submitted()
                    manager.on_rollout_accepted()
                    admitted.append(version)
            lag[versions] = max(place // batch - version for place, version in enumerate(admitted))
        return float(lag[100]) if lag[100] == lag[200] else math.inf

    def native_trained_tokens(
        self, case: ValidCase, lengths: Sequence[int], truncated: Sequence[bool]
    ) -> list[int | None]:
        """A completion that was cut fills its row, and says why it ended."""
        import torch

        episode, counts = module("workflow/rlvr.py").RLVRWorkflow.arun_episode, []
        episode.__globals__["ModelRequest"] = StandIn()
        for length, cut in zip(lengths, truncated, strict=True):
            response = SimpleNamespace(
                input_tokens=[5],
                input_len=1,
                output_tokens=[6] * length,
                output_len=length,
                output_logprobs=[-1.0] * length,
                output_versions=[0] * length,
                stop_reason="length" if cut else "stop",
            )
            workflow = Around(reward_fn=None, _collect_samples=partial(answered_with, response))
            workflow.__dict__["get_input_ids_fn"] = workflow.__dict__["data_extract_prompt_fn"] = lambda *_: [5]
            data = asyncio.run(episode(workflow, None, {}))
            group = {name: torch.cat([value] * 4) for name, value in data.items()}
            group["prox_logp"] = torch.zeros_like(group["logprobs"])
            counts.append(int(actor_of(case)._compute_advantages(group)["loss_mask"][0].sum()))
        return counts

    def native_sampler_factors(
        self, case: ValidCase, completions: Sequence[Sequence[tuple[float, float]]]
    ) -> list[list[float]]:
        """The gradient at ratio 1 and advantage -1, by the loss that `PPOActor._ppo_update` gives its engine."""
        import torch

        factors, kept = [], []
        for completion in completions:
            data = rollout([0.0] * 4, [len(completion)] * 4)
            old, sampled = torch.tensor(completion).T
            data["logprobs"][:, 1:], data["prox_logp"][:, :-1] = sampled, old  # the one by its token, the other before
            actor = actor_of(case)
            actor.engine.train_batch = lambda batch, **said: kept.append((batch, said["loss_fn"])) or {}
            ready = actor._compute_advantages(data)
            ready["advantages"] = -torch.ones_like(ready["logprobs"])
            actor.config.ppo_n_minibatches = 1
            actor._ppo_update(ready)
            batch, loss_of = kept.pop()
            new = batch["prox_logp"].detach().clone().requires_grad_()
            loss_of(new, torch.zeros_like(new), batch).backward()
            counted = int(batch["loss_mask"].count_nonzero())
            factors.append([float(one) * counted for one in new.grad[0, : len(completion)]])
        return factors


async def answered_with(response: Any, *_: Any) -> tuple[Any, float]:
    """In place of generation and rewards."""
    return response, 0.0


def areals_steps(case: ValidCase) -> list[list[dict[str, Any]]]:
    """What each replica's engine is asked to train on, step by step, of the first rollout."""
    values = case.source.values
    prompts, group = values["train_dataset.batch_size"], values["gconfig.n_samples"]
    allocation = module("api/alloc_mode.py").ModelAllocation.from_str(values["actor.backend"])
    dispatch = module("infra/controller/train_controller.py")._dispatch_tensors
    dispatch.__globals__["balanced_greedy_partition"] = module("utils/seqpack.py").balanced_greedy_partition
    lengths = [[1 + (5 * prompt + 3 * place * place) % 11 for place in range(group)] for prompt in range(prompts)]
    shares, _ = dispatch([rollout([0.0] * group, own) for own in lengths], allocation.parallel.dp_size)
    found = []
    for own in shares:
        actor = actor_of(case)
        batch, _ = module("utils/data.py").concat_batch(own)
        actor._ppo_update({**batch, "advantages": batch["logprobs"], "kl_rewards": 0, "tot_rewards": 0})
        found.append(actor.engine.trained)
    return found


class Around(StandIn):
    """A trainer of which only what is given is real."""

    def __init__(self, **given: Any) -> None:
        self.__dict__.update(given)


class Trained(StandIn):
    """An actor that counts the rollouts that it is asked for."""

    def __init__(self, trained: list[Any]) -> None:
        self.prepare_batch = lambda *_, **__: trained.append(1) or []


class TestArealsFunctions(ArealsFunctions):
    """AReaL's own answers, or what was recorded of them."""


def loader(case: ValidCase, dataset_size: int) -> Any:
    """The prompts as AReaL loads them, on the one rank of its controller."""
    import torch

    create, values = module("utils/dataloader.py").create_dataloader, case.source.values
    create.__globals__["StatefulDataLoader"] = torch.utils.data.DataLoader
    said = {key.partition(".")[2]: value for key, value in values.items() if key.startswith("train_dataset.")}
    config = module("api/cli_args.py").TrainDatasetConfig(**said)
    return create(list(range(dataset_size)), 0, 1, config)


def losses(case: ValidCase, new: Any, old: Any, advantages: Any, mask: Any, ends: Any = None) -> Any:
    """The loss of tokens in one row, as AReaL's trainer asks for it."""
    config, functional = actor_of(case).config, module("utils/functional/functional.py")
    rows: dict[str, Any] = {"cu_seqlens": ends, "importance_sampling_level": config.importance_sampling_level}
    if config.use_sapo_loss:
        taus = config.sapo_tau_pos, config.sapo_tau_neg
        return functional.sapo_loss_fn(new, old, advantages, *taus, mask, **rows)[0]
    bounds = {"eps_clip_higher": config.eps_clip_higher, "c_clip": config.c_clip}
    return functional.ppo_actor_loss_fn(new, old, old, advantages, config.eps_clip, mask, **bounds, **rows)[0]


def gradients(case: ValidCase, completions: Sequence[Sequence[Token]]) -> list[float]:
    """The gradient of each token's loss: AReaL's is their mean."""
    import torch

    tokens = [token for one in completions for token in one]
    new, old, advantages = (
        torch.tensor([getattr(token, name) for token in tokens], dtype=torch.float64)
        for name in ("logprob", "old", "advantage")
    )
    new.requires_grad_()
    ends = torch.tensor([0, *itertools.accumulate(map(len, completions))], dtype=torch.int32)
    loss = losses(case, new, old, advantages, torch.ones(len(tokens), dtype=torch.bool), ends)
    (found,) = torch.autograd.grad(loss * len(tokens), [new])
    return [float(one) for one in found]


MISREAD: dict[str, tuple[str, str, dict[str, Any]]] = {
    "devices of generation train": ("devices", "groups", {"topology.world_size": 8}),
    "experts are devices of their own": ("devices", "plain rewards", {"topology.world_size": 16}),
    "a run is one epoch": ("rollouts", "groups", {"horizon.epochs": 1.0}),
    "steps end no run": ("rollouts", "the others, scaled", {"horizon.rollouts": None}),
    "an epoch's remainder is trained": ("prompts", "groups", {"order.last_rollout": "short"}),
    "rollouts go on into the next epoch": ("prompts", "groups", {"order.last_rollout": "wrap"}),
    "prompts are in the file's order": ("prompts", "groups", {"order.prompt_shuffle": "none"}),
    "minibatches are counted in completions": ("steps", "groups", {"optimizer_step.completions_per_step": 2}),
    "minibatches are a replica's": ("steps", "groups", {"optimizer_step.completions_per_step": 4}),
    "a rollout is trained on twice": ("steps", "groups", {"optimizer_step.passes_per_rollout": 2}),
    "the deviation is that of the rollout": ("advantages", "groups", {"advantage.scale": "batch"}),
    "the deviation is the biased one": ("advantages", "groups", {"advantage.ddof": 0}),
    "the mean is that of the others": ("advantages", "no deviation", {"advantage.baseline": "leave_one_out"}),
    "eps is as large with the others": ("advantages", "the others, scaled", {"advantage.epsilon": 0.05}),
    "losses are a mean over completions": ("weights", "groups", {"loss.policy.aggregation": "sequence_mean"}),
    "the upper bound is the lower one": ("gradients", "plain rewards", {"objective.clip_high": 0.2}),
    "there is no bound of the loss": ("gradients", "dual", {"objective.dual_clip": None}),
    "sapo clips": ("gradients", "sapo", {"objective.surrogate": "ppo", "objective.clip_low": 0.2}),
    "a step is a micro-batch of each completion": (
        "micro_batches",
        "groups",
        {"micro_batch.completions_per_device": 1},
    ),
    "n_mbs cuts no step": ("micro_batches", "more are admitted", {"micro_batch.completions_per_device": None}),
    "kl_ctl is a term of the loss": ("kl_rewards", "KL of a reference", {"objective.kl_placement": "loss"}),
    "k3 is k1": ("kl_rewards", "KL of a reference", {"objective.kl_estimator": "k1"}),
    "the estimate has no bound": ("kl_rewards", "KL, k1", {"objective.kl_clamp": None}),
    "without ref there is a KL": (
        "kl_rewards",
        "groups",
        {"objective.kl_placement": "reward", "objective.kl_coefficient": 0.1, "objective.kl_estimator": "k1"},
    ),
    "a version more is admitted": ("staleness", "two versions", {"staleness.maximum": 3}),
    "versions do not bound the age": ("staleness", "two versions", {"staleness.maximum": None}),
    "generation is ahead by default": ("staleness", "groups", {"staleness.mode": "bounded", "staleness.maximum": 1}),
    "what is admitted is what is trained": ("staleness", "more are admitted", {"staleness.mode": "sync"}),
    "completions that were cut are masked": ("truncated", "groups", {"rollout.truncated_completions": "mask"}),
    "completions that were cut are dropped": ("truncated", "dual", {"rollout.truncated_completions": "drop"}),
    "nothing is corrected": ("corrections", "capped", {"objective.sampler_correction": None}),
    "a mask is a cap": ("corrections", "masked", {"objective.sampler_correction": "token_truncate [-, 5.0]"}),
    "a cap has no lower bound": ("corrections", "capped", {"objective.sampler_correction": "token_truncate [-, 2.0]"}),
    "rejection needs no decoupled loss": (
        "corrections",
        "for metrics",
        {"objective.sampler_correction": "token_mask [-, 2.0]"},
    ),
    "a sequence has a ratio for each token": ("ratio", "sequences", {"objective.ratio_level": "token"}),
}


@pytest.mark.parametrize("name", MISREAD)
def test_a_misreading_is_told(name: str) -> None:
    law, of, changes = MISREAD[name]
    if law in ("gradients", "ratio", "kl_rewards"):
        pytest.importorskip("torch")

    class Misread(ArealAdapter):
        def read(self, source: Source, context: Context) -> Reading:
            reading = super().read(source, context)
            assert reading.spec is not None
            return dataclasses.replace(reading, spec=reading.spec.replace(**changes))

    class Told(ArealsFunctions):
        adapter_class = Misread

    with pytest.raises(AssertionError):
        getattr(Told(), LAWS[law].test)(case(of))
