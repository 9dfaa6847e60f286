"""What `test_tensors_openrlhf` runs, one process per rank: `gradients.py` with tensor parallelism
(`ds.tensor_parallel_size` 2), DeepSpeed's AutoTP, over padded and over packed samples; every step that is compared with
the oracle is run with passes in float64, too (`exactly.py`).

    torchrun --nproc_per_node 2 tensors.py FOLDER
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import Any

import gradients
import torch
from exactly import BAR, Exactly, exactly
from gradients import CASES, EVERYWHERE, KL_COEFFICIENT, PROMPTS, natively, spec_of, tampered, wrapped

from batchbridge.errors import CannotAttach
from batchbridge.kit.patches import Patches
from batchbridge.meaning.plan import Plan
from batchbridge.testing.oracle import relative_error
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.leaving import leave
from batchbridge_on_cpu.openrlhf.workers import save_policy
from batchbridge_openrlhf.engine import install, remove

GROUP = 2
gradients.SHARED.update({"ds.tensor_parallel_size": GROUP})
TRAINERS: tuple[tuple[int, bool, tuple[str, ...], dict[str, Any]], ...] = (
    # ZeRO stage, the trainer's own dynamic batches, splits, settings
    (2, False, ("fixed 2",), {}),
    (1, False, ("budget 24",), {"ds.packing_samples": True, "ds.attn_implementation": "sdpa"}),
)


APART: list[float] = []
"""How far the gradients of weights that every rank has whole are from each other."""


def _whole(trainer: Any, parts: list[torch.Tensor]) -> torch.Tensor:
    """The parts of each rank's weights, or of what they have for each, put together in its order. Collective."""
    group = trainer.strategy.ds_device_mesh["tp"].get_group()
    found = []
    for part, want in zip(parts, tiny_policy().parameters(), strict=True):
        pieces = [torch.empty_like(part) for _ in range(GROUP)]
        torch.distributed.all_gather(pieces, part.contiguous(), group=group)
        cut = [axis for axis in range(part.dim()) if part.shape[axis] != want.shape[axis]]
        if not cut:
            APART.append(relative_error(pieces[1], pieces[0]))
        found.append(torch.cat(pieces, cut[0]) if cut else pieces[0])
        assert found[-1].shape == want.shape
    return torch.cat([one.double().flatten() for one in found])


def full_gradient(trainer: Any) -> torch.Tensor:
    """As `workers.full_gradient`, of all ranks' parts."""
    from deepspeed.utils import safe_get_full_grad

    return _whole(trainer, [safe_get_full_grad(one) for one in trainer.actor.model.module.parameters()])


gradients.full_gradient = full_gradient


class Bench(gradients.Bench):
    """A rollout is dealt out to groups; all ranks of one have the same completions. The oracle is float64 throughout:
    in a float64 model of transformers' norms and softmax stay float32, and its gradients are up to 1e-6 off."""

    def oracle(self, model: Any, *given: Any, **options: Any) -> torch.Tensor:
        with Exactly() if model is self.exact else contextlib.nullcontext():
            return super().oracle(model, *given, **options)

    def fill(self, *given: Any, **options: Any) -> None:
        ranks = self.rank, self.ranks
        self.rank, self.ranks = self.rank // GROUP, self.ranks // GROUP
        try:
            super().fill(*given, **options)
        finally:
            self.rank, self.ranks = ranks


def first_step(bench: Bench, trainer: Any) -> float:
    """The error of a wrapped run's first step with passes in float64, over their bar."""
    case = CASES["token_mean"]
    spec = spec_of(case, "fixed 2")
    plan = Plan(spec, PROMPTS)
    install(trainer, bench.orders(spec, settings={**case.loss, KL_COEFFICIENT: case.coefficient}))
    bench.fill(trainer, plan, 0)
    with exactly(trainer.actor, trainer.actor_loss_fn):
        bench.run(trainer, 0.0)
    remove(trainer)
    members = [(member.prompt, member.sample) for member in plan.step(0).members]
    return relative_error(bench.gradients[0], bench.expected(case, members)[0]) / BAR


def blind(bench: Bench, trainer: Any) -> float:
    """The first step's error where the gradient of what each rank computes is not added up over the group."""
    from deepspeed.module_inject import layers

    patches = Patches()
    patches.set(
        layers.ColumnParallel,
        "backward",
        staticmethod(lambda context, gradient: (None, gradient)),
        what="its own part alone",
        why="control",
    )
    try:
        return first_step(bench, trainer)
    finally:
        patches.undo()


def guessed(bench: Bench, trainer: Any) -> str:
    """What is said of a model whose layers DeepSpeed cuts by their names."""
    module, patches = trainer.actor.model.module, Patches()
    for owner, name in ((type(module), "_tp_plan"), (module, "_tp_plan"), (module.config, "base_model_tp_plan")):
        patches.set(owner, name, None, what="no plan", why="control")
    try:
        install(trainer, bench.orders(spec_of(CASES["token_mean"], "fixed 2")))
        said = "wrapped"
    except CannotAttach as refused:
        said = str(refused.reasons.get("tensor_parallel"))
    patches.undo()
    remove(trainer)
    return said


def other_completions(bench: Bench, trainer: Any) -> str:
    """What a run says in which the ranks of a group hold the rollout in other orders."""
    spec = spec_of(CASES["token_mean"], "fixed 2")
    install(trainer, bench.orders(spec))
    bench.fill(trainer, Plan(spec, PROMPTS), 0)
    if bench.rank % GROUP:
        trainer.replay_buffer.items.reverse()
    try:
        bench.run(trainer, 0.0)
        said = "trained"
    except CannotAttach as refused:
        said = str(refused.reasons.get("tensor_parallel"))
    gradients.clean(trainer)
    return said


class _Sent:
    """In the place of the group that carries weights to the engines: keeps what is sent."""

    def __init__(self) -> None:
        self.weights: list[torch.Tensor] = []

    def broadcast(self, tensor: torch.Tensor, **options: Any) -> None:
        self.weights.append(tensor.clone().flatten())


def sent(trainer: Any) -> dict[str, Any]:
    """Of OpenRLHF's own broadcast to the engines: how many of the model's values the first rank sends, and whether they
    are the model's."""
    trainer.vllm_engines, trainer._model_update_group = [], _Sent()
    trainer.broadcast_to_vllm()
    want = torch.cat([one.detach().flatten() for one in tiny_policy().parameters()])
    found = torch.cat([torch.zeros(0), *trainer._model_update_group.weights])
    return {"values": len(found), "of": len(want), "alike": found.shape == want.shape and torch.equal(found, want)}


def main(folder: Path) -> None:
    policy = folder / f"policy-{os.environ.get('RANK', 0)}"  # every rank its own: nobody waits for a file
    save_policy(policy)
    bench = Bench(folder, policy)
    found: dict[str, Any] = {"wrapped": [], "in float32": [], "natively": {}, "sent": {}, "apart": {}}
    for zero, dynamic, splits, settings in TRAINERS:
        gradients.SHARED.update(settings)
        trainer = bench.trainer(zero, dynamic)
        found["sent"][zero] = sent(trainer)
        found["natively"][f"ZeRO-{zero}"] = natively(bench, trainer, zero, dynamic)
        found["in float32"] += wrapped(bench, trainer, zero, dynamic, splits, EVERYWHERE)
        APART.clear()
        with exactly(trainer.actor, trainer.actor_loss_fn):
            found["wrapped"] += wrapped(bench, trainer, zero, dynamic, splits, EVERYWHERE)
        found["apart"][f"ZeRO-{zero}"] = max(APART)
        if zero == 2:
            found["tampered"] = tampered(bench, trainer, "enforce")
            found["blind"] = blind(bench, trainer)
            found["guessed"] = guessed(bench, trainer)
            found["other completions"] = other_completions(bench, trainer)
        del trainer
    try:
        bench.trainer(3, False)
        found["ZeRO-3"] = "loaded"
    except NotImplementedError as error:
        found["ZeRO-3"] = str(error)
    if bench.rank == 0:
        torch.save({**found, "ranks": bench.ranks}, folder / "measured.pt")
    leave()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
