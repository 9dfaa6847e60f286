"""Conversions: nothing differs that the account does not name, and nothing is lost silently."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from specs import specs
from toys import AnyAdapter, NarrowAdapter, plain_spec, reading_of

from batchbridge.comparing.convert import Conversion, convert_to, left_behind
from batchbridge.comparing.effects import EFFECTS, leaves
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Context, Reading, Source, Written
from batchbridge.errors import CannotWrite, Problem
from batchbridge.meaning.critic import Critic
from batchbridge.meaning.spec import LossTerm, Spec
from batchbridge.render.between import conversion as conversion_text
from batchbridge_easyr1.config import EasyR1Adapter
from batchbridge_openrlhf.config import OpenRlhfAdapter
from batchbridge_trl.config import TrlAdapter
from batchbridge_verl.config import VerlAdapter


def statuses(found: Conversion) -> dict[str, str]:
    return {field.field: field.status for field in found.fields}


def changed(found: Conversion) -> dict[str, tuple[str, object]]:
    return {f.field: (f.status, f.target) for f in found.fields if f.status not in ("exact", "filled")}


@pytest.mark.parametrize("adapter", [NarrowAdapter(), TrlAdapter()], ids=lambda adapter: adapter.framework)
@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(spec=specs())
def test_nothing_differs_that_the_account_does_not_name(adapter: Adapter, spec: Spec) -> None:
    version = "1.16.0" if adapter.framework == "trl" else None
    found = convert_to(adapter, reading_of(spec), version=version)
    if found.back is None or found.back.spec is None:
        assert found.lossy
        return
    source, target = leaves(spec), leaves(found.back.spec)
    named = {path for path, status in statuses(found).items() if status != "exact"}
    back = found.back.spec
    inherited = [
        f"loss.{term}." for term in ("kl", "entropy") if not getattr(spec.loss, term) and not getattr(back.loss, term)
    ]
    differ = {path for path in {**source, **target} if source.get(path) != target.get(path)}
    expected = {path for path in differ if not path.startswith(tuple(inherited))}
    assert named == expected


@settings(max_examples=100, deadline=None)
@given(spec=specs())
def test_a_framework_that_says_everything_loses_nothing(spec: Spec) -> None:
    found = convert_to(AnyAdapter(), reading_of(spec))
    assert set(statuses(found).values()) == {"exact"}


def test_the_account_has_one_report_for_each_leaf_of_the_schema() -> None:
    without = convert_to(AnyAdapter(), reading_of(plain_spec()))
    every = [effect.field for effect in EFFECTS]
    assert [field.field for field in without.fields] == [field for field in every if not field.startswith("critic.")]
    critic = Critic(completions_per_step=64, aggregation="token_mean")
    having = convert_to(AnyAdapter(), reading_of(plain_spec(critic=critic)))
    assert [field.field for field in having.fields] == every


def test_another_split_is_equivalent() -> None:
    spec = plain_spec(**{"micro_batch.completions_per_device": None, "micro_batch.tokens_per_device": 16384})
    found = convert_to(NarrowAdapter(), reading_of(spec))
    assert changed(found) == {
        "micro_batch.completions_per_device": ("equivalent", 4),
        "micro_batch.tokens_per_device": ("equivalent", None),
    }
    assert found.verdict == "complete"


def test_what_wrap_brings_about_is_patched_and_not_lost() -> None:
    found = convert_to(NarrowAdapter(), reading_of(plain_spec(**{"order.last_rollout": "pad"})))
    assert changed(found) == {"order.last_rollout": ("patched", "short")}
    assert not found.lossy


def test_what_wrap_does_not_bring_about_is_lost() -> None:
    found = convert_to(NarrowAdapter(), reading_of(plain_spec(**{"order.last_rollout": "wrap"})))
    assert changed(found) == {"order.last_rollout": ("inexpressible", "short")}
    assert found.verdict == "lossy"


def test_a_number_that_must_give_way_is_approximate_with_its_factor() -> None:
    found = convert_to(NarrowAdapter(), reading_of(plain_spec(world_size=3)))
    (step,) = (field for field in found.fields if field.field == "optimizer_step.completions_per_step")
    assert (step.status, step.target) == ("approximate", 63)
    assert step.factor == pytest.approx(63 / 64)


def test_a_length_in_another_unit_is_equivalent_where_steps_divide() -> None:
    spec = plain_spec(**{"horizon.epochs": None, "horizon.rollouts": 10})
    found = convert_to(NarrowAdapter(), reading_of(spec))
    assert statuses(found)["horizon.rollouts"] == "equivalent"
    assert found.back is not None
    assert found.back.spec is not None
    assert found.back.spec.horizon.optimizer_steps == 20


def test_kl_in_the_reward_becomes_kl_in_the_loss_and_is_named_as_lost() -> None:
    kl = {"objective.kl_placement": "reward", "objective.kl_coefficient": 0.1, "objective.kl_estimator": "k1"}
    found = convert_to(NarrowAdapter(), reading_of(plain_spec(**kl)))
    assert statuses(found)["objective.kl_placement"] == "inexpressible"
    assert statuses(found)["objective.kl_coefficient"] == "exact"
    assert changed(found)["objective.kl_placement"] == ("inexpressible", "loss")


def test_what_the_source_leaves_open_is_filled_by_the_target_and_named() -> None:
    found = convert_to(NarrowAdapter(), reading_of(plain_spec()))
    assert statuses(found)["advantage.epsilon"] == "filled"
    assert found.verdict == "complete"


def test_only_named_fields_change() -> None:
    spec = plain_spec(**{"order.last_rollout": "wrap", "loss.policy.aggregation": "sequence_sum"})
    found = convert_to(NarrowAdapter(), reading_of(spec))
    assert set(changed(found)) == {"order.last_rollout", "loss.policy.aggregation"}


def test_what_the_target_does_on_its_own_is_said() -> None:
    found = convert_to(NarrowAdapter(), reading_of(plain_spec()))
    assert found.natively == (
        "denominators are counted per micro-batch (1 / T_m), not per optimizer step",
        "BB-NARROW-900: forgets the seed on resume",
    )


def test_an_adapter_that_cannot_say_its_own_defaults_is_no_crash() -> None:
    class Mute(NarrowAdapter):
        only: ClassVar[Mapping[str, tuple[Any, ...]]] = {"rollout.sample_unit": ()}

        def read(self, source, context):  # type: ignore[no-untyped-def]  # as in the base
            raise RuntimeError("nothing to read")

    found = convert_to(Mute(), reading_of(plain_spec()))
    assert found.written is None
    assert found.refused == (Problem(("rollout.sample_unit",), "rollout.sample_unit = completion: narrow has "),)
    assert found.verdict == "lossy"


def test_keys_that_no_field_came_from_are_left_behind(frameworks: None) -> None:
    import batchbridge

    given = {"num_generations": 8, "generation_batch_size": 64, "reward_funcs": ["accuracy"], "logging": {"steps": 5}}
    reading = batchbridge.read(
        {"num_generations": 8, "generation_batch_size": 64}, framework="trl", version="1.16.0", world_size=8
    )
    assert left_behind(reading, given) == {"reward_funcs": ["accuracy"], "logging.steps": 5}


def test_trl_is_patched_in_what_wrap_plans_and_computes_itself() -> None:
    changes = {"order.last_rollout": "wrap", "horizon.lr_tick": "rollout", "advantage.epsilon": 1e-6}
    found = convert_to(TrlAdapter(), reading_of(plain_spec(**changes)), version="1.16.0")
    assert {path: statuses(found)[path] for path in changes} == dict.fromkeys(changes, "patched")


def test_a_version_that_wrap_does_not_touch_is_not_patched() -> None:
    found = convert_to(TrlAdapter(), reading_of(plain_spec(**{"horizon.lr_tick": "rollout"})), version="0.17.0")
    assert statuses(found)["horizon.lr_tick"] == "inexpressible"


def test_a_rollout_of_several_steps_becomes_one_of_one_step_where_there_is_no_other() -> None:
    kl = {"objective.kl_placement": "loss", "objective.kl_coefficient": 0.1, "objective.kl_estimator": "k3"}
    found = convert_to(TrlAdapter(), reading_of(plain_spec(**kl), dataset_size=160), version="0.17.0")
    assert statuses(found)["optimizer_step.completions_per_step"] == "exact"
    assert statuses(found)["rollout.prompts_per_rollout"] == "approximate"
    assert {statuses(found)[path] for path in kl} == {"exact"}


def test_no_warm_up_in_one_unit_is_no_warm_up_in_the_other() -> None:
    class Warming(NarrowAdapter):
        def write(self, spec, framework_version=None):  # type: ignore[no-untyped-def]  # as in the base
            ratio = 0.03 if spec.carried.warmup_ratio is None else spec.carried.warmup_ratio
            return super().write(spec.replace(**{"carried.warmup_ratio": ratio}))

    found = convert_to(Warming(), reading_of(plain_spec(**{"carried.warmup_steps": 0.0})))
    assert statuses(found)["carried.warmup_ratio"] == "exact"


def test_parts_that_cut_groups_become_steps_of_whole_groups() -> None:
    thirds = {"optimizer_step.completions_per_step": None, "optimizer_step.parts_per_rollout": 3}
    ahead = {"staleness.mode": "lookahead", "staleness.maximum": 1, "staleness.unit": "rollouts"}
    micro = {"micro_batch.completions_per_device": 1}
    found = convert_to(VerlAdapter(), reading_of(plain_spec(**thirds, **ahead, **micro)), version="0.7.1")
    assert found.back is not None
    assert found.back.spec is not None
    assert found.back.spec.optimizer_step.completions_per_step == 40


def test_a_seed_that_is_too_large_gives_way_alone() -> None:
    found = convert_to(TrlAdapter(), reading_of(plain_spec(**{"order.seed": 67280421310721})), version="1.16.0")
    without = convert_to(TrlAdapter(), reading_of(plain_spec()), version="1.16.0")
    assert found.written is not None
    assert found.written.values["seed"] == 67280421310721 % (1 << 32)
    assert set(changed(found)) - set(changed(without)) == {"order.seed"}


def test_prompts_that_do_not_share_out_over_devices_become_some_that_do() -> None:
    sizes = {"rollout.prompts_per_rollout": 4, "optimizer_step.completions_per_step": 24, "topology.world_size": 3}
    micro = {"rollout.completions_per_prompt": 6, "micro_batch.completions_per_device": 4}
    found = convert_to(EasyR1Adapter(), reading_of(plain_spec(**sizes, **micro)))
    assert changed(found)["rollout.prompts_per_rollout"] == ("patched", 12)
    assert statuses(found)["optimizer_step.completions_per_step"] == "exact"


def test_a_schedule_does_not_decide_which_engine_trains_but_split_devices_do() -> None:
    linear = {"carried.lr_schedule": "linear", "carried.weight_decay_excludes": "biases_and_norms"}
    found = convert_to(VerlAdapter(), reading_of(plain_spec(**linear)), version="0.9.1")
    assert found.written is not None
    assert "model_engine" not in found.written.values
    assert statuses(found)["carried.lr_schedule"] == "inexpressible"
    two = plain_spec(**linear, **{"topology.tensor_parallel": 2})
    split = convert_to(VerlAdapter(), reading_of(two), version="0.9.1")
    assert split.written is not None
    assert split.written.values["model_engine"] == "megatron"
    assert statuses(split)["carried.lr_schedule"] == "exact"


def test_a_conversion_reads_back_under_the_version_that_was_written() -> None:
    found = convert_to(TrlAdapter(), reading_of(plain_spec()))
    assert found.framework_version == "1.16.0"


def test_a_framework_whose_kl_term_has_weights_of_its_own_gets_them() -> None:
    class OwnKl(NarrowAdapter):
        only: ClassVar[Mapping[str, tuple[Any, ...]]] = {"loss.kl": (LossTerm(aggregation="token_mean"),)}

    kl = {"objective.kl_placement": "loss", "objective.kl_coefficient": 0.1, "objective.kl_estimator": "k3"}
    spec = plain_spec(**kl, **{"loss.policy": LossTerm(aggregation="sequence_mean")})
    found = convert_to(OwnKl(), reading_of(spec))
    assert statuses(found)["loss.kl.aggregation"] == "inexpressible"
    assert statuses(found)["loss.policy.aggregation"] == "exact"


def test_a_run_that_rollouts_end_is_not_converted_into_one_of_all_its_epochs() -> None:
    """100 rollouts end 30 epochs of 30 rollouts early; OpenRLHF counts whole episodes: 3, not 30."""
    sizes = {"rollout.prompts_per_rollout": 16, "horizon.epochs": 30.0, "horizon.rollouts": 100}
    source = reading_of(plain_spec(**sizes, **{"horizon.optimizer_steps": None}), dataset_size=16 * 30)
    found = convert_to(OpenRlhfAdapter(), source, version="0.11.2")
    assert found.back is not None
    assert found.back.spec is not None
    assert found.back.spec.horizon.epochs == 3.0


def test_of_several_lengths_a_target_of_one_gets_the_one_that_ends_first() -> None:
    several = plain_spec(**{"horizon.epochs": 3.0, "horizon.rollouts": 10, "horizon.optimizer_steps": 100})
    found = convert_to(NarrowAdapter(), reading_of(several, dataset_size=160))
    assert found.back is not None
    assert found.back.spec is not None
    assert found.back.spec.horizon.lengths == {"optimizer_steps": 20}
    assert {
        path: status for path, status in statuses(found).items() if path.startswith("horizon.") and status != "exact"
    } == {
        "horizon.optimizer_steps": "equivalent",
        "horizon.rollouts": "equivalent",
        "horizon.epochs": "equivalent",
    }
    assert found.verdict == "complete"


def test_without_the_number_of_prompts_a_length_that_is_left_out_is_named_as_lost() -> None:
    several = plain_spec(**{"horizon.epochs": None, "horizon.rollouts": 60, "horizon.optimizer_steps": 100})
    found = convert_to(NarrowAdapter(), reading_of(several))
    assert statuses(found)["horizon.rollouts"] == "inexpressible"
    assert found.back is not None
    assert found.back.spec is not None
    assert found.back.spec.horizon.lengths == {"optimizer_steps": 100}


def test_a_term_without_a_word_is_kept_where_the_target_names_it_and_else_lost_by_name() -> None:
    spec = plain_spec(open_terms=("advantage: gdpo", "objective: vapo_nll"))
    assert convert_to(AnyAdapter(), reading_of(spec)).verdict == "complete"
    found = convert_to(NarrowAdapter(), reading_of(spec))
    assert changed(found) == {"open_terms": ("inexpressible", ())}
    assert "open_terms: advantage: gdpo, objective: vapo_nll -> none" in conversion_text("a.json", found)


class KnowsGdpo(NarrowAdapter):
    """Narrow, but with one of the terms."""

    def write(self, spec: Spec, framework_version: str | None = None) -> Written:
        other = [name for name in spec.open_terms if name != "advantage: gdpo"]
        if other:
            kept = tuple(name for name in spec.open_terms if name not in other)
            problem = Problem(("open_terms",), f"no term {', '.join(other)}", ({"open_terms": kept},))
            raise CannotWrite(self.framework, [problem])
        written = super().write(spec.replace(open_terms=()), framework_version)
        return dataclasses.replace(written, values={**written.values, **({"gdpo": True} if spec.open_terms else {})})

    def read(self, source: Source, context: Context) -> Reading:
        values = {key: value for key, value in source.values.items() if key != "gdpo"}
        reading = super().read(dataclasses.replace(source, values=values), context)
        if reading.spec is None or "gdpo" not in source.values:
            return reading
        return dataclasses.replace(reading, spec=reading.spec.replace(open_terms=("advantage: gdpo",)))


def test_of_several_terms_the_target_keeps_those_that_it_names() -> None:
    spec = plain_spec(open_terms=("advantage: gdpo", "objective: vapo_nll"))
    found = convert_to(KnowsGdpo(), reading_of(spec))
    assert changed(found) == {"open_terms": ("inexpressible", ("advantage: gdpo",))}
