"""The adapter contract passes on a complete adapter, and each of its laws fails on an adapter that breaks it."""

from __future__ import annotations

import copy
import dataclasses
import importlib
import itertools
import subprocess
import sys
from pathlib import Path

import broken_adapters
import pytest
from toy_adapter import DEFAULTS, ToyAdapter, spec_of

import batchbridge.testing
from batchbridge.contract.reading import Context, Source
from batchbridge.testing.contract import AdapterContract, InvalidCase, ValidCase

CONTEXT = Context(framework_version="1.0", world_size=4, dataset_size=16)


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
            context=CONTEXT,
            source_has_world_size=True,
        ),
    )
    invalid = (
        InvalidCase(name="odd devices", source=Source(values={"devices": 3}), context=CONTEXT, codes=("BB-TOY-010",)),
        InvalidCase(name="odd key", source=Source(values={"batch": 3}), context=CONTEXT, codes=("BB-TOY-002",)),
        InvalidCase(name="odd value", source=Source(values={"step": "x"}), context=CONTEXT, codes=("BB-TOY-003",)),
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


def given(arguments):
    """A law's arguments; cases are copies, because some adapters spoil them."""
    named = {"unwritable": TestToyAdapter.unwritable[0], "foreign": TestToyAdapter.foreign[0]}
    named |= copy.deepcopy({"valid": TestToyAdapter.valid[0], "invalid": TestToyAdapter.invalid[0]})
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
