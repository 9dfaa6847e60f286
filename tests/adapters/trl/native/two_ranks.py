"""What `test_two_ranks` runs under torchrun, one process per rank: real trainers, scripted rollouts, gloo.

    torchrun --nproc_per_node 2 two_ranks.py gradients FOLDER
    torchrun --nproc_per_node 2 two_ranks.py crash FOLDER
    torchrun --nproc_per_node 2 two_ranks.py resume FOLDER
    torchrun --nproc_per_node 2 two_ranks.py crash_saving FOLDER
    torchrun --nproc_per_node 2 two_ranks.py resume_before FOLDER
    torchrun --nproc_per_node 2 two_ranks.py other_ranks FOLDER
    torchrun --nproc_per_node 2 two_ranks.py refusals FOLDER

Rank 0 leaves what it measured in FOLDER; the comparing process asserts.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

os.environ["ACCELERATE_USE_CPU"] = "true"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch

torch.set_num_threads(1)

import transformers
from engine_script import SCRIPT, engine_trainer, multiplier
from packable import packable
from pictures import FAMILIES, picture_trainer
from representative import once
from router import COEFFICIENT, Routed, mixture, router_loss
from transformers import TrainerCallback

from batchbridge import CannotAttach, wrap
from batchbridge.testing.equivalence import ADAM_EPSILON
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy
from batchbridge_on_cpu.leaving import leave
from batchbridge_trl import rows
from batchbridge_trl.releases import has, has_loss, lacks
from batchbridge_trl.rows import TrlRolloutRows
from batchbridge_trl.testing import Captured, flat_parameters, gradient_errors, scripted_trainer

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

# transformers 4 loads an optimizer's state to the rank's device, "cpu:0" here, which torch.load does not know: no run
# of several CPU ranks resumes there, wrapped or not. It is the same memory.
torch.serialization.register_package(
    0, lambda storage: None, lambda storage, place: storage if place == "cpu:0" else None
)

LOSSES = tuple(filter(has_loss, ("dapo", "bnpo", "grpo", "luspo", "dr_grpo")))
SPLITS: dict[str, dict[str, Any]] = {
    "4x1": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1},
    "2x2, kl": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "beta": 0.1},
    "1x4": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4},
    "1x4, generation below accumulation": {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 4,
        "steps_per_generation": 2,
    },
    "1x2, generation above accumulation, two passes, kl": {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "num_iterations": 2,
        "beta": 0.1,
    },
    "1x3, steps straddle rollouts, seven prompts": {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 3,
        "steps_per_generation": 4,
        "prompts": 7,
    },
    "24 tokens, two passes, kl": {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "steps_per_generation": 4,
        "num_iterations": 2,
        "beta": 0.1,
        "tokens_per_device": 24,
    },
}
PACKS = find_spec("transformers.masking_utils") is not None
"""Whether completions can lie end to end; elsewhere that is refused."""
if PACKS:
    for name in ("24 tokens, two passes, kl", "1x3, steps straddle rollouts, seven prompts"):
        SPLITS[f"{name}, without padding"] = {**SPLITS[name], "padding": "free"}
GRADIENTS = {
    f"{loss_type}, {name}": {"loss_type": loss_type, "num_train_epochs": 2, **SPLITS[name]}
    for loss_type, name, _ in once(LOSSES, SPLITS)
}
if has(">=1.10"):
    GRADIENTS["grpo, an entropy bonus, 1x3, steps straddle rollouts, seven prompts"] = {
        "loss_type": "grpo",
        "entropy_coef": 0.05,
        "num_train_epochs": 2,
        **SPLITS["1x3, steps straddle rollouts, seven prompts"],
    }
    GRADIENTS["dapo, compiled, two passes, kl"] = {
        "torch_compile": True,
        "torch_compile_backend": "eager",
        "max_steps": 2,
        **SPLITS["1x2, generation above accumulation, two passes, kl"],
    }
PICTURED: dict[str, dict[str, Any]] = {}
if has(">=1.16"):
    PICTURED = {
        f"{family}, {name}": {"family": family, "max_steps": 4, **SPLITS[name]}
        for family, name in zip(
            FAMILIES,
            itertools.cycle(
                ("1x3, steps straddle rollouts, seven prompts", "1x2, generation above accumulation, two passes, kl")
            ),
        )
    }
    PICTURED["pictures, 60 tokens"] = {
        "family": next(iter(FAMILIES)),
        **SPLITS["24 tokens, two passes, kl"],
        "tokens_per_device": 60,
    }
ROUTED = ("a router's loss, two passes, kl",) if not lacks("aux_loss_enabled") else ()
CORRECTED = ("vLLM's correction, two passes, kl",) if has(">=1.6") else ()
"""Earlier releases correct by one bound, or not at all."""
TRAJECTORIES: dict[str, dict[str, Any]] = {
    optimizer: {
        "loss_type": "bnpo",
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 2,
        "generation_batch_size": 16,
        "prompts": 9,
        "max_steps": 10,
        "optim": optimizer,
        "adam_epsilon": ADAM_EPSILON,
        "learning_rate": learning_rate,
        "beta": 0.04,
    }
    for optimizer, learning_rate in (("sgd", 0.05), ("adamw_torch", 3e-3))
}
SHORT = {"rollout.prompts_per_rollout": 3, "rollout.completions_per_prompt": 3, "order.last_rollout": "short"}
"""Rollouts of 9 completions, then of 3, on 2 ranks: nothing divides."""
RUN: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_iterations": 2,
    "num_train_epochs": 2,
    "beta": 0.1,
    "optim": "adamw_torch",
    "learning_rate": 3e-3,
    "save_strategy": "steps",
    "save_steps": 17,
}
DESCENT: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "beta": 0.1,
    "learning_rate": 0.05,
    "save_strategy": "steps",
}
"""With AdamW, parameters whose true gradient is zero move by the noise of another number of ranks."""
OTHER_RANKS: dict[str, tuple[dict[str, Any], dict[int, dict[str, Any]], int]] = {
    # what ranks have in common, what each has on one and on two ranks, and the step of the checkpoint
    "inside the second of two passes": (
        {"num_iterations": 2, "num_train_epochs": 1, "save_steps": 7},
        {
            1: {"gradient_accumulation_steps": 4, "steps_per_generation": 8},
            2: {"gradient_accumulation_steps": 2, "steps_per_generation": 4},
        },
        7,
    ),
    "before a step that waits for the next rollout": (
        {"prompts": 7, "num_train_epochs": 2, "save_steps": 5},
        {
            1: {"gradient_accumulation_steps": 6, "steps_per_generation": 8},
            2: {"gradient_accumulation_steps": 3, "steps_per_generation": 4},
        },
        5,
    ),
    "another token budget too": (
        {"num_iterations": 2, "num_train_epochs": 1, "save_steps": 5},
        {
            1: {"gradient_accumulation_steps": 4, "steps_per_generation": 8, "tokens_per_device": 60},
            2: {"gradient_accumulation_steps": 2, "steps_per_generation": 4, "tokens_per_device": 24},
        },
        5,
    ),
}


def build(folder: Path, **arguments: Any) -> Any:
    return scripted_trainer(folder, reference=tiny_policy(seed=1) if arguments.get("beta") else None, **arguments)


def measured(folder: Path, arguments: dict[str, Any], changes: dict[str, Any] | None = None) -> list[Any]:
    """Gradient errors of the first steps, on rank 0."""
    arguments, before = dict(arguments), dict(os.environ)
    budget, padding = arguments.pop("tokens_per_device", None), arguments.pop("padding", "padded")
    if padding == "free":
        arguments["policy"] = packable()
    built = build(folder, **arguments)
    if changes:
        spec = wrap(built, mode="observe").batchbridge.request.spec
        wrap(built, like=spec.replace(**changes))
    else:
        wrap(built, tokens_per_device=budget, padding=padding)
    found = errors_of(built, tiny_policy(seed=1) if arguments.get("beta") else None)
    for name in os.environ.keys() - before.keys():  # torch_compile's, which Accelerate would take for the next run's
        del os.environ[name]
    return found


def errors_of(built: Any, reference: Any, **known: Any) -> list[Any]:
    """Of the first steps of a wrapped trainer, which it trains here, on rank 0."""
    captured = Captured(built.model)
    built.add_callback(captured)
    built.train()
    plan = built.batchbridge.plan
    found = []
    if built.accelerator.is_main_process:
        found = gradient_errors(captured, plan.spec, plan=plan, reference=reference, steps=4, **known)
    built.accelerator.wait_for_everyone()
    return [
        {
            "step": each.step,
            "error": each.error,
            "bar": each.bar,
            "steps": [built.state.global_step, plan.total_optimizer_steps],
        }
        for each in found
    ]


def corrected(folder: Path) -> list[Any]:
    """Gradient errors of a run whose rollouts come from a scripted engine, with TRL's correction towards it."""
    bounds = {"vllm_importance_sampling_clip_min": 0.5, "vllm_importance_sampling_clip_max": 1.5}
    arguments = {**SPLITS["1x2, generation above accumulation, two passes, kl"], **bounds, "max_steps": 4}
    built = engine_trainer(
        folder, reference=tiny_policy(seed=1), vllm_importance_sampling_mode="token_mask", **arguments
    )
    return errors_of(wrap(built), tiny_policy(seed=1), script=SCRIPT, multiplier=multiplier("token_mask", 0.5, 1.5))


class Travels:
    """Which completions' image tensors this rank kept of each rollout, and which it trained, or filled up with."""

    def __init__(self) -> None:
        self._kept: dict[int, tuple[TrlRolloutRows, set[int]]] = {}
        self._trained: dict[int, set[int]] = {}
        share_out, assemble = TrlRolloutRows.share_out, rows.assemble

        def watched(rollout: TrlRolloutRows, *others: Any) -> None:
            share_out(rollout, *others)
            if rollout.pictures is not None:
                self._kept[id(rollout.pictures)] = rollout, set(rollout.pictures.held)

        def assembled(picks: Any, filler: Any, *others: Any) -> Any:
            for rollout, position in (filler if pick is None else pick for pick in picks):
                self._trained.setdefault(id(rollout.pictures), set()).add(position)
            return assemble(picks, filler, *others)

        TrlRolloutRows.share_out, rows.assemble = watched, assembled

    def require_no_more_than_trained(self) -> None:
        """Filler rows are copies of a completion with images; and some completions come from the other rank."""
        rank, others = int(os.environ["RANK"]), 0
        for key, (rollout, kept) in self._kept.items():
            assert kept <= self._trained.get(key, set())
            others += sum(rollout.places.generated_by[position] != rank for position in kept)
        assert others, "nothing travelled"


def pictured(folder: Path, family: str, tokens_per_device: int | None = None, **arguments: Any) -> list[Any]:
    """Gradient errors of a model that reads images, of which a prompt has none, one or two."""
    made, script = FAMILIES[family], ScriptedRollouts()
    built = picture_trainer(folder, made, script, **arguments)
    reference = made.model() if arguments.get("beta") else None
    travels = Travels()
    found = errors_of(
        wrap(built, tokens_per_device=tokens_per_device),
        reference,
        policy=made.model,
        script=script,
        inputs=made.inputs,
        tokenize=made.tokenize,
    )
    if "max_steps" not in arguments:
        travels.require_no_more_than_trained()
    return found


def routed(folder: Path) -> list[Any]:
    """Gradient errors of a mixture of experts whose router's loss is allowed."""
    arguments = {**SPLITS["1x2, generation above accumulation, two passes, kl"], "max_steps": 4}
    built = scripted_trainer(
        folder, policy=mixture(), reference=mixture(), router_aux_loss_coef=COEFFICIENT, **arguments
    )
    seen = Routed(wrap(built, allow=["router_loss"]))
    given: list[Any] = []

    def beside(step: int, policy: Any) -> Any:
        return router_loss(given[step], policy)

    class Gathered(TrainerCallback):
        """Before rank 0 compares alone."""

        def on_train_end(self, *_: Any, **__: Any) -> None:
            given.extend(seen.gather())

    built.add_callback(Gathered())
    return errors_of(built, mixture(), policy=mixture, beside=beside)


def gradients(folder: Path) -> None:
    results: dict[str, Any] = {name: measured(folder / "out", case) for name, case in GRADIENTS.items()}
    results |= {name: corrected(folder / "out") for name in CORRECTED}
    results |= {name: routed(folder / "out") for name in ROUTED}
    results |= {
        name: pictured(folder / "pictured" / str(number), **case)
        for number, (name, case) in enumerate(PICTURED.items())
    }
    uneven = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "prompts": 7, "num_train_epochs": 2}
    results["nothing divides"] = measured(folder / "out", uneven, {**SHORT, "optimizer_step.completions_per_step": 5})
    ends = {}
    for name, arguments in TRAJECTORIES.items():
        built = wrap(build(folder / "out", **arguments), ledger=folder / f"{name}_ledger")
        built.train()
        ends[name] = flat_parameters(built.model)
    whole = wrap(build(folder / "whole", **RUN), ledger=folder / "whole_ledger")
    whole.train()
    if whole.accelerator.is_main_process:
        torch.save({"errors": results, "ends": ends, "whole": flat_parameters(whole.model)}, folder / "measured.pt")


class Crash(TrainerCallback):
    """Rank 1 dies after step 20; torchrun ends the other."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 20 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)


def crash(folder: Path) -> None:
    built = wrap(build(folder / "killed", **RUN), ledger=folder / "killed_ledger")
    built.add_callback(Crash())
    built.train()


def resume(folder: Path) -> None:
    built = wrap(build(folder / "killed", **RUN), ledger=folder / "killed_ledger")
    built.train(resume_from_checkpoint=str(folder / "killed" / "checkpoint-17"))
    if built.accelerator.is_main_process:
        torch.save(flat_parameters(built.model), folder / "resumed.pt")


def crash_saving(folder: Path) -> None:
    """Rank 1 dies before it has written its file of the second checkpoint."""
    built = wrap(build(folder / "saving", **RUN | {"save_steps": 8}), ledger=folder / "saving_ledger")
    native = torch.save

    def save(*arguments: Any, **options: Any) -> None:
        if os.environ["RANK"] == "1" and built.state.global_step == 16:
            os.kill(os.getpid(), signal.SIGKILL)
        native(*arguments, **options)

    torch.save = save
    built.train()


def resume_before(folder: Path) -> None:
    built = wrap(build(folder / "saving", **RUN), ledger=folder / "saving_ledger")
    built.train(resume_from_checkpoint=str(folder / "saving" / "checkpoint-8"))
    if built.accelerator.is_main_process:
        torch.save(flat_parameters(built.model), folder / "resumed_before.pt")


def run_on(ranks: int, folder: Path, case: str, *, resume: bool = False) -> Any:
    """A run of a case of OTHER_RANKS on as many ranks, or the end of the one that other ranks began; its trainer."""
    common, own, step = OTHER_RANKS[case]
    arguments = DESCENT | common | own[ranks]
    budget, place = arguments.pop("tokens_per_device", None), folder / case / f"{ranks}"
    built = build(place / ("resumed" if resume else "whole"), **arguments)
    wrap(built, ledger=place / ("resumed_ledger" if resume else "ledger"), tokens_per_device=budget)
    began = folder / case / f"{3 - ranks}" / "whole" / f"checkpoint-{step}"
    built.train(resume_from_checkpoint=str(began) if resume else None)
    return built


def without_padding(folder: Path, case: str) -> Any:
    """The end of a run of OTHER_RANKS that two ranks began with padding, on two ranks without; its trainer."""
    common, own, step = OTHER_RANKS[case]
    arguments = DESCENT | common | own[2] | {"policy": packable()}
    budget, place = arguments.pop("tokens_per_device", None), folder / case / "2"
    built = build(place / "free", **arguments)
    wrap(built, ledger=place / "free_ledger", tokens_per_device=budget, padding="free")
    built.train(resume_from_checkpoint=str(place / "whole" / f"checkpoint-{step}"))
    return built


def other_ranks(folder: Path) -> None:
    """Two ranks run whole; go on with what one rank began in the same folder; and without padding with their own."""
    ends = {}
    for case in OTHER_RANKS:
        for resume in (False, True):
            built = run_on(2, folder, case, resume=resume)
            ends[f"{case}, {resume}"] = flat_parameters(built.model)
            assert ("topology.world_size: 1 in the checkpoint, 2 now" in built.batchbridge.report()) is resume
        if PACKS:
            ends[f"{case}, free"] = flat_parameters(without_padding(folder, case).model)
    if os.environ["RANK"] == "0":
        torch.save(ends, folder / "two.pt")


def _sevenfold(built: Any) -> None:
    native = built._compute_loss
    built._compute_loss = lambda model, inputs: 7 * native(model, inputs)


def _failing(built: Any) -> None:
    def fail(model: Any, inputs: Any) -> Any:
        raise RuntimeError("on this rank only")

    built._compute_loss = fail


def _without_length(built: Any) -> None:
    built.train_dataset = built.train_dataset.to_iterable_dataset()


def _fewer_prompts(built: Any) -> None:
    built.train_dataset = built.train_dataset.select(range(4))


def _another_order(built: Any) -> None:
    built.train_dataset = built.train_dataset.shuffle(seed=1)


ONE_RANK: dict[str, tuple[Any, str]] = {
    # What is done to rank 1's trainer alone: how, and the name of the reason on every rank.
    "another loss": (_sevenfold, "weight_probe"),
    "a loss that fails": (_failing, "weight_probe"),
    "a dataset without a length": (_without_length, "iterable_dataset"),
    "fewer prompts": (_fewer_prompts, "ranks_differ"),
    "prompts in another order": (_another_order, "data"),
}


def refusals(folder: Path) -> None:
    """Rank 1 alone is spoilt, each way in turn: what every rank's `wrap` raises; then a sound pair trains."""
    found: dict[str, Any] = {}
    arguments = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 1}
    for name, (spoil, _) in ONE_RANK.items():
        built = build(folder / "out", **arguments)
        if os.environ["RANK"] == "1":
            spoil(built)
        before = dict(vars(built))
        try:
            wrap(built)
            found[name] = {}
        except CannotAttach as refused:
            found[name] = refused.reasons
        assert vars(built) == before, "a refused trainer is left as it was"
    built = wrap(build(folder / "out", **arguments))
    step = built.training_step
    assert wrap(built).training_step == step, "the same request, and so nothing to do"
    built.train()
    found["sound"] = {"steps": str(built.state.global_step)}
    (folder / f"refusals-{os.environ['RANK']}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    commands = (gradients, crash, resume, crash_saving, resume_before, other_ranks, refusals)
    {command.__name__: command for command in commands}[sys.argv[1]](Path(sys.argv[2]))
    leave()
