"""The canonical schema: round trips, messages, digests, units."""

from __future__ import annotations

import dataclasses
import json
import pickle
from typing import Annotated, Any, Literal, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.contract.reading import Provenance
from batchbridge.kit.values import FieldValue, spec_of
from batchbridge.meaning.spec import (
    SCHEMA,
    Carried,
    Horizon,
    Loss,
    LossTerm,
    OptimizerStep,
    Order,
    Rollout,
    Spec,
    Topology,
    default_of,
    walk,
)

MINIMAL: dict[str, Any] = {
    "topology": {"world_size": 3},
    "rollout": {"prompts_per_rollout": 4, "completions_per_prompt": 6},
    "optimizer_step": {"completions_per_step": 24},
    "loss": {"policy": {"aggregation": "token_mean"}},
    "horizon": {"epochs": 2},
    "order": {"seed": 42},
}
MINIMAL_SPEC = Spec(
    topology=Topology(world_size=3),
    rollout=Rollout(prompts_per_rollout=4, completions_per_prompt=6),
    optimizer_step=OptimizerStep(completions_per_step=24),
    loss=Loss(policy=LossTerm(aggregation="token_mean")),
    horizon=Horizon(epochs=2),
    order=Order(seed=42),
)


def values_of(hint: Any) -> st.SearchStrategy[Any]:
    """Any value of an annotated field, of a group, or of a union of them."""
    if get_origin(hint) is Annotated:
        return values_of(get_args(hint)[0])
    if get_origin(hint) is Literal:
        return st.sampled_from(get_args(hint))
    if get_origin(hint) is tuple:
        return st.lists(values_of(get_args(hint)[0]), max_size=3).map(tuple)
    if get_args(hint):
        return st.one_of(*map(values_of, get_args(hint)))
    if dataclasses.is_dataclass(hint):
        hints = get_type_hints(hint, include_extras=True)
        return st.builds(hint, **{name: values_of(inner) for name, inner in hints.items()})
    plain: dict[Any, st.SearchStrategy[Any]] = {
        bool: st.booleans(),
        int: st.integers(-(10**12), 10**12),
        float: st.floats(allow_nan=False, allow_infinity=False) | st.integers(-1000, 1000),
        str: st.text(max_size=8),
        type(None): st.none(),
    }
    return plain[hint]


specs = values_of(Spec)


@given(specs)
def test_from_dict_is_the_inverse_of_to_dict(spec: Spec) -> None:
    assert Spec.from_dict(spec.to_dict()) == spec


@given(specs)
def test_a_spec_survives_json(spec: Spec) -> None:
    assert Spec.from_dict(json.loads(json.dumps(spec.to_dict()))) == spec


@given(specs)
def test_equal_specs_have_equal_digests(spec: Spec) -> None:
    assert Spec.from_dict(spec.to_dict()).digest() == spec.digest()


@given(specs, st.data())
def test_another_value_anywhere_gives_another_digest(spec: Spec, data: st.DataObject) -> None:
    path, value, _ = data.draw(st.sampled_from(list(walk(spec))))
    other = data.draw(st.sampled_from([None, 987654, "another"]).filter(lambda new: new != value))
    assert spec.replace(**{path: other}).digest() != spec.digest()


def test_a_known_spec_s_digest_never_changes() -> None:
    assert MINIMAL_SPEC.digest() == "818bf34931c8c6f0"


def test_defaults_may_be_left_out() -> None:
    assert Spec.from_dict(MINIMAL) == MINIMAL_SPEC


def test_the_dict_names_the_schema() -> None:
    assert MINIMAL_SPEC.to_dict()["schema"] == SCHEMA == "batchbridge/1"


def test_the_dict_is_json_without_classes() -> None:
    assert json.loads(json.dumps(MINIMAL_SPEC.to_dict())) == MINIMAL_SPEC.to_dict()


@pytest.mark.parametrize(
    ("group", "value", "message"),
    [
        ("schema", "batchbridge/0", "schema: 'batchbridge/0' is not 'batchbridge/1'"),
        (7, {}, "spec: unknown field 7; known: topology, rollout"),
        ("batch", {}, "spec: unknown field 'batch'; known: topology, rollout"),
        ("rollout", {"n": 1}, "rollout: unknown field 'n'; known: prompts_per_rollout"),
        ("rollout", {"prompts_per_rollout": 4}, "rollout: missing completions_per_prompt"),
        ("topology", {}, "topology: missing world_size"),
        ("topology", None, "topology: expected a mapping, got NoneType"),
        ("topology", {"world_size": "3"}, "topology.world_size: '3' is not int"),
        ("topology", {"world_size": 3.0}, "topology.world_size: 3.0 is not int"),
        ("topology", {"world_size": True}, "topology.world_size: True is not int"),
        ("topology", {"world_size": None}, "topology.world_size: None is not int"),
        ("horizon", {"epochs": True}, "horizon.epochs: True is not float or null"),
        ("order", {"seed": 1, "last_rollout": "keep"}, "order.last_rollout: 'keep' is not 'drop' or 'short' or 'pad'"),
        ("objective", {"ratio_level": 1}, "objective.ratio_level: 1 is not 'token' or 'sequence' or null"),
        ("open_terms", "advantage: gdpo", "open_terms: 'advantage: gdpo' is not a list of names"),
        ("open_terms", [1], "open_terms: [1] is not a list of names"),
        ("loss", {"policy": None}, "loss.policy: expected a mapping, got NoneType"),
        ("loss", {"policy": {"aggregation": "mean"}}, "loss.policy.aggregation: 'mean' is not 'token_mean' or"),
        ("loss", {"policy": {"aggregation": "token_sum"}, "kl": {}}, "loss.kl: missing aggregation"),
    ],
)
def test_from_dict_says_what_is_wrong_and_where(group: Any, value: Any, message: str) -> None:
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  # the whole message is compared below
        Spec.from_dict({**MINIMAL, group: value})
    assert str(refusal.value).startswith(message)


@pytest.mark.parametrize("group", ["topology", "rollout", "optimizer_step", "loss", "horizon"])
def test_from_dict_names_a_missing_group(group: str) -> None:
    with pytest.raises(ValueError, match=f"^spec: missing {group}$"):
        Spec.from_dict({name: value for name, value in MINIMAL.items() if name != group})


@pytest.mark.parametrize("data", [None, [], "spec", 3])
def test_from_dict_refuses_what_is_no_mapping(data: Any) -> None:
    with pytest.raises(ValueError, match=r"^spec: expected a mapping"):
        Spec.from_dict(data)


def test_replace_takes_dotted_fields_and_whole_groups() -> None:
    changed = MINIMAL_SPEC.replace(
        **{"loss.policy.constant": 32, "topology.world_size": 8, "horizon": Horizon(rollouts=1)}
    )
    assert changed.loss.policy == LossTerm(aggregation="token_mean", constant=32)
    assert changed.topology == Topology(world_size=8)
    assert changed.horizon == Horizon(rollouts=1)
    assert changed.rollout == MINIMAL_SPEC.rollout


def test_replace_refuses_an_unknown_field() -> None:
    with pytest.raises(TypeError, match="prompts"):
        MINIMAL_SPEC.replace(**{"rollout.prompts": 1})


def test_every_field_has_a_unit_and_a_meaning() -> None:
    everything = MINIMAL_SPEC.replace(
        loss=Loss(policy=MINIMAL_SPEC.loss.policy, kl=MINIMAL_SPEC.loss.policy, entropy=MINIMAL_SPEC.loss.policy)
    )
    for path, _, quantity in walk(everything):
        assert quantity.unit, path
        assert quantity.meaning.endswith("."), path


def test_walk_reaches_every_leaf_of_the_dict() -> None:
    def leaves(data: dict[str, Any], prefix: str = "") -> list[str]:
        return [
            path
            for name, value in data.items()
            for path in (leaves(value, f"{prefix}{name}.") if isinstance(value, dict) else [f"{prefix}{name}"])
        ]

    expected = [path for path in leaves(MINIMAL_SPEC.to_dict()) if path not in ("schema", "loss.kl", "loss.entropy")]
    assert [path for path, _, _ in walk(MINIMAL_SPEC)] == expected


def test_no_field_is_named_batch_size() -> None:
    assert [path for path, _, _ in walk(MINIMAL_SPEC) if "batch_size" in path] == []


def test_a_field_at_its_default_adds_nothing_to_a_digest() -> None:
    # So that a field which a later version adds leaves the digests of ledgers and receipts as they are.
    groups = {group: dict(values) for group, values in MINIMAL.items()}
    assert MINIMAL_SPEC.digest() == Spec.from_dict(groups).digest()
    assert default_of("horizon.lr_tick") == "optimizer_step"
    assert MINIMAL_SPEC.replace(**{"horizon.lr_tick": "optimizer_step"}).digest() == MINIMAL_SPEC.digest()
    assert default_of("topology.world_size") is dataclasses.MISSING
    with pytest.raises(KeyError):
        default_of("topology")


def test_open_terms_are_names() -> None:
    spec = MINIMAL_SPEC.replace(open_terms=("advantage: gdpo",))
    assert spec.to_dict()["open_terms"] == ["advantage: gdpo"]
    assert Spec.from_dict({**MINIMAL, "open_terms": ["advantage: gdpo"]}) == spec != MINIMAL_SPEC
    assert spec_of({**told_of(MINIMAL_SPEC), "open_terms": FieldValue(("advantage: gdpo",))}) == spec


@pytest.mark.parametrize(
    ("prompt", "completion", "total", "longest"),
    [
        (None, None, None, None),
        (512, None, None, None),
        (None, 1024, None, 1024),
        (512, 1024, None, 1536),
        (512, 1024, 1200, 1200),
        (512, 1024, 4096, 1536),
        (512, None, 1200, 1200),
    ],
)
def test_the_longest_sequence_is_the_sum_or_the_total(
    prompt: int | None, completion: int | None, total: int | None, longest: int | None
) -> None:
    carried = Carried(max_prompt_tokens=prompt, max_completion_tokens=completion, max_total_tokens=total)
    assert carried.longest_tokens == longest


def test_the_completions_of_a_rollout_are_a_product() -> None:
    assert MINIMAL_SPEC.completions_per_rollout == 24
    assert MINIMAL_SPEC.replace(**{"rollout.prompts_per_rollout": None}).completions_per_rollout is None


def told_of(spec: Spec) -> dict[str, FieldValue]:
    return {path: FieldValue(value) for path, value, _ in walk(spec)}


@given(specs)
def test_every_field_of_a_spec_told_is_that_spec(spec: Spec) -> None:
    assert spec_of(told_of(spec)) == spec


def test_what_is_not_told_is_the_schemas_default() -> None:
    told = {path: entry for path, entry in told_of(MINIMAL_SPEC).items() if not path.startswith("carried.")}
    assert spec_of({**told, "carried.dropout": FieldValue("off")}) == MINIMAL_SPEC.replace(**{"carried.dropout": "off"})


@pytest.mark.parametrize(
    ("path", "message"),
    [("rolout.seed", "no group rolout"), ("rollout.size", "size"), ("loss.value.aggregation", "value")],
)
def test_what_the_schema_does_not_have_is_named(path: str, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        spec_of({**told_of(MINIMAL_SPEC), path: FieldValue(1)})


def test_a_missing_field_is_named() -> None:
    told: dict[str, Any] = told_of(MINIMAL_SPEC)
    del told["rollout.completions_per_prompt"]
    with pytest.raises(TypeError, match="completions_per_prompt"):
        spec_of(told)


def test_a_derived_value_says_its_formula() -> None:
    assert FieldValue(24, None, "4 x 6").derived() == Provenance((), 24, "derived", "derived: 4 x 6")


def test_a_specification_travels_between_processes_after_its_values_were_asked_for() -> None:
    assert MINIMAL_SPEC.values["topology.world_size"] == MINIMAL_SPEC.topology.world_size
    assert pickle.loads(pickle.dumps(MINIMAL_SPEC)) == MINIMAL_SPEC
