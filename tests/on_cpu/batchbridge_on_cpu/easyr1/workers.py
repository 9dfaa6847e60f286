"""A real `FSDPWorker` of EasyR1 with the tiny policy on CPU, without Ray: what gradients are compared on.

One process per rank, started by torchrun or alone; `cpu.start` comes first, EasyR1 is on the path.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE, STEP
from batchbridge.testing.oracle import Sample
from batchbridge.testing.tiny import PAD

SETTINGS: Mapping[str, Any] = {
    "algorithm.disable_kl": True,
    "worker.actor.padding_free": False,
    "worker.actor.use_torch_compile": False,
    "worker.actor.model.enable_gradient_checkpointing": False,
    "worker.actor.model.trust_remote_code": False,
    "worker.actor.fsdp.enable_rank0_init": False,  # gloo cannot synchronise FSDP1 modules
    "worker.actor.fsdp.torch_dtype": "fp32",
    "worker.actor.fsdp.mp_param_dtype": "fp32",
    "worker.ref.fsdp.enable_rank0_init": False,
    "worker.ref.fsdp.torch_dtype": "fp32",
    "worker.ref.fsdp.mp_param_dtype": "fp32",
    "worker.actor.optim.weight_decay": 0.0,
    "worker.rollout.tensor_parallel_size": 1,
}
"""Settings for float32 on the CPU."""
PROMPT_TOKENS, RESPONSE_TOKENS = 8, 24


def actor_worker(policy: Path, settings: Mapping[str, Any]) -> Any:
    """An `FSDPWorker` of role actor_rollout, its model built. Rank and world size come from the environment."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29517"}.items():
        os.environ.setdefault(name, value)
    from omegaconf import OmegaConf
    from verl.trainer.config import PPOConfig
    from verl.workers.fsdp_workers import FSDPWorker

    config = OmegaConf.structured(PPOConfig())
    more = {"worker.actor.model.model_path": str(policy), "worker.actor.fsdp.use_orig_params": True}
    for key, value in {**SETTINGS, **more, **settings}.items():
        OmegaConf.update(config, key, value)
    made = OmegaConf.to_object(config)
    made.deep_post_init()
    made.worker.actor.optim.training_steps = 10
    worker = FSDPWorker(made.worker, "actor_rollout")
    worker.init_model()
    return worker


def full_gradient(worker: Any) -> torch.Tensor:
    """The gradient over all parameters, in the model's order, float64; zeros where there is none. Collective."""
    from torch.distributed.fsdp import FullyShardedDataParallel as FSDP

    with FSDP.summon_full_params(worker.fsdp_module, with_grads=True):
        parameters = list(worker.fsdp_module.parameters())
        grads = [torch.zeros_like(one) if one.grad is None else one.grad for one in parameters]
        return torch.cat([grad.detach().double().flatten().clone() for grad in grads])


def batch(
    samples: Sequence[Sample | None],
    members: Sequence[tuple[int, int, int, int] | None],
    *,
    step: int,
    reference_logprobs: Sequence[torch.Tensor] | None = None,
) -> Any:
    """The `DataProto` that EasyR1's driver would send for these rows: prompts padded on the left, answers on the right.

    samples: None is a filler row: a copy of the first one with nothing to train. members: (rollout, prompt, position,
    sample) of each.
    """
    import numpy as np
    from verl.protocol import DataProto

    spare = next(sample for sample in samples if sample is not None)
    columns: dict[str, list[torch.Tensor]] = {}
    for index, sample in enumerate(samples):
        row = spare if sample is None else sample
        alive = 0 if sample is None else 1
        prompt = [PAD] * (PROMPT_TOKENS - len(row.prompt)) + list(row.prompt)
        length = len(row.completion)
        attended = [0] * (PROMPT_TOKENS - len(row.prompt)) + [1] * (len(row.prompt) + length)
        mask = torch.tensor([alive * value for value in row.loss_mask])
        assert row.old_logprobs is not None, "EasyR1 always wants old log-probabilities"
        values = {
            "input_ids": torch.tensor([*prompt, *row.completion]),
            "attention_mask": torch.tensor(attended),
            "responses": torch.tensor(list(row.completion)),
            "response_mask": mask,
            "old_log_probs": row.old_logprobs.float(),
            "advantages": mask * float(row.advantage),
        }
        if reference_logprobs is not None:
            values["ref_log_probs"] = reference_logprobs[index].float()
        for name, value in values.items():
            width = PROMPT_TOKENS + RESPONSE_TOKENS if name in ("input_ids", "attention_mask") else RESPONSE_TOKENS
            columns.setdefault(name, []).append(torch.nn.functional.pad(value, (0, width - len(value))))
    tensors = {name: torch.stack(rows) for name, rows in columns.items()}
    tensors["position_ids"] = (tensors["attention_mask"].cumsum(-1) - 1).clamp(min=0)
    marks = {
        name: np.array([-1 if member is None else member[place] for member in members], dtype=object)
        for place, name in enumerate((ROLLOUT, PROMPT, POSITION, SAMPLE))
    }
    tokens = tensors["attention_mask"].sum(-1).tolist()
    meta = {"temperature": 1.0, STEP: step, "global_token_num": tokens}
    return DataProto.from_dict(tensors=tensors, non_tensors=marks, meta_info=meta)
