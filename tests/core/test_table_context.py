"""What is said beside the settings reaches `derive` and rules; a row says which fields its values leave open."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Mapping
from typing import Any, ClassVar

import pytest

from batchbridge import Behaviour, Source
from batchbridge.kit import Context
from batchbridge.kit.key_table import Codes, Key, NativeSettings
from batchbridge.kit.kinds import flag, natural, one_of
from batchbridge.kit.rule_table import BUILDING, SILENT
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge.kit.values import FieldValue, by
from batchbridge.testing import UndecidedCase
from batchbridge.testing.contract import AdapterContract


def uneven(native: NativeSettings) -> str | None:
    odd = native.devices and native["batch"] % native.devices
    return f"batch = {native['batch']} (prompts) does not divide by {native.devices} devices" if odd else None


def unseen(native: NativeSettings) -> str | None:
    lost = native.dataset_size and native.dataset_size % native["batch"]
    return f"{lost} prompts are never seen" if lost else None


class Launched(TableAdapter):
    """Framework `launched`: devices are the launcher's, micro-batches are said for one, steps for the whole dataset."""

    framework = "launched"
    versions = ">=1"
    newest_version = "1.0"
    codes = Codes.of("BB-LNC")
    keys = (
        Key("batch", natural, 8, "rollout.prompts_per_rollout"),
        Key("micro", natural, 2, "micro_batch.completions_per_device"),
        Key("accumulate", natural, 2),
        Key("passes", natural, 0),
        Key("shaping", flag, False, opens=("advantage", "objective.reward_clip")),
        Key("loss", one_of("mean", "ours"), "mean", "loss.policy.aggregation", {"mean": "token_mean"}, opens="loss"),
    )
    constants: ClassVar[Mapping[str, Any]] = {"rollout.completions_per_prompt": 4}
    rules = (
        BUILDING("BB-LNC-010", uneven, ("batch",), "ValueError", "launched 1.0"),
        SILENT("BB-LNC-011", unseen, ("batch",), "the loader drops them", "launched 1.0"),
    )

    def derive(self, native: NativeSettings) -> Mapping[str, FieldValue]:
        assert native.devices is not None
        size = native["micro"] * native["accumulate"] * native.devices
        if native["passes"] and native.dataset_size is None:
            raise ValueError("horizon.rollouts: the dataset's prompts are not said")
        whole = native["passes"] * (native.dataset_size or 0) // native["batch"] or 5
        return {
            "optimizer_step.completions_per_step": by(size, "micro x accumulate x devices", "micro", "accumulate"),
            "horizon.rollouts": by(whole, "passes x prompts // batch", "passes", "batch"),
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


def read(values: Mapping[str, Any], world: int | None = 4, prompts: int | None = None) -> Any:
    adapter = Launched()
    context = Context(framework_version="1.0", world_size=world, dataset_size=prompts)
    reading = adapter.read(Source(values=values), context)
    return reading, [(one.code, one.undecided) for one in (*reading.findings, *adapter.check(reading))]


def test_derive_has_the_devices_and_the_prompts() -> None:
    for world, size in ((1, 4), (4, 16)):
        spec = read({}, world)[0].spec
        assert (spec.optimizer_step.completions_per_step, spec.horizon.rollouts) == (size, 5)
    assert read({"passes": 3}, prompts=64)[0].spec.horizon.rollouts == 24
    reading, found = read({"passes": 3})
    assert (reading.spec, found) == (None, [("BB-LNC-006", True)])


def test_rules_have_them_when_a_reading_is_made_and_when_it_is_checked() -> None:
    assert read({}, 3)[1] == [("BB-LNC-010", False)]
    assert read({}, 3)[0].spec is None
    assert read({}, None)[1] == [("BB-LNC-003", True)], "nobody says the devices"
    reading, found = read({}, prompts=67)
    assert found == [("BB-LNC-011", False)]
    assert [defect.code for defect in reading.behaviour.defects] == ["BB-LNC-011"]
    assert read({})[1] == []


def test_settings_keep_what_is_said_beside_them_where_they_travel() -> None:
    native = read({}, prompts=64)[0].native
    for one in (pickle.loads(pickle.dumps(native)), copy.deepcopy(native)):
        assert (one, one.devices, one.dataset_size) == (native, 4, 64)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"shaping": True}, "shaping = True: what it makes of advantage, objective.reward_clip is not known"),
        ({"loss": "ours"}, "loss = ours: what it makes of loss is not known"),
    ],
)
def test_a_value_that_opens_fields_leaves_the_run_undecided_by_its_row(values: Any, said: str) -> None:
    reading, found = read(values)
    (finding,) = reading.findings
    assert (reading.spec, found, finding.message) == (None, [("BB-LNC-006", True)], said)
    assert [where.key for where in finding.where] == list(values)
    assert [fix.changes for fix in finding.fixes] == [dict.fromkeys(values)]
    assert reading.verdict == "undecided"


@pytest.mark.parametrize("values", [{"shaping": False}, {"loss": "mean"}, {}])
def test_the_default_and_words_with_a_meaning_leave_nothing_open(values: Any) -> None:
    assert read(values)[1] == []


def test_a_field_that_the_schema_does_not_have_is_an_error_of_the_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Launched, "keys", (*Launched.keys, Key("more", flag, False, opens=("advantages",))))
    with pytest.raises(TypeError, match="more opens advantages: the schema has no such field"):
        read({"more": True})


def test_the_contracts_law_of_undecided_cases_holds_it() -> None:
    context = Context(framework_version="1.0", world_size=4)

    class Held(AdapterContract):
        adapter_class = Launched

    case = UndecidedCase(
        name="shaped",
        source=Source(values={"shaping": True}),
        context=context,
        codes=("BB-LNC-006",),
        reason="what it makes of advantage",
        settled={"shaping": False},
    )
    Held().test_an_undecided_case_is_undecided_for_its_reason(case)
