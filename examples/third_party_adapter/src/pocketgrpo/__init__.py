"""PocketGRPO: a GRPO trainer for one device. It knows nothing of BatchBridge.

Like its big relatives it has opinions that its settings do not show: prompts are shuffled by Python's generator, the
last prompts of an epoch are dropped, and a batch is cut into micro-batches each of which is averaged by itself, so
that the gradient depends on `micro`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

DEFAULTS: Mapping[str, Any] = {
    "groups": 4,
    "samples": 4,
    "updates": 1,
    "reuse": 1,
    "micro": 4,
    "average": "token",
    "clip": 0.2,
    "lr": 0.01,
    "epochs": 1,
    "seed": 0,
}
"""groups: prompts per batch. samples: completions per prompt. updates: optimizer steps per batch. reuse: passes over
a batch. micro: completions per forward pass. average: token, or sequence. clip: of the ratio. lr: of plain SGD."""


@dataclass
class Answer:
    """One completion. old: log-probabilities of its tokens when it was generated."""

    prompt: int
    sample: int
    ids: Sequence[int]
    tokens: Sequence[int]
    mask: Sequence[int]
    reward: float
    advantage: float
    old: torch.Tensor


class PocketTrainer:
    """Trains `policy` on `prompts` (token ids). generate: (prompt, sample) -> (tokens, mask, reward)."""

    def __init__(
        self,
        policy: Any,
        prompts: Sequence[Sequence[int]],
        generate: Callable[[int, int], tuple[Sequence[int], Sequence[int], float]],
        **settings: Any,
    ) -> None:
        unknown = settings.keys() - DEFAULTS.keys()
        if unknown:
            raise TypeError(f"unknown settings: {sorted(unknown)}")
        self.settings = {**DEFAULTS, **settings}
        self.policy, self.prompts, self.generate = policy, prompts, generate
        if self.settings["groups"] * self.settings["samples"] % self.settings["updates"]:
            raise ValueError("a batch does not split into equal updates")
        self.optimizer = torch.optim.SGD(policy.parameters(), lr=self.settings["lr"])

    def train(self) -> None:
        """All epochs."""
        for batch in range(self.batches()):
            answers = self.collect(self.choose(batch))
            for turn in range(self.settings["reuse"]):
                for part in self.parts(answers, batch, turn):
                    self.update(part)

    def batches(self) -> int:
        """Of the whole training."""
        return int(self.settings["epochs"] * (len(self.prompts) // self.settings["groups"]))

    def choose(self, batch: int) -> list[int]:
        """The prompts of a batch."""
        per_epoch = len(self.prompts) // self.settings["groups"]
        epoch, place = divmod(batch, per_epoch)
        order = list(range(len(self.prompts)))
        random.Random(self.settings["seed"] + epoch).shuffle(order)
        return order[place * self.settings["groups"] :][: self.settings["groups"]]

    def collect(self, prompts: Sequence[int]) -> list[Answer]:
        """All completions of a batch, group by group."""
        answers = []
        for prompt in prompts:
            made = [self.generate(prompt, sample) for sample in range(self.settings["samples"])]
            scores = self.advantages([reward for _, _, reward in made])
            for sample, (tokens, mask, reward) in enumerate(made):
                ids = self.prompts[prompt]
                old = self.logprobs(ids, tokens).detach()
                answers.append(Answer(prompt, sample, ids, tokens, mask, reward, scores[sample], old))
        return answers

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """Of one group."""
        values = torch.tensor(rewards, dtype=torch.float64)
        return list(((values - values.mean()) / (values.std() + 1e-6)).tolist())

    def parts(self, answers: list[Answer], batch: int, turn: int) -> Iterator[list[Answer]]:
        """What each optimizer step of a pass trains."""
        size = len(answers) // self.settings["updates"]
        for first in range(0, len(answers), size):
            yield answers[first : first + size]

    def update(self, part: list[Answer]) -> None:
        """One optimizer step."""
        self.optimizer.zero_grad()
        micro = self.settings["micro"]
        pieces = [part[first : first + micro] for first in range(0, len(part), micro)]
        for piece in pieces:
            (self.share(piece, part, len(pieces)) * self.loss(piece)).backward()
        self.optimizer.step()

    def share(self, piece: list[Answer], part: list[Answer], pieces: int) -> float:
        """What a micro-batch's loss counts for in its step."""
        return 1 / pieces

    def loss(self, piece: list[Answer]) -> torch.Tensor:
        """The mean over the micro-batch's tokens, or over its sequences' means."""
        sums, counts = [], []
        for answer in piece:
            new, mask = self.logprobs(answer.ids, answer.tokens), torch.tensor(list(answer.mask))
            ratio, clip = (new - answer.old).exp(), self.settings["clip"]
            losses = -torch.minimum(ratio * answer.advantage, ratio.clamp(1 - clip, 1 + clip) * answer.advantage)
            sums.append((losses * mask).sum())
            counts.append(int(mask.sum()))
        if self.settings["average"] == "token":
            return torch.stack(sums).sum() / max(sum(counts), 1)
        return torch.stack([total / max(count, 1) for total, count in zip(sums, counts, strict=True)]).mean()

    def logprobs(self, ids: Sequence[int], tokens: Sequence[int]) -> torch.Tensor:
        """Of the completion's tokens."""
        logits = self.policy(input_ids=torch.tensor([[*ids, *tokens]])).logits[0, len(ids) - 1 : -1]
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(list(tokens))[:, None])[:, 0]
