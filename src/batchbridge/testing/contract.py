"""The contract of `batchbridge.contract.adapter.Adapter` as tests that every adapter author runs.

    class TestMyAdapter(AdapterContract):
        adapter_class = MyAdapter
        framework_modules = ("my_framework",)
        unknown_version = "99.0"
        written_version = "2.1"
        valid = (ValidCase("recipe", Source(values={...}), Context(framework_version="2.1", world_size=8)),)
        invalid = (InvalidCase("odd split", Source(values={...}), Context(...), codes=("BB-MINE-003",)),)

pytest collects a few hundred checks from that. Nothing here imports pytest or hypothesis: hostile input is enumerated,
so a failure names its input and repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from batchbridge.meaning.spec import LossTerm
from batchbridge.testing.fields import CHANGES
from batchbridge.testing.hostile import FOREIGN, HOSTILE, HOSTILE_SOURCES
from batchbridge.testing.laws import Case, InvalidCase, UndecidedCase, ValidCase
from batchbridge.testing.laws_of_enforcement import EnforcementLaws
from batchbridge.testing.laws_of_findings import FindingLaws
from batchbridge.testing.laws_of_idle_settings import IdleSettingLaws
from batchbridge.testing.laws_of_reading import ReadingLaws
from batchbridge.testing.laws_of_settings import SettingLaws
from batchbridge.testing.laws_of_steps import StepLaws
from batchbridge.testing.laws_of_writing import WritingLaws, files_in

if TYPE_CHECKING:
    import pytest

__all__ = ["AdapterContract", "InvalidCase", "UndecidedCase", "ValidCase"]


class AdapterContract(ReadingLaws, SettingLaws, IdleSettingLaws, FindingLaws, WritingLaws, StepLaws, EnforcementLaws):
    """The contract of an adapter, for a subclass `Test...` with the attributes of `Laws`: pytest runs it; see the
    module."""

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """The tests that pytest makes: one per case, hostile value, field."""
        cases: list[Case] = [*self.valid, *self.invalid, *self.undecided]
        kin = {vars(base).get("framework") for base in self.adapter_class.__mro__}
        others = {name: source for name, source in FOREIGN.items() if name not in kin}
        others |= {str(number): source for number, source in enumerate(self.foreign)}
        # Hundreds of changes of a specification that nobody has written down yet would bury what is missing first.
        changes = CHANGES if any(case.spec is not None for case in self.valid) else ()
        tables: dict[str, tuple[Sequence[Any], Sequence[str]]] = {
            "valid_case": (self.valid, [case.name for case in self.valid]),
            "invalid_case": (self.invalid, [case.name for case in self.invalid]),
            "undecided_case": (self.undecided, [case.name for case in self.undecided]),
            "any_case": (cases, [case.name for case in cases]),
            "refused_case": (list(self.refused), list(self.refused)),
            "hostile": (list(HOSTILE), list(HOSTILE)),
            "hostile_source": (list(HOSTILE_SOURCES), list(HOSTILE_SOURCES)),
            "change": (changes, [f"{path}={_short(value)}" for path, value in changes]),
            "foreign_source": (list(others.values()), list(others)),
            "corpus_file": (files := files_in(self.corpus), [file.name for file in files]),
            "unwritable_spec": (self.unwritable, [str(i) for i in range(len(self.unwritable))]),
        }
        for name, (values, ids) in tables.items():
            if name in metafunc.fixturenames:
                metafunc.parametrize(name, values, ids=ids)


def _short(value: Any) -> str:
    if isinstance(value, LossTerm):
        return ",".join(f"{name}={part}" for name, part in vars(value).items())
    return str(value)
