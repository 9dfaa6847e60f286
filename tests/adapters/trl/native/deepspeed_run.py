"""What `test_deepspeed` runs under torchrun, one process per rank: real trainers on DeepSpeed's engine, gloo.

    torchrun --nproc_per_node 2 deepspeed_run.py measured FOLDER
    torchrun --nproc_per_node 2 deepspeed_run.py crash FOLDER
    torchrun --nproc_per_node 2 deepspeed_run.py unequal FOLDER

Rank 0 leaves what it measured in FOLDER; the comparing process asserts. On a CPU Accelerate takes DDP where it is told
that it runs on one, so that every run here says what wrapped its model.
"""

from __future__ import annotations

import copy
import functools
import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from importlib.metadata import version
from pathlib import Path
from typing import Any

os.environ.pop("ACCELERATE_USE_CPU", None)
os.environ |= {"TRL_EXPERIMENTAL_SILENCE": "1", "DS_ACCELERATOR": "cpu"}

import torch

torch.set_num_threads(1)

import deepspeed
import transformers
from accelerate.utils.deepspeed import DeepSpeedEngineWrapper
from derived import derived
from engine_script import SCRIPT, engine_trainer, multiplier
from packable import packable
from pictures import FAMILIES, picture_trainer
from representative import WHOLE
from sharded_on_cpu import CapturedWhole, whole_state, zero_on_the_cpu
from transformers import TrainerCallback

from batchbridge import BatchDrift, wrap
from batchbridge.kit.deepspeed import BeforeUpdate, whole_gradient
from batchbridge.testing.tiny import ScriptedRollouts, tiny_policy
from batchbridge_on_cpu.leaving import leave
from batchbridge_trl.releases import has, has_loss
from batchbridge_trl.settings import NEWEST
from batchbridge_trl.shares import StepShares
from batchbridge_trl.testing import TAKES_ROLLOUTS, gradient_errors, scripted_trainer

PATIENCE = timedelta(seconds=8 if sys.argv[1] == "unequal" else 1800)
zero_on_the_cpu(timeout=PATIENCE)
transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

HANDS_FLAG_ON = "sync_gradients" in inspect.signature(DeepSpeedEngineWrapper.backward).parameters
"""Since accelerate 1.8.1 the engine is told when to update; before, it is asked in every micro-batch."""
RANK = int(os.environ["RANK"])
STRADDLING = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 3, "steps_per_generation": 4}
TWO_PASSES = {"steps_per_generation": 4, "num_iterations": 2, "beta": 0.1}
SPLITS: dict[str, dict[str, Any]] = {
    "2x2": {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
    "1x3, steps straddle rollouts": {**STRADDLING, "prompts": 7},
    "1x2, two passes, kl": {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2, **TWO_PASSES},
    "24 tokens, two passes, kl": {
        "per_device_train_batch_size": 1,
        "gradient_accumulation_steps": 2,
        "tokens_per_device": 24,
        **TWO_PASSES,
    },
}
FREE = {**SPLITS["24 tokens, two passes, kl"], "padding": "free"}
LOSSES = tuple(filter(has_loss, ("dapo", "grpo", "dr_grpo", "cispo")))
OFFLOAD = {"offload_optimizer": {"device": "cpu"}}
FLOAT32_SUMS = {"data_types": {"grad_accum_dtype": "fp32"}}
CASES: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {
    # stage of ZeRO, more of DeepSpeed's configuration, the run
    **{
        f"ZeRO-{stage}, {LOSSES[(stage + place) % len(LOSSES)]}, {split}": (
            stage,
            {},
            {"loss_type": LOSSES[(stage + place) % len(LOSSES)], **SPLITS[split]},
        )
        for stage in (0, 1, 2, 3)
        for place, split in enumerate(SPLITS)
        if WHOLE or version("trl") == NEWEST or place == stage
    },
    "ZeRO-2, optimizer on the CPU": (2, OFFLOAD, SPLITS["1x2, two passes, kl"]),
    "ZeRO-3, optimizer on the CPU": (3, OFFLOAD, SPLITS["1x2, two passes, kl"]),
    "ZeRO-2, a derived trainer": (2, {}, SPLITS["2x2"] | {"derived": True}),
    "ZeRO-2, overlapping": (2, {"overlap_comm": True}, SPLITS["2x2"]),
    "ZeRO-2, clipped, the number twice": (2, {"gradient_clipping": 0.05}, {**SPLITS["2x2"], "max_grad_norm": 0.05}),
    "ZeRO-0, clipped": (0, {}, {**SPLITS["2x2"], "max_grad_norm": 0.05}),
    "ZeRO-3, clipped": (3, {}, {**SPLITS["2x2"], "max_grad_norm": 0.05}),
    "ZeRO-1, bf16, gradients summed up in float32": (1, FLOAT32_SUMS, {**SPLITS["2x2"], "bf16": True}),
    **({f"ZeRO-{stage}, without padding": (stage, {}, FREE) for stage in (2, 3)} if has(">=1.0") else {}),
    **({"ZeRO-2, an entropy bonus": (2, {}, SPLITS["2x2"] | {"entropy_coef": 0.05})} if has(">=1.10") else {}),
    "ZeRO-2, bf16": (2, {}, {**SPLITS["2x2"], "bf16": True}),
    "ZeRO-3, bf16, optimizer on the CPU": (3, OFFLOAD, {**SPLITS["2x2"], "bf16": True}),
}
BOUNDS = ("token_truncate", 0.5, 1.5)
if has(">=1.6"):  # before, TRL corrects by one bound, or not at all
    names = ("vllm_importance_sampling_mode", "vllm_importance_sampling_clip_min", "vllm_importance_sampling_clip_max")
    DRAWN = {**SPLITS["2x2"], **dict(zip(names, BOUNDS, strict=True)), "bf16": True}
    CASES |= {
        # As people launch it; what the engine draws is scripted.
        "ZeRO-2, bf16, vLLM's server": (2, {}, DRAWN | {"vllm_mode": "server"}),
        "ZeRO-3, bf16, vLLM colocated": (3, {}, DRAWN | {"vllm_mode": "colocate"}),
    }
if has(">=1.16"):
    CASES |= {f"ZeRO-{stage}, images": (stage, {}, SPLITS["2x2"] | {"pictures": True}) for stage in (2, 3)}
SHORT_OF_TOKENS = ScriptedRollouts(empty=frozenset((prompt, sample) for prompt in (2, 3) for sample in range(4)))
"""Every completion of two prompts is an environment's: a step that draws them alone has no token to train."""
SCHEDULE = {
    "optimizer": {"type": "AdamW", "params": {"lr": 0.01, "torch_adam": True}},
    "scheduler": {
        "type": "WarmupDecayLR",
        "params": {"total_num_steps": "auto", "warmup_min_lr": 0, "warmup_max_lr": 0.01, "warmup_num_steps": 2},
    },
}
RUN: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "num_train_epochs": 2,
    "optim": "adamw_torch",
    "learning_rate": 3e-3,
    "save_strategy": "steps",
    "save_steps": 17,
    **TWO_PASSES,
}


def config(stage: int, **more: Any) -> dict[str, Any]:
    """As people write it: sizes and clipping are the trainer's. ZeRO-3 leaves small parameters whole by default, and
    all of these are small."""
    zero: dict[str, Any] = {"stage": stage, "overlap_comm": False}
    if stage == 3:
        zero |= {"stage3_gather_16bit_weights_on_model_save": True, "stage3_param_persistence_threshold": 0}
    own = {name: more.pop(name) for name in ("offload_optimizer", "overlap_comm") if name in more}
    return {
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": zero | own,
        **more,
    }


def build(folder: Path, stage: int, more: dict[str, Any] | None = None, **arguments: Any) -> Any:
    reference = tiny_policy(seed=1) if arguments.get("beta") else None
    return scripted_trainer(folder, reference=reference, deepspeed=config(stage, **(more or {})), **arguments)


def whole_parameters(model: Any) -> torch.Tensor:
    return torch.cat([one.flatten() for one in whole_state(model).values()])


def wrapped_in(trainer: Any) -> list[str]:
    return [type(trainer.model_wrapped).__name__, trainer.accelerator.distributed_type.name]


if has(">=1.16"):
    QWEN = FAMILIES["Qwen2-VL: patches of each image, by a grid"]
    # Made before any run: transformers would shard parts of what is made after ZeRO-3 was asked for.
    QWEN = replace(QWEN, model=functools.partial(copy.deepcopy, QWEN.model()))


def pictured(folder: Path, **arguments: Any) -> tuple[Any, dict[str, Any]]:
    """A run with images in every prompt, which ranks of a sharded model read together; and what the oracle is told."""
    family = QWEN

    def shown(prompt: int) -> list[int]:
        return [prompt] * (1 + prompt % 2)

    built = wrap(picture_trainer(folder, family, pictures=shown, **arguments))
    return built, {
        "policy": family.model,
        "inputs": lambda prompt, completion: family.inputs(prompt, completion, shown(prompt)),
        "tokenize": lambda text: family.prompt(text, shown(ScriptedRollouts().prompt_index(text))),
        "script": ScriptedRollouts(),
    }


def gradients(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (stage, more, arguments) in CASES.items():
        arguments = {"max_steps": 3, **arguments}
        budget, padding = arguments.pop("tokens_per_device", None), arguments.pop("padding", "padded")
        if padding == "free":
            arguments["policy"] = packable()
        known: dict[str, Any] = {}
        if "vllm_mode" in arguments:
            built = wrap(engine_trainer(folder / "out", deepspeed=config(stage, **more), **arguments))
            known = {"script": SCRIPT, "multiplier": multiplier(*BOUNDS)}
        elif arguments.pop("pictures", False):
            built, known = pictured(folder / "out", deepspeed=config(stage, **more), **arguments)
        else:
            own = arguments.pop("derived", False)
            trainer = build(folder / "out", stage, dict(more), **arguments)
            built = wrap(derived(trainer) if own else trainer, tokens_per_device=budget, padding=padding)
        captured = CapturedWhole(built)
        built.add_callback(captured)
        built.train()
        reference = tiny_policy(seed=1) if arguments.get("beta") else None
        plan = built.batchbridge.plan
        errors = []
        if RANK == 0:
            precision = torch.bfloat16 if arguments.get("bf16") else torch.float32
            known |= {"reference": reference, "precision": precision}
            errors = gradient_errors(captured, plan.spec, plan=plan, **known)
        found[name] = {
            "wrapped": wrapped_in(built),
            "errors": [[each.error, each.bar] for each in errors],
            "steps": [built.state.global_step, plan.total_optimizer_steps, len(captured.gradients)],
        }
        built.accelerator.wait_for_everyone()
        os.environ.pop("ACCELERATE_MIXED_PRECISION", None)  # transformers 4 leaves it behind, and the next run takes it
    return found


def ends(folder: Path) -> dict[str, Any]:
    """The policy after a run with clipping, of every stage and of DDP."""
    found: dict[str, Any] = {}
    for stage in (None, 0, 1, 2, 3):
        arguments = {**RUN, "max_grad_norm": 0.5, "save_strategy": "no", "adam_epsilon": 1e-4, "max_steps": 10}
        if stage is None:
            arguments["use_cpu"] = True
            reference = tiny_policy(seed=1)
            built = scripted_trainer(folder / "ddp", reference=reference, **arguments)
        else:
            built = build(folder / "out", stage, **arguments)
        wrap(built).train()
        found[f"{stage}"] = (wrapped_in(built), whole_parameters(built.model))
    return found


def without_tokens(folder: Path) -> dict[str, Any]:
    """A schedule and an optimizer of DeepSpeed's own; two of the steps have nothing to train."""
    if not has(TAKES_ROLLOUTS):
        return {}  # its scripted completions have no loss masks
    built = build(
        folder / "out", 2, dict(SCHEDULE), script=SHORT_OF_TOKENS, prompts=6, per_device_train_batch_size=4,
        gradient_accumulation_steps=1, num_train_epochs=1, learning_rate=0.01, adam_epsilon=1e-8, warmup_steps=2,
        shuffle_dataset=False,
    )  # fmt: skip
    wrap(built, ledger=folder / "without_tokens").train()
    schedule = built.accelerator.deepspeed_engine_wrapped.engine.lr_scheduler
    rates = []
    for step in range(3):
        schedule.last_batch_iteration = step
        rates += schedule.get_lr()
    return {"wrapped": wrapped_in(built), "rates": rates}


def _updates_in_every_micro_batch(trainer: Any) -> None:
    accelerator = trainer.accelerator
    native = accelerator.backward

    def backward(loss: Any, **options: Any) -> None:
        accelerator.gradient_state._set_sync_gradients(True)
        accelerator.deepspeed_engine_wrapped.engine.set_gradient_accumulation_boundary(True)
        native(loss, **options)

    accelerator.backward = backward


def _boundary_in_every_micro_batch(trainer: Any) -> None:
    class Begin(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            engine = trainer.accelerator.deepspeed_engine_wrapped.engine
            native = engine.backward

            def backward(*arguments: Any, **options: Any) -> Any:
                engine.set_gradient_accumulation_boundary(True)
                return native(*arguments, **options)

            engine.backward = backward

    trainer.add_callback(Begin())


def _without_the_factor_for_ranks(trainer: Any) -> None:
    native = trainer.accelerator.backward
    trainer.accelerator.backward = lambda loss, **options: native(loss / 2, **options)


def _gradients_doubled(trainer: Any) -> None:
    class Begin(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            def double() -> None:
                for parameter in trainer.model.parameters():
                    deepspeed.utils.safe_set_full_grad(parameter, 2 * whole_gradient(parameter))

            BeforeUpdate(trainer.accelerator.deepspeed_engine_wrapped.engine, double)

    trainer.add_callback(Begin())


TAMPERED: dict[str, Callable[[Any], None]] = {
    "an update in every micro-batch": _updates_in_every_micro_batch,
    "gradients handed over in every micro-batch": _boundary_in_every_micro_batch,
    "without the factor for ranks": _without_the_factor_for_ranks,
    "gradients doubled before the update": _gradients_doubled,
}


def tampered(folder: Path) -> dict[str, Any]:
    """What a run says that is made to train something else; its parameters must be those that it began with."""
    found: dict[str, Any] = {}
    for stage in (2, 3):
        for name, tamper in TAMPERED.items():
            if tamper is _boundary_in_every_micro_batch and (stage == 3 or not HANDS_FLAG_ON):
                continue  # ZeRO-3 sums gradients up whatever it is told; without the flag an update goes with it
            built = wrap(build(folder / "out", stage, **SPLITS["2x2"]))
            tamper(built)
            before = tiny_policy().state_dict()
            try:
                built.train()
                said = None
            except BatchDrift as drift:
                said = [drift.step, drift.aspect]
            same = all(torch.equal(before[key], value) for key, value in whole_state(built.model).items())
            found[f"ZeRO-{stage}, {name}"] = [said, same]
    return found


VERIFIED: dict[str, dict[str, Any]] = {"as planned": {}, "a denominator per micro-batch": {"loss_type": "bnpo"}}


def watched(folder: Path) -> dict[str, Any]:
    """The native run as it is: `observe`, and `verify` of a run that is aligned and of one that is not."""
    found: dict[str, Any] = {}
    aligned = {**SPLITS["2x2"], "loss_type": "grpo", "num_train_epochs": 1, "shuffle_dataset": False}
    for stage in (2, 3):
        plain = build(folder / "out", stage, **aligned)
        plain.train()
        observed = wrap(build(folder / "out", stage, **aligned), mode="observe", ledger=folder / f"observed-{stage}")
        observed.train()
        found[f"{stage}"] = torch.equal(*map(whole_parameters, (plain.model, observed.model)))
        for name, changes in VERIFIED.items():
            built = wrap(build(folder / "out", stage, **aligned | changes), mode="verify")
            before = whole_parameters(built.model)
            try:
                built.train()
                said = None
            except BatchDrift as drift:
                said = [drift.step, drift.aspect]
            found[f"{stage}, {name}"] = [said, torch.equal(before, whole_parameters(built.model))]
    return found


class Crash(TrainerCallback):
    """Rank 1 dies after step 20; torchrun ends the other."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 20 and RANK == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def crash(folder: Path) -> None:
    """Both stages up to the checkpoint; the second run is killed after it, the first one ended."""
    for stage in (2, 3):
        built = wrap(build(folder / f"killed-{stage}", stage, **RUN), ledger=folder / f"killed-ledger-{stage}")
        if stage == 3:
            built.add_callback(Crash())
        else:
            built.add_callback(Stop())
        built.train()


class Stop(TrainerCallback):
    """The run ends after step 20."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = state.global_step == 20


def resumed(folder: Path) -> dict[str, bool]:
    """Whether a run that was killed and resumed ends as one that was not."""
    found = {}
    for stage in (2, 3):
        whole = wrap(build(folder / f"whole-{stage}", stage, **RUN | {"save_strategy": "no"}))
        whole.train()
        again = wrap(build(folder / f"killed-{stage}", stage, **RUN), ledger=folder / f"killed-ledger-{stage}")
        again.train(resume_from_checkpoint=str(folder / f"killed-{stage}" / "checkpoint-17"))
        found[f"{stage}"] = torch.equal(*map(whole_parameters, (whole.model, again.model)))
    return found


def measured(folder: Path) -> None:
    parts = (ends, gradients, without_tokens, tampered, watched, resumed)  # DDP before Accelerate knows of DeepSpeed
    only = os.environ.get("BATCHBRIDGE_ONLY")
    found: dict[str, Any] = {part.__name__: part(folder) for part in parts if only in (None, part.__name__)}
    found["cases"] = len(CASES)
    if RANK == 0:
        torch.save(found, folder / "measured.pt")
        print(json.dumps(found, default=str)[:3000])


def unequal(folder: Path) -> None:
    """Negative control: as many forward passes on each rank as its own rows need, under ZeRO-3."""
    counts: list[int] = []
    StepShares.most = lambda self, passes: counts.append(passes) or passes
    arguments = {name: value for name, value in SPLITS["24 tokens, two passes, kl"].items() if name[:6] != "tokens"}
    built = wrap(build(folder / "unequal", 3, **arguments), tokens_per_device=24)
    try:
        built.train()
        said = None
    except BatchDrift as drift:
        said = drift.aspect
    except RuntimeError:
        said = "left alone"  # by the rank that waited longer and has ended
    (folder / f"unequal-{RANK}.json").write_text(json.dumps([said, counts]), encoding="utf-8")


if __name__ == "__main__":
    {command.__name__: command for command in (measured, crash, unequal)}[sys.argv[1]](Path(sys.argv[2]))
    leave()
