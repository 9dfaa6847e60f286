"""A tiny critic on the CPU: its model, and verl's real `TrainingWorker` of it, without Ray.

Importing this module has verl's value models take the attention that their configuration names: verl asks for
flash-attention by name, which no CPU has. Where the configuration says so, their value heads have no bias (`valuing`).
Source: verl 0.8.0 to 0.9.1 utils/model.py load_valuehead_model.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from batchbridge.testing.oracle import Sample
from batchbridge.testing.tiny import tiny_policy, tiny_tokenizer
from batchbridge_on_cpu.value_oracle import ValueSample
from batchbridge_on_cpu.valuing import without_bias
from batchbridge_on_cpu.verl.workers import batch, compose

_native = transformers.AutoModelForTokenClassification.from_pretrained


def _from_pretrained(*arguments: Any, **options: Any) -> Any:
    if options.get("attn_implementation") == "flash_attention_2":
        options["attn_implementation"] = getattr(options["config"], "_attn_implementation", None) or "eager"
    return without_bias(_native(*arguments, **options))


transformers.AutoModelForTokenClassification.from_pretrained = _from_pretrained


def tiny_critic(seed: int = 0) -> Any:
    """The tiny policy's body with a value for each token, float32."""
    config = tiny_policy(seed).config
    config.num_labels, config.classifier_dropout = 1, 0.0
    torch.manual_seed(seed + 100)
    return transformers.AutoModelForTokenClassification.from_config(config, attn_implementation="eager").float()


def save_critic(folder: Path, *, seed: int = 0) -> None:
    """Writes the tiny critic and its tokenizer to `folder`."""
    tiny_critic(seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


OVERRIDES = (
    "critic.strategy=fsdp2",
    "critic.model.use_remove_padding=False",
    "+critic.model.override_config.attn_implementation=eager",
    "critic.model.enable_gradient_checkpointing=False",
    "critic.fsdp.model_dtype=fp32",
    "critic.fsdp.dtype=float32",
    "critic.fsdp.use_torch_compile=False",
    "+critic.fsdp.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
    "critic.optim.weight_decay=0.0",
    "critic.ppo_micro_batch_size_per_gpu=2",
)
"""Overrides of `ppo_trainer` for a critic in float32 on the CPU."""
PACKED = (
    "critic.model.use_remove_padding=True",
    "++critic.model.override_config.attn_implementation=packed_cpu",
)
"""Further ones, for rows laid end to end; see `packed`."""


def critic_worker(model: Path, *overrides: str) -> Any:
    """A `TrainingWorker` with verl's `value_loss`, its engine initialised. See `workers.training_worker`."""
    from omegaconf import open_dict
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker
    from verl.workers.utils.losses import value_loss

    import batchbridge_on_cpu.verl.cpu  # noqa: F401 - registers the platform

    config = compose(f"actor_rollout_ref.model.path={model}", f"critic.model.path={model}", *OVERRIDES, *overrides)
    with open_dict(config):
        config.critic.optim.total_training_steps = 10
    critic = omega_conf_to_dataclass(config.critic)
    critic.engine.infer_max_token_len_per_gpu = critic.ppo_infer_max_token_len_per_gpu
    critic.engine.max_token_len_per_gpu = critic.ppo_max_token_len_per_gpu
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="value_model",
            model_config=critic.model,
            engine_config=critic.engine,
            optimizer_config=critic.optim,
            checkpoint_config=critic.checkpoint,
            profiler_config=None,
        )
    )
    worker.reset()
    worker.set_loss_fn(functools.partial(value_loss, config=critic))
    return worker


def value_batch(
    samples: Sequence[ValueSample | None], members: Sequence[tuple[int, int, int, int] | None], **values: Any
) -> Any:
    """The TensorDict that verl's driver would send for these rows of a critic; see `workers.batch`."""
    rows = [
        None
        if row is None
        else Sample(
            prompt=row.prompt,
            completion=row.completion,
            loss_mask=row.loss_mask,
            group=row.group,
            advantage=0.0,
            old_logprobs=torch.zeros(len(row.completion)),
        )
        for row in samples
    ]
    data = batch(rows, members, **values)
    for name, of in (("values", "old_values"), ("returns", "returns")):
        parts = [torch.zeros(1) if row is None else getattr(row, of).float() for row in samples]
        data[name] = torch.nested.as_nested_tensor(parts, layout=torch.jagged)
    return data
