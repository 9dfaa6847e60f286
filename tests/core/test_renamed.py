"""Former names are imported with a warning that names the new one and the release in which the former one goes."""

from __future__ import annotations

import importlib

import pytest

import batchbridge
from batchbridge.renamed import GOES_IN, RENAMED

ROWS = [(module, old, new) for module, names in RENAMED.items() for old, new in names.items()]


@pytest.mark.parametrize(("module", "old", "new"), ROWS, ids=[f"{module}.{old}" for module, old, _ in ROWS])
def test_a_former_name_is_the_new_one_and_says_so(module: str, old: str, new: str) -> None:
    home, _, name = new.partition(":")
    with pytest.warns(DeprecationWarning, match=rf"{module}\.{old} is now {home}\.{name};.* {GOES_IN}") as seen:
        found = getattr(importlib.import_module(module), old)
    assert found is getattr(importlib.import_module(home), name)
    assert [warning.filename for warning in seen] == [__file__]  # it points at whoever imports


@pytest.mark.parametrize("module", RENAMED)
def test_a_name_that_never_was_is_refused(module: str) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'Nothing'"):
        _ = importlib.import_module(module).Nothing


def test_former_names_go_when_their_release_comes() -> None:
    here, gone = (tuple(map(int, version.split(".")[:2])) for version in (batchbridge.__version__, GOES_IN))
    assert here < gone, "the release is here: delete the rows of batchbridge.renamed and its modules"


def test_an_import_statement_of_a_former_name_works() -> None:
    with pytest.warns(DeprecationWarning, match="FieldValue"):
        from batchbridge.kit.values import Told  # type: ignore[attr-defined]  # a type checker takes the new name
    assert Told(1, "key").value == 1
