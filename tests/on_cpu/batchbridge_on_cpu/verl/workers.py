"""A real `TrainingWorker` of the tiny policy on CPU, without Ray: what gradients are compared on.

One process per rank, started by torchrun or alone. Needs torch, transformers and verl.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from batchbridge.kit.identified_rows import POSITION, PROMPT, ROLLOUT, SAMPLE, STEP
from batchbridge.testing.oracle import Sample
from batchbridge.testing.tiny import tiny_policy, tiny_tokenizer

OVERRIDES = (
    "actor_rollout_ref.actor.strategy=fsdp2",  # torch refuses to synchronise FSDP1 modules on the CPU
    "actor_rollout_ref.actor.fsdp_config.strategy=fsdp2",  # which 0.7.1 reads
    "actor_rollout_ref.model.use_remove_padding=False",
    "actor_rollout_ref.model.enable_gradient_checkpointing=False",
    "+actor_rollout_ref.model.override_config.attn_implementation=eager",
    "actor_rollout_ref.actor.fsdp_config.model_dtype=fp32",
    "actor_rollout_ref.actor.fsdp_config.dtype=float32",
    "actor_rollout_ref.actor.use_torch_compile=False",
    "actor_rollout_ref.actor.fsdp_config.use_torch_compile=False",
    # dtype alone does not switch bf16 off. Source: verl 0.9.1 engine/fsdp/transformer_impl.py:391.
    "+actor_rollout_ref.actor.fsdp_config.mixed_precision={param_dtype:fp32,reduce_dtype:fp32,buffer_dtype:fp32}",
    "actor_rollout_ref.actor.optim.weight_decay=0.0",
)
"""Overrides of `ppo_trainer` for float32 on the CPU."""


def save_policy(folder: Path, *, seed: int = 0) -> None:
    """Writes the tiny policy and its tokenizer to `folder`, as `from_pretrained` reads them."""
    tiny_policy(seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def compose(*overrides: str) -> Any:
    """verl's own configuration with `OVERRIDES` and `overrides`, as an OmegaConf object."""
    import verl
    from hydra import compose, initialize_config_dir

    folder = Path(verl.__file__).parent / "trainer" / "config"
    with initialize_config_dir(str(folder), version_base=None):
        return compose("ppo_trainer", overrides=[*OVERRIDES, *overrides])


def training_worker(policy: Path, *overrides: str) -> Any:
    """A `TrainingWorker` with verl's `ppo_loss`, its engine initialised. Rank and world size come from the environment
    (RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT; a world of one by default)."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
        os.environ.setdefault(name, value)
    from omegaconf import open_dict
    from verl.utils.config import omega_conf_to_dataclass
    from verl.workers.config import TrainingWorkerConfig
    from verl.workers.engine_workers import TrainingWorker
    from verl.workers.utils.losses import ppo_loss

    if not torch.cuda.is_available():  # benchmarks/gpu.py has a row for one that is
        import batchbridge_on_cpu.verl.cpu  # noqa: F401 - registers the platform

    config = compose(f"actor_rollout_ref.model.path={policy}", *overrides)
    with open_dict(config):
        config.actor_rollout_ref.actor.optim.total_training_steps = 10
    model = omega_conf_to_dataclass(config.actor_rollout_ref.model)
    actor = omega_conf_to_dataclass(config.actor_rollout_ref.actor)
    actor.model_config = model
    worker = TrainingWorker(
        TrainingWorkerConfig(
            model_type="language_model",
            model_config=model,
            engine_config=actor.engine,
            optimizer_config=actor.optim,
            checkpoint_config=actor.checkpoint,
            profiler_config=None,
        )
    )
    worker.reset()
    worker.set_loss_fn(functools.partial(ppo_loss, config=actor))
    return worker


def legacy_worker(policy: Path, *overrides: str) -> Any:
    """verl's legacy worker as an actor alone, its model built; ranks as for `training_worker`. Until 0.7.1."""
    for name, value in {"RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29511"}.items():
        os.environ.setdefault(name, value)
    from omegaconf import open_dict
    from verl.workers.fsdp_workers import ActorRolloutRefWorker

    config = compose(f"actor_rollout_ref.model.path={policy}", *overrides)
    with open_dict(config):
        config.actor_rollout_ref.actor.optim.total_training_steps = 10
    worker = ActorRolloutRefWorker(config.actor_rollout_ref, role="actor")
    worker.init_model()
    return worker


def full_gradient(worker: Any) -> torch.Tensor:
    """The gradient over all trained parameters, in the model's order, float64; collective where they are sharded."""
    return _flat(parameter.grad for parameter in module_of(worker).parameters() if parameter.requires_grad)


def module_of(worker: Any) -> Any:
    """The module that a worker trains: its engine's, or a legacy worker's own."""
    return worker.actor_module_fsdp if hasattr(worker, "actor_module_fsdp") else worker.engine.module


def full_parameters(worker: Any) -> torch.Tensor:
    """All parameters, in the model's order, float64; collective where they are sharded."""
    return _flat(module_of(worker).parameters())


def _flat(tensors: Any) -> torch.Tensor:
    whole = (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor for tensor in tensors)
    return torch.cat([tensor.detach().double().flatten().clone() for tensor in whole])


def batch(
    samples: Sequence[Sample | None],
    members: Sequence[tuple[int, int, int, int] | None],
    *,
    step: int,
    reference_logprobs: Sequence[torch.Tensor] | None = None,
    **values: Any,
) -> Any:
    """The TensorDict that verl's driver would send for these rows.

    samples: None is a filler row. members: (rollout, prompt, position, sample) of each. values: what the driver
    attaches (micro_batch_size_per_gpu, use_dynamic_bsz, max_token_len_per_gpu, global_batch_size, ...).
    """
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    def nested(rows: Sequence[torch.Tensor]) -> torch.Tensor:
        return torch.nested.as_nested_tensor(list(rows), layout=torch.jagged)

    filler = Sample(prompt=[3], completion=[1], loss_mask=[0], group=-1, advantage=0.0, old_logprobs=torch.zeros(1))
    rows = [filler if sample is None else sample for sample in samples]
    ids = [torch.tensor([*row.prompt, *row.completion]) for row in rows]
    masks = [torch.tensor(list(row.loss_mask)) for row in rows]
    columns: dict[str, Any] = {
        "input_ids": nested(ids),
        "position_ids": nested([torch.arange(len(row)) for row in ids]),
        "prompts": nested([torch.tensor(list(row.prompt)) for row in rows]),
        "responses": nested([torch.tensor(list(row.completion)) for row in rows]),
        "response_mask": nested(masks),
        "loss_mask": nested(masks),
        "old_log_probs": nested([_old(row) for row in rows]),
        "advantages": nested([torch.full((len(row.completion),), float(row.advantage)) for row in rows]),
    }
    if reference_logprobs is not None:
        columns["ref_log_prob"] = nested(list(reference_logprobs))
    data = TensorDict(columns, batch_size=len(rows))
    for place, name in enumerate((ROLLOUT, PROMPT, POSITION, SAMPLE)):
        data[name] = torch.tensor([-1 if member is None else member[place] for member in members])
    settings: Mapping[str, Any] = {
        "calculate_entropy": False,
        "distillation_use_topk": False,
        "temperature": 1.0,
        "epochs": 1,
        "seed": 42,
        "dataloader_kwargs": {"shuffle": False},
        "use_dynamic_bsz": False,
        STEP: step,
        **values,
    }
    tu.assign_non_tensor(data, **settings)
    return data


def as_v0_sends(data: Any) -> Any:
    """The batch as the V0 trainer sends it to engine workers."""
    from verl.workers.utils.padding import left_right_2_no_padding

    return left_right_2_no_padding(padded(data))


def as_legacy_workers_get(data: Any) -> Any:
    """The batch as the V0 trainer sends it to legacy workers: a `DataProto`."""
    import numpy as np
    from verl import DataProto
    from verl.utils import tensordict_utils as tu

    made, marks = padded(data), (ROLLOUT, PROMPT, POSITION, SAMPLE)
    tensors = {name: made[name] for name in made.keys() if isinstance(made.get(name), torch.Tensor)}  # noqa: SIM118
    columns = {name: np.array(tensors.pop(name).tolist(), dtype=object) for name in marks}
    step = tu.get_non_tensor_data(data, STEP, None)
    told = {"temperature": 1.0, STEP: step, "global_token_num": made["attention_mask"].sum(-1).tolist()}
    return DataProto.from_dict(tensors=tensors, non_tensors=columns, meta_info=told)


def padded(data: Any) -> Any:
    """The batch with prompts padded on the left, responses on the right."""
    from tensordict import TensorDict
    from verl.utils import tensordict_utils as tu

    def left(rows: Any) -> torch.Tensor:
        return torch.nn.utils.rnn.pad_sequence([row.flip(0) for row in rows.unbind()], batch_first=True).flip(1)

    names = ("responses", "response_mask", "old_log_probs", "advantages", "ref_log_prob")
    columns = {name: data[name].to_padded_tensor(0) for name in names if name in data.keys()}  # noqa: SIM118
    columns["prompts"] = left(data["prompts"])
    ones = torch.nested.nested_tensor([torch.ones_like(row) for row in data["responses"].unbind()], layout=torch.jagged)
    prompt_ones = torch.nested.nested_tensor(
        [torch.ones_like(row) for row in data["prompts"].unbind()], layout=torch.jagged
    )
    columns["attention_mask"] = torch.cat([left(prompt_ones), ones.to_padded_tensor(0)], 1)
    columns["position_ids"] = (columns["attention_mask"].cumsum(1) - 1).clamp(min=0)
    columns["input_ids"] = torch.cat([columns["prompts"], columns["responses"]], 1)
    made = TensorDict({**columns, **{name: data[name] for name in (ROLLOUT, PROMPT, POSITION, SAMPLE)}}, len(data))
    others = [name for name in data.keys() if not isinstance(data.get(name), torch.Tensor)]  # noqa: SIM118
    settings = {name: tu.get_non_tensor_data(data, name, None) for name in others}
    tu.assign_non_tensor(made, **settings)
    return made


def _old(row: Sample) -> torch.Tensor:
    if row.old_logprobs is None:
        raise ValueError("verl always wants old log-probabilities")
    return row.old_logprobs.float()
