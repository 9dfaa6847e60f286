"""How a launch is started, read from its words and files: Accelerate's and DeepSpeed's, and the training script."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from batchbridge import check
from batchbridge_trl.starting import STOCK

SCRIPTS = Path(__file__).parent / "scripts"
RECIPE = {
    "model_name_or_path": "Qwen/Qwen2.5-0.5B-Instruct",
    "num_generations": 8,
    "per_device_train_batch_size": 8,
    "max_steps": 4,
}
ZERO = {"distributed_type": "DEEPSPEED", "num_processes": 4}
SHARDED = {"distributed_type": "FSDP", "num_processes": 4}


def launch(
    folder: Path,
    *words: str,
    script: str = "plain",
    recipe: Mapping[str, Any] | None = None,
    **files: Mapping[str, Any],
) -> Path:
    """A shell script that starts a training script with `words` before it, beside its recipe and other files."""
    (folder / "train.py").write_text((SCRIPTS / f"{script}.py").read_text())
    (folder / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, **(recipe or {})}))
    for name, values in files.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(dict(values)))
    file = folder / "launch.sh"
    file.write_text(" ".join([*(words or ("python",)), "train.py", "--config", "recipe.yaml"]) + "\n")
    return file


def said(file: Path, version: str = "1.16.0", **asked: Any) -> tuple[str, list[str], Any]:
    """The verdict, the obstacles that are certain or marked, and how it is started."""
    found = check(file, version=version, **asked)
    names = [f"{one.name}{'' if one.certain else '?'}" for one in found.enforcement.obstacles]
    return found.enforcement.verdict, names, found.reading.run.start  # type: ignore[attr-defined]


LAUNCH = ("accelerate", "launch", "--config_file", "accelerate.yaml")


def test_a_plain_launch_is_enforced_and_nothing_is_assumed_of_its_start(tmp_path: Path) -> None:
    file = launch(tmp_path, *LAUNCH, accelerate={"distributed_type": "MULTI_GPU", "num_processes": 4})
    verdict, names, start = said(file)
    assert (verdict, names) == ("enforced", [])
    assert start.is_known
    assert start.trainers == (STOCK,)
    assert check(file, version="1.16.0").enforcement.assumes == ("a dataset of at least 4 prompts",)
    assert check(file, version="1.16.0", dataset_size=64).enforcement.assumes == ()


def test_a_recipe_alone_assumes_how_it_is_started(tmp_path: Path) -> None:
    launch(tmp_path)
    found = check(tmp_path / "recipe.yaml", version="1.16.0", world_size=4, dataset_size=64).enforcement
    assert found.verdict == "enforced"
    assert found.assumes == ("a start without DeepSpeed, FSDP or a custom script",)


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_stage_stands_in_accelerates_file_or_in_deepspeeds_own(tmp_path: Path, stage: int) -> None:
    in_one = launch(tmp_path, *LAUNCH, accelerate={**ZERO, "deepspeed_config": {"zero_stage": stage}})
    assert said(in_one)[2].zero_stage == stage
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": stage}}))
    apart = launch(tmp_path, *LAUNCH, accelerate={**ZERO, "deepspeed_config": {"deepspeed_config_file": "ds.json"}})
    assert said(apart)[2].zero_stage == stage
    assert said(apart)[:2] == ("enforced", [])
    (tmp_path / "ds.json").write_text(
        json.dumps({"zero_optimization": {"stage": stage}, "compile": {"deepcompile": True}})
    )
    assert said(apart)[1] == ["deepspeed_engine"]
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": stage}, "fp16": {"enabled": True}}))
    assert said(apart)[1] == ["fp16"]
    (tmp_path / "ds.json").unlink()
    assert said(apart)[:2] == ("unknown", ["deepspeed_engine?", "fp16?"])
    (tmp_path / "ds.json").write_text(json.dumps({"zero_optimization": {"stage": stage}}))
    words = ("accelerate", "launch", "--use_deepspeed", "--zero_stage", str(stage), "--num_processes", "4")
    assert said(launch(tmp_path, *words))[2].zero_stage == stage
    file = launch(tmp_path, "torchrun", "--nproc_per_node", "4", recipe={"deepspeed": "ds.json"})
    assert said(file)[2].zero_stage == stage


@pytest.mark.parametrize("version", [1, 2])
def test_fsdp_is_found_in_each_place(tmp_path: Path, version: int) -> None:
    file = launch(tmp_path, *LAUNCH, accelerate={**SHARDED, "fsdp_config": {"fsdp_version": version}})
    verdict, names, start = said(file)
    assert (verdict, names, start.sharding, start.fsdp) == ("enforced", [], "fsdp", version)
    file = launch(
        tmp_path, "torchrun", "--nproc_per_node=4", recipe={"fsdp": True, "fsdp_config": {"version": version}}
    )
    assert said(file)[2].fsdp == version


def test_packaged_accelerate_files_are_known_by_name(tmp_path: Path) -> None:
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**RECIPE, "accelerate_config": "zero2"}))
    (tmp_path / "launch.sh").write_text("trl grpo --config recipe.yaml\n")
    verdict, names, start = said(tmp_path / "launch.sh")
    assert (verdict, names, start.zero_stage) == ("enforced", [], 2)


def test_a_mesh_is_read_and_so_is_its_absence(tmp_path: Path) -> None:
    mesh = {"parallelism_config": {"parallelism_config_tp_size": 2, "parallelism_config_cp_size": 1}}
    file = launch(tmp_path, *LAUNCH, accelerate={"distributed_type": "MULTI_GPU", "num_processes": 4, **mesh})
    assert said(file)[1] == ["tensor_parallel"]


@pytest.mark.parametrize(
    ("recipe", "refused"), [({}, False), ({"bf16": False}, True), ({"bf16": True}, False), ({"fp16": True}, True)]
)
def test_the_launchers_fp16_counts_where_the_arguments_leave_it_open(
    tmp_path: Path, recipe: Mapping[str, Any], refused: bool
) -> None:
    accelerate = {"distributed_type": "MULTI_GPU", "num_processes": 4, "mixed_precision": "fp16"}
    if recipe.get("fp16"):
        accelerate["mixed_precision"] = "no"
    assert said(launch(tmp_path, *LAUNCH, recipe=recipe, accelerate=accelerate))[1] == ["fp16"] * refused


def test_what_is_named_and_not_there_is_not_known(tmp_path: Path) -> None:
    file = launch(tmp_path, *LAUNCH)
    assert said(file, world_size=4)[:2] == ("unknown", ["deepspeed_engine?"])
    file = launch(tmp_path, *LAUNCH, accelerate={"num_processes": 4})
    (tmp_path / "train.py").unlink()
    assert said(file)[:2] == ("unknown", ["trainer?"])


@pytest.mark.parametrize(
    ("script", "verdict", "names"),
    [
        ("plain", "enforced", []),
        ("added_metrics", "enforced", []),
        ("own_trainer", "unknown", ["trainer?"]),
        ("copied_trainer", "refused", ["trainer"]),
        ("with_tools", "enforced", []),
    ],
)
def test_a_script_says_which_trainer_it_builds(tmp_path: Path, script: str, verdict: str, names: list[str]) -> None:
    file = launch(tmp_path, script=script)
    assert said(file, world_size=1)[:2] == (verdict, names)


def test_a_command_is_recognised_by_its_recipe_and_one_that_tunes_on_texts_is_not(tmp_path: Path) -> None:
    file = launch(tmp_path)
    assert check(file, version="1.16.0", world_size=1).reading.framework == "trl"
    sft = {"model_name_or_path": "m", "learning_rate": 1e-5, "per_device_train_batch_size": 8, "num_train_epochs": 1}
    more = {"gradient_accumulation_steps": 2, "max_steps": 10, "per_device_eval_batch_size": 8, "packing": True}
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({**sft, **more}))
    assert [found.code for found in check(file, version="1.16.0", world_size=1).findings] == ["BB042"]


def test_a_script_that_cannot_be_read_or_builds_no_trainer_is_not_known(tmp_path: Path) -> None:
    file = launch(tmp_path)
    for text in (
        "def broken(:",
        "from mine import build\n\nbuild().train()\n",
        "from trl import GRPOTrainer\nimport unsloth\n\nGRPOTrainer().train()",
    ):
        (tmp_path / "train.py").write_text(text)
        assert said(file, world_size=1)[:2] == ("unknown", ["trainer?"]), text


TRAINS = "\n\n{}('model', len, args=None).train()\n"
OTHERS: Mapping[str, tuple[str, str, list[str]]] = {
    "a subclass of any name": (
        "import trl\n\nclass Mine(trl.GRPOTrainer):\n    def _compute_loss(self, model, inputs):\n        return 0\n",
        "Mine",
        ["trainer?"],
    ),
    "one of any name that adds to TRL's": (
        "import trl\n\nclass Mine(trl.GRPOTrainer):\n    def log(self, logs):\n        pass\n",
        "Mine",
        [],
    ),
    "a subclass with a mixin": (
        "import trl\n\nclass Mixin:\n    pass\n\nclass Mine(Mixin, trl.GRPOTrainer):\n    pass\n",
        "Mine",
        ["trainer?"],
    ),
    "a subclass's subclass": (
        "import trl\n\nclass Base(trl.GRPOTrainer):\n    training_step = None\n\nclass Mine(Base):\n    pass\n",
        "Mine",
        ["trainer?"],
    ),
    "a method of the class": ("import trl\n\ntrl.GRPOTrainer._compute_loss = len\n", "trl.GRPOTrainer", ["trainer?"]),
    "a method of the trainer": (
        "import trl\n\nbuilt = trl.GRPOTrainer('m', [len])\nbuilt.compute_loss = len",
        "len",
        ["trainer?"],
    ),
    "a data collator": (
        "import trl\n\nbuilt = trl.GRPOTrainer('m', [len])\nbuilt.data_collator = len",
        "len",
        ["trainer?"],
    ),
    "another method of the trainer": (
        "import trl\n\nbuilt = trl.GRPOTrainer('m', [len])\nbuilt.log = len\nbuilt.train()",
        "len",
        [],
    ),
    "an experimental one of that name": (
        "from trl.experimental.gspo_token import GRPOTrainer\n",
        "GRPOTrainer",
        ["trainer?"],
    ),
    "the experimental one of another loop": (
        "from trl.experimental.async_grpo import AsyncGRPOTrainer\n",
        "AsyncGRPOTrainer",
        ["trainer"],
    ),
    "a streamed dataset": (
        "import trl\nfrom datasets import load_dataset\n\nrows = load_dataset('rows', streaming=True)\n",
        "trl.GRPOTrainer",
        ["iterable_dataset?"],
    ),
    "one that is not": (
        "import trl\nfrom datasets import load_dataset\n\nrows = load_dataset('rows', streaming=False)\n",
        "trl.GRPOTrainer",
        [],
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_what_a_script_makes_of_trls_trainer_is_read(tmp_path: Path, what: str) -> None:
    text, built, names = OTHERS[what]
    file = launch(tmp_path)
    (tmp_path / "train.py").write_text(text + TRAINS.format(built))
    verdict = "enforced" if not names else "refused" if names == ["trainer"] else "unknown"
    assert said(file, world_size=1)[:2] == (verdict, names)


@pytest.mark.parametrize("optim", ["adalomo", "lomo", "galore_adamw_layerwise", "adamw_torch"])
def test_an_optimizer_that_updates_inside_of_backward_is_told(tmp_path: Path, optim: str) -> None:
    file = launch(tmp_path, recipe={"optim": optim})
    assert said(file, world_size=1)[1] == ["updates_in_backward"] * (optim != "adamw_torch")


MODELS: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...], list[str]]] = {
    "text": ({"model_type": "qwen2", "rope_theta": 1e6}, (), []),
    "images": ({"model_type": "qwen2_vl", "vision_config": {}, "rope_theta": 1e6}, (), []),
    "a processor": ({"model_type": "qwen2", "rope_theta": 1e6}, ("processor_config.json",), []),
    "positions": ({"model_type": "gpt2"}, (), ["absolute_positions"]),
    "experts": ({"model_type": "qwen3_moe", "rope_theta": 1e6, "num_experts": 8}, (), ["router_loss?"]),
    "strange": ({"model_type": "mine"}, (), ["absolute_positions?"]),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_models_own_files_say_what_it_is(tmp_path: Path, name: str) -> None:
    config, files, names = MODELS[name]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(dict(config)))
    for file in files:
        (tmp_path / "model" / file).write_text("{}")
    file = launch(tmp_path, recipe={"model_name_or_path": str(tmp_path / "model")})
    assert said(file, world_size=1)[1] == names
    if name in ("images", "a processor"):
        assert said(file, world_size=1, version="1.15.0")[1] == ["images"]
        assumes = check(file, version="1.16.0", world_size=1).enforcement.assumes
        assert any(one.startswith("no tools beside images") for one in assumes)


@pytest.mark.parametrize(
    ("name", "images", "positions"),
    [
        ("Qwen/Qwen2.5-7B-Instruct", False, False),
        ("models/Qwen2.5-Math-7B", False, False),
        ("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", False, False),
        ("HuggingFaceTB/SmolLM2-135M", False, False),
        ("Qwen/Qwen2.5-VL-3B-Instruct", True, None),
        ("mine/Qwen2.5-7B-vision", None, None),
        ("Qwen/Qwen3-30B-A3B", None, None),
        ("openai-community/gpt2", False, True),
        ("mine/sft", None, None),
        ("$MODEL", None, None),
        (None, False, False),  # nobody names it: `ASSUMED`
    ],
)
def test_published_names_are_known_and_others_are_not(
    name: str | None, images: bool | None, positions: bool | None
) -> None:
    from batchbridge.kit.model_files import model_of

    assert model_of(name)[:2] == (images, positions)
