"""PocketRay: GRPO with a driver and Ray workers, each with a replica of the policy. It knows nothing of BatchBridge.

The driver collects rollouts, computes advantages, cuts them into optimizer steps and sends each worker a share; the
workers average their gradients over gloo. Like its big relatives it has opinions that its settings do not show: a
worker averages each micro-batch by itself, then its micro-batches, and gradients are averaged over workers, so that
the gradient depends on `micro` and on `workers`.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any

import ray
import torch
import torch.distributed as dist

DEFAULTS: Mapping[str, Any] = {
    "prompts": 4,
    "samples": 4,
    "step": 8,
    "passes": 1,
    "micro": 2,
    "workers": 2,
    "average": "token",
    "clip": 0.2,
    "lr": 0.01,
    "epochs": 1,
}
"""prompts: per rollout. samples: completions per prompt. step: completions per optimizer step. passes: over a rollout.
micro: completions per forward pass of a worker. average: token, or sequence. clip: of the ratio. lr: of plain SGD."""


@dataclass(frozen=True)
class Answer:
    """One completion. old: log-probabilities of its tokens at the start of its rollout."""

    prompt: int
    sample: int
    ids: Sequence[int]
    tokens: Sequence[int]
    mask: Sequence[int]
    reward: float
    advantage: float
    old: torch.Tensor = field(default_factory=lambda: torch.zeros(0))


class Replica:
    """One worker's policy and optimizer."""

    def __init__(self, policy: Any, settings: Mapping[str, Any], rank: int, workers: int) -> None:
        self.policy, self.settings, self.rank, self.workers = policy, dict(settings), rank, workers
        self.optimizer = torch.optim.SGD(policy.parameters(), lr=settings["lr"])

    def old_logprobs(self, answers: Sequence[Answer]) -> list[torch.Tensor]:
        """Of each completion, before the rollout is trained."""
        with torch.no_grad():
            return [self.logprobs(answer.ids, answer.tokens) for answer in answers]

    def update(self, share: Sequence[Answer]) -> None:
        """One optimizer step, of which this worker trains its share."""
        self.optimizer.zero_grad()
        micro = self.settings["micro"]
        pieces = [share[first : first + micro] for first in range(0, len(share), micro)]
        for piece in pieces:
            (self.loss(piece) * self.factor(piece, pieces)).backward()
        self.average_gradients()
        self.optimizer.step()

    def factor(self, piece: Sequence[Answer], pieces: Sequence[Sequence[Answer]]) -> float:
        """What a micro-batch's loss counts for in this worker's share."""
        return 1 / len(pieces)

    def average_gradients(self) -> None:
        """Over the workers."""
        for parameter in self.policy.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= self.workers

    def loss(self, piece: Sequence[Answer]) -> torch.Tensor:
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


class Worker:
    """The Ray actor around a replica."""

    replica: Replica

    def address(self) -> str:
        """Where the workers may meet."""
        with socket.socket() as free:
            free.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{free.getsockname()[1]}"

    def join(self, address: str, rank: int, workers: int) -> None:
        """Meets the other workers."""
        patience = timedelta(minutes=1)  # with a worker that does not come to a step
        dist.init_process_group("gloo", init_method=address, rank=rank, world_size=workers, timeout=patience)

    def load(self, policy: Callable[[], Any], settings: Mapping[str, Any]) -> None:
        """Makes a new replica; `policy` gives the same one everywhere."""
        self.replica = Replica(policy(), settings, dist.get_rank(), dist.get_world_size())

    def call(self, name: str, *arguments: Any) -> Any:
        """What a method of the replica returns."""
        return getattr(self.replica, name)(*arguments)


def start(workers: int) -> list[Any]:
    """Workers that know each other."""
    if not ray.is_initialized():
        ray.init()
    actors = [ray.remote(num_cpus=0)(Worker).remote() for _ in range(workers)]
    address = ray.get(actors[0].address.remote())
    ray.get([actor.join.remote(address, rank, workers) for rank, actor in enumerate(actors)])
    return actors


class Driver:
    """Trains a policy on `prompts` (token ids). policy: makes it. generate: (prompt, sample) -> (tokens, mask, reward).
    crew: workers from `start`; None: new ones."""

    def __init__(
        self,
        policy: Callable[[], Any],
        prompts: Sequence[Sequence[int]],
        generate: Callable[[int, int], tuple[Sequence[int], Sequence[int], float]],
        crew: Sequence[Any] | None = None,
        **settings: Any,
    ) -> None:
        unknown = settings.keys() - DEFAULTS.keys()
        if unknown:
            raise TypeError(f"unknown settings: {sorted(unknown)}")
        self.settings = {**DEFAULTS, **settings}
        self.prompts, self.generate = prompts, generate
        if self.settings["prompts"] * self.settings["samples"] % self.settings["step"]:
            raise ValueError("a rollout does not split into equal steps")
        if self.settings["step"] % self.settings["workers"]:
            raise ValueError("a step does not split into equal shares of the workers")
        self.workers = list(crew or start(self.settings["workers"]))
        if len(self.workers) != self.settings["workers"]:
            raise ValueError("other workers than the settings say")
        ray.get([worker.load.remote(policy, self.settings) for worker in self.workers])

    def train(self) -> None:
        """All epochs."""
        for rollout in range(self.rollouts()):
            answers = self.collect(self.choose(rollout))
            for turn in range(self.settings["passes"]):
                for part in self.parts(answers, rollout, turn):
                    self.update(part)

    def rollouts(self) -> int:
        """Of the whole training; the last prompts of an epoch are dropped."""
        return int(self.settings["epochs"] * (len(self.prompts) // self.settings["prompts"]))

    def choose(self, rollout: int) -> list[int]:
        """The prompts of a rollout, in the dataset's order."""
        size = self.settings["prompts"]
        first = rollout % (len(self.prompts) // size) * size
        return list(range(first, first + size))

    def collect(self, prompts: Sequence[int]) -> list[Answer]:
        """All completions of a rollout, group by group."""
        answers = []
        for prompt in prompts:
            made = [self.generate(prompt, sample) for sample in range(self.settings["samples"])]
            scores = self.advantages([reward for _, _, reward in made])
            for sample, (tokens, mask, reward) in enumerate(made):
                answers.append(Answer(prompt, sample, self.prompts[prompt], tokens, mask, reward, scores[sample]))
        old = [row for part in self.ask("old_logprobs", self.shares(answers)) for row in part]
        return [replace(answer, old=row) for answer, row in zip(answers, old, strict=True)]

    def advantages(self, rewards: Sequence[float]) -> list[float]:
        """Of one group."""
        values = torch.tensor(rewards, dtype=torch.float64)
        return list(((values - values.mean()) / (values.std() + 1e-6)).tolist())

    def parts(self, answers: Sequence[Answer], rollout: int, turn: int) -> Iterator[Sequence[Answer]]:
        """What each optimizer step of a pass trains."""
        for first in range(0, len(answers), self.settings["step"]):
            yield answers[first : first + self.settings["step"]]

    def update(self, part: Sequence[Answer]) -> None:
        """One optimizer step, on all workers."""
        self.ask("update", self.shares(part))

    def shares(self, answers: Sequence[Answer]) -> list[Sequence[Answer]]:
        """Consecutive completions for each worker."""
        size = -(-len(answers) // len(self.workers))
        return [answers[rank * size : (rank + 1) * size] for rank in range(len(self.workers))]

    def ask(self, name: str, shares: Sequence[Any]) -> list[Any]:
        """What a method of every replica makes of its share."""
        calls = zip(self.workers, shares, strict=True)
        return list(ray.get([worker.call.remote(name, share) for worker, share in calls]))
