"""What the native tests measured, `native/measured.json`, is of the code as it is now."""

from __future__ import annotations

import importlib
import json
from pathlib import Path

import pytest

HERE = Path(__file__).parent


def test_what_is_recorded_of_verl_was_measured_with_the_code_as_it_is_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(HERE.parents[1] / "equivalence" / "native"))
    digests = importlib.import_module("digests")
    recorded = json.loads((HERE / "native" / "measured.json").read_text(encoding="utf-8"))
    now = {**digests.digests("verl"), **digests.measuring("verl")}
    for version, measured in recorded.items():
        changed = digests.changed(measured.get("code", {}), now)
        changed += digests.changed(measured.get("code of packed passes", {}), digests.packed())
        assert not changed, (
            f"{version}: {', '.join(changed)} changed since: `nox -s verl`, BATCHBRIDGE_RECORD=1, records it again"
        )
