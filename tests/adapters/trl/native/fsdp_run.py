"""What `test_fsdp` runs under torchrun, one process per rank: models that FSDP really shards, on gloo.

    torchrun --nproc_per_node 2 fsdp_run.py fsdp1 FOLDER      FSDP1; then a run under FSDP2 that is killed
    torchrun --nproc_per_node 2 fsdp_run.py fsdp2 FOLDER      FSDP2, also at load time; goes on with that run
    torchrun --nproc_per_node 4 fsdp_run.py hsdp FOLDER       FSDP2: two replicas of two shards each

On a CPU Accelerate takes DDP whatever the configuration says. `shard_on_the_cpu` makes it take FSDP as it does on GPUs,
and every case says what the trained model was wrapped in. Rank 0 leaves what it measured in FOLDER.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["ACCELERATE_USE_CPU"] = "true"
os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"

import torch

torch.set_num_threads(1)

import tampering
import transformers
from accelerate.state import AcceleratorState
from derived import derived
from representative import WHOLE
from sharded_on_cpu import shard_on_the_cpu
from torch.distributed.fsdp import FullyShardedDataParallel
from transformers import TrainerCallback

from batchbridge import BatchDrift, CannotAttach, wrap
from batchbridge.ledger import read_steps
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.leaving import leave
from batchbridge_trl.releases import has, has_loss
from batchbridge_trl.testing import Captured, flat_parameters, gradient_errors, scripted_trainer, whole

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

Case = dict[str, Any]
FSDP2 = hasattr(AcceleratorState, "is_fsdp2")
LOADS = hasattr(transformers.Trainer, "_defer_fsdp_gradient_reduction")
"""Whether transformers shards at load time."""
LAYERS = {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"]}
PLAIN: Case = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "num_train_epochs": 1}
TWICE: Case = {
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "steps_per_generation": 4,
    "num_iterations": 2,
    "num_train_epochs": 1,
    "beta": 0.1,
}
EACH = {"accelerator_config": {"gradient_accumulation_kwargs": {"sync_each_batch": True}}}
"""Accelerate's own switch: gradients are reduced in every micro-batch, and wait in shards."""
LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": "gaussian", "task_type": "CAUSAL_LM"}
RESUMED: Case = TWICE | {
    "optim": "adamw_torch",
    "learning_rate": 3e-3,
    "max_grad_norm": 0.5,
    "save_strategy": "steps",
    "save_steps": 7,
}


def splits() -> dict[str, Case]:
    """The cases that every way of sharding runs: splits in 1, 2 and 4, and loss types."""
    found = {
        "4x1": PLAIN | {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 1, "loss_type": "grpo"},
        "2x2": PLAIN | {"loss_type": "dapo"},
        "2x2, derived": PLAIN | {"loss_type": "dapo", "does": {}},
        "1x4": PLAIN | {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 4, "loss_type": "bnpo"},
        "2x2, reduced in each": PLAIN | EACH | {"loss_type": "dr_grpo"},
        "1x2, two passes, kl": TWICE | {"loss_type": "luspo"},
        "24 tokens, two passes, kl": TWICE | {"loss_type": "bnpo", "tokens_per_device": 24},
    }
    if find_spec("transformers.masking_utils") is not None:  # elsewhere it is refused
        free = {"loss_type": "bnpo", "tokens_per_device": 24, "padding": "free"}
        found["24 tokens, without padding, kl"] = TWICE | free
    for case in found.values():
        if not has_loss(case["loss_type"]):
            case["loss_type"] = "grpo"
    return found


def some(cases: dict[str, Case], *names: str) -> dict[str, Case]:
    """The named cases, or all where the whole matrix is asked for."""
    return {name: case for name, case in cases.items() if WHOLE or name in names}


class Shards(Captured):
    """As `Captured`, of a model that FSDP1 or FSDP2 shards: whole tensors. Collective.

    waited: bytes of whole gradients that this rank held after each backward pass (FSDP2).
    """

    def __init__(self, trainer: Any) -> None:
        super().__init__(trainer.model)
        self.waited: list[int] = []
        self.wrapped = ""
        backward = trainer.accelerator.backward

        def counted(loss: Any, **options: Any) -> None:
            backward(loss, **options)
            self.waited.append(waiting(trainer.model))

        trainer.accelerator.backward = counted
        trainer.add_callback(self)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with summoned(kwargs["model"]) as named:
            self.states.append({name: whole(value).detach().clone() for name, value in named.items()})

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        with summoned(kwargs["model"], grads=True) as named:
            grads = [torch.zeros_like(p) if p.grad is None else p.grad for p in named.values() if p.requires_grad]
            self.gradients.append(torch.cat([whole(grad).detach().flatten().clone() for grad in grads]))


@contextlib.contextmanager
def summoned(model: Any, *, grads: bool = False) -> Iterator[dict[str, Any]]:
    """Parameters (and, without `grads`, the state dict's copies of tied ones) by the plain model's names."""
    context: Any = contextlib.nullcontext()
    if isinstance(model, FullyShardedDataParallel):
        context = FullyShardedDataParallel.summon_full_params(model, with_grads=grads)
    with context:
        plain = model.module if isinstance(model, FullyShardedDataParallel) else model
        named = dict(plain.named_parameters(remove_duplicate=grads))
        prefixes = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
        yield {name.replace(prefixes[0], "").replace(prefixes[1], ""): value for name, value in named.items()}


def waiting(model: Any) -> int:
    """Bytes of whole gradients that FSDP2 keeps on this rank. Source: torch 2.13.0 _fully_shard/_fsdp_param.py."""
    units = {module._get_fsdp_state() for module in model.modules() if hasattr(module, "_get_fsdp_state")}
    parameters = [one for unit in units for group in unit._fsdp_param_groups for one in group.fsdp_params]
    held = [(one.unsharded_accumulated_grad, getattr(one, "_unsharded_param", None)) for one in parameters]
    grads = [getattr(parameter, "grad", None) if kept is None else kept for kept, parameter in held]
    return sum(grad.nbytes for grad in grads if grad is not None)


def built(folder: Path, case: Case, *, policy: Any = None) -> Any:
    """The trainer of a case, wrapped; its ledger lies in the folder."""
    case = copy.deepcopy(case)  # transformers writes into nested settings
    budget, mode = case.pop("tokens_per_device", None), case.pop("mode", "enforce")
    strategy, does = case.pop("strategy", "FULL_SHARD"), case.pop("does", None)
    if (padding := case.pop("padding", "padded")) == "free" and policy is not None:
        policy.config._attn_implementation = "sdpa"
    reference = tiny_policy(seed=1) if case.get("beta") and "peft_config" not in case else None
    with mock.patch.dict(os.environ, {"FSDP_SHARDING_STRATEGY": strategy}):
        trainer = scripted_trainer(folder, reference=reference, policy=policy, **case)
    if does is not None:
        derived(trainer, **does)
    return wrap(trainer, tokens_per_device=budget, padding=padding, mode=mode, ledger=folder / "ledger")


def fsdp1_units(model: Any) -> list[Any]:
    """The modules that FSDP1 wraps; none of another model."""
    return [unit for unit in model.modules() if hasattr(unit, "sharding_strategy")]


def measured(
    folder: Path,
    case: Case,
    *,
    make: Callable[[], Any] = tiny_policy,
    policy: Any = None,
    controls: bool = False,
) -> dict[str, Any]:
    """What a case's run came to, with the gradient errors of its first steps, over their bars (bf16 has none), on
    rank 0. make: the
    plain policy. controls: the errors, too, where one completion stands in another's place."""
    trainer = built(folder, case, policy=make() if policy is None else policy)
    captured = Shards(trainer)
    trainer.train()
    steps, plan = trainer.state.global_step, trainer.batchbridge.plan
    found: dict[str, Any] = {
        "wrapped": [kind.__name__ for kind in type(trainer.model_wrapped).__mro__],
        "steps": [steps, plan.total_optimizer_steps if case.get("mode", "enforce") == "enforce" else steps],
        "mesh": [list(one.device_mesh.shape) for one in trainer.model.parameters() if hasattr(one, "device_mesh")][:1],
        "strategies": sorted({str(unit.sharding_strategy) for unit in fsdp1_units(trainer.model_wrapped)}),
        "waited": captured.waited,
        "parameters": sum(parameter.numel() for parameter in make().parameters()),
    }
    if trainer.accelerator.is_main_process:
        reference = tiny_policy(seed=1) if case.get("beta") else None
        records = list(read_steps(folder / "ledger"))
        spec = trainer.batchbridge.request.spec

        def errors(records: Any) -> list[float]:
            each = gradient_errors(captured, spec, records=records, policy=make, reference=reference, steps=3)
            return [one.error for one in each] if case.get("bf16") else [one.error / one.bar for one in each]

        found["errors"] = errors(records)
        norms = [
            (record["gradient_norm"], float(raw.norm()))
            for record, raw in zip(records, captured.gradients, strict=True)
        ]
        found["norms"] = [norm / true for norm, true in norms if norm is not None]  # before transformers 5.3: none
        if controls:  # what the comparison must notice
            for record in records:
                record["sample"][0] = (record["sample"][0] + 2) % 4
            found["one swapped"] = errors(records)
    trainer.accelerator.wait_for_everyone()
    return found


def tampered(folder: Path, case: Case) -> dict[str, Any]:
    """How each way of `tampering` ends, done on rank 1 alone where the other need not wait for it."""
    found = {}
    ways = {name: way for name, (way, aspect) in tampering.WAYS.items() if WHOLE or aspect == "gradient"}
    for number, (name, tamper) in enumerate(ways.items()):
        # Whole gradients wait inside of FSDP, where no callback reaches them: reduced in each, they can be lost.
        how = EACH if name == "gradient of a micro-batch" else {}
        trainer = built(folder / str(number), tampering.RUN | case | how)
        if os.environ["RANK"] == "1" or name == "backward of a micro-batch":  # ranks gather weights in backward
            tamper(trainer)
        elif name == "gradient after backward":
            trainer.add_callback(TrainerCallback())  # as many callbacks on every rank
        found[name] = tampering.stopped(trainer)
    return found


def tied() -> Any:
    """The tiny policy with its embedding as its head."""
    policy = tiny_policy()
    policy.config.tie_word_embeddings = True
    policy.tie_weights()
    return policy


def refused(folder: Path, **settings: Any) -> dict[str, list[str]]:
    """What enforcing refuses where FSDP is asked for and Accelerate takes DDP: the reasons' names, and with `allow`."""
    found = {}
    for allow in ((), ("not_sharded",)):
        trainer = scripted_trainer(folder, **PLAIN, **settings)
        try:
            wrap(trainer, allow=allow)
            found[",".join(allow)] = [type(trainer.args.fsdp).__name__]
        except CannotAttach as error:
            found[",".join(allow)] = list(error.reasons)
    return found


def fsdp2(folder: Path) -> dict[str, Any]:
    layered = {"version": 2, **LAYERS}
    asked: Case = {"fsdp": True, "fsdp_config": layered}
    found = loaded_in_shards(folder) if LOADS else {}
    if WHOLE:
        found["bf16 under DDP"] = measured(folder / "bf16 under DDP", PLAIN | {"bf16": True})
    found["refused"] = refused(folder, **asked)
    shard_on_the_cpu()
    for name, case in splits().items():
        found[name] = measured(folder / name, asked | case, controls=name == "2x2")
    found["lora"] = lora(folder / "lora", asked)
    found["changed by a schedule of its own"] = changed(folder / "changed", asked)
    found["tampered"] = tampered(folder / "tampered", asked)
    found["lone head"] = lone_head(folder / "lone", asked)
    if WHOLE:
        again = {"fsdp_config": layered | {"activation_checkpointing": True}, "gradient_checkpointing": False}
        found["tied"] = measured(folder / "tied", asked | PLAIN, make=tied)
        found["activation checkpointing"] = measured(folder / "again", asked | PLAIN | again)
        found["observed"] = measured(folder / "observed", asked | PLAIN | {"loss_type": "grpo", "mode": "observe"})
        found["bf16"] = measured(folder / "bf16", asked | PLAIN | {"bf16": True})
    found["resumed"] = resumed(folder)
    return found


def changed(folder: Path, asked: Case) -> list[Any]:
    """How a run ends whose own schedule changes a setting on one rank."""

    def on_rank_1(trainer: Any) -> None:
        trainer.args.num_iterations += int(os.environ["RANK"])

    try:
        built(folder, asked | PLAIN | {"does": {"after": on_rank_1}}).train()
    except BatchDrift as drift:
        return [drift.step, drift.aspect, drift.detail]
    return []


def lora(folder: Path, asked: Case) -> dict[str, Any]:
    from peft import LoraConfig, get_peft_model

    def policy() -> Any:
        return get_peft_model(tiny_policy(), LoraConfig(**LORA))

    case = asked | PLAIN | {"peft_config": LoraConfig(**LORA), "learning_rate": 0.1}
    return measured(folder, case, make=policy, policy=tiny_policy())


def lone_head(folder: Path, asked: Case) -> dict[str, Any]:
    """A head that is a unit of its own: refused when training begins; natively, what its gradient is."""
    alone = asked | {
        "fsdp_config": asked["fsdp_config"] | {"transformer_layer_cls_to_wrap": ["LlamaDecoderLayer", "Linear"]}
    }
    try:
        built(folder / "enforced", alone | PLAIN).train()
        reasons = []
    except CannotAttach as error:
        reasons = list(error.reasons)
    native = measured(folder / "native", alone | PLAIN | {"loss_type": "grpo", "mode": "observe"})
    return {"refused": reasons, **native}


def loaded_in_shards(folder: Path) -> dict[str, Any]:
    """Models that transformers shards when it loads them: one shard for each rank, and two replicas."""
    from transformers import LlamaForCausalLM
    from transformers.distributed.configuration_utils import DistributedConfig

    torch.distributed.init_process_group("gloo")
    if os.environ["RANK"] == "0":
        tiny_policy().save_pretrained(folder / "policy")
    torch.distributed.barrier()
    found = {}
    ways: dict[str, Case] = {"at load time": {"fsdp_size": 2}, "replicas at load time": {"dp_replicate_size": 2}}
    for name, sizes in some(ways, "at load time").items():
        config = DistributedConfig(**sizes)
        policy = LlamaForCausalLM.from_pretrained(
            folder / "policy", distributed_config=config, attn_implementation="eager"
        )
        found[name] = measured(folder / name, PLAIN | {"loss_type": "grpo"}, policy=policy)
    return found


def fsdp1(folder: Path) -> dict[str, Any]:
    config = {"version": 1, **LAYERS, "use_orig_params": True, "sync_module_states": False}

    def sharded(kind: str) -> Case:
        if has(">=5", "transformers"):
            # Accelerate 1.15 reads FSDP1's strategy from here alone, and shards whatever reshard_after_forward says.
            return {"fsdp": True, "fsdp_config": config, "strategy": kind.upper()}
        return {"fsdp": f"{kind} auto_wrap", "fsdp_config": config}

    asked = sharded("full_shard")
    cases = {name: asked | case for name, case in splits().items()}
    cases |= {kind: sharded(kind) | PLAIN for kind in ("no_shard", "shard_grad_op", "hybrid_shard")}
    shard_on_the_cpu()
    # Both ranks are on one node. On nodes of one device FSDP1's hybrid reduces nothing (a run ends in a drift).
    torch.cpu.device_count = lambda: 2
    named = some(
        cases, "2x2", "2x2, derived", "no_shard", "24 tokens, two passes, kl", "24 tokens, without padding, kl"
    )
    found = {name: measured(folder / name, case, controls=name == "2x2") for name, case in named.items()}
    if WHOLE:
        found["tied"] = measured(folder / "tied", asked | PLAIN, make=tied)
        flat = asked | {"fsdp_config": config | {"use_orig_params": False}}  # whose gradients cannot be summoned
        one, other = end(folder / "flat", flat | PLAIN), end(folder / "not flat", asked | PLAIN)
        found["flat parameters"] = {"equal": torch.equal(one, other)}
    found["tampered"] = tampered(folder / "tampered", asked)
    return found


def end(folder: Path, case: Case) -> torch.Tensor:
    """The parameters at the end of a case's run."""
    trainer = built(folder, case)
    trainer.train()
    with summoned(trainer.model) as named:
        return torch.cat([parameter.detach().flatten().clone() for parameter in named.values()])


def hsdp(folder: Path) -> dict[str, Any]:
    from accelerate import ParallelismConfig

    shard_on_the_cpu()
    mesh = ParallelismConfig(dp_replicate_size=2, dp_shard_size=2)
    asked: Case = {"fsdp": True, "fsdp_config": {"version": 2, **LAYERS}, "parallelism_config": mesh}
    halved = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 2}
    return {
        name: measured(folder / name, asked | PLAIN | halved | case)
        for name, case in {"hsdp": {"loss_type": "bnpo"}, "hsdp, reduced in each": {"loss_type": "grpo"} | EACH}.items()
    }


class Crash(TrainerCallback):  # type: ignore[misc]  # transformers is untyped here
    """Rank 1 dies after step 9; torchrun ends the other."""

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 9 and os.environ["RANK"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)


def to_resume(files: str) -> Case:
    """A run under FSDP2 that saves as `files` says."""
    return RESUMED | {"fsdp": True, "fsdp_config": {"version": 2, **LAYERS, "state_dict_type": files}}


def crash(folder: Path) -> None:
    trainer = built(folder / "killed", to_resume("SHARDED_STATE_DICT"))
    trainer.add_callback(Crash())
    trainer.train()


def resumed(folder: Path) -> dict[str, Any]:
    """Runs with both kinds of files, and their resumption: of the killed one, and of the uninterrupted one."""
    found = {}
    for files, began in {"SHARDED_STATE_DICT": "../killed", "FULL_STATE_DICT": "FULL_STATE_DICT"}.items():
        uninterrupted = built(folder / files, to_resume(files))
        uninterrupted.train()
        again = built(folder / began, to_resume(files))
        again.train(resume_from_checkpoint=str(folder / began / "checkpoint-7"))
        found[files] = {
            "equal": torch.equal(flat_parameters(uninterrupted.model), flat_parameters(again.model)),
            "steps": again.state.global_step,
            "wrapped": [kind.__name__ for kind in type(again.model_wrapped).__mro__],
        }
    return found


if __name__ == "__main__":
    commands: dict[str, Callable[[Path], dict[str, Any]]] = {
        command.__name__: command for command in (fsdp1, fsdp2, hsdp)
    }
    where = Path(sys.argv[2])
    result = commands[sys.argv[1]](where / sys.argv[1])
    if os.environ["RANK"] == "0":
        (where / f"{sys.argv[1]}.json").write_text(json.dumps(result), encoding="utf-8")
    if sys.argv[1] == "fsdp1" and FSDP2:
        crash(where)
    leave()
