"""The rows of ms-swift's `GRPOTrainer` in TRL's form, and back: a rollout's micro-batches become TRL's columns, and a
micro-batch of the plan becomes what ms-swift's loss takes. Source: ms-swift 4.6.0 swift/rlhf_trainers/grpo_trainer.py,
rollout_mixin.py, utils.py (collate_to_grpo_micro_batch), swift/rl_core/data.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from batchbridge.kit.patches import Patches, temporarily
from batchbridge_trl.releases import ATTRIBUTES
from batchbridge_trl.reward_tap import RewardTap
from batchbridge_trl.rows import TrlMicroBatch, loss_mask

_BY_TOKEN = {"old_per_token_logps": 0.0, "ref_per_token_logps": -1e4}
Columns = dict[str, torch.Tensor]


def prepare(trainer: Any, patches: Patches) -> None:
    """Gives ms-swift's trainer what of TRL's attributes is read of it, and its loss the plan's micro-batches."""
    for name, row in ATTRIBUTES.items():
        if not (row.swift or hasattr(trainer, name)):
            setattr(trainer, name, row.without)
            undo = functools.partial(delattr, trainer, name)
            patches.made(name, undo, what=f"{row.without}", why="ms-swift does as TRL with this value")
    native = trainer.compute_loss

    def loss(model: Any, inputs: Any, *arguments: Any, **options: Any) -> Any:
        taken = _nested(inputs) if isinstance(inputs, TrlMicroBatch) else inputs
        return native(model, taken, *arguments, **options)

    patches.set(trainer, "compute_loss", loss, what="the plan's micro-batches in its form", why="ms-swift")


class SwiftTap(RewardTap):
    """Keeps what ms-swift computed of a rollout, see `RewardTap`; `generate`: the rollout in TRL's columns."""

    def __init__(self, trainer: Any, patches: Patches) -> None:
        self._trainer = trainer
        self.forget()
        why = "ledger and advantages"
        self._native = patches.read(trainer, "_compute_rewards_per_func", self._scored, what="recorded", why=why)

    def _scored(self, samples: Any) -> torch.Tensor:
        per_function: torch.Tensor = self._native(samples)
        self._keep([], per_function)
        return per_function

    def generating(self, native: Callable[[Any], Any]) -> Callable[[Any], Columns]:
        """ms-swift's method that generates and scores, whose rollouts are in TRL's columns."""
        trainer = self._trainer

        def generate(inputs: Any) -> Columns:
            # It scores in as many parts as a generation has steps.
            steps = -(-len(inputs) // trainer.args.per_device_train_batch_size)
            with temporarily(trainer.args, steps_per_generation=steps):
                return self.columns_of(native(inputs))

        return generate

    def columns_of(self, rollout: Sequence[Mapping[str, Any]]) -> Columns:
        """The rollout's micro-batches in TRL's columns; the tokens of its completions are kept."""
        made = flat(rollout, self._trainer.accelerator.device)
        ids, mask = made["completion_ids"].tolist(), made["completion_mask"].sum(1).tolist()
        self.completion_ids = [row[:count] for row, count in zip(ids, mask, strict=True)]
        return made


def flat(parts: Sequence[Mapping[str, Any]], device: Any) -> Columns:
    """ms-swift's micro-batches in TRL's columns. Raises `ValueError` where rows are not read."""
    rows = [row for part in parts for row in _rows(part["model_inputs"], part["grpo_batch"])]
    made: Columns = {}
    for name in rows[0]:
        pieces = [row[name] for row in rows]
        if name == "advantages":
            made[name] = torch.stack(pieces)
            continue
        left, padding = name.startswith("prompt"), _BY_TOKEN.get(name, 0)
        width = max(map(len, pieces))
        amount = ((width - len(one), 0) if left else (0, width - len(one)) for one in pieces)
        padded = (torch.nn.functional.pad(one, each, value=padding) for one, each in zip(pieces, amount, strict=True))
        made[name] = torch.stack(list(padded)).to(device)
    return made


def _rows(inputs: Mapping[str, Any], batch: Any) -> list[Columns]:
    """The rows of one of its micro-batches: prompts and completions apart, in the order of their tokens.

    Its mask and log-probabilities are those of the last `logits_to_keep` tokens of rows that are padded on the right; a
    completion begins with the first token that is trained.
    """
    if batch.teacher_per_token_logps is not None or batch.rollout_per_token_logps is not None:
        raise ValueError("a teacher's or a sampler's log-probabilities came with the rollout")
    ids, width = inputs["input_ids"], batch.logits_to_keep
    attended = inputs["attention_mask"] if inputs.get("attention_mask") is not None else torch.ones_like(ids)
    rows = []
    for row in range(len(ids)):
        trained, end = batch.completion_mask[row], int(attended[row].sum())
        if not bool(trained.any()) or not bool(attended[row, :end].all()):
            raise ValueError("a completion without a token to train, or a row that is not padded on the right")
        first = int(trained.int().argmax())
        start = ids.shape[1] - width + first
        part = slice(first, first + end - start)
        advantages = batch.advantages[row, part]
        if not bool((advantages == advantages[0]).all()):
            raise ValueError("advantages differ between the tokens of a completion")
        made = {
            "prompt_ids": ids[row, :start],
            "prompt_mask": torch.ones_like(ids[row, :start]),
            "completion_ids": ids[row, start:end],
            "completion_mask": torch.ones_like(ids[row, start:end]),
            "tool_mask": trained[part].to(ids.dtype),
            "advantages": advantages[0],
        }
        for name in _BY_TOKEN:
            if (values := getattr(batch, name)) is not None:
                made[name] = values[row, part]
        rows.append(made)
    return rows


def _nested(micro: TrlMicroBatch) -> dict[str, Any]:
    """The plan's micro-batch as its loss takes one: all columns of the completions are kept."""
    from swift.rl_core.data import GRPOBatch

    ids = torch.cat([micro["prompt_ids"], micro["completion_ids"]], dim=1)
    attended = torch.cat([micro["prompt_mask"], micro["completion_mask"]], dim=1)
    mask, rows = loss_mask(micro).bool(), len(ids)
    batch = GRPOBatch(
        completion_mask=mask,
        truncated_mask=torch.zeros(rows, dtype=torch.bool, device=ids.device),
        seq_lengths=attended.sum(1),
        old_per_token_logps=micro.get("old_per_token_logps"),
        ref_per_token_logps=micro.get("ref_per_token_logps"),
        advantages=micro["advantages"][:, None].expand(mask.shape),
        num_items_in_batch=micro["num_items_in_batch"],
        logits_to_keep=mask.shape[1],
    )
    return {"model_inputs": {"input_ids": ids, "attention_mask": attended}, "grpo_batch": batch}
