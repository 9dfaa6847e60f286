"""The adapter contract passes on a complete adapter, and each of its laws fails on an adapter that breaks it."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import itertools
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import ClassVar

import broken_adapters
import pytest
from toy_adapter import DEFAULTS, LOSSES, ToyAdapter, spec_of

import batchbridge.testing
from batchbridge.contract.adapter import Adapter
from batchbridge.contract.reading import Behaviour, Context, Source
from batchbridge.kit.inherited_files import compose
from batchbridge.kit.key_table import Codes, Key
from batchbridge.kit.kinds import natural, one_of
from batchbridge.kit.lifecycle import Runtime
from batchbridge.kit.refusals import RefusalRow
from batchbridge.kit.rule_table import Rule
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge.testing.contract import AdapterContract, InvalidCase, UndecidedCase, ValidCase, files_in

CONTEXT = Context(framework_version="1.0", world_size=4, dataset_size=16)
ALONE = dataclasses.replace(CONTEXT, world_size=None)


class TestToyAdapter(AdapterContract):
    adapter_class = ToyAdapter
    framework_modules = ("torch", "toy")
    unknown_version = "99.0"
    written_version = "2.0"
    valid = (
        ValidCase(
            name="defaults",
            source=Source(values={"prompts": 4}),
            context=CONTEXT,
            spec=spec_of({**DEFAULTS, "devices": 4}),
        ),
        ValidCase(
            name="all keys",
            source=Source(values={**DEFAULTS, "devices": 2, "loss": "sum", "epochs": 2}),
            context=ALONE,
            source_has_world_size=True,
        ),
        ValidCase(name="no learning", source=Source(values={"rate": 0, "prompts": 3}), context=CONTEXT),
    )
    meanings = (({"loss": "sum"}, {"loss.policy.aggregation": "token_sum"}), ({"prompts": None}, {}))
    invalid = (
        InvalidCase(name="odd devices", source=Source(values={"devices": 3}), context=ALONE, codes=("BB-TOY-010",)),
        InvalidCase(name="odd key", source=Source(values={"batch": 3}), context=CONTEXT, codes=("BB-TOY-002",)),
        InvalidCase(name="odd value", source=Source(values={"step": "x"}), context=CONTEXT, codes=("BB-TOY-003",)),
    )
    undecided = (
        UndecidedCase(
            name="no devices",
            source=Source(values={"prompts": 4}),
            context=ALONE,
            codes=("BB-TOY-004",),
            reason="devices: not said",
            settled={"devices": 2},
        ),
    )
    foreign = (Source(values={"per_device_train_batch_size": 4}),)
    unwritable = (spec_of({**DEFAULTS, "devices": 4}).replace(**{"order.last_rollout": "pad"}),)


@pytest.mark.parametrize("broken", broken_adapters.ALL, ids=lambda broken: broken.__name__)
def test_a_broken_adapter_fails_the_law_that_it_breaks(broken):
    contract = type("Contract", (TestToyAdapter,), {"adapter_class": broken})()
    law, *arguments = broken.breaks
    with pytest.raises((AssertionError, TypeError, ValueError), match=broken.message):
        getattr(contract, law)(*given(arguments))
    # The control of the control: the same law, with the same arguments, holds for the whole adapter.
    getattr(TestToyAdapter(), law)(*given(arguments))


def running(test):
    """The contract of a toy whose trainers are refused by one row. test: what their settings say of it."""
    refusal = RefusalRow("odd", "odd samples", test, lambda trainer, request: trainer.samples % 2)
    runtime = Runtime(framework="toy", version=lambda trainer: "1.0", refusals=(refusal,), patch=lambda *asked: None)
    toy = type("Running", (ToyAdapter,), {"runtime": "toy:RUNTIME", "_runtime": lambda self: runtime})
    case = ValidCase(name="three", source=Source(values={"samples": 3, "step": 12}), context=CONTEXT)
    return type("Contract", (TestToyAdapter,), {"adapter_class": toy, "refused": {"odd": case}})()


def by_samples(request):
    return request.spec.rollout.completions_per_prompt % 2 == 1


def test_a_row_that_says_what_a_configuration_leads_to_keeps_the_laws():
    contract = running(by_samples)
    contract.test_every_refusal_has_a_configuration()
    contract.test_what_is_refused_is_not_called_enforced("odd")
    contract.test_a_refusal_is_not_told_of_everything("odd")
    assert contract._enforcement(contract.valid[0]).verdict == "enforced"
    assert contract._enforcement(contract.refused["odd"]).verdict == "refused"


def test_a_row_that_calls_enforced_what_it_refuses_breaks_the_law():
    with pytest.raises(AssertionError, match="not told"):
        running(lambda request: False).test_what_is_refused_is_not_called_enforced("odd")


def test_a_row_that_says_nothing_leaves_every_configuration_unknown():
    contract = running(lambda request: None)
    contract.test_what_is_refused_is_not_called_enforced("odd")
    assert contract._enforcement(contract.valid[0]).verdict == "unknown"
    with pytest.raises(AssertionError, match="told of every configuration"):
        contract.test_a_refusal_is_not_told_of_everything("odd")


def test_a_refusal_without_a_configuration_is_found():
    contract = running(lambda request: None)
    contract.refused = {}
    with pytest.raises(AssertionError, match="no configuration for"):
        contract.test_every_refusal_has_a_configuration()


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"codes": ("BB-TOY-004", "BB-TOY-020")}, "to leave it open"),
        ({"reason": "step: not said"}, "is in none of"),
        ({"settled": {"step": 4}}, "with {'step': 4} it is undecided: BB-TOY-004"),
        ({"source": Source(values={"prompts": 4, "batch": 1})}, "verdict invalid"),
        ({"context": CONTEXT}, "verdict valid"),
    ],
)
def test_a_case_that_is_open_for_another_reason_or_decided_is_found(changed, told):
    case = dataclasses.replace(TestToyAdapter.undecided[0], **changed)
    with pytest.raises(AssertionError, match=told):
        TestToyAdapter().test_an_undecided_case_is_undecided_for_its_reason(case)


def dropping(step, kept):
    """The contract of a toy that drops what does not fill a step; kept: completions of a rollout that it trains."""

    def read(self, source, context):
        reading = ToyAdapter.read(self, source, context)
        changed = {"optimizer_step.completions_per_step": step, "order.last_optimizer_step": "drop"}
        return dataclasses.replace(reading, spec=reading.spec.replace(**changed))

    def native_steps(self, reading, size, tokens):
        whole = reading.spec.replace(**{"order.last_optimizer_step": "short"})
        for one in ToyAdapter.native_steps(self, dataclasses.replace(reading, spec=whole), size, tokens):
            if one.index % -(-8 // step) * step < kept:
                yield one

    adapter = type("Dropping", (ToyAdapter,), {"read": read, "native_steps": native_steps})
    return type("Contract", (TestToyAdapter,), {"adapter_class": adapter})()


def test_a_remainder_that_is_dropped_is_no_part_of_a_pass():
    law = "test_native_steps_train_a_whole_rollout_in_whole_steps"
    getattr(dropping(3, 6), law)(TestToyAdapter.valid[0])
    with pytest.raises(AssertionError, match="8 completions of 8 in the first pass, and 2 may be dropped"):
        getattr(dropping(3, 8), law)(TestToyAdapter.valid[0])
    with pytest.raises(AssertionError, match="3 completions of 8 in the first pass, and 2 may be dropped"):
        getattr(dropping(3, 3), law)(TestToyAdapter.valid[0])
    with pytest.raises(AssertionError, match="4 completions of 8 in the first pass, and 0 may be dropped"):
        getattr(dropping(4, 4), law)(TestToyAdapter.valid[0])


def test_a_rule_without_a_case_is_found():
    rules = [
        Rule(f"BB-TOY-{number}", "error", "config", lambda facts: None, (), native="", source="toy")
        for number in ("010", "011", "012")
    ]
    contract = type("Contract", (TestToyAdapter,), {"rules": rules, "codes_without_a_case": {"BB-TOY-012"}})()
    with pytest.raises(AssertionError, match="no case shows BB-TOY-011"):
        contract.test_every_rule_has_a_case()
    told = type("FieldValue", (ToyAdapter,), {"check": broken_adapters._finding(code="BB-TOY-020")})
    with pytest.raises(AssertionError, match="every case shows BB-TOY-020"):
        type("Contract", (TestToyAdapter,), {"adapter_class": told})().test_every_rule_has_a_case()


class Grouped(TableAdapter):
    """A framework whose settings stand in groups."""

    framework, versions, newest_version, codes = "grouped", ">=1", "1.0", Codes.of("BB-GROUPED")
    keys = (
        Key("run.prompts", natural, 4, "rollout.prompts_per_rollout"),
        Key("run.group", natural, 2, "rollout.completions_per_prompt"),
        Key("run.step", natural, 8, "optimizer_step.completions_per_step"),
        Key("run.loss", one_of(*LOSSES), "mean", "loss.policy.aggregation", LOSSES),
        Key("run.devices", natural, 4, "topology.world_size"),
    )
    constants: ClassVar = {"horizon.epochs": 1.0}

    def behaviour_of(self, native, version):
        return Behaviour(
            order="none", membership="in order", denominator_scope="optimizer_step", denominator_formula="T",
            lr_tick="step", resume="none", source="grouped",
        )  # fmt: skip


GROUPED = ValidCase(
    name="in a group",
    source=Source(values={"run": {"prompts": 4, "group": 2, "loss": "mean"}}),
    context=ALONE,
    spec=spec_of({**DEFAULTS, "devices": 4}).replace(**{"order.seed": None, "carried.learning_rate": None}),
)


def grouped(adapter=Grouped, **attributes):
    """The contract of settings in groups."""
    attributes = {"adapter_class": adapter, "valid": (GROUPED,), **attributes}
    return type("Contract", (TestToyAdapter,), {"meanings": (), **attributes})()


def test_a_dotted_key_beside_its_group_that_is_passed_over_is_found():
    grouped().test_a_dotted_key_laid_over_its_group_wins(GROUPED)

    def read(self, source, context):
        flat = {key: value for key, value in source.values.items() if "." not in key}
        return Grouped.read(self, dataclasses.replace(source, values=flat), context)

    deaf = type("Deaf", (Grouped,), {"read": read})
    with pytest.raises(AssertionError, match="beside its group: "):
        grouped(deaf).test_a_dotted_key_laid_over_its_group_wins(GROUPED)


def test_a_file_that_is_inherited_and_not_named_is_found():
    def reading(compose_all):
        def read(self, source, context):
            composed = compose(source, "base", "BB-GROUPED-009")
            return Grouped.read(self, composed if compose_all else Source(**_but(vars(composed), "files")), context)

        return type("Heir", (Grouped,), {"read": read})

    case = dataclasses.replace(GROUPED, source=Source(values={"run.prompts": 4, "run.group": 2, "run.loss": "mean"}))
    grouped(reading(True), inherits="base").test_a_setting_that_is_inherited_names_its_own_file(case)
    with pytest.raises(AssertionError, match=r"provenance of .*recipe.yaml:\d, not its line"):
        grouped(reading(False), inherits="base").test_a_setting_that_is_inherited_names_its_own_file(case)


def _but(values, key):
    return {name: value for name, value in values.items() if name != key}


def test_a_word_that_no_case_with_its_meaning_has_is_found():
    with pytest.raises(AssertionError, match=r"no case with its spec written down has run\.loss = 'sum'"):
        grouped().test_every_word_of_a_row_has_a_case_with_its_spec()
    said = ({"run.loss": "sum"}, {"loss.policy.aggregation": "token_sum"})
    for attributes in ({"meanings": (said,)}, {"excused": {"run.loss = 'sum'": "it is tested elsewhere"}}):
        grouped(**attributes).test_every_word_of_a_row_has_a_case_with_its_spec()


def test_a_default_that_no_case_with_its_meaning_shows_is_found():
    with pytest.raises(AssertionError, match=r"leaves run\.group, run\.loss, run\.prompts at its default"):
        grouped().test_every_default_has_a_case_with_its_spec()
    said = ({"run.group": None, "run.loss": None, "run.prompts": None}, {})
    grouped(meanings=(said,)).test_every_default_has_a_case_with_its_spec()


def test_what_is_open_and_followed_by_a_setting_is_open():
    followed = type("Followed", (Grouped,), {"follows": {"run.devices": ("run.group",), "run.step": ("run.devices",)}})
    origin = followed().read(GROUPED.source, ALONE).provenance["optimizer_step.completions_per_step"]
    assert origin.keys == ("run.step", "run.devices", "run.group")


def test_cases_without_a_meaning_that_is_written_down_are_found():
    valid = [dataclasses.replace(case, spec=None) for case in TestToyAdapter.valid]
    contract = type("Contract", (TestToyAdapter,), {"valid": valid})()
    with pytest.raises(AssertionError, match="at least one case with its spec written down"):
        contract.test_it_is_tested_with_valid_and_invalid_cases()


def test_a_folder_of_real_configurations_is_read_and_written_back(tmp_path):
    (tmp_path / "whole.yaml").write_text("prompts: 4\n")
    (tmp_path / "odd.yaml").write_text("batch: 4\n")
    (tmp_path / "notes.txt").write_text("no configuration")
    contract = type("Contract", (TestToyAdapter,), {"corpus": tmp_path})()
    assert [file.name for file in files_in(contract.corpus)] == ["odd.yaml", "whole.yaml"]
    contract.test_a_real_configuration_is_read_and_written_back(tmp_path / "whole.yaml")
    with pytest.raises(pytest.skip.Exception, match="invalid: BB-TOY-002"):
        contract.test_a_real_configuration_is_read_and_written_back(tmp_path / "odd.yaml")
    broken = type("Broken", (ToyAdapter,), {"write": broken_adapters._empty_refusal})
    contract = type("Contract", (TestToyAdapter,), {"adapter_class": broken})()
    with pytest.raises(AssertionError, match="its own configuration cannot be written"):
        contract.test_a_real_configuration_is_read_and_written_back(tmp_path / "whole.yaml")


def test_a_real_configuration_that_is_written_as_another_is_found(tmp_path):
    (tmp_path / "whole.yaml").write_text("prompts: 4\nseed: 5\n")
    contract = type("Contract", (TestToyAdapter,), {"corpus": tmp_path, "adapter_class": broken_adapters.Moved})()
    with pytest.raises(AssertionError, match=r"written as something else: order\.seed: wanted 5, got 0"):
        contract.test_a_real_configuration_is_read_and_written_back(tmp_path / "whole.yaml")


def test_a_folder_without_a_valid_configuration_is_found(tmp_path):
    for folder in (tmp_path / "missing", tmp_path):
        contract = type("Contract", (TestToyAdapter,), {"corpus": folder})()
        with pytest.raises(AssertionError, match="0 files, of which none is valid"):
            contract.test_the_folder_of_real_configurations_has_a_valid_one()
    (tmp_path / "odd.yaml").write_text("batch: 4\n")
    with pytest.raises(AssertionError, match="1 files, of which none is valid"):
        contract.test_the_folder_of_real_configurations_has_a_valid_one()
    (tmp_path / "four.yaml").write_text("prompts: 4\ndevices: 4\n")
    contract.test_the_folder_of_real_configurations_has_a_valid_one()
    contract.test_a_real_configuration_is_read_and_written_back(tmp_path / "four.yaml")


def test_a_file_of_yaml_is_read_whatever_an_author_says():
    only = broken_adapters.OnlyDefaults
    contract = type("Contract", (TestToyAdapter,), {"adapter_class": only, "unreadable_forms": ("yaml",)})()
    with pytest.raises(AssertionError, match="the yaml is read as something else"):
        contract.test_a_written_text_is_read_as_what_was_written(TestToyAdapter.valid[0])


def test_laws_that_are_left_out_are_counted_with_their_reasons(tmp_path):
    test = "test_an_adapter_without_running_trainers_enforces_nothing or test_every_refusal"
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        f"{__file__}::TestToyAdapter",
        "-k",
        test,
    ]
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert "checks of the contract that would hold of anything here: 1 " in done.stdout
    assert "    1  the adapter has no runtime" in done.stdout


def test_the_default_native_steps_are_consecutive_completions_in_consecutive_shares():
    class Plain(ToyAdapter):
        native_steps = Adapter.native_steps

    reading = Plain().read(Source(values={"prompts": 2, "samples": 3, "step": 6}), CONTEXT)
    lengths = {(prompt, sample): 1 for prompt in range(4) for sample in range(3)}
    with pytest.raises(ValueError, match="how this framework shuffles is not said"):
        list(Plain().native_steps(reading, 4, lengths))
    spec = reading.spec.replace(
        **{"order.prompt_shuffle": "none", "micro_batch.completions_per_device": 1, "topology.world_size": 4}
    )
    first, second = Plain().native_steps(dataclasses.replace(reading, spec=spec), 4, lengths)
    places = [(row.prompt, row.sample, row.rank, row.micro_batch) for row in first.rows]
    assert places == [(0, 0, 0, 0), (0, 1, 0, 1), (0, 2, 1, 0), (1, 0, 1, 1), (1, 1, 2, 0), (1, 2, 3, 0)]
    assert {row.weight for row in first.rows} == {Fraction(1, 6)}
    assert [row.prompt for row in second.rows] == [2, 2, 2, 3, 3, 3]


def given(arguments):
    """A law's arguments; cases are copies, because some adapters spoil them."""
    named = {"unwritable": TestToyAdapter.unwritable[0], "foreign": TestToyAdapter.foreign[0]}
    named |= copy.deepcopy(
        {"valid": TestToyAdapter.valid[0], "warned": TestToyAdapter.valid[2], "invalid": TestToyAdapter.invalid[0]}
    )
    named |= copy.deepcopy({"of devices": TestToyAdapter.valid[1], "undecided": TestToyAdapter.undecided[0]})
    return [named.get(a, a) if isinstance(a, str) else a for a in arguments]


def test_every_law_has_a_broken_adapter_or_needs_none():
    laws = {name for name in dir(AdapterContract) if name.startswith("test_")}
    assert laws - {broken.breaks[0] for broken in broken_adapters.ALL} == broken_adapters.LAWS_WITHOUT_ONE


def test_an_unknown_value_of_a_carried_field_may_be_filled_in():
    change = ("carried.learning_rate", None)
    spec = TestToyAdapter.valid[0].spec.replace(**dict([change]))
    assert ToyAdapter().write(spec).values["rate"] == DEFAULTS["rate"]
    TestToyAdapter().test_a_changed_field_is_written_faithfully_or_refused(change)


def test_a_field_at_the_schemas_default_needs_no_provenance():
    case = TestToyAdapter.valid[0]
    silent = type("Silent", (ToyAdapter,), {"read": broken_adapters.without_provenance("order.last_rollout")})
    assert "order.last_rollout" not in silent().read(case.source, case.context).provenance
    contract = type("Contract", (TestToyAdapter,), {"adapter_class": silent})()
    contract.test_every_field_that_is_not_the_schemas_default_has_a_provenance(case)


def test_an_import_of_the_framework_is_seen_even_if_this_process_has_it_already():
    contract = type("Contract", (TestToyAdapter,), {"framework_modules": ("packaging", "toy_adapter")})()
    with pytest.raises(AssertionError, match="toy_adapter"):
        contract.test_reading_imports_no_framework()


def test_the_contract_makes_hundreds_of_checks_of_two_cases():
    options = ["--collect-only", "-q", "-p", "no:cacheprovider", f"{__file__}::TestToyAdapter"]
    command = [sys.executable, "-m", "pytest", *options]
    root = Path(__file__).parent.parent.parent
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    assert sum("TestToyAdapter" in line for line in done.stdout.splitlines()) > 400


def test_cases_are_plain_values_that_a_process_can_be_handed():
    assert all(dataclasses.is_dataclass(case) for case in itertools.chain(TestToyAdapter.valid, TestToyAdapter.invalid))


@pytest.mark.parametrize("name", batchbridge.testing.__all__)
def test_every_public_name_of_testing_exists(name):
    value = getattr(batchbridge.testing, name)
    assert getattr(importlib.import_module(value.__module__), name) is value


def test_public_names_of_testing_are_sorted():
    assert batchbridge.testing.__all__ == sorted(batchbridge.testing.__all__)


def test_an_unknown_name_of_testing_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = batchbridge.testing.nonsense
