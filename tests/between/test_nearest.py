"""A conversion follows the ways out that refusals carry: a handful of writes, whatever the framework cannot say."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from real import DATASET, VERSIONS, name_of, text_of
from registered import adapters
from specs import plain_spec
from toys import NarrowAdapter, reading_of

from batchbridge.comparing import nearest_spec
from batchbridge.comparing.convert import convert_to
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Behaviour, Written
from batchbridge.errors import CannotWrite, Problem
from batchbridge.kit.key_table import Codes, Key
from batchbridge.kit.kinds import natural, real
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge.meaning.critic import Critic
from batchbridge.meaning.spec import LossTerm, Spec
from batchbridge.reading.read import read

Counted = Callable[[Adapter], list[Spec]]


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    """Keeps what an adapter is asked to write."""

    def count(adapter: Adapter) -> list[Spec]:
        asked: list[Spec] = []
        write = adapter.write

        def counting(spec: Spec, framework_version: str | None = None) -> Written:
            asked.append(spec)
            return write(spec, framework_version)

        monkeypatch.setattr(adapter, "write", counting)
        return asked

    return count


def test_each_of_the_30_pairs_takes_a_handful_of_writes(tmp_path: Path, counted: Counted) -> None:
    asked = {framework: counted(adapter) for framework, adapter in adapters().items()}
    taken: dict[str, int] = {}
    for framework in VERSIONS:
        path = tmp_path / f"{framework}-{name_of(framework)}"
        path.write_text(text_of(framework), encoding="utf-8")
        world = 8 if path.suffix == ".yaml" else None
        version = VERSIONS[framework]
        reading = read(path, framework=framework, version=version, world_size=world, dataset_size=DATASET)
        for to, adapter in adapters().items():
            if to != framework:
                asked[to].clear()
                found = convert_to(adapter, reading, version=VERSIONS[to], given=reading.native)
                assert found.written is not None
                taken[f"{framework} to {to}"] = len(asked[to])
    assert len(taken) == 30
    assert max(taken.values()) <= 7, taken
    assert statistics.mean(taken.values()) <= 5, taken


def test_no_specification_is_written_twice_on_the_way(counted: Counted) -> None:
    adapter = NarrowAdapter()
    asked = counted(adapter)
    nearest_spec.project(adapter, plain_spec(world_size=3, **{"order.last_rollout": "pad"}), None, None)
    assert len(asked) == len(set(asked)) <= 7


class Refusing(NarrowAdapter):
    """Refuses a seed, with the ways out that it is given."""

    def __init__(self, *ways: dict[str, Any], fields: tuple[str, ...] = ("order.seed",)) -> None:
        self.ways, self.fields = ways, fields

    def write(self, spec: Spec, framework_version: str | None = None) -> Written:
        if spec.order.seed != 7:
            raise CannotWrite("narrow", [Problem(self.fields, "only 7", self.ways)])
        return super().write(spec, framework_version)


def projected(adapter: Adapter, counted: Counted) -> tuple[nearest_spec.Projection, int]:
    asked = counted(adapter)
    found = nearest_spec.project(adapter, plain_spec(**{"order.seed": 3}), None, None)
    return found, len(asked)


def test_the_first_way_out_is_followed_at_once(counted: Counted) -> None:
    found, count = projected(Refusing({"order.seed": 7}, {"order.seed": 8}), counted)
    assert found.written is not None
    assert [problem.reason for problem in found.refused] == ["only 7"]
    assert count == 2


def test_a_way_that_does_not_help_is_followed_by_the_next(counted: Counted) -> None:
    found, count = projected(Refusing({"order.seed": 8}, {"order.seed": 7}), counted)
    assert found.written is not None
    assert count == 3


def test_a_refusal_that_no_way_ends_is_reported_with_its_reason(counted: Counted) -> None:
    found, count = projected(Refusing(), counted)
    assert found.written is None
    assert [problem.reason for problem in found.refused] == ["only 7"]
    assert count < nearest_spec.MAX_WRITES
    made = convert_to(Refusing(), reading_of(plain_spec(**{"order.seed": 3})))
    assert made.written is None
    assert made.to_dict()["refused"] == ["only 7"]


def test_a_refusal_without_fields_is_reported_with_its_reason(counted: Counted) -> None:
    found, count = projected(Refusing(fields=()), counted)
    assert found.written is None
    assert [problem.reason for problem in found.refused] == ["only 7"]
    assert count == 1


def test_ways_out_of_several_problems_are_followed_together(counted: Counted) -> None:
    class Both(NarrowAdapter):
        def write(self, spec: Spec, framework_version: str | None = None) -> Written:
            problems = []
            if spec.order.seed != 7:
                problems.append(Problem(("order.seed",), "seed", ({"order.seed": 7},)))
            if spec.carried.top_k != 5:
                problems.append(Problem(("carried.top_k",), "top", ({"carried.top_k": 5},)))
            if problems:
                raise CannotWrite("narrow", problems)
            return super().write(spec, framework_version)

    found, count = projected(Both(), counted)
    assert found.written is not None
    assert count == 2


CRITICAL = {"advantage.baseline": "value", "advantage.scale": "none", "rollout.completions_per_prompt": 1}
REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    ("easyr1", "0.3.1", {"carried.warmup_steps": 0.0}),
    ("easyr1", "0.3.1", {"micro_batch.completions_per_device": None, "micro_batch.tokens_per_device": 4096}),
    ("easyr1", "0.3.0", {"order.seed": None}),
    ("easyr1", "0.3.0", {"carried.lr_schedule": "linear"}),
    ("open_instruct", "2026.3.1", {"horizon.lr_tick": "rollout"}),
    ("open_instruct", "2026.3.1", {"objective.sampler_correction": "sequence_mask [-, 3.0]"}),
    ("verl", "0.8.0", {"objective.sampler_correction": "token_truncate [-, -]"}),
    ("verl", "0.4.0", CRITICAL),
    (
        "verl",
        "0.4.0",
        {"optimizer_step.completions_per_step": None, "optimizer_step.parts_per_rollout": 1}
        | {"objective.sampler_correction": "token_truncate [-, 2.0]"},
    ),
    ("verl", "0.9.1", CRITICAL),
    ("openrlhf", "0.8.0", {"micro_batch.completions_per_device": None, "micro_batch.tokens_per_device": 4096}),
    ("openrlhf", "0.8.0", CRITICAL | {"critic.": Critic(completions_per_step=8, aggregation="sequence_mean")}),
    ("openrlhf", "0.11.2", {"critic.": Critic(completions_per_step=None, aggregation="token_mean")}),
    ("trl", "1.13.0", {"objective.sampler_correction": "sequence_mask [low, high]"}),
]


@pytest.mark.parametrize(("framework", "version", "values"), REFUSED)
def test_what_a_framework_refuses_carries_its_way_out_and_is_converted(
    framework: str, version: str, values: dict[str, Any]
) -> None:
    adapter, spec = adapters()[framework], plain_spec(**values)
    problems = nearest_spec.write(adapter, spec, version)
    assert not isinstance(problems, Written)
    named = {path.partition(".")[0] for path in values}
    of_these = [problem for problem in problems if any(path.partition(".")[0] in named for path in problem.fields)]
    assert any(problem.nearest for problem in of_these), problems
    assert nearest_spec.project(adapter, spec, version, None).written is not None, problems


def test_a_rules_fix_is_a_way_out_in_canonical_fields() -> None:
    """verl: 96 completions of a step are not a multiple of 5 replicas; the rule has fixes in the user's keys."""
    spec = plain_spec(world_size=5, **{"optimizer_step.completions_per_step": 96})
    problems = nearest_spec.write(adapters()["verl"], spec, "0.9.1")
    assert not isinstance(problems, Written)
    (uneven,) = [problem for problem in problems if "not a multiple of 5 replicas" in problem.reason]
    steps = [
        way["optimizer_step.completions_per_step"]
        for way in uneven.nearest
        if len(way) == 1 and "optimizer_step.completions_per_step" in way
    ]
    assert steps
    assert all(step % 5 == 0 for step in steps)


def test_a_refusal_with_fields_alone_takes_the_frameworks_defaults_for_them(counted: Counted) -> None:
    class Terse(NarrowAdapter):
        def write(self, spec: Spec, framework_version: str | None = None) -> Written:
            if spec.order.last_rollout == "short":
                raise CannotWrite("narrow", [Problem(("order.last_rollout",), "not that")])
            return super().write(spec, framework_version)

    adapter = Terse()
    asked = counted(adapter)
    found = nearest_spec.project(adapter, plain_spec(**{"order.last_rollout": "short"}), None, None)
    assert found.written is not None
    assert len(asked) == 2


def test_a_term_that_the_target_has_not_goes_as_a_whole() -> None:
    adapter, entropy = adapters()["openrlhf"], LossTerm(aggregation="token_mean")
    spec = plain_spec(**{"loss.entropy": entropy, "objective.entropy_coefficient": 0.0})
    found = nearest_spec.project(adapter, spec, "0.8.0", None)
    assert found.written is not None, found.refused


class OnOneDevice(TableAdapter):
    """Framework `alone`: whole rollouts, whose steps one device trains."""

    framework = "alone"
    versions = "==1.0"
    newest_version = "1.0"
    codes = Codes.of("BB-ALONE")
    devices = 1
    keys = (
        Key("prompts", natural, 8, "rollout.prompts_per_rollout"),
        Key("group", natural, 4, "rollout.completions_per_prompt"),
        Key("step", natural, 32, "optimizer_step.completions_per_step"),
        Key("epochs", real(0), 1.0, "horizon.epochs"),
    )
    constants: ClassVar[Mapping[str, Any]] = {"loss.policy.aggregation": "token_mean"}

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        return NarrowAdapter.behaviour


def test_a_framework_on_a_fixed_number_of_devices_takes_a_run_of_more_of_them() -> None:
    reading = reading_of(plain_spec(**{"topology.world_size": 2}))
    found = convert_to(OnOneDevice(), reading)
    assert (found.verdict, found.back and found.back.spec and found.back.spec.topology.world_size) == ("lossy", 1)
    (told,) = [one for one in found.fields if one.field == "topology.world_size"]
    assert (told.source, told.target, told.status) == (2, 1, "equivalent")
    assert found.refused
    assert {field for one in found.refused for field in one.fields} >= {"topology.world_size"}
