"""Open-R1's published recipes: which world sizes they fit, and what newer TRL refuses in them."""

from __future__ import annotations

from pathlib import Path

import pytest

import batchbridge
from batchbridge.contract.reading import Context
from batchbridge.reading.files import load_source
from batchbridge_open_r1.config import OpenR1Adapter
from batchbridge_trl.config import TrlAdapter

PUBLISHED = {"torch_dtype": "bfloat16", "overwrite_output_dir": True, "max_prompt_length": 512, "warmup_ratio": 0.1}
"""Keys of all five recipes that TRL 1.16 with transformers 5.23 no longer takes."""
RECIPES = {
    "distill": {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "num_generations": 16},
    "qwen": {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "num_generations": 16},
    "code": {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "num_generations": 14},
    "ioi": {"per_device_train_batch_size": 16, "gradient_accumulation_steps": 4, "num_generations": 14},
    "codeforces": {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 32, "num_generations": 16},
}
"""Batch settings of huggingface/open-r1 recipes/*/grpo/*.yaml at 8d139cb."""
OWN = {"dataset_prompt_column": "problem", "reward_funcs": ["accuracy"], "system_prompt": "You think."}
WORLDS = range(1, 65)


def findings(values, world, *, version="1.16.0"):
    adapter = OpenR1Adapter()
    reading = adapter.read(load_source(values), Context(framework_version=version, world_size=world))
    return reading, [*reading.findings, *adapter.check(reading)]


def fits(values, world, *, version="1.16.0"):
    """Whether the batch rules hold, unknown keys aside."""
    found = findings(values, world, version=version)[1]
    return not any(finding.severity == "error" and finding.code != "BB-TRL-003" for finding in found)


@pytest.mark.parametrize("name", ["distill", "qwen", "codeforces"])
def test_recipes_with_16_generations_fit_every_world_size(name):
    assert [world for world in WORLDS if not fits({**RECIPES[name], **OWN}, world)] == []


@pytest.mark.parametrize("name", ["code", "ioi"])
def test_recipes_with_14_generations_fit_multiples_of_seven_devices_only(name):
    assert [world for world in WORLDS if fits({**RECIPES[name], **OWN}, world)] == list(range(7, 64, 7))


@pytest.mark.parametrize(
    ("name", "world", "prompts"), [("distill", 8, 32), ("distill", 7, 28), ("code", 7, 32), ("codeforces", 8, 64)]
)
def test_prompts_per_rollout_of_the_published_layouts(name, world, prompts):
    assert findings(RECIPES[name], world)[0].spec.rollout.prompts_per_rollout == prompts


def test_keys_that_trl_has_dropped_are_findings_and_the_batch_is_still_read():
    reading, found = findings({**RECIPES["qwen"], **OWN, **PUBLISHED}, 8)
    assert sorted(f.where[0].key for f in found if f.code == "BB-TRL-003") == sorted(PUBLISHED)
    assert reading.spec.rollout.prompts_per_rollout == 32
    assert reading.verdict == "invalid"


def test_a_trl_that_is_not_known_fails_closed():
    reading = OpenR1Adapter().read(load_source(RECIPES["qwen"]), Context(framework_version="0.13.0", world_size=8))
    assert [finding.code for finding in reading.findings] == ["BB-TRL-002"]


def test_published_recipes_are_read_as_they_are_under_the_pinned_trl_0_18():
    reading, found = findings({**RECIPES["qwen"], **OWN, **PUBLISHED}, 8, version="0.18.0")
    assert [finding.code for finding in found if finding.severity == "error"] == []
    assert reading.spec.loss.policy.aggregation == "token_mean"
    assert reading.native["loss_type"] == "bnpo"
    assert (reading.spec.carried.max_prompt_tokens, reading.spec.carried.warmup_ratio) == (512, 0.1)


@pytest.mark.parametrize("version", ["0.15.2", "0.16.1"])
def test_before_0_17_the_code_recipes_need_whole_groups_in_every_micro_batch(version):
    fitting = [world for world in WORLDS if fits({**RECIPES["code"], **OWN}, world, version=version)]
    assert fitting == list(range(7, 64, 7))
    assert not fits({**RECIPES["codeforces"], **OWN}, 2, version=version)
    assert fits({**RECIPES["codeforces"], **OWN}, 4, version=version)


def test_the_reading_says_that_it_is_open_r1s():
    assert findings(RECIPES["qwen"], 8)[0].framework == "open_r1"


def test_a_recipe_is_detected_by_the_keys_that_only_open_r1_has():
    recipe, plain = load_source({**RECIPES["qwen"], **OWN}), load_source(RECIPES["qwen"])
    assert OpenR1Adapter().detect(recipe) > TrlAdapter().detect(recipe)
    assert OpenR1Adapter().detect(plain) < TrlAdapter().detect(plain)


def test_the_world_size_comes_from_the_accelerate_configs_of_the_recipes_folder(tmp_path):
    beside = tmp_path / "recipes" / "accelerate_configs" / "zero2.yaml"
    recipe = tmp_path / "recipes" / "model" / "grpo" / "config_demo.yaml"
    for path, text in (
        (beside, "num_processes: 8\n"),
        (recipe, "num_generations: 16\ngradient_accumulation_steps: 2\n"),
    ):
        path.parent.mkdir(parents=True)
        path.write_text(text)
    reading = OpenR1Adapter().read(load_source(recipe), Context(framework_version="1.16.0"))
    assert reading.spec.topology.world_size == 8


@pytest.mark.parametrize(("launched", "verdict"), [(None, "undecided"), (8, "invalid"), (7, "valid")])
def test_an_error_with_a_guessed_world_size_is_none_yet(tmp_path, launched, verdict):
    for path, text in (
        (tmp_path / "accelerate_configs" / "ddp.yaml", "num_processes: 8\n"),
        (
            tmp_path / "demo.yaml",
            "num_generations: 14\nper_device_train_batch_size: 16\ndataset_prompt_column: problem\n",
        ),
    ):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    found = batchbridge.check(tmp_path / "demo.yaml", version="0.18.0", world_size=launched)
    assert found.verdict == verdict
    if launched is None:
        assert ", a guess from " in str(found).splitlines()[0]
        assert found.findings[0].message.startswith("with a guess, num_processes = 8 (")
        assert any("num_processes = 7" in fix.text for fix in found.findings[0].fixes)
        assert batchbridge.check(tmp_path / "demo.yaml", version="0.18.0", world_size=7).verdict == "valid"


SHARED = Path(__file__).resolve().parents[4] / "shared" / "corpus" / "configs" / "open-r1"


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the published recipes are not part of this repository")
def test_the_published_files_themselves_fit_as_their_batch_settings_say():
    worlds = {
        path.stem + path.parent.parent.name: [world for world in WORLDS if fits(path, world)]
        for path in sorted(SHARED.glob("*/grpo/*.yaml"))
    }
    everywhere, sevens = list(WORLDS), list(range(7, 64, 7))
    assert list(worlds.values()) == [everywhere, everywhere, sevens, sevens, everywhere]


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the published recipes are not part of this repository")
def test_the_published_files_are_valid_under_their_own_trl_but_for_a_key_that_trl_had_dropped():
    errors = {}
    for path in sorted(SHARED.glob("*/grpo/*.yaml")):
        found = findings(path, 7, version="0.18.0")[1]
        errors[path.stem] = [
            (f.code, f.where[0].key) for f in found if f.severity == "error" or "drops it" in f.message
        ]
    assert {name: wrong for name, wrong in errors.items() if wrong} == {
        "config_codeforces": [("BB-TRL-003", "vllm_device")]
    }


def test_a_conversion_to_trl_is_offered_no_setting_that_open_r1_alone_has() -> None:
    trl, open_r1 = TrlAdapter().shared_settings(), OpenR1Adapter().shared_settings()
    assert {"wandb_project", "dataset_prompt_column"} <= open_r1.keys() - trl.keys()
    assert trl.keys() < open_r1.keys()
    assert {"project", "model_name_or_path"} <= trl.keys()
