"""Rollouts that a run's own policy draws, for a run that learns: the sum of two digits, with a reward that is checked.

The generator is the same in every framework. It reads the parameters that the run's last optimizer step left
(`batchbridge.testing.snapshots`), computes the next token's distribution in float64, and draws from it with a random
number that the step, the prompt, the sample and the place in the completion decide: equal parameters say equal tokens,
whichever framework asks, in whatever order. For runs whose engine is never behind its trainer, on one rank.

    save_start(folder)       # a policy that adds two digits right about every other time: minutes of plain torch
    ScriptedRollouts.of_environment({SCRIPT: NAME, START: folder, FOLDER: steps})

Environment variables: `BATCHBRIDGE_START`: the policy of the first rollout; `BATCHBRIDGE_STEPS`: the snapshots;
`BATCHBRIDGE_DRAWN`: a file that gets a line of JSON for each completion.
"""

from __future__ import annotations

import functools
import json
import os
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from batchbridge.testing.snapshots import FOLDER
from batchbridge.testing.tiny import EOS, FIRST_WORD, ScriptedRollouts, tiny_policy, tiny_tokenizer

NAME = "batchbridge_on_cpu.drawn:rollouts"
"""Of these rollouts, for `batchbridge.testing.tiny.SCRIPT`."""
START, DRAWN = "BATCHBRIDGE_START", "BATCHBRIDGE_DRAWN"
PROMPTS, LONGEST = 96, 6
"""Pairs of digits; tokens of a completion at most."""
TEACHER = 0.5
"""The share of sums that are right in what the first policy has learned from; the others are two random digits."""


@dataclass(frozen=True)
class DrawnRollouts(ScriptedRollouts):
    """Prompts of two digits, completions that the policy draws, and 1 for the two digits of their sum, else 0."""

    longest: int = LONGEST
    steps: Path = Path()
    start: Path = Path()
    said: Path | None = None
    _kept: dict[tuple[int, int, int], list[int]] = field(default_factory=dict, compare=False, repr=False)

    def prompt(self, index: int) -> str:
        return f"w{index % 10} w{index // 10}"

    def prompt_index(self, text: str) -> int:
        first, second = (int(word[1:]) for word in text.split()[:2])
        return first + 10 * second

    def completion(self, prompt: int, sample: int) -> list[int]:
        """Token ids, drawn once for each state of the policy."""
        step = self.step()
        if (step, prompt, sample) not in self._kept:
            completion = self._draw(step, prompt, sample)
            self._kept[step, prompt, sample] = completion
            if self.said is not None:
                row = {"step": step, "prompt": prompt, "sample": sample, "tokens": completion}
                line = json.dumps({**row, "reward": earned(prompt, completion)})
                with self.said.open("a", encoding="utf-8") as file:  # one short write: processes do not mix
                    file.write(line + "\n")
        return list(self._kept[step, prompt, sample])

    def loss_mask(self, prompt: int, sample: int) -> list[int]:
        return [1] * len(self.completion(prompt, sample))

    def reward(self, prompt: int, sample: int) -> float:
        return earned(prompt, self.completion(prompt, sample))

    def step(self) -> int:
        """Optimizer steps that the run has made."""
        return sum(1 for _ in self.steps.glob("*.pt")) if self.steps.is_dir() else 0

    def _draw(self, step: int, prompt: int, sample: int) -> list[int]:
        completion: list[int] = []
        for place in range(self.longest):
            drawn = random.Random(f"{step}/{prompt}/{sample}/{place}").random()
            below = _cumulated(self.start, self.steps, step, (*tokens(self.prompt(prompt)), *completion))
            completion.append(min(int(torch.searchsorted(below, drawn)), len(below) - 1))
            if completion[-1] == EOS:
                break
        return completion


def earned(prompt: int, completion: list[int]) -> float:
    """The reward of a completion: 1 for the sum of the prompt's digits and the end of the sequence behind it."""
    return float(completion == answer(prompt))


def answer(prompt: int) -> list[int]:
    """The right completion of a prompt: two digits and the end of the sequence."""
    tens, ones = divmod(prompt % 10 + prompt // 10, 10)
    return [FIRST_WORD + tens, FIRST_WORD + ones, EOS]


@functools.cache
def tokens(text: str) -> tuple[int, ...]:
    """A prompt's token ids."""
    return tuple(_tokenizer()(text)["input_ids"])


def rollouts(environment: Mapping[str, str] = os.environ) -> DrawnRollouts:
    """The rollouts of a run; of a process the same ones each time, so that each completion is drawn once."""
    return _rollouts(environment[START], environment[FOLDER], environment.get(DRAWN))


def save_start(folder: Path, *, updates: int = 1500, seed: int = 0) -> None:
    """Writes the policy that a run begins with: the tiny one, which has learned from a teacher that is right in
    `TEACHER` of its sums, and knows how an answer looks."""
    policy, drawn = tiny_policy(seed), random.Random(seed)
    optimizer = torch.optim.AdamW(policy.parameters(), lr=3e-3, weight_decay=0.0)
    asked = torch.tensor([tokens(DrawnRollouts().prompt(index)) for index in range(PROMPTS)])
    for _ in range(updates):
        told = torch.tensor([_taught(index, drawn) for index in range(PROMPTS)])
        rows = torch.cat([asked, told], dim=1)
        logits = policy(rows).logits[:, asked.shape[1] - 1 : -1]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), told.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    policy.save_pretrained(folder)


def start_policy() -> Any:
    """The policy of the first rollout, in float32."""
    return _loaded(Path(os.environ[START]), None)


def _taught(prompt: int, drawn: random.Random) -> list[int]:
    if drawn.random() < TEACHER:
        return answer(prompt)
    return [FIRST_WORD + drawn.randrange(2), FIRST_WORD + drawn.randrange(10), EOS]


@functools.cache
def _rollouts(start: str, steps: str, said: str | None) -> DrawnRollouts:
    return DrawnRollouts(start=Path(start), steps=Path(steps), said=None if said is None else Path(said))


@functools.lru_cache(maxsize=4096)
def _cumulated(start: Path, steps: Path, step: int, prefix: tuple[int, ...]) -> torch.Tensor:
    """The next token's distribution, summed up from the first token of the vocabulary on, in float64."""
    with torch.no_grad():
        logits = _policy(start, steps, step)(torch.tensor([prefix])).logits[0, -1]
    return torch.softmax(logits, dim=-1).cumsum(dim=-1)


@functools.lru_cache(maxsize=1)
def _policy(start: Path, steps: Path, step: int) -> Any:
    after = torch.load(steps / f"{step - 1:06d}.pt", weights_only=True)["after"] if step else None
    return _loaded(start, after).double()


def _loaded(start: Path, parameters: torch.Tensor | None) -> Any:
    from transformers import AutoModelForCausalLM

    policy = AutoModelForCausalLM.from_pretrained(start, attn_implementation="eager", dtype=torch.float32).eval()
    if parameters is not None:
        torch.nn.utils.vector_to_parameters(parameters, policy.parameters())
    return policy


@functools.cache
def _tokenizer() -> Any:
    return tiny_tokenizer()
