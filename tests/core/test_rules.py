"""The core's rules: one spec that breaks each, one that does not, stable codes, and the user's own keys."""

from __future__ import annotations

import time
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from batchbridge import Spec
from batchbridge.contract.error_text import HOUSE, titles_in
from batchbridge.contract.reading import Provenance
from batchbridge.errors import PlanError
from batchbridge.meaning.critic import Critic
from batchbridge.meaning.plan import Plan
from batchbridge.meaning.spec import Horizon, Loss, LossTerm, OptimizerStep, Rollout, Topology, every_field
from batchbridge.rules import core_rules

SOUND = Spec(
    topology=Topology(world_size=4),
    rollout=Rollout(prompts_per_rollout=8, completions_per_prompt=4),
    optimizer_step=OptimizerStep(completions_per_step=16),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=1.0),
).replace(**{"order.seed": 0, "micro_batch.completions_per_device": 2, "objective.old_logprobs": "rollout_start"})

BROKEN: dict[str, dict[str, Any]] = {
    "BB100": {"rollout.group_filter": "some"},
    "BB101": {"rollout.completions_per_prompt": 0},
    "BB102": {"topology.tensor_parallel": 3},
    "BB103": {"optimizer_step.tokens_per_step": 1000},
    "BB104": {"horizon.epochs": None},
    "BB105": {"micro_batch.tokens_per_device": 1000},
    "BB106": {"loss.policy.aggregation": "sequence_sum_over_constant"},
    "BB107": {
        "micro_batch.completions_per_device": None,
        "micro_batch.tokens_per_device": 99,
        "carried.max_prompt_tokens": 50,
        "carried.max_completion_tokens": 50,
    },
    "BB108": {"optimizer_step.completions_per_step": 24, "order.last_optimizer_step": "error"},
    "BB109": {"order.last_rollout": "error"},
    "BB110": {"order.last_rollout": "wrap", "optimizer_step.step_may_span": "epoch"},
    "BB111": {"advantage.minimum": 2.0, "advantage.maximum": 1.0},
    "BB112": {"carried.temperature": 0.0},
    "BB113": {"optimizer_step.passes_per_rollout": 0},
    "BB121": {"optimizer_step.completions_per_step": 2},
    "BB122": {"micro_batch.completions_per_device": 3},
    "BB123": {"optimizer_step.completions_per_step": 24},
    "BB124": {"rollout.prompts_per_rollout": 12},
    "BB125": {"loss.policy.denominator_scope": "micro_batch"},
    "BB126": {"objective.old_logprobs": "detached"},
    "BB127": {"rollout.completions_per_prompt": 1, "rollout.prompts_per_rollout": 32},
    "BB128": {
        "micro_batch.completions_per_device": None,
        "micro_batch.tokens_per_device": 99,
        "micro_batch.cap": "soft",
        "carried.max_completion_tokens": 100,
    },
    "BB129": {"loss.policy.constant": 512},
    "BB130": {"objective.kl_placement": "none", "objective.kl_coefficient": 0.1},
    "BB140": {"rollout.group_filter": "drop_zero_variance"},
    "BB141": {"optimizer_step.completions_per_step": 2, "rollout.completions_per_prompt": 4},
    "BB142": {"horizon.lr_tick": "rollout"},
    "BB143": {"open_terms": ("advantage: gdpo",)},
}
"""For each rule, changes of `SOUND` that break it over 100 prompts (of 104, nothing is left over)."""


def codes(spec: Spec, dataset_size: int | None = None) -> list[str]:
    return [finding.code for finding in core_rules.check(spec, dataset_size)]


def test_a_sound_spec_breaks_no_rule() -> None:
    assert core_rules.check(SOUND, 104) == ()


def test_every_rule_has_an_example_that_breaks_it() -> None:
    assert list(BROKEN) == [rule.code for rule in core_rules.RULES]


@pytest.mark.parametrize("code", BROKEN)
def test_a_broken_rule_is_found(code: str) -> None:
    assert code in codes(SOUND.replace(**BROKEN[code]), 100)


@pytest.mark.parametrize("rule", core_rules.RULES, ids=lambda rule: rule.code)
def test_codes_tell_the_severity(rule: core_rules.CoreRule) -> None:
    assert {"BB10": "error", "BB11": "error", "BB12": "warning", "BB13": "warning", "BB14": "note"}[
        rule.code[:4]
    ] == rule.severity


def test_every_rule_stands_in_the_documentation(repository: Path) -> None:
    text = (repository / "docs" / "cli.md").read_text(encoding="utf-8")
    rows = [f"| {rule.code} | {rule.severity} | {titles_in(HOUSE)[rule.code].title} |" for rule in core_rules.RULES]
    assert [row for row in rows if row not in text] == []


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("topology.world_size", 0, "below its minimum of 1"),
        ("rollout.prompts_per_rollout", -1, "below its minimum of 1"),
        ("carried.beta1", 1.5, "above its maximum of 1"),
        ("carried.learning_rate", float("nan"), "not a finite number"),
        ("horizon.epochs", float("inf"), "not a finite number"),
        ("topology.tensor_parallel", 0, "below its minimum of 1"),
    ],
)
def test_bounds_come_from_the_annotations(field: str, value: float, said: str) -> None:
    (finding,) = core_rules.check(SOUND.replace(**{field: value}))
    assert finding.code == "BB101"
    assert said in finding.message


def test_all_bounds_are_reported_at_once() -> None:
    assert codes(SOUND.replace(**{"topology.world_size": 0, "rollout.completions_per_prompt": 0})) == ["BB101", "BB101"]


def test_broken_replicas_come_with_the_nearest_legal_sizes() -> None:
    (finding,) = core_rules.check(SOUND.replace(**{"topology.world_size": 10, "topology.tensor_parallel": 4}))
    assert [fix.text for fix in finding.fixes] == [
        "world size 8",
        "world size 12",
        "tensor parallel 2",
        "tensor parallel 5",
    ]


@pytest.mark.parametrize(("world", "tensor"), [(10**18 + 9, 2), (10**18, 10**17 + 1), (5, 10**18), (10**9 + 7, 2)])
def test_no_size_makes_the_search_for_replicas_long(world: int, tensor: int) -> None:
    started = time.process_time()
    (finding,) = core_rules.check(SOUND.replace(**{"topology.world_size": world, "topology.tensor_parallel": tensor}))[
        :1
    ]
    assert finding.code == "BB102"
    assert finding.fixes
    assert time.process_time() - started < 1


@pytest.mark.parametrize("given", [{}, {"horizon.rollouts": 3}, {"horizon.rollouts": 3, "horizon.epochs": 1.0}])
def test_a_horizon_is_at_least_one(given: dict[str, Any]) -> None:
    spec = SOUND.replace(**{"horizon.epochs": None, **given})
    assert ("BB104" in codes(spec)) is not bool(given)


@pytest.mark.parametrize(
    ("names", "messages"),
    [
        (("advantage: gdpo", "objective: vapo_nll"), []),
        (("objective: vapo_nll", "advantage: gdpo"), ["open terms are named once each, sorted"]),
        (("advantage: gdpo", "advantage: gdpo"), ["open terms are named once each, sorted"]),
        (("gdpo",), ["the open term 'gdpo' is not named as its group, a colon and a name, as in 'advantage: gdpo'"]),
        (("advantage:gdpo",), ["the open term 'advantage:gdpo' is not named"]),
        (("reward: gdpo",), ["the open term 'reward: gdpo' is not named"]),
        (("open_terms: gdpo",), ["the open term 'open_terms: gdpo' is not named"]),
        (("advantage: ",), ["the open term 'advantage: ' is not named"]),
    ],
)
def test_an_open_term_has_a_group_and_a_name(names: tuple[str, ...], messages: list[str]) -> None:
    found = [finding for finding in core_rules.check(SOUND.replace(open_terms=names), 104) if finding.code != "BB143"]
    assert [finding.code for finding in found] == ["BB111"] * len(messages)
    assert all(finding.message.startswith(message) for finding, message in zip(found, messages, strict=True))


def test_an_open_baseline_has_a_name() -> None:
    spec = SOUND.replace(**{"advantage.baseline": "open"})
    assert "BB111" in codes(spec)
    assert "BB111" not in codes(spec.replace(open_terms=("advantage: gdpo",)))


@pytest.mark.parametrize(("budget", "said"), [(99, ["BB107"]), (100, []), (150, [])])
def test_a_budget_holds_what_prompt_and_completion_may_be_together(budget: int, said: list[str]) -> None:
    changes = {"micro_batch.completions_per_device": None, "micro_batch.tokens_per_device": budget}
    lengths = {"max_prompt_tokens": 80, "max_completion_tokens": 80, "max_total_tokens": 100}
    changes |= {f"carried.{name}": value for name, value in lengths.items()}
    found = core_rules.check(SOUND.replace(**changes), 104)
    assert [finding.code for finding in found] == said
    assert all("100 tokens (prompt and completion together)" in finding.message for finding in found)
    assert all(finding.where[1].key == "carried.max_total_tokens" for finding in found)


@pytest.mark.parametrize(("group", "ddof", "said"), [(2, 1, ["BB127"]), (2, 0, []), (3, 1, []), (4, None, [])])
def test_one_other_completion_has_no_deviation(group: int, ddof: int | None, said: list[str]) -> None:
    sizes = {"rollout.completions_per_prompt": group, "optimizer_step.completions_per_step": group * 8}
    spec = SOUND.replace(**{**sizes, "advantage.scale": "group_others", "advantage.ddof": ddof})
    assert [code for code in codes(spec, 104) if code == "BB127"] == said


def test_a_step_size_is_needed() -> None:
    assert "BB103" in codes(SOUND.replace(**{"optimizer_step.completions_per_step": None}))


def test_too_few_prompts_for_one_rollout_train_nothing() -> None:
    assert codes(SOUND, 7) == ["BB113"]


@pytest.mark.parametrize("scope", ["rollout", "rank", "micro_batch"])
def test_a_kl_term_has_a_scope_of_its_own(scope: str) -> None:
    kl = LossTerm(aggregation="token_mean", denominator_scope=scope)  # type: ignore[arg-type]  # a Literal in a loop
    (finding,) = core_rules.check(SOUND.replace(**{"loss.kl": kl}))
    assert finding.code == "BB125"
    assert "kl term" in finding.message


def test_old_logprobs_may_be_the_policys_own_with_one_step_per_rollout() -> None:
    spec = SOUND.replace(**{"objective.old_logprobs": "detached", "optimizer_step.completions_per_step": 32})
    assert codes(spec) == []


@pytest.mark.parametrize(
    "change",
    [
        {"staleness.mode": "bounded"},
        {"rollout.prompts_per_rollout": None},
        {"optimizer_step.completions_per_step": None, "optimizer_step.tokens_per_step": 4096},
        {"order.prompt_shuffle": "weighted_sampling"},
        {"order.seed": None},
    ],
)
def test_what_leaves_membership_open_is_a_note_and_has_no_plan(change: dict[str, Any]) -> None:
    spec = SOUND.replace(**change)
    assert codes(spec) == ["BB140"]
    with pytest.raises(PlanError):
        Plan(spec, 104)


def test_findings_point_at_the_users_own_key() -> None:
    origin = Provenance(("num_generations",), 1, "file", "run.yaml:3", "run.yaml", 3)
    spec = SOUND.replace(**{"rollout.completions_per_prompt": 0})
    (finding,) = core_rules.check(spec, None, {"rollout.completions_per_prompt": origin})
    assert str(finding.where[0]) == "num_generations = 1 (run.yaml:3)"


@given(st.data())
def test_no_spec_of_integers_makes_a_rule_raise(data: st.DataObject) -> None:
    small = st.integers(-2, 9)
    fields = {
        name: data.draw(small | st.none() if name not in REQUIRED else small)
        for name in (*REQUIRED, "optimizer_step.completions_per_step", "micro_batch.completions_per_device")
    }
    findings = core_rules.check(SOUND.replace(**fields), data.draw(st.none() | st.integers(1, 50)))
    assert all(finding.message for finding in findings)


REQUIRED = (
    "topology.world_size",
    "topology.tensor_parallel",
    "rollout.completions_per_prompt",
    "rollout.prompts_per_rollout",
    "optimizer_step.passes_per_rollout",
)


@given(
    prompts=st.integers(1, 8),
    group=st.integers(1, 4),
    step=st.integers(1, 40),
    passes=st.integers(1, 3),
    span=st.sampled_from(["none", "rollout"]),
)
def test_a_run_without_warnings_of_remainders_has_only_full_steps(
    prompts: int, group: int, step: int, passes: int, span: str
) -> None:
    spec = SOUND.replace(
        **{
            "rollout.prompts_per_rollout": prompts,
            "rollout.completions_per_prompt": group,
            "optimizer_step.completions_per_step": step,
            "optimizer_step.passes_per_rollout": passes,
            "optimizer_step.step_may_span": span,
        }
    )
    found = codes(spec, 3 * prompts)
    plan = Plan(spec, 3 * prompts)
    full = all(len(one.members) == step for one in plan.steps())
    assert full is ("BB123" not in found)


@given(world=st.integers(1, 64), tensor=st.integers(1, 8), pipeline=st.integers(1, 4))
def test_replicas_are_whole_exactly_when_the_rule_is_silent(world: int, tensor: int, pipeline: int) -> None:
    change = {"topology.world_size": world, "topology.tensor_parallel": tensor, "topology.pipeline_parallel": pipeline}
    assume(tensor * pipeline <= 32)
    spec = SOUND.replace(**change)
    assert ("BB102" in codes(spec)) is (Fraction(world, tensor * pipeline).denominator != 1)


ODD = (True, 1, 1.5, float("nan"), 1 << 70, "x", "none", None, (), ("a",), ("a", 1), ["a"], Topology(world_size=1), {})


@pytest.mark.parametrize("path", [path for path, _ in every_field()])
def test_whatever_a_field_holds_is_judged_and_a_mapping_is_right_nowhere(path: str) -> None:
    terms = {"loss.kl": SOUND.loss.policy, "loss.entropy": SOUND.loss.policy}
    filled = SOUND.replace(**terms, critic=Critic(completions_per_step=16, aggregation="token_mean"))
    for value in ODD:
        found = core_rules.check(filled.replace(**{path: value}))
    assert [finding.code for finding in found] == [core_rules.RULES[0].code]
