"""TRL's specification against TRL's own functions; and misreadings of its settings, each of which they tell.

No policy is trained: a real trainer runs transformers' own loop, and where it would generate and compute a loss it
writes down which rows it was given. TRL's advantages and losses are called with log-probabilities that are ours.
"""

from __future__ import annotations

import dataclasses
import gc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
import trl

from batchbridge.contract.held import LAWS
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.testing import EvidenceContract, Token, ValidCase
from batchbridge.testing.tiny import EOS, FIRST_WORD, ScriptedRollouts, tiny_policy
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.testing import scripted_trainer

RUN: dict[str, Any] = {
    "per_device_train_batch_size": 8,
    "gradient_accumulation_steps": 1,
    "num_generations": 4,
    "max_completion_length": 16,
    "num_train_epochs": 2,
    "bf16": False,
}


MICRO = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
TRAINER, UTILS = "trainer/grpo_trainer.py: GRPOTrainer.", "trainer/utils.py: "
LOOP = (f"{TRAINER}get_train_dataloader", f"{TRAINER}_get_train_sampler", f"{UTILS}RepeatSampler.__iter__")
BATCHES = (*LOOP, f"{TRAINER}_prepare_inputs", f"{TRAINER}training_step")
SCORED = (f"{TRAINER}_generate_and_score_completions", f"{TRAINER}_compute_loss", f"{TRAINER}get_gamma_weights")
FUNCTIONS = {
    "devices": (f"{TRAINER}__init__",),
    "rollouts": BATCHES,
    "prompts": BATCHES,
    "steps": (*BATCHES, f"{UTILS}split_tensor_dict", f"{UTILS}shuffle_sequence_dict"),
    "advantages": (f"{TRAINER}_generate_and_score_completions", f"{UTILS}nanstd"),
    "weights": SCORED,
    "gradients": SCORED[:2],
    "ratio": SCORED[:2],
    "micro_batches": (*BATCHES, f"{UTILS}split_tensor_dict"),
    "truncated": SCORED[:1],
    "corrections": SCORED[:1],
}
"""TRL's functions behind each answer. get_gamma_weights is vespo's, of which the oracle knows no gradient."""


class Asked(ScriptedRollouts):
    """Completions of the lengths that are asked for, one prompt's after the other's, with their rewards."""

    group: int
    lengths: Sequence[int] = ()
    rewards: Sequence[float] = ()
    truncated: Sequence[bool] = ()

    def completion(self, prompt: int, sample: int) -> list[int]:
        place = prompt * self.group + sample
        cut = any(self.truncated[place : place + 1])
        return [*[FIRST_WORD] * (self.lengths[place] - 1), FIRST_WORD if cut else EOS]

    def loss_mask(self, prompt: int, sample: int) -> list[int]:
        return [1] * len(self.completion(prompt, sample))

    def reward(self, prompt: int, sample: int) -> float:
        return self.rewards[prompt * self.group + sample]

    def ask(self, **said: Any) -> None:
        vars(self).update(said)


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    TrlsFunctions.kept_in = tmp_path_factory.mktemp("evidence")
    gc.freeze()  # Accelerate collects garbage before each run, over all that was imported: 0.4 s
    yield
    gc.unfreeze()


class TrlsFunctions(EvidenceContract):
    """What TRL's own code says of a case."""

    adapter_class = TrlAdapter
    package = "trl"
    functions = FUNCTIONS
    kept_in: Path
    made: ClassVar[dict[tuple[Any, ...], Any]] = {}
    """Trainers and runs by case: building one costs more than all that it is asked."""

    def trainer(self, case: ValidCase, script: ScriptedRollouts | None = None, prompts: int = 8, **more: Any) -> Any:
        settings = {**case.source.values, "use_vllm": False, **more}  # what vLLM would say is asked for
        policy = tiny_policy(layers=1, width=8)
        return scripted_trainer(self.kept_in, script=script, prompts=prompts, policy=policy, **settings)

    def run(self, case: ValidCase, prompts: int, **more: Any) -> tuple[list[list[int]], list[list[list[int]]]]:
        """The prompts of each rollout, and the rollout of each row of each micro-batch of each optimizer step."""
        key = (case.name, prompts, *more.items())
        if key not in self.made:
            self.made[key] = ran(self.trainer(case, prompts=prompts, **more))
        return self.made[key]

    def scored(
        self, case: ValidCase, lengths: Sequence[int], rewards: Sequence[float] = (), truncated: Sequence[bool] = ()
    ) -> tuple[Any, Any]:
        """A trainer, and what it makes of a rollout of such completions."""
        size = case.source.values["num_generations"]
        if case.name not in self.made:
            script = Asked()
            self.made[case.name] = script, self.trainer(case, script)
        script, trainer = self.made[case.name]
        script.ask(group=size, lengths=lengths, rewards=rewards or [1.0] * len(lengths), truncated=truncated)
        vars(trainer).pop("_get_per_token_logps_and_entropies", None)
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = case.source.values["gradient_accumulation_steps"]
        rows = [{"prompt": script.prompt(place // size)} for place in range(len(lengths))]
        return trainer, trainer._generate_and_score_completions(rows)

    def native_devices(self, case: ValidCase) -> int:
        return int(self.scored(case, [1] * case.source.values["num_generations"])[0].accelerator.num_processes)

    def native_rollouts(self, case: ValidCase, dataset_size: int) -> int:
        return len(self.run(case, dataset_size)[0])

    def native_prompts(self, case: ValidCase, dataset_size: int) -> Iterator[Sequence[int]]:
        return iter(self.run(case, dataset_size, num_train_epochs=3, max_steps=-1)[0])

    def native_step_sizes(self, case: ValidCase) -> list[int]:
        size = case.source.values["num_generations"]
        prompts = 4 * self.scored(case, [1] * size)[0].args.generation_batch_size // size
        _, steps = self.run(case, prompts, num_train_epochs=1, max_steps=-1)
        shares = [sum(rows.count(0) for rows in step) for step in steps]
        return [share for share in shares if share]

    def native_advantages(self, case: ValidCase, groups: Sequence[Sequence[float]]) -> list[list[float]]:
        size = len(groups[0])
        inputs = self.scored(case, [1] * size * len(groups), [reward for group in groups for reward in group])[1]
        return inputs["advantages"].view(-1, size).tolist()

    def native_weights(self, case: ValidCase, lengths: Sequence[int]) -> list[float]:
        from trl.trainer.utils import split_tensor_dict

        trainer, inputs = self.scored(case, lengths)
        assert trainer.args.steps_per_generation == trainer.args.gradient_accumulation_steps, "one rollout is one step"
        inputs["advantages"] = -torch.ones(len(lengths))
        found = []
        for part in split_tensor_dict(inputs, trainer.args.steps_per_generation):
            new = torch.zeros(part["completion_ids"].shape, dtype=torch.float64, requires_grad=True)
            found += gradient(trainer, new, {**part, "old_per_token_logps": None, "ref_per_token_logps": new.detach()})
        return [row[0] for row in found]

    def native_gradients(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return [row[0] for row in self.of_rows(case, [[token] for token in tokens])]

    def native_completion_gradient(self, case: ValidCase, tokens: Sequence[Token]) -> list[float]:
        return self.of_rows(case, [tokens, tokens])[0]

    def native_micro_batches(self, case: ValidCase) -> list[int]:
        size = case.source.values["num_generations"]
        prompts = 4 * self.scored(case, [1] * size)[0].args.generation_batch_size // size
        _, steps = self.run(case, prompts, max_steps=1)
        return [len(rows) for rows in steps[0]]

    def native_trained_tokens(
        self, case: ValidCase, lengths: Sequence[int], truncated: Sequence[bool]
    ) -> list[int | None]:
        inputs = self.scored(case, lengths, truncated=truncated)[1]
        return [int(one) for one in inputs["completion_mask"].sum(1)]

    def native_sampler_factors(
        self, case: ValidCase, completions: Sequence[Sequence[tuple[float, float]]]
    ) -> list[list[float]]:
        size, lengths = case.source.values["num_generations"], list(map(len, completions))
        lengths += [1] * (-len(lengths) % size)
        self.scored(case, lengths)
        script, trainer = self.made[case.name]
        rows = [{"prompt": script.prompt(place // size)} for place in range(len(lengths))]
        generated = list(trainer._generate([row["prompt"] for row in rows]))
        before = torch.zeros(len(lengths), max(lengths), dtype=torch.float64)
        generated[4] = [[sampled for _, sampled in tokens] for tokens in completions]
        generated[4] += [[0.0]] * (len(lengths) - len(completions))
        for row, tokens in zip(before, completions, strict=False):
            row[: len(tokens)] = torch.tensor([one for one, _ in tokens], dtype=torch.float64)
        ours = {"use_vllm": case.source.values.get("use_vllm", False), "_generate": lambda prompts: generated}
        ours["_get_per_token_logps_and_entropies"] = lambda *words, **options: (before, None, None)
        with pytest.MonkeyPatch.context() as patched:
            for name, value in ours.items():
                patched.setattr(trainer, name, value)
            inputs = trainer._generate_and_score_completions(rows)
        factors = inputs.get("importance_sampling_ratio", torch.ones(1, 1)).expand(before.shape).tolist()
        return [row[: len(tokens)] for row, tokens in zip(factors, completions, strict=False)]

    def of_rows(self, case: ValidCase, rows: Sequence[Sequence[Token]]) -> list[list[float]]:
        """The gradient of the mean loss of each row, at each of its tokens."""
        length, size = len(rows[0]), case.source.values["num_generations"]
        places = -(-len(rows) // size) * size
        trainer, inputs = self.scored(case, [length] * places)
        inputs = {
            name: value[: len(rows)] if torch.is_tensor(value) and value.dim() else value
            for name, value in inputs.items()
        }
        new, old, reference = (
            torch.tensor([[getattr(token, name) for token in row] for row in rows], dtype=torch.float64)
            for name in ("logprob", "old", "reference")
        )
        ours = {"old_per_token_logps": old, "ref_per_token_logps": reference}
        ours["advantages"] = new.new_tensor([row[0].advantage for row in rows])
        ours["num_items_in_batch"] = new.new_tensor(len(rows) * length)
        level = {"advantages": -torch.ones_like(ours["advantages"])}
        level |= {"old_per_token_logps": None, "ref_per_token_logps": new}
        found = gradient(trainer, new.clone().requires_grad_(), {**inputs, **ours})
        weights = gradient(trainer, new.clone().requires_grad_(), {**inputs, **ours, **level})
        return [[one / sum(weight) for one in row] for row, weight in zip(found, weights, strict=True)]


def ran(trainer: Any) -> tuple[list[list[int]], list[list[list[int]]]]:
    """Transformers' own loop with TRL's own batches, in which nothing is generated and no loss computed."""
    rollouts: list[list[int]] = []
    steps: dict[int, list[list[int]]] = {}
    script, size = ScriptedRollouts(), trainer.num_generations

    def generate(rows: Sequence[dict[str, Any]]) -> dict[str, torch.Tensor]:
        found = [script.prompt_index(row["prompt"]) for row in rows]
        groups = [found[at : at + size] for at in range(0, len(found), size)]
        assert all(len(set(group)) == 1 for group in groups), groups
        rollouts.append([group[0] for group in groups])
        return {"rollout": torch.full([len(rows)], len(rollouts) - 1)}

    def loss(model: Any, inputs: Any, *others: Any, **options: Any) -> torch.Tensor:
        steps.setdefault(trainer.state.global_step, []).append(inputs["rollout"].tolist())
        return next(model.parameters()).sum() * 0.0

    trainer._generate_and_score_completions, trainer.compute_loss = generate, loss
    trainer.train()
    return rollouts, list(steps.values())


def gradient(trainer: Any, new: torch.Tensor, inputs: dict[str, Any]) -> list[list[float]]:
    """The gradient of TRL's own loss with respect to log-probabilities that are given to it."""
    trainer._get_per_token_logps_and_entropies = lambda *words, **options: (new, torch.zeros_like(new), None)
    trainer._compute_loss(trainer.model, inputs).backward()
    return new.grad.tolist()


def case(name: str, **values: Any) -> ValidCase:
    said = {**RUN, **values}
    return ValidCase(
        name=name, source=Source(values=said), context=Context(framework_version=trl.__version__, world_size=1)
    )


class TestTrl(TrlsFunctions):
    """TRL's adapter against them."""

    valid = (
        case("dapo, two micro-batches", per_device_train_batch_size=4, gradient_accumulation_steps=2),
        case("grpo, KL", loss_type="grpo", beta=0.05, shuffle_dataset=False, use_bias_correction_kl=False),
        case("bnpo, batch", loss_type="bnpo", scale_rewards="batch", epsilon=0.1, epsilon_high=0.28),
        case("dr_grpo, delta", loss_type="dr_grpo", scale_rewards="none", delta=1.4, max_steps=5, num_generations=2),
        case("luspo, KL", loss_type="luspo", importance_sampling_level="sequence", beta=0.02),
        case("gspo, two passes", loss_type="grpo", importance_sampling_level="sequence", num_iterations=2),
        case("cispo, KL", loss_type="cispo", epsilon_high=5.0, beta=0.1, steps_per_generation=1),
        case("sapo", loss_type="sapo", num_generations=8),
        case("vespo", loss_type="vespo"),
        case("truncated, four micro-batches", mask_truncated_completions=True, **MICRO),
        case("a cap", use_vllm=True, vllm_importance_sampling_mode="token_truncate"),
        case(
            "a mask",
            use_vllm=True,
            vllm_importance_sampling_mode="sequence_mask",
            vllm_importance_sampling_clip_max=2.0,
        ),
    )


MISREADINGS: dict[str, tuple[str, str, dict[str, Any]]] = {
    # what is misread: (the law that tells, the case that it is told on, the fields as they are misread)
    "dapo is an average of sequences": (
        "weights",
        "dapo, two micro-batches",
        {"loss.policy.aggregation": "sequence_mean"},
    ),
    "grpo is an average of tokens": ("weights", "grpo, KL", {"loss.policy.aggregation": "token_mean"}),
    "dr_grpo divides by no constant": ("weights", "dr_grpo, delta", {"loss.policy.aggregation": "sequence_sum"}),
    "luspo is an average of sequences": ("weights", "luspo, KL", {"loss.policy.aggregation": "sequence_mean"}),
    "a step is counted in prompts": ("steps", "gspo, two passes", {"optimizer_step.completions_per_step": 2}),
    "a step is a micro-batch": ("steps", "dapo, two micro-batches", {"optimizer_step.completions_per_step": 4}),
    "num_iterations counts nothing": ("steps", "gspo, two passes", {"optimizer_step.passes_per_rollout": 1}),
    "the deviation is the group's": ("advantages", "bnpo, batch", {"advantage.scale": "group"}),
    "rewards are divided all the same": ("advantages", "dr_grpo, delta", {"advantage.scale": "group"}),
    "the deviation is biased": ("advantages", "grpo, KL", {"advantage.ddof": 0}),
    "one's own reward is left out": ("advantages", "dr_grpo, delta", {"advantage.baseline": "leave_one_out"}),
    "prompts are permuted": ("prompts", "grpo, KL", {"order.prompt_shuffle": "epoch_permutation"}),
    "prompts are in order": ("prompts", "bnpo, batch", {"order.prompt_shuffle": "none"}),
    "a remainder of prompts is kept": ("prompts", "bnpo, batch", {"order.last_rollout": "short"}),
    "a remainder of prompts wraps": ("rollouts", "bnpo, batch", {"order.last_rollout": "wrap"}),
    "steps are epochs": ("rollouts", "dr_grpo, delta", {"horizon.optimizer_steps": None, "horizon.epochs": 5.0}),
    "a group is of another size": ("rollouts", "sapo", {"rollout.prompts_per_rollout": 2}),
    "k3 is k1": ("gradients", "grpo, KL", {"objective.kl_estimator": "k1"}),
    "the KL term is not weighed by the ratio": ("gradients", "cispo, KL", {"objective.kl_estimator": "k3"}),
    "one bound of the ratio": ("gradients", "bnpo, batch", {"objective.clip_high": 0.1}),
    "cispo's bound is one above": ("gradients", "cispo, KL", {"objective.clip_high": 0.2}),
    "delta bounds nothing": ("gradients", "dr_grpo, delta", {"objective.dual_clip": None}),
    "the ratio is a token's": ("ratio", "gspo, two passes", {"objective.ratio_level": "token"}),
    "a micro-batch is a step": (
        "micro_batches",
        "truncated, four micro-batches",
        {"micro_batch.completions_per_device": 8},
    ),
    "truncated completions train": (
        "truncated",
        "truncated, four micro-batches",
        {"rollout.truncated_completions": "keep"},
    ),
    "truncated completions do not train": ("truncated", "grpo, KL", {"rollout.truncated_completions": "mask"}),
    "tokens are corrected without a cap": (
        "corrections",
        "a cap",
        {"objective.sampler_correction": "token_truncate [-, -]"},
    ),
    "whole completions are tokens": (
        "corrections",
        "a mask",
        {"objective.sampler_correction": "token_mask [-, 2.0]"},
    ),
    "nothing is corrected": ("corrections", "a mask", {"objective.sampler_correction": None}),
    "the ratio is the sequence's": ("ratio", "grpo, KL", {"objective.ratio_level": "sequence"}),
}


@pytest.mark.parametrize("misread", MISREADINGS)
def test_a_misreading_is_told_by_trls_own_functions(misread: str) -> None:
    """A misread field that is the specification's alone: written twice, the contract of an adapter cannot see it."""
    law, named, wrong = MISREADINGS[misread]

    class Misreading(TrlAdapter):
        def read(self, source: Source, context: Context) -> Reading:
            reading = super().read(source, context)
            assert reading.spec is not None
            assert {path: reading.spec.values[path] for path in wrong} != wrong, "nothing is misread"
            return dataclasses.replace(reading, spec=reading.spec.replace(**wrong))

    class Held(TrlsFunctions):
        adapter_class = Misreading

    (one,) = (one for one in TestTrl.valid if one.name == named)
    with pytest.raises(AssertionError, match="nativ"):
        getattr(Held(), LAWS[law].test)(one)
