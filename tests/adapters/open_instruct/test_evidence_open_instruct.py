"""Open-Instruct's specification against Open-Instruct's own functions, and misreadings of its settings, each of which
they tell.

Open-Instruct is on no package index: where BATCHBRIDGE_OPEN_INSTRUCT's checkout is on the path, and what it imports is
installed (`nox -s open_instruct`), its functions are asked; elsewhere `evidence.json` has what they answered. Its own
preparation of data and its own learner's step run; engines answer at once, and a forward pass gives a tensor.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest

from batchbridge.contract.held import LAWS
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.testing import EvidenceContract, Token, ValidCase
from batchbridge_on_cpu.open_instruct.asked import FIRST_TOKEN, Stop, configured, prepared, prepared_until, stepped
from batchbridge_open_instruct.config import OpenInstructAdapter

RUN: dict[str, Any] = {
    "num_unique_prompts_rollout": 8,
    "num_samples_per_prompt_rollout": 4,
    "num_learners_per_node": [2],
    "total_episodes": 350,
    "async_steps": 2,
    "max_prompt_token_length": 4,
    "response_length": 12,
    "pack_length": 16,
    "load_ref_policy": False,
    "beta": 0.0,
    "use_rho_correction": False,
}
KL: dict[str, Any] = {"load_ref_policy": True, "beta": 0.05}
SCRIPT, FILE, MODEL, DATA = "grpo_fast.py: ", "grpo_utils.py: ", "model_utils.py: ", "data_loader.py: "
LOSSES = (f"{FILE}compute_rho_correction", f"{FILE}compute_grpo_loss")
STEP = f"{SCRIPT}PolicyTrainerRayProcess.step"
SET_UP = (f"{SCRIPT}setup_runtime_variables",)
LOOP = f"{DATA}DataPreparationActor._data_preparation_loop"
GATHERED = (LOOP, f"{DATA}accumulate_inference_batches", f"{DATA}process_group")
PACKED = ("rl_utils.py: pack_sequences", f"{DATA}prepare_collated_data_for_workers")
ANY_STEP = 100


class OpenInstructsFunctions(EvidenceContract):
    """What Open-Instruct's own code says of a case."""

    adapter_class = OpenInstructAdapter
    package = "open_instruct"
    marker = "grpo_fast.py"
    version = "2026.8.20 (e6c3044)"
    record = Path(__file__).with_name("evidence.json")
    functions: ClassVar[Mapping[str, Sequence[str]]] = {
        "devices": SET_UP,
        "rollouts": SET_UP,
        "prompts": (*GATHERED, f"{DATA}HFDataLoader._reshard", f"{DATA}HFDataLoader.__next__"),
        "steps": (*GATHERED, *PACKED, STEP),
        "advantages": (*GATHERED, *PACKED),
        "weights": (*GATHERED, *PACKED, STEP, f"{FILE}calculate_token_counts", "rl_utils.py: masked_mean"),
        "gradients": (*LOSSES, f"{MODEL}estimate_kl"),
        "ratio": LOSSES,
        "kl_rewards": (*GATHERED, f"{DATA}make_batch_from_groups"),
        "staleness": (*GATHERED, f"{DATA}result_is_stale"),
        "truncated": (*GATHERED, f"{DATA}maybe_mask_truncated_completions", PACKED[0]),
        "corrections": LOSSES[:1],
    }

    def native_devices(self, case: ValidCase) -> int:
        return int(configured(case.source.values)[0].world_size)

    def native_rollouts(self, case: ValidCase, dataset_size: int) -> int:
        return int(configured(case.source.values)[0].num_training_steps)

    def native_prompts(self, case: ValidCase, dataset_size: int) -> list[list[int]]:
        """Prompts as their answers come: each is answered at once."""
        _, config = configured(case.source.values)
        rollouts = 3 * dataset_size // config.num_unique_prompts_rollout + 1
        asked: list[list[int]] = []

        def see(native: Callable[..., Any], groups: Sequence[Any], *more: Any, **named: Any) -> Any:
            asked.append([group.index for group in groups])
            return native(groups, *more, **named)

        prepared(case.source.values, dataset_size=dataset_size, rollouts=rollouts, seen={"make_batch_from_groups": see})
        return asked

    def native_step_sizes(self, case: ValidCase) -> list[int]:
        learners = [stepped(case.source.values, data) for data in prepared(case.source.values)]
        return [sum(map(len, step)) for step in zip(*learners, strict=True)]

    def native_advantages(self, case: ValidCase, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        """As if no group were filtered."""
        rewards, size = [reward for group in groups for reward in group], len(groups[0])
        found: dict[int, float] = {}

        def see(native: Callable[..., Any], packed: Any, *more: Any) -> Any:
            for ids, mask, given in zip(packed.query_responses, packed.response_masks, packed.advantages, strict=True):
                found.update(zip(ids[mask].tolist(), given[mask].tolist(), strict=True))
            return native(packed, *more)

        prepared(
            case.source.values,
            rewards=rewards,
            seen={"prepare_collated_data_for_workers": see},
            filter_zero_std_samples=False,
        )
        flat = [found[FIRST_TOKEN + place] for place in range(len(rewards))]
        return [flat[at : at + size] for at in range(0, len(flat), size)]

    def native_weights(self, case: ValidCase, lengths: Sequence[int]) -> list[float] | None:
        """DeepSpeed takes the mean of the learners' gradients."""
        args, _ = configured(case.source.values)
        if args.num_mini_batches > 1:
            return None  # of the given completions no single step is made
        # the sampler agrees with the trainer, so that nothing is corrected
        shares = prepared(case.source.values, lengths=lengths, logprobs=[0.0] * len(lengths))
        alike = [dataclasses.replace(one, advantages=[-mask.float() for mask in one.response_masks]) for one in shares]
        found: dict[int, float] = {}
        for data in alike:
            found |= stepped(case.source.values, data, beside=alike)[0]
        return [found[FIRST_TOKEN + place] / args.world_size for place in range(len(lengths))]

    def native_gradients(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return gradients(case, [[token] for token in tokens])

    def native_completion_gradient(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return [one / len(tokens) for one in gradients(case, [tokens])]

    def native_kl_rewards(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        """What scores are less than what the verifiers gave, wherever the sampler's log-probabilities are."""
        size = configured(case.source.values)[1].num_samples_per_prompt_rollout
        places = range(-(-len(tokens) // size) * size)  # whole groups
        rewards = [float(place % size) for place in places]
        logprobs = [tokens[place % len(tokens)].old for place in places]
        batch = prepared_until(case.source.values, rewards=rewards, logprobs=logprobs)[1]
        return [after - before for after, before in zip(batch.scores, rewards, strict=True)][: len(tokens)]

    def native_staleness(self, case: ValidCase) -> float:
        """Answers become younger by a step with each prompt that is asked for: the first that is kept is the oldest."""
        kept: list[int] = []

        def see(native: Callable[..., Any], groups: Sequence[Any], *more: Any, **named: Any) -> None:
            kept.extend(ANY_STEP - group.result.model_step for group in groups)
            raise Stop

        prepared(
            case.source.values, seen={"make_batch_from_groups": see}, first_step=ANY_STEP, ages=range(ANY_STEP, -1, -1)
        )
        return float(max(kept))

    def native_trained_tokens(
        self, case: ValidCase, lengths: Sequence[int], truncated: Sequence[bool]
    ) -> list[int | None]:
        from open_instruct import rl_utils

        result, batch = prepared_until(case.source.values, lengths=lengths, truncated=truncated)
        config = configured(case.source.values)[1]
        packed = rl_utils.pack_sequences(
            queries=batch.queries,
            responses=result.responses,
            masks=result.masks,
            pack_length=config.pack_length,
            pad_token_id=0,
            vllm_logprobs=result.logprobs,
            mask_tool_use=config.mask_tool_use,
        )
        rows = zip(packed.query_responses, packed.response_masks, strict=True)
        trained = [token for ids, mask in rows for token in ids[mask > 0].tolist()]
        counts = [trained.count(FIRST_TOKEN + place) for place in range(len(lengths))]
        return [count or None for count in counts]

    def native_sampler_factors(
        self, case: ValidCase, completions: Sequence[Sequence[tuple[float, float]]]
    ) -> list[list[float]]:
        import torch
        from open_instruct import grpo_utils

        factors, (args, _) = [], configured(case.source.values)
        for completion in completions:
            old, sampled = torch.tensor(completion, dtype=torch.float64).T[:, None]
            every = torch.ones_like(old)
            found = grpo_utils.compute_rho_correction(old, sampled, every.bool(), every, args)
            factors.append(found.weights[0].tolist())
        return factors


if OpenInstructsFunctions.package_folder() is not None:
    from batchbridge_on_cpu.open_instruct import cpu

    cpu.start()
    import open_instruct.grpo_fast  # noqa: F401 - here, since functions are watched while they answer


def gradients(case: ValidCase, rows: Sequence[Sequence[Token]]) -> list[float]:
    """The gradient of each token's loss, as the learners put it together, at the log-probabilities of rows of one
    length."""
    import torch
    from open_instruct import grpo_utils

    config, _ = configured(case.source.values)
    new, old, reference, advantages = (
        torch.tensor([[getattr(token, name) for token in row] for row in rows], dtype=torch.float64)
        for name in ("logprob", "old", "reference", "advantage")
    )
    new.requires_grad_()
    weights = grpo_utils.compute_rho_correction(old, old, torch.ones_like(old).bool(), advantages, config).weights
    given = reference if config.load_ref_policy else None
    loss, _, kl = grpo_utils.compute_grpo_loss(new, (new - old).exp(), advantages, given, config, weights)
    (loss + config.beta * kl).sum().backward()
    return [one for row in new.grad.tolist() for one in row]


def case(name: str, **values: Any) -> ValidCase:
    return ValidCase(name=name, source=Source(values={**RUN, **values}), context=Context(framework_version="2026.8.20"))


class TestOpenInstruct(OpenInstructsFunctions):
    """Open-Instruct's adapter against them."""

    valid = (
        case("dapo"),
        case("two bounds", clip_lower=0.1, clip_higher=0.28, num_learners_per_node=[1, 1]),
        case("cispo", loss_fn="cispo", clip_higher=0.3, num_epochs=2),
        case("standard", advantage_normalization_type="standard", filter_zero_std_samples=False, async_steps=1),
        case("a constant", loss_denominator="96", num_unique_prompts_rollout=2, num_learners_per_node=[1]),
        case("a sum", loss_denominator="1", pack_length=40, num_learners_per_node=[1]),
        case("parts", num_mini_batches=2, mask_truncated_completions=True),
        case("KL 0", **KL, kl_estimator=0),
        case("KL 1", **KL, kl_estimator=1),
        case("KL 2", **KL, kl_estimator=2),
        case("KL 3", **KL, kl_estimator=3),
        case("a cap", use_rho_correction=True, rho_clamp_upper_bound=2.0),
        case(
            "a mask",
            use_rho_correction=True,
            rho_clamp_upper_bound=0.0,
            rho_mask_lower_bound=0.5,
            rho_mask_upper_bound=2.0,
        ),
    )


MISREADINGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # what is misread: (the law that tells, the case that it is told on, the fields as they are misread)
    "devices are the first node's": ("devices", "two bounds", {"topology.world_size": 1}),
    "episodes are prompts": ("rollouts", "dapo", {"horizon.rollouts": 43}),
    "a remainder of episodes is a rollout": ("rollouts", "dapo", {"horizon.rollouts": 11}),
    "a remainder of prompts is dropped": ("prompts", "dapo", {"order.last_rollout": "drop"}),
    "prompts are in order": ("prompts", "dapo", {"order.prompt_shuffle": "none"}),
    "a rollout is counted in completions": ("prompts", "dapo", {"rollout.prompts_per_rollout": 2}),
    "a step is counted in prompts": ("steps", "dapo", {"optimizer_step.completions_per_step": 8}),
    "num_epochs are epochs of the dataset": ("steps", "cispo", {"optimizer_step.passes_per_rollout": 1}),
    "num_mini_batches is ignored": (
        "steps",
        "parts",
        {"optimizer_step.completions_per_step": 32, "optimizer_step.parts_per_rollout": None},
    ),
    "centered is divided by the deviation": ("advantages", "dapo", {"advantage.scale": "group"}),
    "the deviation is unbiased": ("advantages", "standard", {"advantage.ddof": 1}),
    "the mean is that of the others": ("advantages", "dapo", {"advantage.baseline": "leave_one_out"}),
    "a mean of tokens is one of completions": ("weights", "dapo", {"loss.policy.aggregation": "sequence_mean"}),
    "each learner divides by its own tokens": ("weights", "dapo", {"loss.policy.aggregation": "token_sum"}),
    "the constant is a completion's": ("weights", "a constant", {"loss.policy.constant": 96}),
    "beta is in the rewards": (
        "kl_rewards",
        "KL 2",
        {"objective.kl_placement": "reward", "objective.kl_estimator": "k1"},
    ),
    "async_steps bounds nothing": ("staleness", "dapo", {"staleness.maximum": None}),
    "async_steps counts the step itself": ("staleness", "dapo", {"staleness.maximum": 1}),
    "a run is synchronous": ("staleness", "standard", {"staleness.mode": "sync", "staleness.maximum": 0}),
    "completions that were cut are trained": ("truncated", "parts", {"rollout.truncated_completions": "keep"}),
    "completions that were cut are left out": ("truncated", "dapo", {"rollout.truncated_completions": "drop"}),
    "a cut completion is an empty one": ("truncated", "parts", {"rollout.truncated_completions": "mask"}),
    "clip_higher is clip_lower": ("gradients", "two bounds", {"objective.clip_high": 0.1}),
    "cispo is ppo": ("gradients", "cispo", {"objective.surrogate": "ppo"}),
    "kl_estimator 2 is k2": ("gradients", "KL 2", {"objective.kl_estimator": "k2"}),
    "the ratio weighs no estimate": ("gradients", "KL 3", {"objective.kl_estimator": "k1"}),
    "KL is off": ("gradients", "KL 1", {"objective.kl_placement": "none", "objective.kl_coefficient": 0.0}),
    "the ratio is the sequence's": ("ratio", "dapo", {"objective.ratio_level": "sequence"}),
    "nothing is corrected": ("corrections", "a cap", {"objective.sampler_correction": None}),
    "a mask is a cap": ("corrections", "a mask", {"objective.sampler_correction": "token_truncate [0.5, 2.0]"}),
    "a cap has no bound": ("corrections", "a cap", {"objective.sampler_correction": "token_truncate [-, -]"}),
}


@pytest.mark.parametrize("misread", MISREADINGS)
def test_a_misreading_is_told_by_open_instructs_own_functions(misread: str) -> None:
    """A misread field that is the specification's alone: written twice, the contract of an adapter cannot see it."""
    law, named, wrong = MISREADINGS[misread]
    if law in ("gradients", "ratio", "kl_rewards"):
        pytest.importorskip("torch")

    class Misreading(OpenInstructAdapter):
        def read(self, source: Source, context: Context) -> Reading:
            reading = super().read(source, context)
            assert reading.spec is not None
            assert {path: reading.spec.values[path] for path in wrong} != wrong, "nothing is misread"
            return dataclasses.replace(reading, spec=reading.spec.replace(**wrong))

    class Held(OpenInstructsFunctions):
        adapter_class = Misreading

    (one,) = (one for one in TestOpenInstruct.valid if one.name == named)
    with pytest.raises(AssertionError, match="nativ"):
        getattr(Held(), LAWS[law].test)(one)
