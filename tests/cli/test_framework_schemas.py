"""A schema of a framework's own file says no exactly where `check` finds an unknown key, a value of a wrong kind, or a
word that is not one of a setting's.

What JSON Schema cannot tell apart is left out here, and named in docs/editors.md: 2.0 and 2, digits of other scripts,
numbers beyond a float, text that ought to be JSON.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbridge.contract import plugins
from batchbridge.contract.reading import Context, Source
from batchbridge.kit.config_texts import as_groups
from batchbridge.kit.key_table import settings_in
from batchbridge.reading.files import load_source
from batchbridge.reading.read import read_source
from batchbridge_verl.settings import defaults_of

jsonschema = pytest.importorskip("jsonschema", reason="schemas are checked by the jsonschema package")

VERSIONS: Mapping[str, tuple[str, ...]] = {
    "trl": ("0.15.0", "0.18.0", "0.22.0", "0.28.0", "1.16.0"),
    "open_r1": ("0.18.0", "1.16.0"),
    "verl": ("0.4.0", "0.6.1", "0.8.0", "0.9.1"),
    "easyr1": ("0.3.0", "0.3.1", "0.3.2", "0.3.3.dev0"),
}
EVERY = [(framework, version) for framework, versions in VERSIONS.items() for version in versions]
BASE: Mapping[str, Mapping[str, Any]] = {
    "trl": {"num_generations": 8, "per_device_train_batch_size": 8, "logging_steps": 1},
    "open_r1": {"num_generations": 8, "per_device_train_batch_size": 8, "logging_steps": 1},
    "verl": {
        "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu": 1,
        "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu": 1,
        "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": 1,
        "actor_rollout_ref.rollout.n": 8,
        "algorithm.adv_estimator": "grpo",
    },
    "easyr1": {"worker.rollout.n": 5},
}
"""A valid run by dotted keys."""
OF_KEYS = {"BB-TRL-003", "BB-TRL-004", "BB-VERL-003", "BB-VERL-006", "BB-VERL-080", "BB-EZR1-003", "BB-EZR1-006"}
OF_WORDS = {"BB-TRL-028", "BB-TRL-035", "BB-TRL-036", "BB-TRL-038", "BB-TRL-039", "BB-VERL-024"}
OF_WORDS |= {f"BB-EZR1-{number}" for number in ("027", "029", "042", "043")}
"""Codes of findings that a schema says, too."""
SAMPLES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -3, 7, 0.5, -0.25, 1e-6, "", "text", "8", " 8 ", "-1", "+2", "+-2", "1_000"),
    *("1e-6", "1.0e-6", "0.5", ".5", "1.", "1e6", "nan", "inf", ".inf", "0x10", "true", "Yes", "on", "f", "T"),
    *([], [1], ["a"], [0.5, True], [None], [[1]], [{"a": 1}], {}, {"a": 1}, "${x}", "a ${x} b", "???", "null"),
)
NUMBERS = ("1e-6", "1e6")
"""Samples that YAML 1.1 leaves as texts, and OmegaConf does not."""
HELD = {"model_engine", "actor_rollout_ref.actor.strategy", "defaults", "hydra"}
"""Keys of verl that choose a schema."""


@cache
def validator(framework: str, version: str) -> Any:
    schema = plugins.adapters()[framework].file_schema(version)
    jsonschema.Draft7Validator.check_schema(schema)
    return jsonschema.Draft7Validator(schema)


def refused(framework: str, version: str, values: Mapping[str, Any]) -> set[str]:
    """Dotted keys that the schema says no to."""
    found = set()
    for error in validator(framework, version).iter_errors(values):
        path = [part for part in error.absolute_path if isinstance(part, str)]
        if error.validator == "additionalProperties":
            found |= {".".join([*path, name]) for name in set(error.instance) - set(error.schema["properties"])}
        else:
            found.add(".".join(path))
    return found


def reported(framework: str, version: str, values: Mapping[str, Any], codes: Iterable[str] = OF_KEYS) -> set[str]:
    """Dotted keys that check says the same three things about."""
    adapter = plugins.adapters()[framework]
    source = Source(values=values, path=Path("config.yaml"))
    reading = read_source(source, adapter, Context(framework_version=version, world_size=8))
    return {str(one.where[0].key) for one in reading.findings if one.code in codes}


def leaves(framework: str, version: str) -> list[str]:
    """Dotted keys of the schema that are settings of the version."""
    schema = validator(framework, version).schema

    def walk(node: Mapping[str, Any], path: str) -> Iterator[str]:
        for name, part in node.get("properties", {}).items():
            if "properties" in part and part.get("type") == "object":
                yield from walk(part, f"{path}{name}.")
            elif part.get("not") != {} and part.get("type") != "object":
                yield f"{path}{name}"

    return [key for key in walk(schema.get("definitions", {}).get("fsdp", schema), "") if key not in HELD]


def of(key: str, keys: Iterable[str]) -> set[str]:
    """The keys that are `key`, stand below it, or are a group around it."""
    return {one for one in keys if one == key or one.startswith(f"{key}.") or key.startswith(f"{one}.")}


@pytest.mark.parametrize(("framework", "version"), EVERY)
def test_every_setting_takes_what_check_takes(framework: str, version: str) -> None:
    keys = leaves(framework, version)
    assert len(keys) > 80
    closed = {key for key in keys if of(key, refused(framework, version, as_groups({key: "nobody_says_this"})))}
    texts = (str, bool, int, float) if framework == "easyr1" else str  # OmegaConf makes texts of scalars there
    wrong = []
    for sample in SAMPLES:
        values = as_groups(dict.fromkeys(keys, sample))
        if framework == "verl":
            values["model_engine"] = "fsdp"
        no, said = refused(framework, version, values), reported(framework, version, values)
        # Of texts: see the words below.
        spoken = [key for key in keys if key not in closed] if isinstance(sample, texts) else keys
        if (
            framework == "verl" and isinstance(sample, str) and sample in NUMBERS
        ):  # for OmegaConf, and so no text of a setting that takes texts
            refused_number = refused(
                framework, version, as_groups({**dict.fromkeys(keys, 1e-6), "model_engine": "fsdp"})
            )
            spoken = [key for key in spoken if not of(key, refused_number)]
        wrong += [f"{key} = {sample!r}" for key in spoken if bool(of(key, no)) != bool(of(key, said))]
    assert wrong == []


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**40), 2**40)
    | st.floats(allow_nan=False, allow_infinity=False).filter(lambda number: not number.is_integer())
    | st.text(st.characters(min_codepoint=32, max_codepoint=126, exclude_characters="{$"), max_size=8),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
).filter(lambda value: not isinstance(value, str) or "e" not in value.lower() or len(value) < 4)


@given(st.data())
def test_any_value_of_any_setting_is_judged_as_check_judges_it(data: st.DataObject) -> None:
    framework, version = data.draw(st.sampled_from(EVERY))
    key, value = data.draw(st.sampled_from(leaves(framework, version))), data.draw(VALUES)
    values = as_groups({**BASE[framework], key: value})
    said = reported(framework, version, values, OF_KEYS | OF_WORDS)
    assert bool(of(key, refused(framework, version, values))) == bool(of(key, said))


@pytest.mark.parametrize(("framework", "version"), EVERY)
def test_a_key_that_is_no_setting_is_refused(framework: str, version: str) -> None:
    strange = [f"{key}_x" for key in leaves(framework, version)] + ["x"]
    values = as_groups({**BASE[framework], **dict.fromkeys(strange, 1)})
    no, said = refused(framework, version, values), reported(framework, version, values)
    assert [key for key in strange if bool(of(key, no)) != bool(of(key, said))] == []
    assert len(no) > len(strange) // 2


@pytest.mark.parametrize(("framework", "version"), EVERY)
def test_a_key_of_another_version_is_refused_and_says_which(framework: str, version: str) -> None:
    here = set(leaves(framework, version))
    others = sorted({key for other in VERSIONS[framework] for key in leaves(framework, other)} - here)
    others = [key for key in others if not of(key, {*here, *others} - {key})]  # no group in one and a value in another
    values = as_groups({**BASE[framework], **dict.fromkeys(others, 1)})
    no, said = refused(framework, version, values), reported(framework, version, values)
    assert [key for key in others if bool(of(key, no)) != bool(of(key, said))] == []
    assert others
    if framework != "verl":
        text = json.dumps(validator(framework, version).schema)
        name = {"easyr1": "EasyR1", "open_r1": "open_r1 under trl"}.get(framework, framework)
        assert f"{name} {version} has no setting " in text


def words_of(framework: str, version: str, key: str) -> list[Any]:
    """The words that the schema names for a setting."""
    node: Any = validator(framework, version).schema
    node = node.get("definitions", {}).get("fsdp", node)
    for name in key.split("."):
        node = node["properties"][name]

    def words(part: Mapping[str, Any]) -> Iterator[Any]:
        yield from part.get("enum", ())
        yield from (word for inner in part.get("anyOf", ()) for word in words(inner))

    return list(words(node))


@pytest.mark.parametrize(("framework", "version"), EVERY)
def test_a_word_that_is_none_of_a_settings_is_refused(framework: str, version: str) -> None:
    judged = 0
    for key in leaves(framework, version):
        if words_of(framework, version, key):
            values = as_groups({**BASE[framework], key: "nobody_says_this"})
            no, said = refused(framework, version, values), reported(framework, version, values, OF_KEYS | OF_WORDS)
            assert (key in no) == (key in said), key
            judged += key in no
    assert judged >= {"trl": 3, "open_r1": 3, "verl": 1, "easyr1": 2}[framework]


@pytest.mark.parametrize(("framework", "version"), EVERY)
def test_every_word_that_is_offered_is_one(framework: str, version: str) -> None:
    offered = 0
    for key in leaves(framework, version):
        for word in words_of(framework, version, key):
            offered += 1
            values = as_groups({**BASE[framework], key: word})
            assert not of(key, reported(framework, version, values, OF_KEYS | OF_WORDS)), f"{key} = {word}"
    assert offered > 5


@pytest.mark.parametrize(("framework", "version"), EVERY)
def test_defaults_fit(framework: str, version: str) -> None:
    schema = validator(framework, version).schema
    schema = schema.get("definitions", {}).get("fsdp", schema)
    values = {}
    for key in leaves(framework, version):
        node: Any = schema
        for name in key.split("."):
            node = node["properties"][name]
        if node.get("default") is not None:
            values[key] = node["default"]
    assert len(values) > 30
    assert refused(framework, version, as_groups(values)) == set()


SHARED = Path(__file__).resolve().parents[3] / "shared" / "corpus" / "configs"
FILES = [
    *(("open_r1", version, path) for version in VERSIONS["open_r1"] for path in sorted(SHARED.glob("*/*/grpo/*.yaml"))),
    *(("easyr1", version, SHARED / "easyr1" / "config.yaml") for version in VERSIONS["easyr1"]),
]


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the published files are not part of this repository")
def test_published_files_are_judged_as_check_judges_them() -> None:
    fine = 0
    for framework, version, path in FILES:
        values = dict(load_source(path).values)
        no, said = refused(framework, version, values), reported(framework, version, values, OF_KEYS | OF_WORDS)
        assert all(of(key, said) for key in no), path
        assert all(of(key, no) for key in said), path
        fine += not no
    assert len(FILES) == 14
    assert fine == 5, "4 of Open-R1's 5 under the TRL that it pins; EasyR1's under the newest"


WRONG = (("_x", 1), ("", ["a", {"b": 1}]), ("", {"a": 1}))
"""What a file is spoiled by: a key beside a key of its own, and values that hardly any setting takes."""


@pytest.mark.shared
@pytest.mark.skipif(not SHARED.is_dir(), reason="the published files are not part of this repository")
def test_published_files_that_are_spoiled_are_refused_where_check_refuses_them() -> None:
    spoiled = 0
    for framework, version, path in (FILES[0], FILES[-1]):
        values = dict(load_source(path).values)
        for key, value in settings_in(values):
            for ending, wrong in WRONG:
                made = copy.deepcopy(values)
                *groups, name = key.split(".")
                node = made
                for group in groups:
                    node = node[group]
                node[f"{name}{ending}"] = wrong if ending or not isinstance(value, dict) else 5
                where = f"{key}{ending}"
                no, said = (of(where, found(framework, version, made)) for found in (refused, reported))
                assert bool(no) == bool(said), f"{path.name}: {where} = {wrong}"
                spoiled += bool(no)
    assert spoiled > 150


@pytest.mark.parametrize("engine", ["fsdp", "megatron", "veomni", "torchtitan"])
def test_verl_s_composed_configuration_of_each_engine_fits(engine: str) -> None:
    composed = as_groups(defaults_of("0.9.1", engine))
    for chosen in ({"model_engine": engine}, {"defaults": [{"override model_engine": engine}, "_self_"]}):
        assert refused("verl", "0.9.1", {**composed, **chosen}) == set()
    composed["actor_rollout_ref"]["actor"]["megatron_x"] = 1
    assert refused("verl", "0.9.1", {**composed, "model_engine": engine}) == {"actor_rollout_ref.actor.megatron_x"}


@pytest.mark.parametrize(
    ("said", "engine"),
    [
        ({}, "fsdp"),
        ({"model_engine": "dp"}, "fsdp"),
        ({"defaults": ["ppo_megatron_trainer", "_self_"]}, "megatron"),
        ({"defaults": ["ppo_trainer", {"override model_engine": "veomni"}]}, "veomni"),
        ({"actor_rollout_ref": {"actor": {"strategy": "megatron"}}}, "megatron"),
        ({"actor_rollout_ref": {"actor": {"strategy": "fsdp2"}}}, "fsdp"),
        ({"actor_rollout_ref": {"actor": {"megatron": {"seed": 1}}}}, "megatron"),
    ],
)
def test_the_engine_is_taken_from_where_check_takes_it(said: dict[str, Any], engine: str) -> None:
    own = {"fsdp": "fsdp_config", "megatron": "megatron", "veomni": "veomni"}
    for group in own.values():
        values = copy.deepcopy(said)
        values.setdefault("actor_rollout_ref", {}).setdefault("actor", {}).setdefault(group, {})["strange"] = 1
        key = f"actor_rollout_ref.actor.{group}"
        assert bool(of(key, refused("verl", "0.9.1", values))) == bool(of(key, reported("verl", "0.9.1", values)))
    values = copy.deepcopy(said)
    values.setdefault("actor_rollout_ref", {}).setdefault("actor", {}).setdefault(own[engine], {})["strange"] = 1
    assert f"actor_rollout_ref.actor.{own[engine]}.strange" in refused("verl", "0.9.1", values)


def test_a_rule_about_numbers_is_left_to_check() -> None:
    assert refused("trl", "1.16.0", {"num_generations": 7, "per_device_train_batch_size": 8}) == set()


@pytest.mark.parametrize(
    ("framework", "key", "words"),
    [
        ("trl", "num_generations", ("Unit: completions per prompt.", "rollout.completions_per_prompt")),
        ("trl", "gradient_accumulation_steps", ("Unit: micro-batches.",)),
        ("trl", "learning_rate", ("Peak learning rate", "1e-06")),
        (
            "open_r1",
            "per_device_train_batch_size",
            ("Unit: completions per device.", "micro_batch.completions_per_device"),
        ),
        ("verl", "data.train_batch_size", ("Unit: prompts.", "1024")),
        ("verl", "actor_rollout_ref.actor.ppo_mini_batch_size", ("Unit: prompts.",)),
        ("verl", "actor_rollout_ref.actor.loss_agg_mode", ("token-mean", "seq-mean-token-sum-norm")),
        ("easyr1", "worker.actor.global_batch_size", ("Unit: prompts.",)),
        ("easyr1", "worker.actor.loss_avg_mode", ("token: token_mean; seq: sequence_mean",)),
    ],
)
def test_a_person_is_told_unit_meaning_and_default(framework: str, key: str, words: tuple[str, ...]) -> None:
    node = validator(framework, VERSIONS[framework][-1]).schema
    node = node.get("definitions", {}).get("fsdp", node)
    for name in key.split("."):
        node = node["properties"][name]
    assert all(word in json.dumps(node) for word in words), node
