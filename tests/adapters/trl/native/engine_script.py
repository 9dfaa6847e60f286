"""A scripted engine in place of TRL's own class around vLLM's, and what it says of its tokens' probabilities.

What it shows: the loss, with the correction towards the sampler, its columns through a rollout's split, and what
`wrap` measures of them. What it does not: vLLM.
"""

from __future__ import annotations

import functools
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from batchbridge.testing.oracle import Sample, logprobs
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy, tiny_tokenizer

SCRIPT = ScriptedRollouts(empty=frozenset())
GROUP = 4
UNKNOWN = (2, 1)
"""The completion of whose second token the engine does not say how probable it was."""


@functools.cache
def sampled(prompt: int, sample: int) -> torch.Tensor:
    """Log-probabilities by which the engine says that it drew a completion, float64: the first policy's, a little off,
    by more in every third completion than most bounds allow a sequence."""
    ids = tiny_tokenizer()(SCRIPT.prompt(prompt))["input_ids"]
    completion = SCRIPT.completion(prompt, sample)
    mask = [1] * len(completion)
    made = Sample(prompt=ids, completion=completion, loss_mask=mask, group=prompt, advantage=0.0)
    with torch.no_grad():
        policy = logprobs(tiny_policy().double(), made)
    generator = torch.Generator().manual_seed(100 * prompt + sample)
    off = 0.4 * torch.randn(len(completion), generator=generator, dtype=torch.float64)
    off += (0.0, 0.05, -0.3)[(prompt + sample) % 3]
    result = policy + off
    if (prompt, sample) == UNKNOWN:
        result[1] = torch.nan
    return result


class ScriptedEngine:
    """As TRL uses `VLLMGeneration`: plays the script of the rows that this rank asked for."""

    def __init__(self, **options: Any) -> None:
        self.mode = options.get("mode", "server")
        self.tensor_parallel_size = 1
        self.llm = SimpleNamespace(generate=self._play)
        info = {"model_config": {"logprobs_mode": "processed_logprobs"}}
        self.vllm_client = SimpleNamespace(get_server_info=lambda: info)
        self.rank = options["accelerator"].process_index
        self.seeds: list[int] = []

    def sync_weights(self) -> None:
        """Nothing to synchronise."""

    def generate(self, prompts: Any = None, **options: Any) -> Any:
        """What TRL asks its own class for."""
        if self.mode == "server":
            return self._play(prompts)
        return self.llm.generate(prompts, sampling_params=SimpleNamespace(seed=None))

    def _play(self, prompts: Any, *, sampling_params: Any = None) -> Any:
        """sampling_params: one for each row where they have seeds of their own."""
        if isinstance(sampling_params, list):
            self.seeds = [one.seed for one in sampling_params]
        tokenizer = tiny_tokenizer()
        first = self.rank * len(prompts)
        who = [(SCRIPT.prompt_index(tokenizer.decode(ids)), (first + row) % GROUP) for row, ids in enumerate(prompts)]
        completions = [SCRIPT.completion(*each) for each in who]
        said = [[[float(value)] for value in sampled(*each)] for each in who]
        return prompts, completions, said, None


def multiplier(mode: str, low: float | None, high: float | None) -> Any:
    """The correction as TRL documents it, in float64, of one completion: see `ScriptedRun.multiplier`."""

    def of(prompt: int, sample: int, old: torch.Tensor) -> torch.Tensor:
        difference = torch.nan_to_num(old.double() - sampled(prompt, sample), nan=0.0)
        ratio = (difference.sum()[None] if mode.startswith("sequence") else difference).exp()
        if mode.endswith("truncate"):
            return ratio.clamp(min=low, max=high).expand(len(old))
        inside = (ratio >= (0.0 if low is None else low)) & (ratio <= (float("inf") if high is None else high))
        return (ratio * inside).expand(len(old))

    return of


def engine_trainer(folder: Path, **arguments: Any) -> Any:
    """A `GRPOTrainer` that takes its rollouts from the scripted engine."""
    from trl.trainer import grpo_trainer

    from batchbridge_trl.testing import scripted_trainer

    grpo_trainer.is_vllm_available = lambda *_, **__: True
    grpo_trainer.VLLMGeneration = ScriptedEngine

    def reward(prompts: list[str], completions: Any, **others: Any) -> list[float]:
        first = trainer.accelerator.process_index * len(prompts)
        return [SCRIPT.reward(SCRIPT.prompt_index(one), (first + row) % GROUP) for row, one in enumerate(prompts)]

    settings = {"use_vllm": True, "vllm_mode": "colocate", "vllm_importance_sampling_correction": True}
    trainer = scripted_trainer(folder, script=SCRIPT, **settings | arguments)
    trainer.rollout_func = None
    trainer.reward_funcs = [reward]
    return trainer
