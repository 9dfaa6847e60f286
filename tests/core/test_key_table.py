"""Rows of settings, kinds of values, and an adapter that is a table: what they read, refuse and write."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, ClassVar

import pytest
import yaml

from batchbridge import Behaviour, CannotWrite, Finding, Fix, Source, Where, hookimpl
from batchbridge.contract import plugins
from batchbridge.kit import Context
from batchbridge.kit.config_texts import nested_yaml
from batchbridge.kit.frame import origins
from batchbridge.kit.key_table import (
    Codes,
    Key,
    Together,
    Unsayable,
    converted,
    gathered,
    keys_of,
    read_values,
    recorded,
    recorded_together,
)
from batchbridge.kit.kinds import WrongValue, anything, count, flag, named, natural, one_of, optional, real, text, whole
from batchbridge.kit.omegaconf import typed
from batchbridge.kit.rule_table import SILENT, Rule, recorded_rules
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge.kit.values import FieldValue

KINDS = {
    "natural": (natural, [1, 8], [0, -1, True, 2.0, "8", None, 1 << 62, [1]]),
    "count": (count, [0, 3], [-1, False, 0.5]),
    "whole": (whole(), [-5, 0, 5], [1.0, True, 1 << 62]),
    "whole to 7": (whole(2, 7), [2, 7], [1, 8]),
    "real": (real(), [-1.5, 2, 1e-6], [float("nan"), float("inf"), "1e-6", True, None, 10**40]),
    "share": (real(0, 1), [0, 0.5, 1], [-0.1, 1.1]),
    "flag": (flag, [True, False], [0, 1, "true", None]),
    "text": (text, ["", "x"], [1, None, ["x"]]),
    "word": (one_of("a", "b"), ["a", "b"], ["c", 1, None, ["a"]]),
    "optional": (optional(natural), [None, 3], [0, "x"]),
}


@pytest.mark.parametrize("name", KINDS)
def test_a_kind_takes_its_own_and_nothing_else(name: str) -> None:
    kind, good, bad = KINDS[name]
    for value in good:
        assert kind.takes(value)
        assert kind.convert(value) == value
    for value in bad:
        with pytest.raises(WrongValue) as refused:
            kind.convert(value)
        assert str(refused.value) == kind.expected


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (natural, "a whole number from 1"),
        (whole(2, 7), "a whole number from 2 to 7"),
        (real(0, 1), "a number from 0 to 1"),
        (one_of("a", "b"), "one of a, b"),
        (optional(flag), "true or false, or null"),
    ],
)
def test_a_kind_says_what_it_expects(kind: Any, said: str) -> None:
    assert kind.expected == said


def test_a_row_means_and_says_one_thing() -> None:
    row = Key(
        "loss", one_of("mean", "sum"), "mean", "loss.policy.aggregation", {"mean": "token_mean", "sum": "token_sum"}
    )
    assert (row.means("sum"), row.says("token_sum")) == ("token_sum", "sum")
    with pytest.raises(Unsayable, match="loss has token_mean"):
        row.says("sequence_mean")
    percent = Key(
        "p", whole(0, 100), 10, "carried.warmup_ratio", (lambda native: native / 100, lambda ratio: round(ratio * 100))
    )
    assert (percent.means(5), percent.says(0.05)) == (0.05, 5)
    with pytest.raises(Unsayable, match="p is a whole number from 0 to 100"):
        percent.says(2.0)


def test_rows_hold_in_their_versions() -> None:
    table = (
        Key("a", natural, 1, versions="<2"),
        Key("a", natural, 2, versions=">=2"),
        Key("b", flag, True, versions=">=3"),
    )
    assert {key: row.default for key, row in keys_of(table, "1.5").items()} == {"a": 1}
    assert {key: row.default for key, row in keys_of(table, "3.0").items()} == {"a": 2, "b": True}


def test_what_a_source_gives() -> None:
    rows = keys_of((Key("train.size", natural, 4), Key("train.extra", text, "x"), Key("seed", whole(), 0)), "1")
    values = {"train": {"size": 8, "sise": 2}, "seed": "no", 3: 1}
    source = Source(values=values, path=Path("a.yaml"), lines={"train.size": 2, "seed": 5})
    native, places, found = read_values(source, rows, "toy", Codes.of("BB-TOY"))
    assert native == {"train.size": 8, "train.extra": "x", "seed": 0}
    assert {key: (place.file, place.line) for key, place in places.items()} == {"train.size": ("a.yaml", 2)}
    told = {(finding.code, finding.message) for finding in found}
    assert told == {
        ("BB-TOY-004", "toy has no setting train.sise"),
        ("BB-TOY-005", "seed = no: expected a whole number"),
        ("BB-TOY-004", "the key 3 is not text, and every setting's name is"),
    }
    (unknown,) = (finding for finding in found if "sise" in finding.message)
    # train.size is said already: what overwrites it is no way out
    assert unknown.fixes[0] == Fix("remove train.sise", {"train.sise": None})
    alone = read_values(Source(values={"train": {"sise": 2}}), rows, "toy", Codes.of("BB-TOY")).findings[0]
    assert alone.fixes[0] == Fix("write train.size", {"train.sise": None, "train.size": 2})


def test_a_group_with_a_key_that_is_no_text_is_refused_and_not_read_in_part() -> None:
    rows = keys_of((Key("train.size", natural, 4),), "1")
    native, places, (found,) = read_values(Source(values={"train": {"size": 8, 3: 1}}), rows, "toy", Codes.of("BB-TOY"))
    assert (native, places, found.code) == ({"train.size": 4}, {}, "BB-TOY-005")
    assert found.message == "train = {'size': 8, 3: 1}: expected a group of settings"


def test_what_was_said_is_converted_with_a_finding_for_each_key_that_is_none_and_each_wrong_value() -> None:
    rows = keys_of((Key("size", natural, 4), Key("seed", whole(), 0), Key("fused", flag, True, fixed=True)), "1")

    def unknown(key: str, near: Sequence[str]) -> Finding:
        return Finding("unknown", "error", "config", f"{key}, near {', '.join(near)}")

    def wrong(key: str, error: WrongValue) -> Finding:
        return Finding("wrong", "error", "config", f"{key}: {error}")

    said = {"sise": 1, "seed": "no", "size": 8, "fused": False}
    native, found, keys = converted(said, rows, unknown, wrong)
    assert (native, keys) == ({"size": 8, "seed": 0, "fused": True}, {"seed"})
    # What a version does without a setting for it is not one of its settings.
    assert [one.message for one in found] == ["sise, near ", "seed: a whole number", "fused, near "]
    doubled = converted({"size": 8}, rows, unknown, wrong, lambda row, value: 2 * row.kind.convert(value))
    assert doubled.native["size"] == 16


def test_keys_below_a_row_that_takes_mappings_are_part_of_its_value() -> None:
    rows = keys_of((Key("options", anything), Key("size", natural, 4)), "1")
    said = [("options", {"a": 1}), ("options.b.c", 2), ("size.d", 3)]
    assert gathered(said, rows) == {"options": {"a": 1, "b": {"c": 2}}, "size.d": 3}


def test_an_origin_is_a_place_or_a_default_with_the_formula_behind_it() -> None:
    told = {
        "a": FieldValue(2, "size", "half of size"),
        "b": FieldValue(3, "seed"),
        "c": FieldValue(6, None, "size x seed", ("size",)),
    }
    found = origins(told, {"size": 4, "seed": 3}, {"size": Where("size", 4, "a.yaml", 2)}, "default of toy 1")
    assert [(one.keys, one.value, one.origin, one.detail) for one in found.values()] == [
        (("size",), 4, "file", "a.yaml:2 (derived: half of size)"),
        (("seed",), 3, "default", "default of toy 1"),
        (("size",), 6, "derived", "derived: size x seed"),
    ]


CONSTANTS = {"loss.policy.aggregation": "token_mean"}


class Table(TableAdapter):
    """Framework `toy`: rollouts of `batch` completions in groups of `group`, on `devices`."""

    framework = "toy"
    versions = ">=1,<3"
    newest_version = "2.0"
    codes = Codes.of("BB-TOY")
    keys = (
        Key("batch", natural, 32, "optimizer_step.completions_per_step", unit="completions"),
        Key("group", natural, 8, "rollout.completions_per_prompt"),
        Key("epochs", optional(real(0)), None),
        Key("steps", optional(natural), None),
        Key("devices", optional(natural), None, "topology.world_size"),
    )
    constants = CONSTANTS
    rules = (
        Rule(
            "BB-TOY-010",
            "error",
            "construction",
            lambda native: "batch holds no whole groups" if native["batch"] % native["group"] else None,
            ("batch", "group"),
            native="ValueError",
            source="toy 1.0",
        ),
    )

    def derive(self, native: Mapping[str, Any]) -> Mapping[str, FieldValue]:
        if (native["epochs"] is None) == (native["steps"] is None):
            raise ValueError("give epochs or steps, one of the two")
        prompts = FieldValue(native["batch"] // native["group"], None, "batch / group", ("batch", "group"))
        horizon = {
            "horizon.epochs": FieldValue(native["epochs"], "epochs"),
            "horizon.optimizer_steps": FieldValue(native["steps"], "steps"),
        }
        return {"rollout.prompts_per_rollout": prompts, **horizon}

    def restate(self, spec: Any) -> Mapping[str, Any]:
        if spec.completions_per_rollout != spec.optimizer_step.completions_per_step:
            raise Unsayable("a step is a whole rollout", "optimizer_step.completions_per_step")
        return {"epochs": spec.horizon.epochs, "steps": spec.horizon.optimizer_steps}

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        return Behaviour(
            order="as given",
            membership="whole rollouts",
            denominator_scope="optimizer_step",
            denominator_formula="1 / T",
            lr_tick="optimizer step",
            resume="exact",
            source="toy",
        )


ON_TWO = Context(framework_version="2.0", world_size=2)
WHOLE = {"batch": 16, "group": 4, "epochs": 2}


def read(values: Mapping[str, Any], context: Context = ON_TWO, **source: Any) -> Any:
    return Table().read(Source(values=values, **source), context)


def codes(reading: Any) -> list[str]:
    return [finding.code for finding in (*reading.findings, *Table().check(reading))]


def test_rows_constants_and_what_is_derived_make_the_spec() -> None:
    reading = read(WHOLE, path=Path("a.yaml"), lines={"batch": 1, "group": 2, "epochs": 3})
    spec = reading.spec
    assert (spec.rollout.prompts_per_rollout, spec.rollout.completions_per_prompt) == (4, 4)
    assert (spec.horizon.epochs, spec.topology.world_size) == (2.0, 2)
    assert reading.provenance["optimizer_step.completions_per_step"].line == 1
    assert reading.provenance["rollout.prompts_per_rollout"].keys == ("batch", "group")
    assert reading.provenance["loss.policy.aggregation"].detail == "derived: so in the code of toy"


@pytest.mark.parametrize(
    ("values", "context", "found", "undecided"),
    [
        (WHOLE, Context(framework_version="2.0"), ["BB-TOY-003"], True),
        ({**WHOLE, "devices": 4}, ON_TWO, ["BB-TOY-003"], False),
        ({**WHOLE, "devices": 2}, ON_TWO, [], False),
        ({**WHOLE, "devices": 3}, Context(framework_version="2.0"), [], False),
        ({**WHOLE, "steps": 3}, ON_TWO, ["BB-TOY-006"], True),
        ({**WHOLE, "batch": 7}, ON_TWO, ["BB-TOY-010"], False),
        (WHOLE, Context(world_size=2), ["BB-TOY-001"], True),
        (WHOLE, Context(framework_version="0.5", world_size=2), ["BB-TOY-002"], True),
    ],
    ids=["no devices", "two numbers", "one number twice", "its own", "open", "a rule", "no version", "unknown version"],
)
def test_what_keeps_a_table_from_a_spec(values: Any, context: Context, found: list[str], undecided: bool) -> None:
    reading = read(values, context)
    assert codes(reading) == found
    assert (reading.spec is None) == bool(found)
    assert any(finding.undecided for finding in reading.findings) == undecided


class Interpolating(Table):
    """The same, whose files are OmegaConf's."""

    keys = (*Table.keys, Key("rate", real(0), 1e-5, "carried.learning_rate"), Key("folder", text, "runs"))
    interpolates = True


def test_interpolations_are_followed_where_a_table_says_so() -> None:
    said = {**WHOLE, "batch": "${group}", "rate": "1e-6", "folder": "${now:%H}"}
    assert "BB-TOY-005" in codes(read(said))
    source = Source(values=said, path=Path("a.yaml"), lines={"batch": 1})
    reading = Interpolating().read(source, ON_TWO)
    assert (reading.verdict, reading.spec.optimizer_step.completions_per_step) == ("valid", 4)
    assert (reading.spec.carried.learning_rate, reading.native["folder"]) == (1e-6, "${now:%H}")
    assert reading.provenance["optimizer_step.completions_per_step"].line == 1


def test_an_interpolation_that_leads_nowhere_is_an_error_where_it_decides_something() -> None:
    source = Source(values={**WHOLE, "batch": "${batsh}"}, path=Path("a.yaml"), lines={"batch": 1})
    (found,) = Interpolating().read(source, ON_TWO).findings
    assert (found.code, str(found.where[0])) == ("BB-TOY-005", "batch = ${batsh} (a.yaml:1)")
    assert "refers to no key" in found.message


def test_rows_that_plugins_add_are_asked_and_their_defects_told() -> None:
    class Site:
        @hookimpl
        def batchbridge_rules(self, framework: str, version: str) -> Iterator[Rule[Mapping[str, Any]]]:
            if (framework, version) == ("toy", "2.0"):
                yield SILENT("SITE-1", lambda native: f"{native['group']} are few", ("group",), "trains", "toy 2.0")

    site = Site()
    plugins.manager().register(site)
    try:
        reading = read(WHOLE)
        (found,) = Table().check(reading)
    finally:
        plugins.manager().unregister(site)
    assert (found.code, found.severity, found.where[0].key) == ("SITE-1", "warning", "group")
    assert [defect.code for defect in reading.behaviour.defects] == ["SITE-1"]
    assert codes(reading) == []


def test_what_is_told_nothing_has_the_settings_that_its_devices_need() -> None:
    class Nodes(Table):
        def alone(self, world: int) -> Mapping[str, Any]:
            return {"steps": world, "epochs": None}

    spec = Nodes().read(Source(), ON_TWO).spec
    assert spec is not None
    assert spec.horizon.optimizer_steps == 2
    assert Nodes().read(Source(values={"batch": 8}), ON_TWO).spec is None


def test_a_newer_version_is_read_as_the_newest_with_a_warning() -> None:
    reading = read(WHOLE, Context(framework_version="2.7", world_size=2))
    (warning,) = reading.findings
    assert (reading.framework_version, warning.severity, warning.code) == ("2.0", "warning", "BB-TOY-002")
    assert reading.spec is not None


def test_what_is_written_is_what_was_read() -> None:
    spec = read(WHOLE).spec
    written = Table().write(spec)
    assert written.values == {"batch": 16, "group": 4, "epochs": 2.0, "devices": 2}
    assert list(written.values) == ["batch", "group", "epochs", "devices"], "in the table's order"
    assert written.text["yaml"] == "batch: 16\ngroup: 4\nepochs: 2.0\ndevices: 2\n"
    assert written.framework_version == "2.0"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"optimizer_step.completions_per_step": 8}, "optimizer_step.completions_per_step"),
        ({"loss.policy.aggregation": "token_sum"}, "loss.policy.aggregation"),
        ({"rollout.completions_per_prompt": 3, "optimizer_step.completions_per_step": 12}, ""),
    ],
)
def test_what_no_row_says_is_refused_by_its_field(changes: Mapping[str, Any], field: str) -> None:
    spec = read(WHOLE).spec.replace(**changes)
    if not field:
        assert Table().write(spec).values["group"] == 3
        return
    with pytest.raises(CannotWrite) as refused:
        Table().write(spec)
    assert field in {path for problem in refused.value.problems for path in problem.fields}


# ---- rows as data, and settings that only together say a field


PLACEMENT = Together(
    ("kl_loss", "kl_reward"),
    ("objective.kl_placement",),
    {(True, False): ("loss",), (False, True): ("reward",), (False, False): ("none",)},
)
FILTER = Together(
    ("filter", "tolerance"),
    ("rollout.group_filter",),
    {(True, ...): ("replace_zero_variance",), (False, ...): ("none",)},
)


@pytest.mark.parametrize(
    ("name", "good", "bad"),
    [
        ("natural", 8, 0),
        ("count?", None, -1),
        ("share", 0.5, 2),
        ("a|b", "b", "c"),
        ("a|b?", None, 1),
        ("seed", 7, 2**32),
    ],
)
def test_kinds_have_names_for_tables_that_are_data(name: str, good: Any, bad: Any) -> None:
    assert named(name).takes(good)
    assert not named(name).takes(bad)
    with pytest.raises(KeyError):
        named("naturals")


def test_settings_that_only_together_say_a_field_are_read_and_written_by_the_first_row_that_fits() -> None:
    told = PLACEMENT.field_values({"kl_loss": False, "kl_reward": True})
    assert told == {"objective.kl_placement": FieldValue("reward", "kl_loss", None, ("kl_reward",))}
    assert PLACEMENT.says({"objective.kl_placement": "none"}) == {"kl_loss": False, "kl_reward": False}
    assert PLACEMENT.says({"objective.kl_placement": None}) == {"kl_loss": True, "kl_reward": False}  # may be unknown
    assert (
        FILTER.field_values({"filter": True, "tolerance": 3})["rollout.group_filter"].value == "replace_zero_variance"
    )
    assert FILTER.says({"rollout.group_filter": "none"}) == {"filter": False}  # what does not matter is not written
    with pytest.raises(Unsayable) as refused:
        FILTER.says({"rollout.group_filter": None})
    assert refused.value.fields == ("rollout.group_filter",)
    with pytest.raises(ValueError, match="kl_loss, kl_reward"):
        PLACEMENT.field_values({"kl_loss": True, "kl_reward": True})


def test_rows_may_be_data() -> None:
    one, two = recorded({"seed": ["seed", 42, "order.seed"], "path": ["anything", None]})
    assert (one.key, one.default, one.fields, one.kind.expected) == (
        "seed",
        42,
        ("order.seed",),
        named("seed").expected,
    )
    assert (two.fields, two.default) == ((), None)
    (row,) = recorded_together([{"keys": ["filter", "tolerance"], "fields": ["f"], "values": [[[True, "*"], ["x"]]]}])
    assert row.field_values({"filter": True, "tolerance": 1})["f"].value == "x"
    data = {"code": 7, "phase": "config", "when": {"a": [1], "b": {"not": [None]}}, "message": "not both"}
    (rule,) = recorded_rules([{**data, "native": "ValueError", "source": "toy 1.0", "fix": {"b": None}}], "BB-TOY")
    assert (rule.code, rule.severity, rule.keys) == ("BB-TOY-007", "error", ("a", "b"))
    assert rule.test({"a": 1, "b": 2}) == "a = 1, b = 2: not both"
    assert rule.test({"a": 1, "b": None}) is rule.test({"a": 2, "b": 2}) is None
    assert rule.fixes({}) == (Fix("b = None", {"b": None}),)
    (silent,) = recorded_rules([{**data, "phase": "never", "native": "trains it", "source": "toy 1.0"}], "BB-TOY")
    assert (silent.severity, silent.is_defect) == ("warning", True)


class Nodes(Table):
    """Framework `toy` on nodes x gpus, with a total that follows the batch, and free settings of an engine."""

    keys = (
        *Table.keys[:-1],
        Key("nodes", natural, 1, "topology.world_size"),
        Key("gpus", natural, 1, "topology.world_size"),
        Key("total", optional(natural)),
        Key("engine", anything, {}),
        Key("own", natural, 3),
        Key("size", natural, 3),
        Key("open", natural, 3),
    )
    follows: ClassVar[Mapping[str, Sequence[str]]] = {
        "own": ("total",),
        "size": ("own", "gpus"),
        "open": ("own", "total"),
    }

    def filled(self, native: Mapping[str, Any]) -> Mapping[str, Any]:
        return {"total": native["batch"]}

    def settings_of(self, source: Source, rows: Mapping[str, Key]) -> Source:
        said = Finding("BB-TOY-099", "note", "config", "a command")
        return dataclasses.replace(source, problems=(*source.problems, said)) if source.argv else source


def test_devices_may_be_a_product_of_settings() -> None:
    context = Context(framework_version="2.0")
    told = Nodes().read(Source(values={**WHOLE, "nodes": 2, "gpus": 4}), context)
    assert told.spec is not None
    assert told.spec.topology.world_size == 8
    assert told.provenance["topology.world_size"].keys == ("nodes", "gpus")
    written = Nodes().write(told.spec)
    assert (written.values["nodes"], written.values["gpus"]) == (1, 8)
    six = Context(framework_version="2.0", world_size=6)
    spec = Nodes().read(Source(values={**WHOLE, "nodes": 2}), six).spec
    assert spec is not None
    assert spec.topology.world_size == 6  # three of each node, which nobody said
    for values in ({"nodes": 2, "gpus": 4}, {"nodes": 4}):  # 6 is neither 8 nor a multiple of 4
        assert [found.code for found in Nodes().read(Source(values={**WHOLE, **values}), six).findings] == [
            "BB-TOY-003"
        ]


def test_settings_follow_one_that_follows_another_and_products() -> None:
    def native(**values: Any) -> list[Any]:
        read_it = Nodes().read(Source(values={**WHOLE, "gpus": 2, **values}), ON_TWO).native
        return [read_it[key] for key in ("own", "size", "open")]

    assert native(total=5) == [5, 10, 25]
    assert native(total=5, own=4) == [4, 8, 20]  # what is given is followed
    assert native(total=5, own=4, size=1) == [4, 1, 20]
    assert native() == [3, 6, 3]  # nobody says the total, so what follows it is at its default


def test_settings_may_follow_others_and_stand_below_a_mapping() -> None:
    read_it = Nodes().read(Source(values={**WHOLE, "engine.a.b": 1, "engine.c": 2}), ON_TWO)
    assert read_it.native["engine"] == {"a": {"b": 1}, "c": 2}
    assert read_it.native["total"] == 16
    assert Nodes().read(Source(values={**WHOLE, "total": None}), ON_TWO).native["total"] == 16
    assert Nodes().read(Source(values={**WHOLE, "total": 5}), ON_TWO).native["total"] == 5
    assert [found.code for found in Nodes().read(Source(values={**WHOLE, "batch.x": 1}), ON_TWO).findings] == [
        "BB-TOY-004"
    ]


def test_an_adapter_may_read_command_lines_in_its_own_way() -> None:
    found = Nodes().read(Source(values=WHOLE, argv=("toy",)), ON_TWO).findings
    assert [one.code for one in found] == ["BB-TOY-099"]


def test_text_is_a_number_where_omegaconf_says_so() -> None:
    assert typed({"lr": "1e-6", "betas": [0.9, "1e-3"], "name": "run-1"}) == {
        "lr": 1e-6,
        "betas": [0.9, 1e-3],
        "name": "run-1",
    }


PLAIN = ("1.0e-6", "0.5", ".5", "1.", "-.5e-3", ".inf", "-.INF", "8", "run-1", "1e", "e6", "1.2.3", "0x10", "true")
OURS_ALONE = ("1e-6", "1e6", "1.0e6", "-2e+3", "1_0e2")
"""Numbers for OmegaConf and texts for YAML 1.1, whose loader does not say whether they were quoted."""


@pytest.mark.parametrize(("text", "quote"), [*product((*PLAIN, *OURS_ALONE), ("",)), *product(PLAIN, ("'", '"'))])
def test_a_file_s_numbers_are_those_of_omegaconf_and_what_is_quoted_stays_text(text: str, quote: str) -> None:
    omegaconf = pytest.importorskip("omegaconf", reason="batchbridge[hydra] is not installed")
    line = f"a: {quote}{text}{quote}"
    ours, theirs = typed(yaml.safe_load(line))["a"], omegaconf.OmegaConf.create(line).a
    assert (ours, type(ours)) == (theirs, type(theirs))


@pytest.mark.parametrize("value", [1e-6, 1e22, 2.0, 0.1, float("inf"), -float("inf")])
def test_a_float_is_a_float_in_yaml_too(value: float) -> None:
    assert yaml.safe_load(nested_yaml({"a.b": value})) == {"a": {"b": value}}


@pytest.mark.parametrize("nothing", [{}, None])
def test_an_empty_group_says_nothing_and_anything_else_in_its_place_is_refused(nothing: Any) -> None:
    rows = keys_of((Key("train.size", natural, 4), Key("train.extra.name", text, "x")), "1")
    for values in ({"train": nothing}, {"train": {"extra": nothing}}):
        assert read_values(Source(values=values), rows, "toy", Codes.of("BB-TOY")).findings == []
    for values, key in (({"train": 5}, "train"), ({"train": {"extra": ["x"]}}, "train.extra")):
        (found,) = read_values(Source(values=values), rows, "toy", Codes.of("BB-TOY")).findings
        assert (found.code, found.where[0].key) == ("BB-TOY-005", key)
        assert "expected a group of settings" in found.message
        assert found.fixes == (Fix(f"remove {key}", {key: None}),)
