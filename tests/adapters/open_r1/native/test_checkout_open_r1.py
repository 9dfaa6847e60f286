"""Open-R1's own recipes and script, from the checkout that BATCHBRIDGE_OPEN_R1 names, at the releases that its setup.py
pins: read, and trained on two ranks. `nox -s open_r1` runs this; see docs/trl.md."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

import pytest
from launching import prepare, started, steps_followed

import batchbridge

NAMED = os.environ.get("BATCHBRIDGE_OPEN_R1")
pytestmark = pytest.mark.skipif(NAMED is None, reason="BATCHBRIDGE_OPEN_R1 names no checkout of Open-R1")
ACCELERATE = ("ddp", "fsdp", "zero2", "zero3")


class Recipe(NamedTuple):
    """How the README launches a recipe: its Accelerate file, processes and words; and what is replaced for two CPU
    ranks, beside `launching.REPLACED`: rewards that need a sandbox, and for groups of 14 the micro-batch."""

    file: str
    processes: int
    words: tuple[str, ...] = ()
    replaced: dict[str, str] = {}  # noqa: RUF012  # a NamedTuple's default, never changed
    column: str = "problem"


GRPO = {
    "DeepSeek-R1-Distill-Qwen-1.5B/grpo/config_demo.yaml": Recipe("zero3", 8, ("--vllm_mode", "colocate")),
    "Qwen2.5-1.5B-Instruct/grpo/config_demo.yaml": Recipe("zero2", 8),
    "Qwen2.5-1.5B-Instruct/grpo/config_demo_code.yaml": Recipe(
        "zero2",
        7,
        replaced={"reward_funcs": "tag_count format", "per_device_train_batch_size": "14", "max_steps": "2"},
        column="problem_statement",
    ),
    "Qwen2.5-1.5B-Instruct/grpo/config_demo_code_ioi.yaml": Recipe(
        "zero2",
        7,
        replaced={
            "reward_funcs": "tag_count code_format format",
            "per_device_train_batch_size": "14",
            "max_steps": "2",
        },
    ),
    "Qwen2.5-Coder-7B-Instruct/grpo/config_codeforces.yaml": Recipe(
        "zero3",
        8,
        replaced={"reward_funcs": "tag_count code_format", "num_train_epochs": "1", "dataset_config": "default"},
        column="prompt",
    ),
}
GONE = ("Qwen2.5-Coder-7B-Instruct/grpo/config_codeforces.yaml", "vllm_device")
"""A recipe with a key that the pinned TRL has not: neither it nor we start that one."""


@pytest.fixture(scope="module")
def checkout() -> Path:
    return Path(str(NAMED)).absolute()


@pytest.fixture
def _there(checkout: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)


def launch(script: str, file: str, recipe: str, *words: str, processes: int = 8) -> list[str]:
    launcher = ["accelerate", "launch", "--config_file", f"recipes/accelerate_configs/{file}.yaml"]
    launcher += [f"--num_processes={processes}"] if processes != 8 else []
    return [*launcher, f"src/open_r1/{script}.py", "--config", f"recipes/{recipe}", *words]


@pytest.mark.usefixtures("_there")
def test_every_recipe_of_the_checkout_is_here(checkout: Path) -> None:
    assert {path.relative_to("recipes").as_posix() for path in Path("recipes").glob("*/grpo/*.yaml")} == set(GRPO)


@pytest.mark.usefixtures("_there")
@pytest.mark.parametrize("file", ACCELERATE)
@pytest.mark.parametrize("name", GRPO)
def test_a_recipe_is_read_with_the_accelerate_file_that_it_is_launched_with(name: str, file: str) -> None:
    recipe = GRPO[name]
    reading = batchbridge.read(launch("grpo", file, name, *recipe.words, processes=recipe.processes))
    errors = [(found.code, found.where[0].key) for found in reading.findings if found.severity == "error"]
    assert errors == ([("BB-TRL-003", GONE[1])] if name == GONE[0] else [])
    assert reading.spec is not None
    assert (reading.framework, reading.spec.topology.world_size) == ("open_r1", recipe.processes)


@pytest.mark.usefixtures("_there")
@pytest.mark.parametrize("file", ACCELERATE)
def test_recipes_of_supervised_fine_tuning_are_recognised_and_not_judged(file: str) -> None:
    names = [path.relative_to("recipes").as_posix() for path in sorted(Path("recipes").glob("*/sft/*.yaml"))]
    assert len(names) == 3
    for name in names:
        for source in (launch("sft", file, name), f"recipes/{name}"):
            (finding,) = batchbridge.read(source).findings
            assert (finding.code, finding.undecided) == ("BB-TRL-081", True)


@pytest.mark.parametrize("file", ["zero2", "zero3"])
@pytest.mark.parametrize("name", GRPO)
def test_a_recipe_trains_on_two_ranks_and_follows(checkout: Path, tmp_path: Path, name: str, file: str) -> None:
    recipe = GRPO[name]
    prepare(tmp_path, recipe.column)
    own = f"recipes/{name}"
    if name == GONE[0]:
        ran = started(checkout, tmp_path, f"recipes/accelerate_configs/{file}.yaml", own, **recipe.replaced)
        assert ran.returncode == 2
        assert f"{GONE[1]} is gone since trl 0.18.0" in ran.stderr
        kept = [line for line in (checkout / own).read_text().splitlines() if not line.startswith(GONE[1])]
        own = str(tmp_path / "config.yaml")
        Path(own).write_text("\n".join(kept))
    ran = started(checkout, tmp_path, f"recipes/accelerate_configs/{file}.yaml", own, **recipe.replaced)
    assert steps_followed(tmp_path, ran) > 0
    assert f"ZeRO stage {file[-1]} optimizer" in ran.stdout + ran.stderr, "DeepSpeed's engine trained it, not DDP"
