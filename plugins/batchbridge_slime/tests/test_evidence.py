"""slime's specification against slime's own functions, and misreadings of its options, each of which they tell.

slime is on no package index and imports Megatron, Ray and SGLang: where its checkout is on the path (`PYTHONPATH`) and
torch is installed, functions are taken out of its files one by one, and what they call besides is a stand-in. Elsewhere
`evidence.json` has what they answered.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar
from unittest.mock import MagicMock

import pytest

sys.path.insert(0, str(Path(__file__).parent))  # for the module beside it, wherever pytest was started

from slimes_code import (
    MARKER,
    batch_of,
    gradients,
    loss_function,
    parsed,
    rollouts,
    sample,
    scheduled,
    scored,
    taken,
    validated,
)

from batchbridge import Reading, Source
from batchbridge.kit import Context
from batchbridge.testing import EvidenceContract, Token, ValidCase
from batchbridge_slime.config import SlimeAdapter
from batchbridge_slime.settings import ICEPOP

RUN: dict[str, Any] = {
    "rollout-batch-size": 4,
    "n-samples-per-prompt": 4,
    "global-batch-size": 8,
    "num-rollout": 9,
    "actor-num-nodes": 2,
    "actor-num-gpus-per-node": 2,
    "tensor-model-parallel-size": 2,
    "attention-dropout": 0.0,
    "hidden-dropout": 0.0,
    "lr-decay-style": "constant",
}
KL = {"use-kl-loss": True, "kl-loss-coef": 0.1}
CASES: dict[str, dict[str, Any]] = {
    "in the file's order": {},
    "shuffled": {"rollout-shuffle": True},
    "tokens": {"calculate-per-token-loss": True, **KL, "kl-loss-type": "low_var_kl"},
    "no deviation": {"disable-grpo-std-normalization": True, **KL, "kl-loss-type": "k2", "num-steps-per-rollout": 2},
    "no mean": {"disable-rewards-normalization": True, "eps-clip": 0.1, "eps-clip-high": 0.28, "eps-clip-c": 3.0},
    "a step a rollout": {
        "global-batch-size": 16,
        "micro-batch-size": 2,
        **KL,
        "kl-loss-type": "low_var_kl",
        "use-unbiased-kl": True,
    },
    "a remainder": {"global-batch-size": 6, "micro-batch-size": 3, "eps-clip-high": 0.28},
    "steps": {"global-batch-size": None, "num-steps-per-rollout": 4, **KL, "kl-loss-type": "k3"},
    "whole completions": {"advantage-estimator": "gspo", "eps-clip": 0.003, "global-batch-size": 16},
    "cispo": {"advantage-estimator": "cispo", "eps-clip": 1.0, "eps-clip-high": 0.25, **KL, "kl-loss-type": "k1"},
    "packed": {"use-dynamic-batch-size": True, "max-tokens-per-gpu": 12, "use-rollout-logprobs": True},
    "ahead": {"program": "train_async.py", "kl-coef": 0.1, "micro-batch-size": 2},
    "capped": {"use-tis": True, "tis-clip": 2.0, "tis-clip-low": 0.5, "calculate-per-token-loss": True},
    "masked": {"use-tis": True, "custom-tis-function-path": ICEPOP, "tis-clip": 5.0, "tis-clip-low": 0.5},
    "an epoch": {"num-rollout": None, "num-epoch": 1, "n-samples-per-prompt": 1, "global-batch-size": 4},
}
ARGUMENTS, LOSS, PPO = "utils/arguments.py: ", "backends/megatron_utils/loss.py: ", "utils/ppo_utils.py: "
PARSED = (f"{ARGUMENTS}slime_validate_args",)
SCHEDULED = ("utils/dp_schedule.py: build_dp_schedule", "utils/dp_schedule.py: _pack_step_into_mbs")
REDUCED = ("backends/megatron_utils/cp_utils.py: get_sum_of_sample_mean",)
TRAINED = (*REDUCED, f"{LOSS}policy_loss_function")


def case(name: str, **changes: Any) -> ValidCase:
    said = {**RUN, **CASES[name], **changes}
    values = {key: value for key, value in said.items() if value is not None}
    return ValidCase(name=name, source=Source(values=values), context=Context(framework_version="0.3.1"))


class SlimesFunctions(EvidenceContract):
    """What slime's own code says of a case."""

    adapter_class = SlimeAdapter
    package = "slime"
    marker = MARKER
    version = "0.3.1 (624b824)"
    record = Path(__file__).with_name("evidence.json")
    valid = tuple(map(case, CASES))
    functions: ClassVar[Mapping[str, Sequence[str]]] = {
        "devices": ("backends/megatron_utils/arguments.py: megatron_parse_args",),
        "rollouts": (
            *PARSED,
            "ray/placement_group.py: create_rollout_manager",
            "ray/rollout.py: RolloutManager.get_num_rollout_per_epoch",
        ),
        "prompts": ("rollout/data_source.py: RolloutDataSource.get_samples", "utils/data.py: Dataset.shuffle"),
        "steps": (*PARSED, *SCHEDULED),
        "advantages": (*PARSED, "ray/rollout.py: RolloutManager._post_process_rewards"),
        "weights": (*REDUCED, f"{LOSS}loss_function"),
        "gradients": (*TRAINED, *(f"{PPO}compute_{name}" for name in ("policy_loss", "approx_kl", "cispo_loss"))),
        "ratio": (*TRAINED, f"{PPO}compute_gspo_kl"),
        "micro_batches": (*PARSED, *SCHEDULED),
        "kl_rewards": (
            *PARSED,
            f"{LOSS}compute_advantages_and_returns",
            f"{PPO}compute_approx_kl",
            f"{PPO}get_grpo_returns",
        ),
        "staleness": ("../train.py: train", "../train_async.py: train"),
        "truncated": ("ray/rollout.py: RolloutManager._convert_samples_to_train_data",),
        "corrections": (*TRAINED, f"{LOSS}vanilla_tis_function", f"{LOSS}icepop_function"),
    }

    def native_devices(self, case: ValidCase) -> int:
        args = parsed(case.source.values)
        parse = taken("backends/megatron_utils/arguments.py", "megatron_parse_args")
        parse.__globals__.update(_megatron_parse_args=lambda **_: args, _set_default_megatron_args=lambda args: args)
        return int(parse(None, skip_hf_validate=True).world_size)

    def native_rollouts(self, case: ValidCase, dataset_size: int) -> int:
        args = validated(case.source.values)
        count = taken("ray/rollout.py", "RolloutManager.get_num_rollout_per_epoch")
        manager = SimpleNamespace(args=args, data_source=range(dataset_size))
        asked = SimpleNamespace(get_num_rollout_per_epoch=SimpleNamespace(remote=lambda: count(manager)))
        beside, create = ModuleType("slime_alone.rollout"), taken("ray/placement_group.py", "create_rollout_manager")
        beside.RolloutManager = SimpleNamespace(  # type: ignore[attr-defined]  # a stand-in
            options=lambda **_: SimpleNamespace(remote=lambda *_: asked)
        )
        sys.modules |= {"slime_alone": ModuleType("slime_alone"), "slime_alone.rollout": beside}
        create.__globals__.update(__package__="slime_alone", ray=SimpleNamespace(get=lambda value: value))
        create(args, None)
        return int(args.num_rollout)

    def native_prompts(self, case: ValidCase, dataset_size: int) -> Iterator[Sequence[int]] | None:
        if "num-epoch" in case.source.values:
            return None  # no second epoch comes
        return rollouts(case.source.values, dataset_size)

    def native_step_sizes(self, case: ValidCase) -> list[int]:
        micro_batches, counts = scheduled(case.source.values)
        sizes, begun = [], 0
        for count in counts:
            sizes.append(sum(len(one) for rank in micro_batches for one in rank[begun : begun + count]))
            begun += count
        return sizes

    def native_micro_batches(self, case: ValidCase) -> list[int]:
        micro_batches, counts = scheduled(case.source.values)
        return [len(one) for one in micro_batches[0][: counts[0]]]

    def native_advantages(self, case: ValidCase, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        import torch

        normalise, args = taken("ray/rollout.py", "RolloutManager._post_process_rewards"), validated(case.source.values)
        normalise.__globals__["torch"] = torch
        args.rollout_batch_size = len(groups)
        samples = [
            SimpleNamespace(get_reward_value=lambda _, reward=reward: reward) for group in groups for reward in group
        ]
        _, flat = normalise(SimpleNamespace(args=args, custom_reward_post_process_func=None), samples)
        return [flat[at : at + len(groups[0])] for at in range(0, len(flat), len(groups[0]))]

    def native_weights(self, case: ValidCase, lengths: Sequence[int]) -> list[float]:
        """A step of two micro-batches on one replica: Megatron divides by their number, or by the step's tokens."""
        import torch

        args, new = validated(case.source.values), [torch.zeros(length, requires_grad=True) for length in lengths]
        half, total = len(new) // 2, torch.zeros(())
        for part in (new[:half], new[half:]):
            args.loss_type, masks = "custom_loss", [torch.ones(len(one)) for one in part]
            function = loss_function(lambda _, batch, logits, mean, part=part: (mean(torch.cat(part)), {}))
            batch = batch_of(list(map(len, part)), loss_masks=masks)
            loss, _, _ = function(args, batch, 2, len(new), torch.zeros(1))
            total = total + loss
        (total / (sum(lengths) if args.calculate_per_token_loss else 2)).backward()
        return [float(one.grad[0]) for one in new]

    def native_gradients(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return gradients(case.source.values, [[token] for token in tokens])

    def native_completion_gradient(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        share = len(tokens) if case.source.values.get("calculate-per-token-loss") else 1
        return [one / share for one in gradients(case.source.values, [list(tokens)])]

    def native_kl_rewards(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        """What the advantages of completions of one token each are less than their rewards."""
        import torch

        penalise, args = (
            taken("backends/megatron_utils/loss.py", "compute_advantages_and_returns"),
            validated(case.source.values),
        )
        penalise.__globals__.update(torch=torch, mpu=SimpleNamespace(is_pipeline_last_stage=lambda: True))
        for name in ("compute_approx_kl", "get_grpo_returns"):
            penalise.__globals__[name] = taken("utils/ppo_utils.py", name)
            penalise.__globals__[name].__globals__["torch"] = torch
        old, reference = ([torch.tensor([getattr(one, name)]) for one in tokens] for name in ("old", "reference"))
        data = {"log_probs": old, "rollout_log_probs": old, "ref_log_probs": reference, "rewards": [0.5] * len(tokens)}
        penalise(args, data)
        return [float(one[0]) - 0.5 for one in data["advantages"]]

    def native_staleness(self, case: ValidCase) -> float:
        """The rollouts that were trained since the weights that a rollout was asked of, where it is trained itself."""
        args, ages, trained, handed = validated(case.source.values), [], 0, 0

        def trains(rollout: int, asked_of: int) -> None:
            nonlocal trained
            ages.append(trained - asked_of)
            trained += 1

        def hands_over() -> None:
            nonlocal handed
            handed = trained

        manager, actor = MagicMock(), MagicMock(async_train=trains, update_weights=hands_over)
        manager.generate = SimpleNamespace(remote=lambda rollout: handed)
        args.num_rollout = args.num_rollout or 4  # of an epoch the manager says it
        train = taken(f"../{case.source.values.get('program', 'train.py')}", "train")
        train.__globals__.update(
            ray=SimpleNamespace(get=lambda value: value),
            create_rollout_manager=lambda *_: (manager, None),
            create_training_models=lambda *_: (actor, None),
            should_run_periodic_action=lambda *_: False,
        )
        train(args)
        return float(max(ages))

    def native_trained_tokens(
        self, case: ValidCase, lengths: Sequence[int], truncated: Sequence[bool]
    ) -> list[int | None]:
        convert, kind = taken("ray/rollout.py", "RolloutManager._convert_samples_to_train_data"), sample()
        convert.__globals__["Sample"] = kind
        statuses = [kind.Status.TRUNCATED if cut else kind.Status.COMPLETED for cut in truncated]
        samples = [
            kind(tokens=[0] * length, response_length=length, status=status, reward=0.0, index=place)
            for place, (length, status) in enumerate(zip(lengths, statuses, strict=True))
        ]
        manager = SimpleNamespace(args=validated(case.source.values), custom_convert_samples_to_train_data_func=None)
        manager._post_process_rewards = lambda samples: ([0.0] * len(samples), [0.0] * len(samples))
        return list(map(sum, convert(manager, samples)["loss_masks"]))

    def native_sampler_factors(
        self, case: ValidCase, completions: Sequence[Sequence[tuple[float, float]]]
    ) -> list[list[float]]:
        """The gradient at ratio 1 and advantage -1, without a term for KL."""
        factors = []
        for completion in completions:
            tokens = [Token(logprob=old, old=old, reference=old, advantage=-1.0) for old, _ in completion]
            share = 1 if case.source.values.get("calculate-per-token-loss") else len(tokens)
            found = gradients(case.source.values, [tokens], sampled=[sampled for _, sampled in completion])
            factors.append([one * share for one in found])
        return factors


class TestSlimesFunctions(SlimesFunctions):
    """slime's own answers, or what was recorded of them."""


MISREAD: dict[str, tuple[str, dict[str, Any]]] = {
    "steps are counted in prompts": ("steps", {"optimizer_step.completions_per_step": 2}),
    "a rollout's remainder is trained": ("steps", {"order.last_optimizer_step": "short"}),
    "a rollout is trained on twice": ("steps", {"optimizer_step.passes_per_rollout": 2}),
    "the devices are the nodes": ("devices", {"topology.world_size": 2}),
    "an epoch drops its remainder": ("prompts", {"order.last_rollout": "drop"}),
    "prompts are shuffled unless that is off": ("prompts", {"order.prompt_shuffle": "epoch_permutation"}),
    "the deviation is that of the batch": ("advantages", {"advantage.scale": "batch"}),
    "the deviation is the biased one": ("advantages", {"advantage.ddof": 0}),
    "the mean is that of the others": ("advantages", {"advantage.baseline": "leave_one_out"}),
    "losses are a mean over tokens": ("weights", {"loss.policy.aggregation": "token_mean"}),
    "the upper bound is not the lower one": ("gradients", {"objective.clip_high": 0.28}),
    "low_var_kl is k1": ("gradients", {"objective.kl_estimator": "k1"}),
    "low_var_kl is not clamped": ("gradients", {"objective.kl_clamp": None}),
    "a micro-batch is a replica's share": ("micro_batches", {"micro_batch.completions_per_device": 4}),
    "a micro-batch is all replicas'": ("micro_batches", {"micro_batch.completions_per_device": 1}),
    "kl-coef is taken from rewards": (
        "kl_rewards",
        {"objective.kl_placement": "reward", "objective.kl_coefficient": 0.1, "objective.kl_estimator": "k1"},
    ),
    "train_async.py trains what it asks for": ("staleness", {"staleness.mode": "sync", "staleness.maximum": 0}),
    "train_async.py bounds no age": ("staleness", {"staleness.maximum": None}),
    "train.py asks ahead": ("staleness", {"staleness.mode": "lookahead", "staleness.maximum": 1}),
    "completions that were cut are masked": ("truncated", {"rollout.truncated_completions": "mask"}),
    "completions that were cut are dropped": ("truncated", {"rollout.truncated_completions": "drop"}),
    "use-tis corrects nothing": ("corrections", {"objective.sampler_correction": None}),
    "tis-clip-low is no bound": ("corrections", {"objective.sampler_correction": "token_truncate [-, 2.0]"}),
    "icepop caps": ("corrections", {"objective.sampler_correction": "token_truncate [0.5, 5.0]"}),
    "everything is corrected": ("corrections", {"objective.sampler_correction": "token_truncate [-, 2.0]"}),
    "gspo has a ratio for each token": ("ratio", {"objective.ratio_level": "token"}),
}
OF = {
    "a rollout's remainder is trained": "a remainder",
    "low_var_kl is k1": "tokens",
    "low_var_kl is not clamped": "tokens",
    "gspo has a ratio for each token": "whole completions",
    "a micro-batch is a replica's share": "a step a rollout",
    "a micro-batch is all replicas'": "a step a rollout",
    "kl-coef is taken from rewards": "ahead",
    "train_async.py trains what it asks for": "ahead",
    "train_async.py bounds no age": "ahead",
    "use-tis corrects nothing": "capped",
    "tis-clip-low is no bound": "capped",
    "icepop caps": "masked",
}


@pytest.mark.parametrize("name", MISREAD)
def test_a_misreading_is_told(name: str) -> None:
    from batchbridge.contract.held import LAWS

    law, changes = MISREAD[name]
    if law in ("gradients", "ratio", "kl_rewards"):
        pytest.importorskip("torch")

    class Misread(SlimeAdapter):
        def read(self, source: Source, context: Context) -> Reading:
            reading = super().read(source, context)
            assert reading.spec is not None
            return dataclasses.replace(reading, spec=reading.spec.replace(**changes))

    class Told(SlimesFunctions):
        adapter_class = Misread

    with pytest.raises(AssertionError):
        getattr(Told(), LAWS[law].test)(case(OF.get(name, "in the file's order")))


@pytest.mark.parametrize("name", CASES)
def test_a_rollout_is_scored_before_it_is_trained_on_where_that_is_said(name: str) -> None:
    """The decision is in the middle of `train_actor`, which is run around stand-ins; no law asks for it."""
    if SlimesFunctions.package_folder() is None:
        pytest.skip("slime's checkout is not on the path")
    one = case(name)
    spec = SlimeAdapter().read(one.source, one.context).spec
    assert spec is not None
    steps = SlimesFunctions().native_step_sizes(one)
    assert scored(validated(one.source.values), len(steps)) == (spec.objective.old_logprobs == "rollout_start")
