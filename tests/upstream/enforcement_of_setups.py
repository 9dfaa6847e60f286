"""What `batchbridge check` says of real setups, before anything is started: one launch of each, and a table.

    python tests/upstream/enforcement_of_setups.py SETUPS.jsonl [--keep FOLDER] [--version RELEASE] [--json OUT.jsonl]

SETUPS.jsonl has one TRL setup a line: {"source": ..., "framework": "trl", "features": {...}}; other lines are left
out. Features: distributed (single, ddp, zero1 to zero3, fsdp1, fsdp2), processes, vllm, vllm_mode, lora, liger,
precision (bf16, fp16, default), vlm, loss_type, num_iterations, own_trainer, subclass; what is null or no plain value
is left at its default. Of each row a folder is written: a training script with the row's trainer, a recipe, the
accelerate file, for ZeRO a DeepSpeed file, a shell script that launches them, and the model's config.json (of Qwen2,
or of Qwen2-VL for "vlm"): the launch, not the model, is what is asked about. Nothing is started, and no framework is
imported.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from batchbridge.cli.main import main

GROUP, MICRO = 8, 8
SCRIPT = '''"""A training script as people write it: TrlParser, a reward function, a trainer."""

{imports}


def length(completions, **columns):
    return [float(len(completion)) for completion in completions]


if __name__ == "__main__":
    script, args, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    dataset = load_dataset(script.dataset_name, split="train")
    trainer = {trainer}(
        model=model.model_name_or_path,
        reward_funcs=[length],
        args=args,
        train_dataset=dataset,
        peft_config=get_peft_config(model),
    )
    trainer.train()
'''
TEXT = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "rope_theta": 1000000.0}
IMAGES = {"model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"], "vision_config": {}}
IMAGES |= {"rope_theta": 1000000.0}


def launch_of(features: Mapping[str, Any], folder: Path) -> list[str]:
    """Writes the launch of one setup; what `check` is asked with, in that folder."""
    kind, vlm = str(features.get("distributed") or "single"), bool(features.get("vlm"))
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text(json.dumps(IMAGES if vlm else TEXT))
    if vlm:
        (folder / "model" / "preprocessor_config.json").write_text("{}")
    (folder / "train.py").write_text(_script(features))
    processes = str(features.get("processes") or "")
    world = int(processes) if processes.isdigit() else 1 if kind == "single" else 8
    (folder / "recipe.yaml").write_text(yaml.safe_dump(_recipe(features), sort_keys=False))
    words = ["train.py", "--config", "recipe.yaml"]
    if kind == "single":
        words = ["python", *words]
    else:
        (folder / "accelerate.yaml").write_text(yaml.safe_dump(_accelerate(kind, world, folder, features)))
        words = ["accelerate", "launch", "--config_file", "accelerate.yaml", *words]
    (folder / "launch.sh").write_text(f"#!/bin/bash\n{' '.join(words)}\n")
    # `python train.py` says nothing of its processes.
    return ["launch.sh", *(["--world-size", "1"] if kind == "single" else [])]


def _script(features: Mapping[str, Any]) -> str:
    other = features.get("own_trainer") or features.get("subclass")
    module, _, name = str(other or "trl.GRPOTrainer").rpartition(".")
    if other and not module:  # "its own copy"
        module, name = "trainer", "GRPOTrainer"
    lines = ["from datasets import load_dataset"]
    names = ["GRPOConfig", "ModelConfig", "ScriptArguments", "TrlParser", "get_peft_config"]
    if other:
        lines.append(f"from {module} import {name}")
    lines.append(f"from trl import {', '.join(sorted([*names, *([] if other else [name])]))}")
    return SCRIPT.format(imports="\n".join(lines), trainer=name)


def _recipe(features: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "model_name_or_path": "model",
        "dataset_name": "prompts",
        "output_dir": "out",
        "num_generations": GROUP,
        "per_device_train_batch_size": MICRO,
        "gradient_accumulation_steps": 4,
        "learning_rate": 1e-6,
        "max_completion_length": 512,
        "num_train_epochs": 1,
    }
    if features.get("precision") in ("bf16", "fp16"):
        found[str(features["precision"])] = True
    if features.get("precision") == "fp16":
        found["bf16"] = False
    if features.get("vllm"):
        mode = features.get("vllm_mode")
        found |= {"use_vllm": True, **({"vllm_mode": mode} if mode in ("server", "colocate") else {})}
    if features.get("lora"):
        found |= {"use_peft": True, "lora_r": 16, "lora_alpha": 32}
    if features.get("liger"):
        found["use_liger_kernel"] = True
    if str(features.get("loss_type")).replace("_", "").isalpha() and "." not in str(features.get("loss_type")):
        found |= {"loss_type": features["loss_type"]} if features.get("loss_type") else {}
    if str(features.get("num_iterations") or "").isdigit():
        found["num_iterations"] = int(str(features["num_iterations"]))
    return found


def _accelerate(kind: str, world: int, folder: Path, features: Mapping[str, Any]) -> dict[str, Any]:
    precision = {"bf16": "bf16", "fp16": "fp16"}.get(str(features.get("precision")), "no")
    found: dict[str, Any] = {"compute_environment": "LOCAL_MACHINE", "num_machines": 1, "num_processes": world}
    if kind.startswith("zero"):
        zero = {"zero_optimization": {"stage": int(kind[-1])}, "gradient_accumulation_steps": "auto"}
        zero |= {"train_micro_batch_size_per_gpu": "auto", "gradient_clipping": "auto", "bf16": {"enabled": "auto"}}
        (folder / "deepspeed.json").write_text(json.dumps(zero))
        deepspeed = {"deepspeed_config_file": "deepspeed.json", "zero3_init_flag": kind == "zero3"}
        return {**found, "distributed_type": "DEEPSPEED", "deepspeed_config": deepspeed}
    if kind.startswith("fsdp"):
        version = int(kind[-1]) if kind[-1].isdigit() else 1
        return {
            **found,
            "distributed_type": "FSDP",
            "fsdp_config": {"fsdp_version": version},
            "mixed_precision": precision,
        }
    return {**found, "distributed_type": "MULTI_GPU", "mixed_precision": precision}


def checked(folder: Path, words: list[str], version: str) -> dict[str, Any]:
    """What `check --json` says of a launch, asked in its folder as a user would."""
    said = io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        main(["check", "--json", "--framework-version", version, *words])
    found: dict[str, Any] = json.loads(said.getvalue())["results"][0]
    return found


def rows(path: Path, kept: Path, version: str) -> Iterator[dict[str, Any]]:
    """A row of the table for each TRL setup."""
    for number, line in enumerate(path.read_text().splitlines()):
        setup = json.loads(line)
        if setup.get("framework") != "trl" or "features" not in setup:
            continue
        features = setup["features"]
        folder = kept / f"{number:03d}"
        found = checked(folder, launch_of(features, folder), version)
        own = bool(features.get("own_trainer") or features.get("subclass"))
        yield {"source": setup.get("source"), "own_trainer": own, "findings": found["verdict"], **found["enforcement"]}


def show(title: str, found: list[dict[str, Any]]) -> None:
    """Verdicts and obstacles, most frequent first."""
    verdicts = collections.Counter(row["verdict"] for row in found)
    print(f"\n{title}: {len(found)} setups; {', '.join(f'{name} {count}' for name, count in verdicts.most_common())}")
    names = collections.Counter(one["name"] for row in found for one in row["obstacles"])
    only = collections.Counter(row["obstacles"][0]["name"] for row in found if len(row["obstacles"]) == 1)
    for name, count in names.most_common():
        print(f"  {count:3d} (alone in {only[name]:2d})  {name}")


def run() -> int:
    """The table; 1 where an obstacle has no remedy."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("setups", type=Path)
    parser.add_argument("--keep", type=Path, help="folder for the launches; by default they are removed")
    parser.add_argument("--version", default="1.16.0", help="release of TRL (1.16.0)")
    parser.add_argument("--json", type=Path, dest="out", help="file for the rows")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        found = list(rows(given.setups, given.keep or Path(scratch), given.version))
    for row in found:
        names = ", ".join(f"{one['name']}{'' if one['certain'] else '?'}" for one in row["obstacles"])
        print(f"{row['verdict']:10s} {row['source']}: {names or row['evidence']}")
    show("all", found)
    show("with a trainer of TRL's own", [row for row in found if not row["own_trainer"]])
    if given.out is not None:
        given.out.write_text("".join(json.dumps(row) + "\n" for row in found))
    return int(any(not one["remedy"] for row in found for one in row["obstacles"]))


if __name__ == "__main__":
    sys.exit(run())
