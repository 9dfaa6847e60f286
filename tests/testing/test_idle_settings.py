"""The law of settings that decide nothing: a planted one is found, and each way to be seen or named is enough."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
from test_argparse_adapter import LampAdapter

from batchbridge.comparing.differences import outside_of
from batchbridge.contract.reading import Context, Source
from batchbridge.kit.key_table import Key
from batchbridge.kit.kinds import anything, flag, natural, one_of, text
from batchbridge.kit.rule_table import SILENT, Rule
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge.kit.values import FieldValue
from batchbridge.meaning.spec import Spec
from batchbridge.testing import AdapterContract, ValidCase

LAW = "test_every_setting_decides_something_or_is_said_to_decide_nothing"
CONTEXT = Context(framework_version="1.0", world_size=4)
KINDS = [natural, flag, text, anything, one_of("one", "other")]
OUTSIDE = {"note": "the prompts", "lamp-colour": ""}
EVERYTHING = {"note": "", "*": ""}


class Lamp(LampAdapter):
    """The toy of the command line, without what it only names."""

    keys = tuple(row for row in LampAdapter.keys if row.key not in ("names", "note"))


class Declaring(Lamp):
    """It knows a setting by its name."""

    declared = (Key("lamp-colour", natural, 3),)


def law_of(adapter: type[TableAdapter], settings: dict[str, Any] | None = None, **more: Any) -> None:
    source = Source(values={"nproc_per_node": 4, **(settings or {})})
    spec = adapter().read(source, CONTEXT).spec
    case = ValidCase(name="lamp", source=source, context=CONTEXT, spec=spec)
    contract = type("Contract", (AdapterContract,), {"adapter_class": adapter, "valid": (case,), "invalid": (), **more})
    getattr(contract(), LAW)()


def with_row(row: Key, **more: Any) -> type[TableAdapter]:
    return type("Planted", (Lamp,), {"keys": (*Lamp.keys, row), **more})


def test_rows_that_decide_something_keep_the_law() -> None:
    law_of(Lamp)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_a_row_that_decides_nothing_is_found(kind: Any) -> None:
    default = {"natural": 3, "flag": False}.get(kind.name, "one")
    with pytest.raises(AssertionError, match=r"(?m)Declare it .*: lamp-colour$"):
        law_of(with_row(Key("lamp-colour", kind, default)))


def test_a_row_that_a_rule_looks_at_is_seen() -> None:
    rule: Rule[Any] = SILENT("BB-LAMP-010", _seven, ("lamp-colour",), "it is dark", "lamp 1.0 train.py")
    told = with_row(Key("lamp-colour", natural, 3), rules=(rule,))
    with pytest.raises(AssertionError, match="lamp-colour"):  # 7 is none of the values that are tried
        law_of(told)
    law_of(told, {"lamp-colour": 7})


def _seven(native: Any) -> str | None:
    return "seven is dark" if native["lamp-colour"] == 7 else None


def test_a_row_that_only_another_row_brings_to_life_needs_a_case_with_both() -> None:
    class Switched(Lamp):
        keys = (*Lamp.keys, Key("switch", flag, False), Key("decay", natural, 3))

        def derive(self, native: Any) -> Any:
            terms = (f"carried: decay {native['decay']}",) if native["switch"] else ()
            return {**super().derive(native), "open_terms": FieldValue(terms, None, "by name", ("switch", "decay"))}

    with pytest.raises(AssertionError, match=r"(?m): decay$"):
        law_of(Switched)
    law_of(Switched, {"switch": True})
    law_of(Switched, meanings=(({"switch": True}, {"open_terms": ("carried: decay 3",)}),))


def test_what_a_setting_decides_outside_the_schema_may_be_said() -> None:
    row = Key("lamp-colour", natural, 3)
    law_of(with_row(row, outside=f"{__name__}:OUTSIDE"))
    with pytest.raises(AssertionError, match="lamp-colour"):  # a pattern for everything says nothing of anything
        law_of(with_row(row, outside=f"{__name__}:EVERYTHING"))
    law_of(with_row(row._replace(key="note"), outside=f"{__name__}:EVERYTHING"))  # a name before it does


def test_a_declared_setting_is_known_by_name_and_kind_and_seen_by_nothing() -> None:
    law_of(Declaring)
    read = Declaring().read(Source(values={"nproc_per_node": 4, "lamp-colour": 5}), CONTEXT)
    assert (read.findings, set(read.native) & {"lamp-colour"}) == ((), set())
    assert isinstance(read.spec, Spec)
    wrong = Declaring().read(Source(values={"nproc_per_node": 4, "lamp-colour": -5}), CONTEXT)
    assert [finding.code for finding in wrong.findings] == ["BB-LAMP-005"]


def test_a_declared_setting_that_differs_is_told_as_one_of_which_nothing_is_known() -> None:
    read = Declaring().read(Source(values={"nproc_per_node": 4, "lamp-colour": 5}), CONTEXT)
    assert outside_of(read).get("lamp-colour") == ""


class Reaching(Declaring):
    """It looks at a setting that it only declares."""

    seen: ClassVar[list[Any]] = []

    def derive(self, native: Any) -> Any:
        self.seen.append(native["lamp-colour"])
        return super().derive(native)


def test_nothing_can_look_at_a_declared_setting() -> None:
    with pytest.raises(KeyError, match="lamp-colour"):
        Reaching().read(Source(values={"nproc_per_node": 4}), CONTEXT)
