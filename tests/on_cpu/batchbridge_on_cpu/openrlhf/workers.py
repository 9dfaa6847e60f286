"""A real `ActorPPOTrainer` of the tiny policy on CPU, without Ray: what gradients are compared on.

One process per rank, started by torchrun or alone. Needs torch, transformers, deepspeed and openrlhf.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchbridge_openrlhf.on_cpu import cpu

os.environ.setdefault(cpu.FLOAT32, "1")
os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")  # the entropy is compiled otherwise
cpu.start()

import torch  # noqa: E402 - the hooks come first

from batchbridge.testing.tiny import tiny_policy, tiny_tokenizer  # noqa: E402
from batchbridge_openrlhf.settings import defaults_of, options_of  # noqa: E402
from batchbridge_openrlhf.turns import identify  # noqa: E402

if TYPE_CHECKING:
    from batchbridge.testing.oracle import Sample


def save_policy(folder: Path, *, seed: int = 0) -> None:
    """Writes the tiny policy and its tokenizer to `folder`, as `from_pretrained` reads them."""
    tiny_policy(seed).save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def arguments(**changes: Any) -> Any:
    """OpenRLHF's arguments after parsing: its defaults and `changes`, named by identity (`train.batch_size`)."""
    from openrlhf.utils.config import hierarchize

    version = importlib.metadata.version("openrlhf")
    defaults = defaults_of(version)
    values = {name: defaults[option.identity] for name, option in options_of(version).items()}
    unknown = changes.keys() - values.keys()
    if unknown:
        raise KeyError(f"{sorted(unknown)}: no options of openrlhf {version}")
    values |= {"ds.attn_implementation": "eager", "local_rank": -1, "actor.num_gpus_per_node": _world(), **changes}
    args = hierarchize(argparse.Namespace(**values))
    # As the program's main block does after parsing.
    args.actor.eps_clip_low_high = args.actor.eps_clip_low_high or (args.actor.eps_clip, args.actor.eps_clip)
    threshold = args.algo.advantage.is_correction_threshold
    args.algo.advantage.is_correction_threshold = [0.5, 5.0] if threshold is None else threshold
    return args


def actor_trainer(policy: Path, *, steps: int, dataset_size: int, **changes: Any) -> Any:
    """An `ActorPPOTrainer` with its model prepared by OpenRLHF's strategy. steps: of the learning rate's schedule.

    Rank and world size come from the environment (RANK, WORLD_SIZE, ...; a world of one by default).
    """
    from openrlhf.models import Actor
    from openrlhf.trainer.ray.ppo_actor import ActorPPOTrainer

    args, strategy = _started(changes)
    actor = Actor(
        str(policy),
        attn_implementation=args.ds.attn_implementation,
        param_dtype=args.ds.param_dtype,
        ds_config=strategy.get_ds_train_config(),
        packing_samples=args.ds.packing_samples,
        temperature=args.rollout.temperature,
    )
    model, optimizer, schedule = strategy.prepare((actor, _settings(args, args.actor, steps)))
    trainer = ActorPPOTrainer(
        strategy,
        model,
        ema_model=None,
        actor_optim=optimizer,
        actor_scheduler=schedule,
        micro_train_batch_size=args.train.micro_batch_size,
        dataloader_pin_memory=False,
    )
    trainer.dataset_size = dataset_size
    return trainer


def save_critic(policy: Path, folder: Path, *, seed: int = 1) -> None:
    """Writes a critic on the saved policy, its value head drawn from `seed`, as OpenRLHF reads one."""
    torch.manual_seed(seed)
    made = plain_critic(policy)
    made.score.weight.data.normal_(std=0.5)
    made.save_pretrained(folder)
    tiny_tokenizer().save_pretrained(folder)


def plain_critic(folder: Path) -> Any:
    """OpenRLHF's critic of a folder in plain torch, float32."""
    from openrlhf.models import get_llm_for_sequence_regression

    return get_llm_for_sequence_regression(str(folder), "critic", attn_implementation="eager")


def critic_trainer(critic: Path, *, steps: int, **changes: Any) -> Any:
    """A `CriticPPOTrainer`, as `actor_trainer` makes an `ActorPPOTrainer`."""
    from openrlhf.models import get_llm_for_sequence_regression
    from openrlhf.trainer.ray.ppo_critic import CriticPPOTrainer

    args, strategy = _started(changes)
    model = get_llm_for_sequence_regression(
        str(critic),
        "critic",
        attn_implementation=args.ds.attn_implementation,
        param_dtype=args.ds.param_dtype,
        ds_config=strategy.get_ds_train_config(),
        packing_samples=args.ds.packing_samples,
    )
    engine, optimizer, schedule = strategy.prepare((model, _settings(args, args.critic, steps)))
    return CriticPPOTrainer(
        strategy,
        critic=engine,
        critic_optim=optimizer,
        critic_scheduler=schedule,
        micro_train_batch_size=args.train.micro_batch_size,
        value_clip=args.critic.value_clip,
        dataloader_pin_memory=False,
    )


def _started(changes: dict[str, Any]) -> tuple[Any, Any]:
    """Arguments, and a strategy whose processes know each other."""
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29512",
    }
    for name, value in environment.items():
        os.environ.setdefault(name, value)
    from openrlhf.utils.utils import get_strategy

    args = arguments(**changes)
    strategy = get_strategy(args)
    strategy.setup_distributed()
    return args, strategy


def _settings(args: Any, own: Any, steps: int) -> dict[str, Any]:
    """What a model is prepared with, by its own part of the arguments."""
    return {
        "optim": own.optim,
        "muon": vars(own.muon),
        "adam": vars(own.adam),
        **{name: getattr(own, name) for name in ("lr_scheduler", "lr_warmup_ratio", "min_lr_ratio", "max_norm")},
        "scheduler_steps": steps,
    }


def _world() -> int:
    return int(os.environ.get("WORLD_SIZE", "1"))


def _engine(trainer: Any) -> Any:
    return trainer.critic if hasattr(trainer, "critic") else trainer.actor.model


def full_gradient(trainer: Any) -> torch.Tensor:
    """The gradient that DeepSpeed's next step applies, over all parameters in the model's order, float64; collective
    under ZeRO."""
    from deepspeed.utils import safe_get_full_grad

    return torch.cat([safe_get_full_grad(p).double().flatten() for p in _engine(trainer).module.parameters()])


def full_parameters(trainer: Any) -> torch.Tensor:
    """All parameters, in the model's order, float64; collective under ZeRO-3."""
    from deepspeed.utils import safe_get_full_fp32_param

    parameters = list(_engine(trainer).module.parameters())
    whole = [safe_get_full_fp32_param(p) if hasattr(p, "ds_id") else p.detach() for p in parameters]
    return torch.cat([value.double().flatten().clone() for value in whole])


def experience(
    sample: Sample,
    member: Sequence[int],
    *,
    reference_logprobs: torch.Tensor | None = None,
) -> Any:
    """One completion as OpenRLHF's experience maker makes it, with its identity (rollout, prompt, position, sample)."""
    from openrlhf.trainer.ppo_utils.experience import Experience

    ids = torch.tensor([[*sample.prompt, *sample.completion]])
    start, length = len(sample.prompt) - 1, ids.shape[1] - 1

    def actions(values: Any, dtype: torch.dtype) -> torch.Tensor:
        padded = torch.zeros(1, length, dtype=dtype)
        padded[0, start:] = torch.as_tensor(values, dtype=dtype)
        return padded

    if sample.old_logprobs is None:
        raise ValueError("OpenRLHF always wants old log-probabilities")
    mask = actions(list(sample.loss_mask), torch.long)
    made = Experience(
        sequences=ids,
        attention_mask=torch.ones_like(ids),
        action_mask=mask,
        action_log_probs=actions(sample.old_logprobs, torch.float32),
        base_action_log_probs=None if reference_logprobs is None else actions(reference_logprobs, torch.float32),
        advantages=sample.advantage * mask.float(),
        response_length=mask.sum(dim=1),
        truncated=torch.tensor([False]),
        total_length=torch.tensor([float(ids.shape[1])]),
        rewards=torch.tensor([0.0]),
        prompts=[""],
        labels=[""],
        images=[None],
        mm_train_inputs=[None],
        info={"reward": torch.tensor([0.0])},
    )
    rollout, prompt, position, number = member
    return identify(
        made, rollout=rollout, prompt=prompt, position=position, sample=number, prompt_tokens=len(sample.prompt)
    )
