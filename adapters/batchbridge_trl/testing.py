"""Scripted rollouts for `GRPOTrainer`: the same completions in every process, entered through TRL's own `rollout_func`.

Before TRL 1.0 there is none without vLLM: there the trainer's model answers `generate` with the script, and nothing
else is replaced. For tests and examples; needs datasets, torch, transformers and trl.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from batchbridge import Plan, Spec
from batchbridge.testing.oracle import OracleSurrogate, ScriptedRun, gradient_bar, relative_error
from batchbridge.testing.tiny import PAD, ScriptedRollouts, tiny_policy, tiny_tokenizer
from batchbridge_trl import releases

TAKES_ROLLOUTS = ">=1.0"
"""Releases whose `rollout_func` is asked without vLLM too."""
COPIES_REFERENCE = "<0.19"
"""Releases that copy the policy for their reference model, instead of loading it."""


def rollout_func(script: ScriptedRollouts) -> Callable[[list[str], Any], dict[str, Any]]:
    """A `rollout_func` that plays `script`; loss masks enter through `env_mask`, TRL failing on empty completions.

    TRL hands each rank a contiguous part of the prompt-major completions, so a row's place tells its sample.
    """

    def play(prompts: list[str], trainer: Any) -> dict[str, Any]:
        who = _who(script, trainer, prompts)
        return {
            "prompt_ids": [trainer.processing_class(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": [script.completion(*each) for each in who],
            "logprobs": [[0.0] * len(script.completion(*each)) for each in who],
            "env_mask": [script.loss_mask(*each) for each in who],
            "scripted": who,
        }

    return play


def _who(script: ScriptedRollouts, trainer: Any, prompts: Sequence[str]) -> list[tuple[int, int]]:
    """(prompt, sample) of each row of a rank's part of a rollout."""
    first, group = trainer.accelerator.process_index * len(prompts), trainer.num_generations
    return [(script.prompt_index(prompt), (first + row) % group) for row, prompt in enumerate(prompts)]


def reward_func(script: ScriptedRollouts) -> Callable[..., list[float]]:
    """The rewards of `script`, for rollouts that `rollout_func` played."""

    def scripted_reward(prompts: Any, completions: Any, scripted: list[tuple[int, int]], **others: Any) -> list[float]:
        return [script.reward(*each) for each in scripted]

    return scripted_reward


class ScriptedModel:
    """A model that plays `script` through its `generate`, and the script's rewards, on TRL before 1.0.

    The trainer's rows are the same contiguous part of the prompt-major completions there. Loss masks cannot be entered:
    the script has no empty completions.
    """

    def __init__(self, script: ScriptedRollouts) -> None:
        if script.empty:
            raise ValueError("before trl 1.0 scripted completions have no loss masks: Script(empty=frozenset())")
        self._script, self._trainer = script, None

    def install(self, trainer: Any) -> None:
        """Lets the trainer's model, which stays a module like any other, generate the script."""
        self._trainer = trainer
        trainer.model.generate = self._generate

    def rewards(self, prompts: list[str], completions: Any, **others: Any) -> list[float]:
        """A reward function of the trainer."""
        return [self._script.reward(*each) for each in _who(self._script, self._trainer, prompts)]

    def _generate(self, input_ids: torch.Tensor, **options: Any) -> torch.Tensor:
        texts = self._trainer.processing_class.batch_decode(input_ids, skip_special_tokens=True)  # type: ignore[attr-defined]  # set by install
        who = _who(self._script, self._trainer, texts)
        rows = [torch.tensor(self._script.completion(*each), device=input_ids.device) for each in who]
        padded = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        return torch.cat([input_ids, padded], dim=1)


def default_script() -> ScriptedRollouts:
    """A script that the installed TRL can play, with an empty completion where there are loss masks."""
    return ScriptedRollouts() if releases.has(TAKES_ROLLOUTS) else ScriptedRollouts(empty=frozenset())


def scripted_trainer(
    output_dir: str | Path,
    *,
    script: ScriptedRollouts | None = None,
    prompts: int = 6,
    policy: Any = None,
    reference: Any = None,
    peft_config: Any = None,
    **arguments: Any,
) -> Any:
    """A `GRPOTrainer` of the tiny policy on CPU in float32 that plays `script` over `prompts` prompts.

    Defaults, all replaceable by `arguments` of `GRPOConfig`: SGD at a constant learning rate of 0.01, no gradient
    clipping, no KL term, groups of 4, no logging, no checkpoints. `reference`: the reference policy where beta > 0, by
    default the policy itself; it is written under `output_dir`, from where TRL loads it.
    """
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    script = default_script() if script is None else script
    settings: dict[str, Any] = {
        "output_dir": str(output_dir),
        "use_cpu": True,
        "bf16": False,
        "report_to": [],
        "save_strategy": "no",
        "logging_strategy": "no",
        "disable_tqdm": True,
        "num_generations": 4,
        "max_completion_length": script.longest,
        "learning_rate": 1e-2,
        "lr_scheduler_type": "constant",
        "max_grad_norm": 0.0,
        "optim": "sgd",
        "beta": 0.0,
    }
    policy = tiny_policy() if policy is None else policy
    args = GRPOConfig(**settings | arguments)
    if args.beta and peft_config is None:
        folder = Path(output_dir) / "reference"
        with args.distributed_state.main_process_first():
            if args.distributed_state.is_main_process:
                (policy if reference is None else reference).save_pretrained(folder)
        policy.config._name_or_path = str(folder)
    dataset = Dataset.from_dict({"prompt": [script.prompt(index) for index in range(prompts)]})
    options = {"model": policy, "args": args, "train_dataset": dataset, "peft_config": peft_config}
    options["processing_class"] = tiny_tokenizer()
    if releases.has(TAKES_ROLLOUTS):
        return GRPOTrainer(reward_funcs=reward_func(script), rollout_func=rollout_func(script), **options)
    scripted = ScriptedModel(script)
    trainer = GRPOTrainer(reward_funcs=scripted.rewards, **options)
    scripted.install(trainer)
    if reference is not None and trainer.ref_model is not None and releases.has(COPIES_REFERENCE):
        # Inside of DeepSpeed's engine; FSDP loads a whole state by itself.
        copied = trainer.ref_model.module if trainer.is_deepspeed_enabled else trainer.ref_model
        if not any(hasattr(parameter, "ds_id") for parameter in copied.parameters()):  # under ZeRO-3 it is loaded
            copied.load_state_dict(reference.state_dict())
    return trainer


def sampling(trainer: Any) -> Any:
    """A trainer of `scripted_trainer` that draws its completions from the policy, as TRL does; the same trainer."""
    if releases.has(TAKES_ROLLOUTS):
        trainer.rollout_func = None
    else:
        del trainer.model.generate
        # The tokenizer's token types, which TRL hands on to `generate` since 0.20, are none of this policy's inputs.
        trainer.processing_class.model_input_names = ["input_ids", "attention_mask"]
    return trainer


def undivided(trainer: Any) -> Any:
    """The given trainer, whose Accelerate divides no loss: transformers 5.2 to 5.4 have it divide by
    gradient_accumulation_steps, once more than TRL does. For runs that are not enforced.
    """
    trainer.accelerator.gradient_accumulation_steps = 1
    return trainer


class Captured(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Raw gradients and parameters of every optimizer step, before the update; flat tensors on the CPU. Of a model that
    FSDP2 shards, whole ones (collective).

    With max_grad_norm=0 the gradients are those before clipping.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self.gradients: list[torch.Tensor] = []
        self.states: list[dict[str, torch.Tensor]] = []

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.states.append(
            {name: whole(value).detach().cpu().clone() for name, value in self._model.state_dict().items()}
        )

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        trainable = [parameter for parameter in self._model.parameters() if parameter.requires_grad]
        self.gradients.append(
            torch.cat(
                [whole(torch.zeros_like(p) if p.grad is None else p.grad).detach().flatten().clone() for p in trainable]
            )
        )


def flat_parameters(model: Any) -> torch.Tensor:
    """All trainable parameters of `model`, detached, flat; whole, and collective, where FSDP2 shards them."""
    return torch.cat([whole(p).detach().flatten().clone() for p in model.parameters() if p.requires_grad])


def whole(tensor: Any) -> torch.Tensor:
    """The tensor of which FSDP2 may have a part on each rank (a DTensor). Collective where it has."""
    gathered: torch.Tensor = tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor
    return gathered


@dataclass(frozen=True)
class GradientError:
    """The distance of a trainer's gradient from the float64 oracle's at one optimizer step.

    error: `norm(g - g*) / norm(g*)`. floor: the same for the oracle's own code in the run's precision. clipped: share
    of the step's tokens whose surrogate was clipped. bar: the most that an error may be, see `gradient_bar`: of the
    floors of all steps that were compared.
    """

    step: int
    error: float
    floor: float
    clipped: float
    bar: float


def gradient_errors(
    captured: Captured,
    spec: Spec,
    *,
    plan: Plan | None = None,
    records: Iterable[Mapping[str, Any]] | None = None,
    script: ScriptedRollouts | None = None,
    policy: Callable[[], Any] = tiny_policy,
    reference: Any = None,
    steps: int | None = None,
    surrogate: OracleSurrogate | None = None,
    precision: torch.dtype = torch.float32,
    multiplier: Callable[[int, int, torch.Tensor], torch.Tensor] | None = None,
    beside: Callable[[int, Any], torch.Tensor] | None = None,
    inputs: Callable[[int, int], Mapping[str, torch.Tensor]] | None = None,
    tokenize: Callable[[str], Sequence[int]] | None = None,
) -> list[GradientError]:
    """Holds captured gradients against the oracle: on the completions that `plan` names, or that a ledger's `records`
    say were trained (for a run that follows no plan). `policy` builds the architecture; `steps` limits the comparison.
    `surrogate` replaces the spec's, for those that the schema has names and no formulas for. `precision`: that of the
    run, in which the oracle's own code makes the floor. `multiplier`, `beside`, `inputs`, `tokenize`: see
    `ScriptedRun`.
    """
    tokenizer = tiny_tokenizer()

    def run(dtype: torch.dtype) -> ScriptedRun:
        @lru_cache(maxsize=4)
        def policy_at(step: int) -> Any:
            built = policy()
            built.load_state_dict(captured.states[step])
            return built.to(dtype).eval()

        return ScriptedRun(
            spec=spec,
            script=default_script() if script is None else script,
            tokenize=tokenize or (lambda text: tokenizer(text)["input_ids"]),
            policy_at=policy_at,
            reference=None if reference is None else copy.deepcopy(reference).to(dtype).eval(),
            surrogate=surrogate,
            multiplier=multiplier,
            beside=beside,
            inputs=inputs,
        )

    exact, rough = run(torch.float64), run(precision)
    recorded = None if records is None else list(records)
    errors, floors = [], []
    for step in range(len(captured.gradients) if steps is None else min(steps, len(captured.gradients))):
        if recorded is not None:
            exact_samples, rough_samples = exact.recorded(recorded[step]), rough.recorded(recorded[step])
        else:
            assert plan is not None, "either a plan or the records of a ledger"
            exact_samples, rough_samples = exact.planned(plan, step), rough.planned(plan, step)
        expected = exact.gradient(exact_samples, step)
        floors.append(relative_error(rough.gradient(rough_samples, step), expected))
        error = relative_error(captured.gradients[step], expected)
        errors.append((step, error, floors[-1], exact.clipped_share(exact_samples, step)))
    bar = gradient_bar(*floors)
    return [GradientError(*of_step, bar) for of_step in errors]
