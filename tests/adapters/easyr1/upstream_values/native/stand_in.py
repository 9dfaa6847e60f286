"""A stand-in for EasyR1's actor and its worker, which does what EasyR1's own was recorded to do (`values.json`).

It is what our side of a training worker runs over where there is no EasyR1.

Written from the recorded values: rows in order, mini-batches of `global_batch_size_per_device`, micro-batches of fixed
size, a loss that is averaged over a micro-batch and multiplied with the micro-batch's share of the step's tokens.
"""

from __future__ import annotations

import sys
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from batchbridge_on_cpu.upstream_values import read

EPSILON = 1e-8


class Rows:
    """A `DataProto`, as far as the actor's worker reads one."""

    def __init__(self, batch: Mapping[str, Any], columns: Mapping[str, Any], meta: Mapping[str, Any]) -> None:
        self.batch, self.non_tensor_batch, self.meta_info = dict(batch), dict(columns), dict(meta)

    @classmethod
    def from_dict(cls, tensors: Any, non_tensors: Any = None, meta_info: Any = None) -> Rows:
        return cls(tensors, non_tensors or {}, meta_info or {})

    def __len__(self) -> int:
        return len(next(iter(self.batch.values())))

    def split(self, size: int) -> list[Rows]:
        """Equal parts of so many rows, in order."""
        assert len(self) % size == 0, "EasyR1 refuses rows that are not an equal parts"
        return [
            Rows({name: value[start : start + size] for name, value in self.batch.items()}, {}, self.meta_info)
            for start in range(0, len(self), size)
        ]


def prepare_dynamic_batch(data: Rows, max_token_len: int) -> tuple[list[Rows], list[list[int]]]:
    """Micro-batches by a token budget, as EasyR1 was recorded to cut rows of these lengths."""
    recorded = read(Path(__file__).parents[1] / "values.json")["values"]["budgets"]
    assert data.batch["attention_mask"].sum(-1).tolist() == recorded["lengths"], "no other rows were recorded"
    cuts = dict(recorded["cuts"])[max_token_len]
    parts = [Rows({name: value[cut] for name, value in data.batch.items()}, {}, data.meta_info) for cut in cuts]
    return parts, cuts


def average_loss(values: Any, mask: Any, mode: str, eps: float = EPSILON) -> Any:
    if mode == "token":
        return (values * mask).sum() / (mask.sum() + eps)
    return ((values * mask).sum(-1) / (mask.sum(-1) + eps)).mean()


def compute_policy_loss(**given: Any) -> tuple[Any, dict[str, float]]:
    ratio = (given["log_probs"] - given["old_log_probs"]).clamp(-20.0, 20.0).exp()
    advantages, dual = given["advantages"], given["clip_ratio_dual"]
    clipped = ratio.clamp(1 - given["clip_ratio_low"], 1 + given["clip_ratio_high"])
    loss = torch.maximum(-advantages * ratio, -advantages * clipped)
    loss = torch.where(advantages < 0, torch.minimum(loss, -advantages * dual), loss)
    return average_loss(loss, given["response_mask"], mode=given["loss_avg_mode"]), {}


class DataParallelPPOActor:
    """The actor."""

    def __init__(self, config: Any, module: Any, optimizer: Any) -> None:
        self.config, self.actor_module, self.actor_optimizer = config, module, optimizer

    def log_probs_from_logits(self, logits: Any, labels: Any) -> Any:
        return torch.log_softmax(logits, -1).gather(-1, labels[..., None])[..., 0]

    def _forward_micro_batch(self, micro_batch: Any, temperature: float) -> Any:
        return self.actor_module(micro_batch["input_ids"][:, -1])

    def _optimizer_step(self) -> Any:
        norm = self.actor_module.clip_grad_norm_(self.config.max_grad_norm)
        self.actor_optimizer.step()
        self.actor_optimizer.zero_grad()
        return norm

    def update_policy(self, data: Any) -> dict[str, Any]:
        for _ in range(self.config.ppo_epochs):
            for mini_batch in data.split(self.config.global_batch_size_per_device):
                total_response_tokens = mini_batch.batch["response_mask"].sum()
                size = self.config.micro_batch_size_per_device_for_update
                parts = mini_batch.split(size) if not self.config.dynamic_batching else []
                if self.config.dynamic_batching:
                    budget = size * mini_batch.batch["input_ids"].shape[-1]
                    parts, _ = prepare_dynamic_batch(mini_batch, max_token_len=budget)
                for micro_batch in parts:
                    given, config = micro_batch.batch, self.config
                    mask = given["response_mask"]
                    log_probs = self._forward_micro_batch(given, temperature=1.0)
                    loss, _ = compute_policy_loss(
                        old_log_probs=given["old_log_probs"],
                        log_probs=log_probs,
                        advantages=given["advantages"],
                        response_mask=mask,
                        clip_ratio_low=config.clip_ratio_low,
                        clip_ratio_high=config.clip_ratio_high,
                        clip_ratio_dual=config.clip_ratio_dual,
                        loss_avg_mode=config.loss_avg_mode,
                    )
                    if config.use_kl_loss and "ref_log_probs" in given:
                        penalty = 0.5 * (log_probs - given["ref_log_probs"]).square()  # "mse"
                        loss = loss + config.kl_coef * average_loss(penalty, mask, mode=config.loss_avg_mode)
                    (loss * mask.sum() / total_response_tokens).backward()
                self._optimizer_step()
        return {}


DataParallelPPOActor.__module__ = "verl.workers.actor.dp_actor"


class Table(torch.nn.Module):
    """A policy whose log-probabilities are its parameters: one for every token of every row."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.values = torch.nn.Parameter(torch.zeros(rows, width))

    def forward(self, rows: Any) -> Any:
        return self.values[rows]

    def clip_grad_norm_(self, bound: float) -> Any:
        return torch.nn.utils.clip_grad_norm_(self.parameters(), bound)


def worker_of(rows: int, width: int, **config: Any) -> Any:
    """A worker whose model stands, on one rank."""
    module = Table(rows, width)
    optimizer = torch.optim.SGD(module.parameters(), lr=1.0)
    made: dict[str, Any] = {
        "ppo_epochs": 1,
        "dynamic_batching": False,
        "clip_ratio_low": 0.2,
        "clip_ratio_high": 0.3,
        "clip_ratio_dual": 3.0,
        "max_grad_norm": 1e9,
        "loss_avg_mode": "token",
        "loss_type": "default",
        "use_kl_loss": False,
        "tau_positive": 1.0,
        "tau_negative": 1.05,
        "optim": SimpleNamespace(training_steps=None),
    }
    actor = DataParallelPPOActor(SimpleNamespace(**{**made, **config}), module, optimizer)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda tick: 1.0)
    return SimpleNamespace(
        actor=actor,
        optimizer=optimizer,
        lr_scheduler=schedule,
        ulysses_device_mesh=None,
        checkpoint_manager=SimpleNamespace(lr_scheduler=schedule),
    )


def batch_of(numbers: Sequence[int], lengths: Sequence[int], width: int) -> dict[str, Any]:
    """Columns of rows by number: the number stands last in a row's ids, which nothing else reads."""
    mask = torch.tensor([[int(place < length) for place in range(width)] for length in lengths])
    prompts = torch.tensor([[1, number] for number in numbers])
    return {
        "input_ids": torch.cat([torch.ones_like(mask), prompts], 1),  # the number stands last
        "attention_mask": torch.cat([torch.ones_like(prompts), mask], 1),
        "position_ids": torch.arange(width + 2).expand(len(mask), -1).clone(),
        "responses": torch.ones_like(mask),
        "response_mask": mask,
        "old_log_probs": torch.zeros(mask.shape),
        "advantages": -mask.float(),
    }


def modules() -> dict[str, types.ModuleType]:
    """`verl`'s modules that our side imports, by name."""
    protocol, balancing = types.ModuleType("verl.protocol"), types.ModuleType("verl.utils.seqlen_balancing")
    vars(protocol)["DataProto"] = Rows
    vars(balancing)["prepare_dynamic_batch"] = prepare_dynamic_batch
    plain = {name: types.ModuleType(name) for name in ("verl", "verl.utils")}
    named = {"verl.protocol": protocol, "verl.utils.seqlen_balancing": balancing}
    return {**plain, **named, "verl.workers.actor.dp_actor": sys.modules[__name__]}
