"""Records what functions of EasyR1 itself give, for `test_upstream_values_easyr1.py`, which replays it without them.

    PYTHONPATH=CHECKOUT python record.py CHECKOUT > values.json

In EasyR1's environment (`nox -s easyr1`); again whenever a digest in `code` is no more upstream's. Learning rates are
those of a real `FSDPWorker` with the tiny policy; steps those of the real `update_policy`, whose forward pass gives a
tensor and whose optimizer step keeps its gradient: at ratio 1 and advantage -1 the gradient at a token is its weight.
"""

from __future__ import annotations

from batchbridge_on_cpu.easyr1 import cpu

cpu.start()

import contextlib
import itertools
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import torch

from batchbridge.kit.patches import rebound
from batchbridge_on_cpu.upstream_values import plain, recorded, text_of

COMMIT = "b44b311"
FUNCTIONS = {
    "utils/torch_functional.py": (
        "get_constant_schedule_with_warmup",
        "get_cosine_schedule_with_warmup",
        "masked_mean",
    ),
    "workers/fsdp_workers.py": ("FSDPWorker._build_model_optimizer",),
    "workers/actor/dp_actor.py": ("DataParallelPPOActor.update_policy",),
    "trainer/data_loader.py": ("create_dataloader",),
    "trainer/core_algos.py": (
        "average_loss",
        "compute_grpo_outcome_advantage",
        "compute_kl",
        "compute_policy_loss",
        "compute_rloo_outcome_advantage",
    ),
    "protocol.py": ("DataProto.chunk", "DataProto.split"),
    "utils/seqlen_balancing.py": ("karmarkar_karp", "prepare_dynamic_batch", "rearrange_micro_batches"),
}
PEAK = 2e-6
TICKS = (1, 4, 11)
WARMUPS = (
    {"lr_warmup_steps": 0},
    {"lr_warmup_steps": 3},
    {"lr_warmup_ratio": 0.3},
    {"lr_warmup_ratio": 0.3, "lr_warmup_steps": 1},
)
FLOORS = (None, 0.1, 1.0)
CYCLES = (0.25, 0.5, 1.0)
ORDERS = [
    (size, batch, shuffle, seed)
    for size, batch, shuffle in ((5, 2, True), (12, 4, True), (13, 6, True), (7, 3, False))
    for seed in (1, 42)
]
LENGTHS = [5, 1, 3, 2, 4, 6, 2, 7, 1, 1, 8, 3, 2, 2, 5, 4]
STEPS = [
    # completions per optimizer step, micro-batch, passes, mode
    (8, 2, 1, "token"),
    (8, 4, 2, "token"),
    (4, 1, 1, "seq"),
    (16, 8, 2, "seq"),
    (8, 2, 3, "seq"),
]
GROUPS = [[1.0, 0.0, 0.0, 1.0], [0.5, 0.25, 1.0, 0.125], [2.0, 2.0, 2.0, 2.0], [-1.0, 3.0, 0.5, 0.0]]
BUDGETED = ((5, 3, 6, 4, 8, 7, 4, 9), 10)
"""Tokens of each row, and the width that rows are padded to."""
RATIOS = (-30.0, -3.0, -0.5, -0.1, 0.0, 0.1, 0.25, 0.8, 2.0, 30.0)
LOSSES = ("default", "gspo", "gspo_token", "cispo", "sapo")


def curve(schedule: Any, optimizer: Any, ticks: int) -> list[float]:
    """The learning rate of each tick, and of two beyond, as a share of the peak."""
    rates = []
    for _ in range(ticks + 2):
        rates.append(optimizer.param_groups[0]["lr"] / PEAK)
        optimizer.step()
        schedule.step()
    return rates


def optimizer() -> Any:
    return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=PEAK)


def functions_of_rates() -> list[list[Any]]:
    """[name, arguments, curve] of the two functions that make a schedule."""
    from verl.utils import torch_functional

    found: list[list[Any]] = []
    for ticks, warmup in itertools.product(TICKS, (0, 1, 3)):
        made = optimizer()
        schedule = torch_functional.get_constant_schedule_with_warmup(optimizer=made, num_warmup_steps=warmup)
        found.append(["constant", [ticks, warmup], curve(schedule, made, ticks)])
        for floor, cycles in itertools.product(FLOORS, CYCLES):
            made = optimizer()
            schedule = torch_functional.get_cosine_schedule_with_warmup(
                optimizer=made, num_warmup_steps=warmup, num_training_steps=ticks, min_lr_ratio=floor, num_cycles=cycles
            )
            found.append(["cosine", [ticks, warmup, floor, cycles], curve(schedule, made, ticks)])
    return found


def rates() -> list[dict[str, Any]]:
    """Learning rates of a worker that EasyR1 itself builds, by its settings."""
    from batchbridge_on_cpu.easyr1.scripted import prepare
    from batchbridge_on_cpu.easyr1.workers import actor_worker

    found = []
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(sys.stderr):
        prepare(Path(folder))
        worker = actor_worker(Path(folder) / "policy", {"worker.actor.optim.lr": PEAK})
        actor = worker.config.actor
        for kind, ticks, warmup, floor in itertools.product(("constant", "cosine"), TICKS, WARMUPS, FLOORS):
            if kind == "constant" and floor is not None:
                continue
            said = {
                "lr_scheduler_type": kind,
                "min_lr_ratio": floor,
                "lr_warmup_steps": None,
                "lr_warmup_ratio": 0.0,
                **warmup,
            }
            for name, value in {**said, "training_steps": ticks}.items():
                setattr(actor.optim, name, value)
            worker._build_model_optimizer(
                model_config=actor.model,
                fsdp_config=actor.fsdp,
                optim_config=actor.optim,
                padding_free=actor.padding_free,
                role="actor",
            )
            found.append(
                {"settings": said, "ticks": ticks, "rates": curve(worker.lr_scheduler, worker.optimizer, ticks)}
            )
    return found


class Numbers(list):  # type: ignore[type-arg]
    """A dataset of EasyR1's, whose items are their indices."""

    def __init__(self, *, data_path: int, **options: Any) -> None:
        super().__init__(range(data_path))


def orders() -> list[dict[str, Any]]:
    """The batches of three epochs of EasyR1's own loader."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from verl.trainer import data_loader
    from verl.trainer.config import DataConfig

    found = []
    for size, batch, shuffle, seed in ORDERS:
        config = DataConfig(
            train_files=size,
            val_files=size,
            rollout_batch_size=batch,
            shuffle=shuffle,
            seed=seed,
            mini_rollout_batch_size=None,
        )  # type: ignore[arg-type]
        made = rebound(
            data_loader.create_dataloader,
            RLHFDataset=Numbers,
            collate_fn=list,
            StatefulDataLoader=lambda **options: StatefulDataLoader(**{**options, "num_workers": 0}),
            print=lambda *words: None,
        )
        loader, _ = made(config, None, None)
        epochs = [[list(one) for one in loader] for _ in range(3)]
        found.append({"size": size, "batch": batch, "shuffle": shuffle, "seed": seed, "epochs": epochs})
    return found


def batch_of(count: int) -> Any:
    from verl.protocol import DataProto

    return DataProto.from_dict(tensors={"row": torch.arange(count)})


def cuts() -> dict[str, list[Any]]:
    """Rows of each part: [rows, ranks, parts] as ranks are sent them, [rows, size, parts] as one rank splits them."""
    sent = [
        [rows, ranks, [part.batch["row"].tolist() for part in batch_of(rows).chunk(ranks)]]
        for rows, ranks in ((4, 2), (12, 2), (12, 3), (16, 4))
    ]
    split = [
        [rows, size, [part.batch["row"].tolist() for part in batch_of(rows).split(size)]]
        for rows, size in ((4, 2), (6, 3), (8, 2), (12, 4))
    ]
    return {"sent": sent, "split": split}


def budgets() -> list[list[Any]]:
    """[budget, rows of each micro-batch] as EasyR1 cuts `BUDGETED` by tokens."""
    from verl.protocol import DataProto
    from verl.utils.seqlen_balancing import prepare_dynamic_batch

    lengths, width = BUDGETED
    mask = torch.tensor([[int(place < length) for place in range(width)] for length in lengths])
    data = DataProto.from_dict(tensors={"attention_mask": mask})
    return [[budget, prepare_dynamic_batch(data, max_token_len=budget)[1]] for budget in (10, 20, 40)]


def steps() -> list[dict[str, Any]]:
    """The optimizer steps of one call of EasyR1's own `update_policy` on one rank: micro-batches of [row, weight]."""
    return [
        {"size": size, "micro": micro, "passes": passes, "mode": mode, "lengths": LENGTHS, "steps": made}
        for size, micro, passes, mode in STEPS
        for made in [steps_of(size, micro, passes, mode)]
    ]


def steps_of(size: int, micro: int, passes: int, mode: Any) -> list[list[list[list[float]]]]:
    """The same, of one configuration."""
    from verl.protocol import DataProto
    from verl.workers.actor.config import ActorConfig
    from verl.workers.actor.dp_actor import DataParallelPPOActor

    mask = torch.tensor([[int(place < length) for place in range(max(LENGTHS))] for length in LENGTHS])
    config = ActorConfig(ppo_epochs=passes, loss_avg_mode=mode, dynamic_batching=False, use_torch_compile=False)
    config.global_batch_size_per_device, config.micro_batch_size_per_device_for_update = size, micro
    leaves: list[tuple[list[int], Any]] = []
    made: list[list[list[list[float]]]] = []

    def forward(micro_batch: Any, temperature: float) -> Any:
        leaf = torch.zeros(micro_batch["responses"].shape, requires_grad=True)
        leaves.append((micro_batch["input_ids"][:, 0].tolist(), leaf))
        return leaf

    def update() -> Any:
        made.append(
            [[[row, _weight(values)] for row, values in zip(rows, leaf.grad, strict=True)] for rows, leaf in leaves]
        )
        leaves.clear()
        return torch.zeros(())

    actor = object.__new__(DataParallelPPOActor)
    actor.config, actor.rank, actor.world_size = config, 1, 1
    actor.actor_module = types.SimpleNamespace(train=lambda: None)
    actor._forward_micro_batch, actor._optimizer_step = forward, update
    tensors = {name: torch.zeros(mask.shape) for name in ("old_log_probs", "ref_log_probs")}
    tensors |= {name: torch.ones_like(mask) for name in ("attention_mask", "position_ids", "responses")}
    tensors |= {"response_mask": mask, "advantages": -torch.ones(mask.shape)}
    tensors["input_ids"] = torch.arange(len(LENGTHS))[:, None].expand(mask.shape).contiguous()
    actor.update_policy(DataProto.from_dict(tensors=tensors, meta_info={"temperature": 1.0}))
    return made


def _weight(gradient: Any) -> float:
    """The weight of each of a row's tokens."""
    found = gradient[gradient != 0].unique()
    assert len(found) == 1, "all tokens of a row weigh the same"
    return float(plain(found)[0])


def advantages() -> dict[str, Any]:
    from verl.trainer import core_algos

    rewards = torch.tensor([value for group in GROUPS for value in group], dtype=torch.float64)[:, None]
    index = [number for number, group in enumerate(GROUPS) for _ in group]
    mask = torch.ones_like(rewards)
    return {
        "groups": GROUPS,
        **{
            name: plain(
                core_algos.compute_advantage_return(
                    name, token_level_rewards=rewards.clone(), response_mask=mask, index=index
                )[0][:, 0]
            )
            for name in ("grpo", "rloo")
        },
    }


def divergences() -> dict[str, Any]:
    """KL estimates, and their derivatives, of one token whose log-probability is that much above the reference's."""
    from verl.trainer import core_algos

    found: dict[str, Any] = {"differences": RATIOS}
    for name in ("kl", "abs", "mse", "low_var_kl"):
        new = torch.tensor(RATIOS, requires_grad=True)
        value = core_algos.compute_kl(new, torch.zeros(len(RATIOS)), name)
        value.sum().backward()
        found[name] = [plain(value), plain(new.grad)]
    return found


def losses() -> dict[str, Any]:
    """Losses of rows of one token (log ratio, advantage), averaged by tokens and not at all, and their derivatives."""
    from verl.trainer import core_algos

    found: dict[str, Any] = {"ratios": RATIOS}
    for name, advantage in itertools.product(LOSSES, (1.0, -1.0)):
        new = (torch.tensor(RATIOS)[:, None] - 1.0).requires_grad_()
        value, _ = core_algos.compute_policy_loss(
            old_log_probs=torch.full_like(new, -1.0),
            log_probs=new,
            advantages=torch.full_like(new, advantage),
            response_mask=torch.ones_like(new),
            clip_ratio_low=0.2,
            clip_ratio_high=0.3,
            clip_ratio_dual=3.0,
            tau_positive=1.0,
            tau_negative=1.05,
            loss_type=name,
            loss_avg_mode="token",
        )
        (value * len(RATIOS)).backward()
        found[f"{name} {advantage:+g}"] = plain(new.grad[:, 0])
    return found


def values(checkout: Path) -> dict[str, Any]:
    """The whole record."""
    made = {
        "rates": rates(),  # first: it starts the process group
        "functions_of_rates": functions_of_rates(),
        "orders": orders(),
        "cuts": cuts(),
        "budgets": {"lengths": BUDGETED[0], "cuts": budgets()},
        "steps": steps(),
        "advantages": advantages(),
        "divergences": divergences(),
        "losses": losses(),
    }
    return recorded(checkout / "verl", FUNCTIONS, commit=COMMIT, values=made)


if __name__ == "__main__":
    sys.stdout.write(text_of(values(Path(sys.argv[1]))))
