"""SkyRL's own launch scripts and functions, as they were recorded.

`launch_scripts.json`: for each script its digest, its program, and the settings with a kind that it gives: place in
`keys`, the word, and the value of SkyRL's own loader where that is spelled otherwise. All settings of every script were
compared when it was recorded; the rest are paths, names and settings of engines. `vectors.json`: the results of SkyRL's
functions on a CPU, with the digests of their code.
"""

from __future__ import annotations

import json
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from batchbridge import Source
from batchbridge.kit import Advantage, Context, LossTerm, Row, group_advantages, parse_arguments, token_weights
from batchbridge_skyrl.config import SkyRLAdapter
from batchbridge_skyrl.settings import OUTSIDE

SCRIPTS: dict[str, Any] = json.loads(Path(__file__).with_name("launch_scripts.json").read_text(encoding="utf-8"))
VECTORS: dict[str, Any] = json.loads(Path(__file__).with_name("vectors.json").read_text(encoding="utf-8"))
CONTEXT = Context(framework_version="0.3.0")
READ = [script for script in SCRIPTS["scripts"] if "rows" in script]
REFUSED = [script for script in SCRIPTS["scripts"] if "refused" in script]
DEFAULTS = {
    "trainer.placement.policy_num_gpus_per_node": 2,
    "trainer.placement.ref_num_gpus_per_node": 2,
    "generator.inference_engine.num_engines": 2,
}


def _command(words: list[str]) -> Source:
    return Source(values=parse_arguments(words), argv=tuple(words))


@pytest.mark.parametrize("script", READ, ids=[script["path"] for script in READ])
def test_a_launch_script_is_read_as_skyrls_loader_reads_it(script: dict[str, Any]) -> None:
    said = {SCRIPTS["keys"][row[0]]: row[1:] for row in script["rows"]}
    reading = SkyRLAdapter().read(
        _command([script["program"], *(f"{key}={row[0]}" for key, row in said.items())]), CONTEXT
    )
    theirs = {key: row[1] if len(row) > 1 else json.loads(row[0]) for key, row in said.items()}
    assert {key: reading.native[key] for key in theirs} == theirs
    assert [found.message for found in reading.findings if found.severity == "error"] == []


@pytest.mark.parametrize("script", REFUSED, ids=[script["path"] for script in REFUSED])
def test_a_setting_that_skyrls_loader_refuses_is_no_setting(script: dict[str, Any]) -> None:
    words = [script["program"], *(f"{key}=1" for key in script["refused"])]
    found = SkyRLAdapter().read(_command(words), CONTEXT).findings
    assert sorted(one.where[0].key or "" for one in found if one.code == "BB-SKYRL-004") == script["refused"]


def test_every_script_was_compared_and_none_differed() -> None:
    assert SCRIPTS["compared"]["differences"] == 0
    assert len(READ) == SCRIPTS["compared"]["scripts"]


def _rule(case: str, group: int) -> Advantage:
    settings: dict[str, Any] = {"trainer.algorithm.advantage_estimator": case.partition(",")[0].partition(" ")[0]}
    if "without" in case or "one" in case:
        settings["trainer.algorithm.grpo_norm_by_std"] = False
    values = {**DEFAULTS, **settings, "generator.n_samples_per_prompt": group}
    spec = SkyRLAdapter().read(Source(values=values), CONTEXT).spec
    assert spec is not None
    return spec.advantage


@pytest.mark.parametrize("vector", VECTORS["advantages"][:4], ids=lambda vector: vector["case"])
def test_advantages_are_what_skyrls_functions_give(vector: dict[str, Any]) -> None:
    rule = _rule(vector["case"], len(vector["rewards"][0]))
    ours = [value for group in group_advantages(vector["rewards"], rule) for value in group]
    # SkyRL takes mean and deviation of a group in float32.
    assert ours == pytest.approx(vector["advantages"], abs=2e-6)


def test_maxrl_is_no_advantage_that_the_schema_says() -> None:
    (vector,) = (one for one in VECTORS["advantages"] if one["case"] == "maxrl")
    ours = [value for group in group_advantages(vector["rewards"], _rule("maxrl", 4)) for value in group]
    assert ours != pytest.approx(vector["advantages"], abs=1e-3)


@pytest.mark.parametrize("vector", VECTORS["weights"], ids=lambda vector: vector["loss_reduction"])
def test_token_weights_are_what_skyrl_multiplies_advantages_with(vector: dict[str, Any]) -> None:
    values = {
        **DEFAULTS,
        "trainer.algorithm.loss_reduction": vector["loss_reduction"],
        "trainer.algorithm.max_seq_len": vector["max_seq_len"],
    }
    spec = SkyRLAdapter().read(Source(values=values), CONTEXT).spec
    assert spec is not None
    rows = [
        Row(tokens=tokens, group=place // vector["group"], micro_batch=place // vector["micro_batch"])
        for place, tokens in enumerate(vector["tokens"])
    ]
    ours = token_weights(spec.loss.policy, rows)
    assert [float(weight) for weight in ours] == pytest.approx(vector["weights"], rel=1e-12)
    assert token_weights(LossTerm(aggregation="sequence_sum"), rows) != ours  # a control


@pytest.mark.parametrize("vector", VECTORS["kl"], ids=lambda vector: vector["kl_estimator_type"])
def test_kl_has_the_clamps_that_skyrl_has(vector: dict[str, Any]) -> None:
    values = {**DEFAULTS, "trainer.algorithm.kl_estimator_type": vector["kl_estimator_type"]}
    spec = SkyRLAdapter().read(Source(values=values), CONTEXT).spec
    assert spec is not None
    name, inner, outer = (getattr(spec.objective, f"kl_{field}") for field in ("estimator", "log_ratio_clamp", "clamp"))
    assert name == vector["kl_estimator_type"]
    for ratio, value, gradient in zip(vector["log_ratios"], vector["values"], vector["gradients"], strict=True):
        inside = inner is None or abs(ratio) < inner
        assert value <= (outer or 1e9)
        if outer is not None and (not inside or value >= outer):
            assert gradient == 0.0  # a bound that is reached has no gradient


def test_a_replaced_group_ends_the_run() -> None:
    assert [outcome for _, outcome in VECTORS["replace"]] == ["AssertionError", "AssertionError", "runs"]


@pytest.mark.parametrize(
    ("key", "what"),
    [
        ("trainer.policy.model.path", "the model"),
        ("trainer.policy.model.lora.rank", "the model"),
        ("data.train_data", "the prompts"),
        ("environment.env_class", "the rewards"),
        ("generator.sampling_params.stop", "what is sampled"),
        ("generator.sampling_params.logprobs", ""),
    ],
)
def test_what_no_field_says_and_yet_changes_what_is_trained_is_told(key: str, what: str) -> None:
    assert SkyRLAdapter().decides(key) == what


def test_every_pattern_of_what_lies_outside_the_schema_names_a_setting() -> None:
    known = SkyRLAdapter().read(Source(), Context(framework_version="0.3.0", world_size=1)).native
    assert [one for one in OUTSIDE if not any(fnmatch(key, one) for key in known)] == []


# ---- 0.4.0. Each case was tried with its own SkyRLTrainConfig and compute_policy_loss_cispo, from the wheel on a CPU.

CISPO = {**DEFAULTS, "trainer.algorithm.policy_loss_type": "cispo"}
ANCHOR = {"trainer.algorithm.cispo.cispo_anchor": "rollout"}
RATIO = "trainer.algorithm.off_policy_correction.tis_ratio_type"
CAPTURED = {"generator.inference_engine.enable_return_sample_support_set": True}
LIMITED = {**CAPTURED, "generator.sampling_params.top_k": 20}
REPLAYED = {"trainer.algorithm.enable_sample_support_replay": True}


def _read(values: dict[str, Any], version: str = "0.4.0") -> Any:
    return SkyRLAdapter().read(Source(values=values), Context(framework_version=version))


@pytest.mark.parametrize(("version", "clips"), [("0.3.0", (0.0, 5.0)), ("0.3.1", (0.0, 5.0)), ("0.4.0", (1.0, 4.0))])
def test_cispo_has_the_bounds_of_its_release(version: str, clips: tuple[float, float]) -> None:
    objective = _read(CISPO, version).spec.objective
    assert (objective.clip_low, objective.clip_high, objective.old_logprobs) == (*clips, "rollout_start")


def test_cispos_anchor_is_a_setting_from_0_4_0_on() -> None:
    assert _read({**CISPO, **ANCHOR}).spec.objective.old_logprobs == "sampler"
    assert _read({**DEFAULTS, **ANCHOR}).spec.objective.old_logprobs == "rollout_start"
    assert [one.code for one in _read({**CISPO, **ANCHOR}, "0.3.0").findings if one.severity == "error"] == [
        "BB-SKYRL-004"
    ]


@pytest.mark.parametrize(
    ("values", "code"),
    [
        ({**CISPO, **ANCHOR, RATIO: "token"}, "BB-SKYRL-029"),
        ({**CISPO, RATIO: "token"}, None),
        ({**DEFAULTS, **CAPTURED}, "BB-SKYRL-030"),
        ({**DEFAULTS, **LIMITED}, None),
        ({**DEFAULTS, **LIMITED, "generator.sampling_params.repetition_penalty": 1.1}, "BB-SKYRL-030"),
        ({**DEFAULTS, **REPLAYED}, "BB-SKYRL-031"),
        ({**DEFAULTS, **LIMITED, **REPLAYED}, None),
        ({**DEFAULTS, **LIMITED, **REPLAYED, "generator.use_conversation_multi_turn": False}, "BB-SKYRL-031"),
        ({**DEFAULTS, **LIMITED, RATIO: "token"}, "BB-SKYRL-047"),
        ({**CISPO, **ANCHOR, **LIMITED}, "BB-SKYRL-047"),
        ({**DEFAULTS, **LIMITED, RATIO: "sequence"}, "BB-SKYRL-048"),
        ({**DEFAULTS, **LIMITED, **REPLAYED, RATIO: "sequence"}, None),
        ({**DEFAULTS, "generator.sampling_params.top_p": 0.9, RATIO: "sequence"}, None),  # raw log-probabilities
    ],
)
def test_what_0_4_0_refuses_and_scales(values: dict[str, Any], code: str | None) -> None:
    later = {f"BB-SKYRL-{number:03}" for number in (29, 30, 31, 47, 48)}
    assert sorted(later & {one.code for one in SkyRLAdapter().check(_read(values))}) == [code] * (code is not None)
