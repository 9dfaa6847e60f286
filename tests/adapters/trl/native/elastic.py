"""What `test_elastic` runs: trainers that FSDP or ZeRO shards, which go on with another number of ranks, on gloo.

    python elastic.py FOLDER fsdp       every way of FSDP's files
    python elastic.py FOLDER zero       ZeRO-2 and ZeRO-3, by DeepSpeed's universal checkpoints

Each run is forks of this process, a rank each. Of every way: an uninterrupted run on either number of ranks, with a
checkpoint inside a rollout, and what the other number makes of it. FOLDER/WAY/2 and 1 are uninterrupted, 2to1 and 1to2
went on: `end.pt` has the parameters, `said.json` what wrapped the model and what was said. On a CPU Accelerate takes
DDP whatever is asked for, unless `sharded_on_cpu` has it shard.
"""

from __future__ import annotations

import copy
import functools
import json
import os
import shutil
import socket
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"
if __name__ == "__main__":  # the tests import this module, and start programs on other devices beside it
    os.environ["ACCELERATE_USE_CPU"] = "true"

import torch

if __name__ == "__main__":
    torch.set_num_threads(1)

import torch._dynamo  # before forks, each of which would import it for itself
import torch.distributed.checkpoint.state_dict
import transformers
import trl.trainer.grpo_trainer  # noqa: F401  likewise
from representative import WHOLE
from sharded_on_cpu import shard_on_the_cpu, whole_state, zero_on_the_cpu

from batchbridge import CannotAttach, wrap
from batchbridge.testing.equivalence import ADAM_EPSILON
from batchbridge.testing.tiny import tiny_policy
from batchbridge_on_cpu.killing import ended, forked
from batchbridge_trl import sharded_files
from batchbridge_trl.testing import flat_parameters, scripted_trainer

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

LORA = {"r": 4, "target_modules": ["q_proj", "v_proj"], "init_lora_weights": "gaussian", "task_type": "CAUSAL_LM"}
ADAM: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "beta": 0.1,
    "optim": "adamw_torch",
    "adam_epsilon": ADAM_EPSILON,
    "learning_rate": 6e-3,
    "max_grad_norm": 0.5,
    "lr_scheduler_type": "linear",
    "save_strategy": "steps",
}
"""Without the moments, clipping or the schedule's place a run ends elsewhere."""
INSIDE: dict[str, Any] = {"num_iterations": 2, "num_train_epochs": 1, "save_steps": 7}
WAITING: dict[str, Any] = {"prompts": 7, "num_train_epochs": 2, "save_steps": 5}
# Completions of an optimizer step and of a rollout: inside the second of two passes, and before a step that waits for
# the next rollout.
PLACES = {"inside a pass": (INSIDE, 4, 8), "before a step that waits": (WAITING, 6, 8)}


def fsdp(version: int, files: str) -> dict[str, Any]:
    """FSDP as transformers 5 is asked for it."""
    config = {"version": version, "transformer_layer_cls_to_wrap": ["LlamaDecoderLayer"], "state_dict_type": files}
    if version == 1:
        config |= {"use_orig_params": True, "sync_module_states": False}
    return {"fsdp": True, "fsdp_config": config}


FSDP: dict[str, dict[str, Any]] = {
    "FSDP2, sharded": fsdp(2, "SHARDED_STATE_DICT"),
    "FSDP2, full": fsdp(2, "FULL_STATE_DICT") | {"place": "before a step that waits"},
    **({"FSDP2, adapters": fsdp(2, "SHARDED_STATE_DICT") | {"lora": True}} if WHOLE else {}),
    "FSDP1, sharded": fsdp(1, "SHARDED_STATE_DICT"),
}


def settings(way: dict[str, Any], ranks: int) -> dict[str, Any]:
    """The arguments of a run on as many ranks."""
    way = copy.deepcopy(way)  # transformers writes into nested settings
    common, step, rollout = PLACES[way.pop("place", "inside a pass")]
    split = {"gradient_accumulation_steps": step // ranks, "steps_per_generation": rollout // ranks}
    return ADAM | common | split | way


def end(trainer: Any) -> torch.Tensor:
    """The whole trained parameters. Collective."""
    if trainer.is_deepspeed_enabled and trainer.accelerator.state.deepspeed_plugin.zero_stage == 3:
        return torch.cat([value.flatten() for value in whole_state(trainer.model).values()])
    if any(hasattr(unit, "sharding_strategy") for unit in trainer.model_wrapped.modules()):
        from torch.distributed.fsdp import FullyShardedDataParallel

        with FullyShardedDataParallel.summon_full_params(trainer.model_wrapped):
            return flat_parameters(trainer.model)
    return flat_parameters(trainer.model)


def trained(folder: Path, way: dict[str, Any], ranks: int, began: Path | None) -> None:
    """What one rank does."""
    arguments = settings(way, ranks)
    if "deepspeed" in arguments:
        zero_on_the_cpu()
    else:
        torch.distributed.init_process_group("gloo")
        shard_on_the_cpu()
    if arguments.pop("lora", False):
        from peft import LoraConfig

        arguments |= {"peft_config": LoraConfig(**LORA), "learning_rate": 0.1}
    reference = None if "peft_config" in arguments else tiny_policy(seed=1)
    built = scripted_trainer(folder / "run", reference=reference, **arguments)
    wrap(built, ledger=folder / "ledger")
    said: dict[str, Any] = {"refused": ""}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            built.train(resume_from_checkpoint=began and str(began))
        except CannotAttach as refused:
            said["refused"] = refused.reasons.get("resume", f"{refused.reasons}")
    if not said["refused"]:
        parameters = end(built)
        said |= {
            "wrapped": [kind.__name__ for kind in type(built.model_wrapped).__mro__],
            "ranks": built.accelerator.num_processes,
            "warned": [f"{each.message}" for each in caught if f"{each.message}".startswith("batchbridge: ")],
        }
        if os.environ["RANK"] == "0":
            torch.save(parameters, folder / "end.pt")
    if os.environ["RANK"] == "0":
        (folder / "said.json").write_text(json.dumps(said), encoding="utf-8")


def run(
    folder: Path, way: dict[str, Any], ranks: int, began: Path | None = None, before: Callable[[], None] = lambda: None
) -> None:
    """A run on as many ranks, from a checkpoint where there is one. before: what is done to each of its processes."""
    folder.mkdir(parents=True)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]

    def of_rank(rank: int) -> None:
        places = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "MASTER_PORT": port}
        os.environ.update({name: str(value) for name, value in places.items()}, MASTER_ADDR="127.0.0.1")
        before()
        trained(folder, way, ranks, began)

    codes = ended(forked([functools.partial(of_rank, rank) for rank in range(ranks)]), 300, 0)
    assert codes == [0] * ranks, (folder, codes)


def checkpoint(folder: Path) -> Path:
    """The first checkpoint of a run."""
    return min((folder / "run").glob("checkpoint-*"), key=lambda each: int(each.name.partition("-")[2]))


def there_and_back(folder: Path, way: dict[str, Any], *numbers: int) -> None:
    """Uninterrupted runs on two numbers of ranks, and what each makes of the other's checkpoint."""
    for ranks in numbers:
        run(folder / f"{ranks}", way, ranks)
    for first, second in (numbers, numbers[::-1]):
        run(folder / f"{first}to{second}", way, second, checkpoint(folder / f"{first}"))


def without_moments(*, seen: bool) -> None:
    """Has an optimizer come back without its state, as Accelerate lets FSDP1's; unless that is to be `seen`, blinds the
    check for it."""
    native = transformers.trainer.load_fsdp_optimizer

    def load(plugin: Any, accelerator: Any, optimizer: Any, *others: Any, **options: Any) -> None:
        native(plugin, accelerator, optimizer, *others, **options)
        if plugin.fsdp_version == 2:
            optimizer.optimizer.state.clear()

    transformers.trainer.load_fsdp_optimizer = load
    sharded_files.prepare = lambda trainer: None
    if not seen:
        sharded_files.check_loaded = lambda trainer, folder: None


CONTROLLED = ("FSDP2, sharded", "FSDP1, sharded")


def of_fsdp(folder: Path) -> None:
    for name, way in FSDP.items():
        there_and_back(folder / name, way, 2, 1)
        began = checkpoint(folder / name / "2")
        if name == "FSDP1, sharded":  # of FSDP2: test_fsdp
            run(folder / name / "2to2", way, 2, began)
        for control, seen in {"refused": True, "without moments": False}.items() if name in CONTROLLED else ():
            run(folder / name / control, way, 1, began, functools.partial(without_moments, seen=seen))
    unproven = fsdp(1, "LOCAL_STATE_DICT")
    run(folder / "LOCAL_STATE_DICT", unproven, 1, checkpoint(folder / "FSDP1, sharded" / "2"))


def zero(stage: int, *, universal: bool = False) -> dict[str, Any]:
    """ZeRO as people write it. universal: loads what `ds_to_universal` has made."""
    sharding: dict[str, Any] = {"stage": stage, "overlap_comm": False}
    if stage == 3:  # all parameters of these policies are small, and would stay whole
        sharding |= {"stage3_gather_16bit_weights_on_model_save": True, "stage3_param_persistence_threshold": 0}
    sizes = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping")
    config = dict.fromkeys(sizes, "auto") | {
        "zero_optimization": sharding,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "checkpoint": {"load_universal": universal},
    }
    return {"deepspeed": config}


def made_universal(began: Path) -> Path:
    """A checkpoint after the documented command."""
    (step,) = began.glob("global_step*")
    words = ["-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state", "--input_folder", f"{step}"]
    words += ["--output_folder", f"{step}_universal", "--num_extract_workers", "1", "--num_merge_workers", "1"]
    subprocess.run([sys.executable, *words], check=True, env={**os.environ, "DS_ACCELERATOR": "cpu"})
    return began


def blinded() -> None:
    sharded_files.loads_otherwise = lambda trainer: None


def of_zero(folder: Path) -> None:
    place = folder / "ZeRO-2"
    for ranks in (2, 1):
        run(place / f"{ranks}", zero(2), ranks)
        made_universal(checkpoint(place / f"{ranks}"))
    for first, second in ((2, 1), (1, 2)):
        run(place / f"{first}to{second}", zero(2, universal=True), second, checkpoint(place / f"{first}"))
    emptied = shutil.copytree(checkpoint(place / "2"), place / "emptied" / checkpoint(place / "2").name)
    for file in emptied.glob("global_step*_universal/zero/*/exp_avg.pt"):
        moment = torch.load(file, weights_only=False)
        torch.save(moment | {"param": torch.zeros_like(moment["param"])}, file)
    run(place / "without moments", zero(2, universal=True), 1, emptied)
    place = folder / "ZeRO-3"
    run(place / "2", zero(3), 2)
    began = made_universal(checkpoint(place / "2"))
    run(place / "refused", zero(3, universal=True), 1, began)
    run(place / "let", zero(3, universal=True), 1, began, blinded)


if __name__ == "__main__":
    {"fsdp": of_fsdp, "zero": of_zero}[sys.argv[2]](Path(sys.argv[1]))
