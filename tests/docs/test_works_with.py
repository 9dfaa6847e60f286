"""The table of what works with what is what `check` says of a configuration with each feature."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest

from batchbridge.contract import plugins
from batchbridge_on_cpu.scripts import module_at


@pytest.fixture(scope="module")
def works_with(repository: Path) -> ModuleType:
    return module_at(repository / "docs" / "make_works_with.py", "make_works_with")


def test_the_tables_are_what_is_found_now(works_with: ModuleType) -> None:
    for page, text in works_with.pages().items():
        assert page.read_text(encoding="utf-8") == text, "python docs/make_works_with.py"


def test_a_feature_that_is_refused_is_no(works_with: ModuleType) -> None:
    megatron = {"actor_rollout_ref.actor.strategy": "megatron"}
    assert works_with.verdict("verl", megatron) == "with `--allow unproven_engine`"
    assert works_with.verdict("trl", {"fp16": True, "bf16": False}) == "no: `fp16`"


def test_a_setting_that_does_not_exist_is_no_feature(works_with: ModuleType) -> None:
    with pytest.raises(ValueError, match="no_such_setting"):
        works_with.verdict("trl", {"no_such_setting": True})


def test_an_accelerate_file_is_read(works_with: ModuleType) -> None:
    assert works_with.verdict("trl", works_with.ZERO % 3) == "yes"
    with pytest.raises(ValueError, match="undecided"):  # the number of devices stands there alone
        works_with.verdict("trl", (works_with.ZERO % 3).replace("num_processes: 8\n", ""))


def test_every_framework_of_ours_has_a_column(works_with: ModuleType) -> None:
    ours = {name for name, adapter in plugins.adapters().items() if type(adapter).__module__.startswith("batchbridge_")}
    assert set(works_with.NAMES) == ours - {"open_r1"}
