"""What `convert` writes for TRL starts: TrlParser takes the file, GRPOConfig its values, and says what was meant."""

from __future__ import annotations

from pathlib import Path

import pytest
import trl
from trl import GRPOConfig
from trl.scripts.grpo import make_parser

from batchbridge_on_cpu.converted import converted

WRITTEN = converted("trl", trl.__version__)
WITHOUT_A_GPU = ("--bf16", "False", "--use_cpu", "True")
SIZES = (
    "num_generations",
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "generation_batch_size",
    "seed",
)


@pytest.mark.parametrize("name", WRITTEN)
def test_trls_parser_takes_a_converted_recipe(name: str, tmp_path: Path) -> None:
    written = WRITTEN[name]
    file = tmp_path / "recipe.yaml"
    file.write_text(written.text["yaml"].replace('reward_funcs: ["<REWARDS>"]\n', ""), encoding="utf-8")
    parsed = make_parser().parse_args_and_config(["--config", str(file), *WITHOUT_A_GPU])
    (config,) = (one for one in parsed if isinstance(one, GRPOConfig))
    said = {key: value for key, value in written.values.items() if key in SIZES}
    assert {key: getattr(config, key) for key in said} == said
    assert config.use_vllm is bool(written.values.get("use_vllm", "use_vllm: true" in written.text["yaml"]))


def test_a_source_that_generates_with_vllm_becomes_a_run_that_does() -> None:
    for name, written in WRITTEN.items():
        if name.startswith("verl"):
            assert 'use_vllm: true\nvllm_mode: "colocate"\n' in written.text["yaml"], name


def test_every_framework_gives_recipes() -> None:
    assert {name.partition(",")[0] for name in WRITTEN} == {"verl", "easyr1", "openrlhf", "open_instruct"}
