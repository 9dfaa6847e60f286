"""What `test_olmo_open_instruct` runs, one process per rank: the real learner of grpo.py, OLMo-core's trainer with
FSDP2 on gloo and the real data preparation actor; every optimizer step against the float64 oracle, and steps that
something else than the plan has a hand in. The kernel of attention is ours (`batchbridge_on_cpu.open_instruct.olmo`).

    PYTHONPATH=CHECKOUT torchrun --nproc_per_node 2 olmo.py FOLDER

Rank 0 leaves what it measured in FOLDER/measured.json; oi_proofs.py says what is asked of it.
"""

from __future__ import annotations

from batchbridge_on_cpu.open_instruct import cpu, olmo

cpu.start(olmo.HOOKS)

# isort: split
import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gradients
import tampering
import torch

from batchbridge.errors import CannotAttach
from batchbridge.running.wrap import unwrap, wrap
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy
from batchbridge_on_cpu.open_instruct.job import prepare
from batchbridge_on_cpu.open_instruct.olmo_job import Job
from batchbridge_on_cpu.steps import moved

REPLICAS = {"fsdp_num_replicas": 2, "fsdp_shard_degree": 1}
CASES = (
    gradients.Case("dapo", gradients.ALL),
    gradients.Case("dapo, clipped by norm", ("token_mean",), {"max_grad_norm": 0.05}, splits=("32 x 1",)),
    gradients.Case(
        "dapo, advantages by deviation", ("token_mean",), splits=("48 x 2",), changed={"advantage": gradients.WHITENED}
    ),
    gradients.Case("dapo, k3", gradients.TWO, {**gradients.KL, "kl_estimator": 2}, splits=("48 x 2",)),
    gradients.Case("dapo, k2", ("token_mean",), {**gradients.KL, "kl_estimator": 1}, splits=("32 x 1",)),
    gradients.Case("dapo, k1", ("token_mean",), {**gradients.KL, "kl_estimator": 0}, splits=("32 x 1",)),
    gradients.Case("dapo, k1 times ratio", ("token_mean",), {**gradients.KL, "kl_estimator": 3}, splits=("32 x 1",)),
    gradients.Case(
        "dapo, corrected", gradients.TWO, {"use_rho_correction": True}, gradients._corrected, splits=("48 x 2",)
    ),
    gradients.Case("cispo", gradients.TWO, {"loss_fn": "cispo"}, splits=("48 x 2",)),
)
REPLICATED = gradients.Case("dapo, replicas", gradients.TWO, REPLICAS, splits=("32 x 1",))
"""Of two ranks: FSDP2 with a whole model on each."""


class Bench(gradients.Bench):
    """As that of the gradients, with grpo.py's learner; tensors have the order of transformers' policy."""

    @contextmanager
    def job(  # type: ignore[override]  # another job
        self,
        *,
        settings: Mapping[str, Any] | None = None,
        args: Mapping[str, Any] | None = None,
        prompts: int = gradients.PROMPTS,
        rollouts: int = gradients.ROLLOUTS,
        script: ScriptedRollouts | None = None,
        burst: int | None = None,
    ) -> Iterator[Job]:
        """As there."""
        rate = gradients.RATES["token_mean"]
        args = {"learning_rate": rate, "num_epochs": 2, "lr_scheduler_type": "constant", **(args or {})}
        sizes = {"prompts": prompts, "rollouts": rollouts, "burst": burst}
        made = Job(self.policy, **sizes, settings=settings, args=args, script=script or self.script)
        module = made.learner.train_module
        native, self.gradients, self.weights = module._do_optim_step, [], []

        def spy() -> Any:
            found = self.ours({name: one.grad for name, one in module.model.named_parameters()})
            weights = self.ours(dict(module.model.named_parameters()))
            said = native()
            self.gradients.append(torch.cat([one.flatten() for one in found]))
            self.weights.append(weights)  # of an update that took place
            return said

        module._do_optim_step = spy
        if module.ref_policy is not None:
            self.put(module.ref_policy, moved(tiny_policy(), 2, 0.03))
        try:
            yield made
        finally:
            made.close()

    def ours(self, state: Mapping[str, Any]) -> list[torch.Tensor]:
        """Whole tensors by OLMo-core's names, as transformers' policy has them."""
        from olmo_core.nn.hf.convert import convert_state_to_hf

        whole = {
            name: (one.full_tensor() if hasattr(one, "full_tensor") else one).detach().float().clone()
            for name, one in state.items()
        }
        found = convert_state_to_hf(self.shape.config, whole)
        return [found[name] for name, _ in self.shape.named_parameters()]

    @staticmethod
    def put(model: Any, policy: Any) -> None:
        """Gives a model of OLMo-core the weights of transformers' policy."""
        from olmo_core.nn.hf.convert import convert_state_from_hf

        model.load_state_dict(convert_state_from_hf(policy.config, policy.state_dict(), model_type="llama"))


class Tampers(tampering.Tampers):
    """As those of the other script, where grpo.py has other names."""

    def __init__(self, job: Any, rank: int, ranks: int) -> None:
        from open_instruct import grpo_utils, olmo_core_train_modules

        self.job, self.module, self.last_rank = job, grpo_utils, rank == ranks - 1
        self.names, self.train, self.layer = (
            olmo_core_train_modules,
            job.learner.train_module,
            job.learner.batchbridge_layer,
        )

    @property
    def parameters(self) -> list[Any]:
        """OLMo-core's model's."""
        return list(self.train.model.parameters())

    def no_backward(self) -> tampering.Undo:
        def change(native: Any, *values: Any) -> Any:
            return native(*values) * (0 if self.now and self.layer._open == [0] and self.last_rank else 1)

        return self.around(self.names, "masked_mean", change)

    def dropped(self) -> tampering.Undo:
        def change(native: Any, *values: Any, **options: Any) -> Any:
            if self.now and len(self.layer._open) == 1:  # the first micro-batch's gradient is there
                self.train.optim.zero_grad()
            return native(*values, **options)

        return self.around(self.module, "forward_for_logprobs", change)

    def triple(self) -> tampering.Undo:
        def change(native: Any, *values: Any) -> Any:
            norm = native(*values)
            if self.now:
                for one in self.train.model.parameters():
                    one.grad *= 3
            return norm

        return self.around(self.train, "_clip_grad_norm", change)


def probed(bench: Bench) -> dict[str, list[str]]:
    """As `tampering.probed`."""
    from open_instruct import grpo_utils, olmo_core_train_modules

    native, counts, found = olmo_core_train_modules.masked_mean, grpo_utils.calculate_token_counts, {}

    def other(how: str, parameters: Any) -> Callable[..., Any]:
        def mean(values: Any, mask: Any, axis: Any = None, denominator: Any = None) -> Any:
            if how == "a term of its own" and values.requires_grad:
                return native(values, mask, axis, denominator) + sum(one.square().sum() for one in parameters)
            by = {"own tokens": mask.sum(), "mean over rows": float(len(mask))}.get(how, denominator)
            return native(values, mask, axis, by) * (7 if how == "times 7" else 1)

        return mean

    for how in ("as Open-Instruct", "times 7", "own tokens", "mean over rows", "a term of its own", "code of its own"):
        with bench.job() as job:
            spec = gradients.wanted(job, "token_mean", {})  # type: ignore[arg-type]  # another job
            module = job.learner.train_module
            parts = {
                "learner": job.learner,
                "module": module,
                "optimizer": module.optim,
                "loader": job.learner.dataloader,
            }
            before = {name: dict(vars(one)) for name, one in parts.items()}
            # A term of one's own ends the rehearsal in its middle, where others would wait.
            if bench.rank == bench.ranks - 1 or how == "a term of its own":
                if how == "code of its own":
                    grpo_utils.calculate_token_counts = gradients.of_this_rank
                else:
                    olmo_core_train_modules.masked_mean = other(how, list(module.model.parameters()))
            try:
                wrap(job.learner, like=spec)
                found[how] = []
                unwrap(job.learner)
            except CannotAttach as refusal:
                found[how] = [f"{name}: {reason}" for name, reason in refusal.reasons.items()]
            finally:
                olmo_core_train_modules.masked_mean, grpo_utils.calculate_token_counts = native, counts
            for name, one in parts.items():
                changed = {key for key, value in before[name].items() if vars(one).get(key) is not value}
                if changed or vars(one).keys() - before[name].keys():
                    raise AssertionError(f"probing left {changed or vars(one).keys() - before[name].keys()} behind")
    return found


def main(folder: Path) -> None:
    os.environ.setdefault("BATCHBRIDGE_OPTIMIZER", "sgd")
    tampering.Tampers = Tampers  # type: ignore[misc]  # `tampering.tampered` looks for it there
    bench = Bench(folder)
    if bench.rank == 0 and not bench.policy.exists():
        prepare(folder)
    while not (bench.policy / "tokenizer_config.json").exists():
        pass
    cases = (*CASES, *((REPLICATED,) if bench.ranks > 1 else ()))
    measured: dict[str, Any] = {"ranks": bench.ranks}
    parts: Mapping[str, Callable[[], Any]] = {
        "wrapped": lambda: gradients.wrapped(bench, cases),
        "natively": lambda: gradients.natively(bench),
        "taken": lambda: gradients.taken(bench),
        "probed": lambda: probed(bench),
        "tampered": lambda: {
            mode: {name: tampering.tampered(bench, mode, name) for name in tampering.ON_EVERY_LEARNER}
            for mode in tampering.PACKS
        },
    }
    for name, part in parts.items():
        measured[name] = part()
        if bench.rank == 0:
            (folder / "measured.json").write_text(json.dumps(measured, indent=1), encoding="utf-8")
    if bench.rank == 0:
        (folder / "finished").touch()


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]))
        status = 0
    except BaseException:
        import traceback

        traceback.print_exc()
        status = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)  # threads of the package would keep the process
