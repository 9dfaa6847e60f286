"""Devices that a setting says in words of its own, such as a list of their numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from batchbridge import Behaviour, Source
from batchbridge.kit import Context
from batchbridge.kit.key_table import Codes, Key
from batchbridge.kit.kinds import natural, optional, text
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge.kit.values import FieldValue

LISTED = (lambda words: len(words.split("+")), lambda number: "+".join(map(str, range(number))))
HERE = Context(framework_version="1.0")


class Listed(TableAdapter):
    """Framework `listed`: `devices` is a text, "0+1+2" of three devices, on each of `nodes`."""

    framework = "listed"
    versions = ">=1"
    newest_version = "1.0"
    codes = Codes.of("BB-LISTED")
    keys = (
        Key("group", natural, 4, "rollout.completions_per_prompt"),
        Key("batch", natural, 8, "rollout.prompts_per_rollout"),
        Key("nodes", natural, 1, "topology.world_size"),
        Key("devices", optional(text), None, "topology.world_size", LISTED),
    )
    constants: ClassVar[Mapping[str, Any]] = {"loss.policy.aggregation": "token_mean", "horizon.rollouts": 3}

    def derive(self, native: Mapping[str, Any]) -> Mapping[str, FieldValue]:
        return {
            "optimizer_step.completions_per_step": FieldValue(native["batch"] * native["group"], None, "batch x group")
        }

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        return Behaviour(
            order="as given",
            membership="whole rollouts",
            denominator_scope="optimizer_step",
            denominator_formula="1 / T",
            lr_tick="optimizer step",
            resume="exact",
        )


@pytest.mark.parametrize(
    ("values", "asked", "world"),
    [
        ({"devices": "0+1+2"}, None, 3),
        ({"devices": "0+1+2", "nodes": 2}, None, 6),
        ({"devices": "0+1+2"}, 3, 3),
        ({"devices": "0+1+2"}, 6, 6),  # the nodes, which nobody said, give way
        ({"nodes": 2}, 8, 8),  # and so do the devices of each
    ],
)
def test_words_for_devices_are_counted_by_what_they_mean(values: Any, asked: int | None, world: int) -> None:
    context = Context(framework_version="1.0", world_size=asked)
    spec = Listed().read(Source(values=values), context).spec
    assert spec is not None
    assert spec.topology.world_size == world


def test_devices_that_give_way_are_said_in_the_settings_words() -> None:
    reading = Listed().read(Source(values={"nodes": 2}), Context(framework_version="1.0", world_size=4))
    assert reading.native["devices"] == "0+1"


def test_another_number_than_the_words_say_is_an_error() -> None:
    reading = Listed().read(
        Source(values={"devices": "0+1+2", "nodes": 1}), Context(framework_version="1.0", world_size=2)
    )
    assert [finding.code for finding in reading.findings] == ["BB-LISTED-003"]


def test_words_for_devices_are_written_as_they_are_read() -> None:
    spec = Listed().read(Source(values={"devices": "0+1+2"}), HERE).spec
    assert spec is not None
    written = Listed().write(spec)
    assert written.values["devices"] == "0+1+2"
    assert Listed().read(Source(values=written.values), HERE).spec == spec
