"""Every status on real pairs: where it must appear, and what the written configuration then does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from registered import adapters
from test_diff_versions import DOTTED, EASYR1, TRL, VERL

from batchbridge.comparing.convert import Conversion, FieldReport, convert_to
from batchbridge.comparing.diff_sources import diff
from batchbridge.contract.reading import Context, Reading, Source
from batchbridge.reading.read import read_source

VERSIONS = {
    "trl": "1.16.0",
    "open_r1": "1.16.0",
    "verl": "0.9.1",
    "easyr1": "0.3.3.dev0",
    "openrlhf": "0.11.2",
    "open_instruct": "2026.8.20",
}
RUNS: Mapping[str, Mapping[str, Any]] = {
    "trl": {**TRL, "gradient_accumulation_steps": 1},
    "open_r1": {**TRL, "gradient_accumulation_steps": 1},
    "verl": VERL,
    "easyr1": EASYR1,
    "openrlhf": DOTTED,
    "open_instruct": {
        "num_unique_prompts_rollout": 64,
        "num_samples_per_prompt_rollout": 8,
        "num_learners_per_node": [8],
    },
}


def read(framework: str, version: str | None = None, prompts: int = 5120, **changes: Any) -> Reading:
    values = {**RUNS[framework], **changes}
    context = Context(framework_version=version or VERSIONS[framework], world_size=8, dataset_size=prompts)
    reading = read_source(Source(values=values), adapters()[framework], context)
    assert reading.verdict == "valid", [found.message for found in reading.findings if found.severity == "error"]
    return reading


def converted(source: Reading, to: str, version: str | None = None) -> Conversion:
    found = convert_to(adapters()[to], source, version=version or VERSIONS[to])
    assert found.written is not None, found.refused
    assert found.back is not None
    assert found.back.verdict == "valid"
    return found


def report(found: Conversion, path: str) -> FieldReport:
    (field,) = (field for field in found.fields if field.field == path)
    return field


def read_again(found: Conversion, path: str) -> Any:
    """The field's value in what B's adapter reads of the written settings, read once more and from nothing else."""
    assert found.written is not None
    context = Context(framework_version=found.framework_version, world_size=8, dataset_size=5120)
    value: Any = read_source(Source(values=found.written.values), adapters()[found.framework], context).spec
    for name in path.split("."):
        value = getattr(value, name)
    return value


@pytest.mark.parametrize(
    ("one", "other", "path", "value"),
    [
        ("trl", "verl", "optimizer_step.completions_per_step", 64),
        ("verl", "easyr1", "rollout.prompts_per_rollout", 64),
        ("easyr1", "openrlhf", "optimizer_step.completions_per_step", 640),
        ("openrlhf", "trl", "rollout.completions_per_prompt", 8),
        ("open_instruct", "verl", "rollout.completions_per_prompt", 8),
    ],
)
def test_exact_is_the_same_value(one: str, other: str, path: str, value: object) -> None:
    found = converted(read(one), other)
    field = report(found, path)
    assert (field.status, field.source, field.target) == ("exact", value, value)
    assert read_again(found, path) == value


@pytest.mark.parametrize(
    ("one", "other", "path"),
    [
        ("trl", "verl", "optimizer_step.step_may_span"),
        ("trl", "easyr1", "horizon.lr_tick"),
        ("verl", "easyr1", "order.last_optimizer_step"),
        ("open_r1", "openrlhf", "order.last_rollout"),
    ],
)
def test_equivalent_is_another_value_that_diff_finds_no_difference_in(one: str, other: str, path: str) -> None:
    source = read(one)
    found = converted(source, other)
    field = report(found, path)
    assert (field.status, field.source != field.target) == ("equivalent", True)
    assert read_again(found, path) == field.target
    assert found.back is not None
    assert path not in [difference.field for difference in diff(source, found.back).differences]


@pytest.mark.parametrize(
    ("one", "other", "version", "path", "wanted", "configured"),
    [
        ("openrlhf", "trl", "1.16.0", "advantage.epsilon", 1e-9, 1e-4),
        ("verl", "trl", "1.16.0", "horizon.lr_tick", "rollout", "optimizer_step"),
        ("trl", "verl", "0.9.1", "objective.dual_clip", None, 3.0),
        ("openrlhf", "verl", "0.9.1", "advantage.epsilon", 1e-9, 1e-6),
        ("trl", "openrlhf", "0.11.2", "order.seed", 42, None),
        ("trl", "easyr1", "0.3.3.dev0", "advantage.epsilon", 1e-4, 1e-6),
        ("openrlhf", "easyr1", "0.3.2", "advantage.epsilon", 1e-9, 1e-6),
        ("trl", "open_instruct", "2026.8.20", "staleness.mode", "sync", "bounded"),
    ],
)
def test_patched_is_what_the_configuration_does_not_say_and_a_wrapped_run_does(
    one: str, other: str, version: str, path: str, wanted: object, configured: object
) -> None:
    found = converted(read(one), other, version)
    field = report(found, path)
    assert (field.status, field.source, field.target) == ("patched", wanted, configured)
    assert read_again(found, path) == configured
    assert adapters()[other].enforces(path, wanted)


def test_a_critic_s_advantages_are_never_patched() -> None:
    """OpenRLHF whitens with ddof 0 where verl has 1: `wrap` refuses to change that (`batch_scale`), and a conversion
    must not promise it. Group advantages of another ddof it writes itself."""
    sizes = {"data.train_batch_size": 64, "actor_rollout_ref.actor.ppo_mini_batch_size": 64}
    critics = {"algorithm.adv_estimator": "gae", "critic.ppo_micro_batch_size_per_gpu": 4}
    found = converted(read("verl", **sizes, **critics, **{"actor_rollout_ref.rollout.n": 4}), "openrlhf")
    field = report(found, "advantage.ddof")
    assert (field.status, field.source, field.target) == ("approximate", 1, 0)
    assert adapters()["openrlhf"].enforces("advantage.ddof", 1)


def test_what_means_the_same_once_the_run_is_wrapped_is_patched_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropped remainders leave whole rollouts only, so that no step can span two; openrlhf alone keeps remainders."""
    found = converted(read("trl", prompts=5121), "openrlhf")
    field = report(found, "optimizer_step.step_may_span")
    assert report(found, "order.last_rollout").status == "patched"
    assert (field.status, field.source, field.target) == ("patched", "epoch", "run")
    assert "once wrapped it means the same" in field.reason
    monkeypatch.setattr(type(adapters()["openrlhf"]), "enforced_versions", "")
    without = converted(read("trl", prompts=5121), "openrlhf")
    assert report(without, "optimizer_step.step_may_span").status == "inexpressible"


@pytest.mark.parametrize(
    ("one", "other", "version"),
    [
        ("openrlhf", "trl", "0.17.0"),
        ("trl", "openrlhf", "0.10.3"),
        ("openrlhf", "verl", "0.6.0"),
    ],
)
def test_nothing_is_patched_where_no_run_is_wrapped(one: str, other: str, version: str) -> None:
    found = converted(read(one), other, version)
    assert "patched" not in {field.status for field in found.fields}


@pytest.mark.parametrize(
    ("one", "other", "version", "path", "factor"),
    [
        ("trl", "verl", "0.6.0", "advantage.epsilon", 1e-6 / 1e-4),  # no run of this release is wrapped
        ("openrlhf", "verl", "0.6.0", "advantage.epsilon", 1e-6 / 1e-9),
        ("openrlhf", "open_instruct", None, "carried.beta2", 0.999 / 0.95),
    ],
)
def test_approximate_is_another_number_with_its_factor(
    one: str, other: str, version: str | None, path: str, factor: float
) -> None:
    found = converted(read(one), other, version)
    field = report(found, path)
    assert field.status == "approximate"
    assert field.factor == pytest.approx(factor)
    assert read_again(found, path) == pytest.approx(field.source * factor)
    assert found.verdict == "lossy"


@pytest.mark.parametrize(
    ("one", "changes", "other", "path", "target"),
    [
        ("easyr1", {}, "open_r1", "objective.kl_placement", "loss"),
        ("trl", {"loss_type": "grpo"}, "open_instruct", "loss.policy.aggregation", "token_mean"),
        ("trl", {"loss_type": "cispo", "epsilon_high": 5.0}, "openrlhf", "objective.surrogate", "ppo"),
    ],
)
def test_inexpressible_is_another_meaning(
    one: str, changes: dict[str, Any], other: str, path: str, target: object
) -> None:
    found = converted(read(one, **changes), other)
    field = report(found, path)
    assert (field.status, field.target) == ("inexpressible", target)
    assert field.reason
    assert read_again(found, path) == target
    assert found.verdict == "lossy"


# ---- no seed


@pytest.mark.parametrize("other", ["trl", "open_r1", "verl", "easyr1", "open_instruct"])
def test_an_order_that_nothing_fixes_is_filled_by_a_seed_and_nothing_is_lost(other: str) -> None:
    field = report(converted(read("openrlhf"), other), "order.seed")
    assert (field.status, field.source) == ("filled", None)
    assert "openrlhf fixes nothing, and each launch has another" in field.reason
    assert isinstance(field.target, int)


def test_a_seed_that_the_target_has_no_setting_for_is_lost_with_the_reason() -> None:
    found = converted(read("trl"), "openrlhf", "0.9.8")
    field = report(found, "order.seed")
    assert (field.status, field.source, field.target) == ("inexpressible", 42, None)
    assert "each launch has another" in field.reason


def test_a_seed_against_none_is_a_difference_and_none_against_none_is_not() -> None:
    (seed,) = (d for d in diff(read("trl"), read("openrlhf")).differences if d.field == "order.seed")
    assert seed.reason == "openrlhf fixes nothing, and each launch has another"
    assert diff(read("openrlhf"), read("openrlhf")).verdict == "equivalent"


# ---- one wording for one meaning


FLOOR = 'cosine_with_min_lr {"min_lr_rate": 0.1}'
_VERL, _EASYR1 = "actor_rollout_ref.actor.optim.", "worker.actor.optim."
COSINE: Mapping[str, Mapping[str, Any]] = {
    "trl": {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr": 1e-7}, "learning_rate": 1e-6},
    "open_r1": {"lr_scheduler_type": "cosine_with_min_lr", "lr_scheduler_kwargs": {"min_lr_rate": 0.1}},
    "verl": {f"{_VERL}lr_scheduler_type": "cosine", f"{_VERL}min_lr_ratio": 0.1},
    "easyr1": {f"{_EASYR1}lr_scheduler_type": "cosine", f"{_EASYR1}min_lr_ratio": 0.1},
    "openrlhf": {"actor.lr_scheduler": "cosine_with_min_lr", "actor.min_lr_ratio": 0.1},
    "open_instruct": {"script": "grpo.py", "lr_scheduler_type": "cosine"},
}
CONSTANT: Mapping[str, Mapping[str, Any]] = {
    "trl": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.1},
    "open_r1": {"lr_scheduler_type": "constant_with_warmup", "warmup_steps": 0.1},
    "verl": {f"{_VERL}lr_scheduler_type": "constant", f"{_VERL}lr_warmup_steps_ratio": 0.1},
    "easyr1": {f"{_EASYR1}lr_scheduler_type": "constant", f"{_EASYR1}lr_warmup_ratio": 0.1},
    "openrlhf": {"actor.lr_scheduler": "constant_with_warmup", "actor.lr_warmup_ratio": 0.1},
    "open_instruct": {"script": "grpo_fast.py", "lr_scheduler_type": "constant_with_warmup", "warmup_ratio": 0.1},
}


@pytest.mark.parametrize(("settings", "text"), [(COSINE, FLOOR), (CONSTANT, "constant")], ids=["floor", "constant"])
def test_one_schedule_has_one_text_in_every_framework(settings: Mapping[str, Mapping[str, Any]], text: str) -> None:
    found = {name: read(name, **changes).spec for name, changes in settings.items()}
    assert {name: spec and spec.carried.lr_schedule for name, spec in found.items()} == dict.fromkeys(RUNS, text)
    if text == "constant":
        assert {name: spec and spec.carried.warmup_ratio for name, spec in found.items()} == dict.fromkeys(RUNS, 0.1)


@pytest.mark.parametrize("other", ["trl", "open_r1", "verl", "easyr1", "openrlhf"])
def test_a_floor_under_a_cosine_is_carried_to_every_framework_that_has_one(other: str) -> None:
    for one in COSINE:
        if one != other:
            found = converted(read(one, **COSINE[one]), other)
            assert (report(found, "carried.lr_schedule").status, one) == ("exact", one)
            assert read_again(found, "carried.lr_schedule") == FLOOR


def test_transformers_constant_schedule_ignores_the_warm_up_that_others_have() -> None:
    plain = read("trl", lr_scheduler_type="constant", warmup_steps=10)
    assert plain.spec is not None
    assert (plain.spec.carried.lr_schedule, plain.spec.carried.warmup_steps) == ("constant", 0.0)
    warm = read("trl", lr_scheduler_type="constant_with_warmup", warmup_steps=10)
    assert [d.field for d in diff(plain, warm).differences] == ["carried.warmup_steps"]


def test_verl_before_0_6_starts_a_warm_up_at_the_floor() -> None:
    changes = {f"{_VERL}warmup_style": "cosine", f"{_VERL}min_lr_ratio": 0.1}
    texts = []
    for ratio in (0.0, 0.1):
        spec = read("verl", "0.5.0", **changes, **{f"{_VERL}lr_warmup_steps_ratio": ratio}).spec
        assert spec is not None
        texts.append(spec.carried.lr_schedule)
    assert texts == [FLOOR, 'cosine_with_min_lr {"min_lr_rate": 0.1, "warmup_start_rate": 0.1}']


@pytest.mark.parametrize(
    ("framework", "changes"),
    [
        ("trl", {"use_vllm": True, "vllm_importance_sampling_mode": "token_truncate", "loss_type": "grpo"}),
        ("verl", {"algorithm.rollout_correction.rollout_is": "token"}),
        (
            "openrlhf",
            {
                "algo.advantage.is_correction_level": "token",
                "algo.advantage.is_correction_mode": "clip",
                "algo.advantage.is_correction_threshold": [2.0],
            },
        ),
        ("open_instruct", {"use_rho_correction": True, "rho_clamp_upper_bound": 2.0}),
    ],
)
def test_a_truncated_ratio_to_the_sampler_is_said_in_the_same_words(framework: str, changes: dict[str, Any]) -> None:
    spec = read(framework, **changes).spec
    assert spec is not None
    said = spec.objective.sampler_correction or ""
    assert said.startswith("token_truncate [-, ")
    assert framework == "trl" or said == "token_truncate [-, 2.0]"  # TRL's own bound is 3.0


# ---- what decides nothing must not decide


def test_a_recipe_without_weight_decay_stays_on_verls_default_engine() -> None:
    found = converted(read("trl", weight_decay=0.0, **COSINE["trl"]), "verl")
    assert found.written is not None
    assert not any("megatron" in str(item) for item in found.written.values.items())
    assert report(found, "carried.weight_decay_excludes").status == "equivalent"


@pytest.mark.parametrize("one", ["trl", "verl", "easyr1", "openrlhf"])
def test_a_grpo_run_stays_one_in_open_instruct_whatever_it_must_give_up(one: str) -> None:
    found = convert_to(adapters()["open_instruct"], read(one))
    assert report(found, "advantage.baseline").status == "exact"
    assert report(found, "rollout.prompts_per_rollout").status == "exact"
    assert report(found, "staleness.maximum").target == 1
    assert found.framework_version == "2026.8.20"


def test_a_run_two_rollouts_ahead_is_written_for_a_script_that_has_one_or_none() -> None:
    """The only script of this checkout is a critic's PPO, one rollout behind or none."""
    ahead = {"actor_num_gpus_per_node": 1, "rollout_batch_size": 16, "train_batch_size": 64, "async_train": True}
    values = {**ahead, "n_samples_per_prompt": 8, "advantage_estimator": "group_norm", "init_kl_coef": 0.0}
    context = Context(framework_version="0.8.0", world_size=1, dataset_size=96_000)
    source = read_source(Source(values=values), adapters()["openrlhf"], context)
    field = report(converted(source, "open_instruct", "2024.11.20"), "staleness.maximum")
    assert field.source == 2
    assert field.target in (0, 1)


def test_a_setting_below_a_used_one_and_the_arguments_of_a_schedule_are_not_left_behind() -> None:
    given = {**RUNS["trl"], **COSINE["open_r1"], "reward_weights": [1.0]}
    found = convert_to(adapters()["verl"], read("trl", **COSINE["open_r1"]), given=given)
    assert found.left_behind == {"reward_weights": [1.0]}
    given = {**RUNS["verl"], **COSINE["verl"]}
    found = convert_to(adapters()["trl"], read("verl", **COSINE["verl"]), given=given)
    assert f"{_VERL}min_lr_ratio" not in (found.left_behind or {})
