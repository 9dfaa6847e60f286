"""Every message that a rule quotes as the framework's own is a text that doctor knows, and says which rule it is of."""

from __future__ import annotations

import re
import time

import pytest

from batchbridge.contract import plugins
from batchbridge.contract.error_text import RuleRow
from batchbridge.diagnosis import doctor, quoted_texts
from batchbridge.kit.error_texts import quotations

OURS = ("trl", "verl", "easyr1", "openrlhf", "open_instruct")
ROWS = [row for framework in OURS for row in plugins.rows(plugins.adapters()[framework])]
QUOTING = {f"{row.code} {row.native}": row for row in ROWS if list(quotations(row.native))}


def test_rows_of_old_versions_are_among_them() -> None:
    assert {"BB-TRL-029", "BB-TRL-041"} <= {row.code for row in ROWS}
    assert len(ROWS) > 300
    assert len(QUOTING) > 130


@pytest.mark.parametrize("said", QUOTING)
def test_the_message_that_a_rule_quotes_is_recognised_as_its(said: str) -> None:
    row = QUOTING[said]
    found = doctor(f"[rank0]: Traceback (most recent call last):\n[rank0]: {row.native}\nSystemExit: 1")
    assert row.code in {code for diagnosis in found for code in diagnosis.codes}


def test_what_quotes_nothing_has_no_message_to_quote() -> None:
    """An exception with a message of two words or more is quoted, unless it is only marks or our own words."""
    silent = {row.native for row in ROWS if isinstance(row.native, str) and not list(quotations(row.native))}
    message = re.compile(r"\w+(?:Error|Exception)[^:]{0,30}: (?!\.\.\. %)")
    assert [native for native in silent if message.search(native)] == []


@pytest.mark.parametrize(
    ("native", "text", "recognised"),
    [
        ("ValueError: a (...) must divide b", "ValueError: a (12) must divide b (8)", True),
        ("ValueError: a must divide b", "a (12) must divide `b`", True),
        ("ValueError: a must divide b", "a must not divide b", False),
        ("ValueError: Invalid mode: ...", "ValueError: Invalid mode: 'x'", True),
        ("ValueError: Invalid mode: ...", "an Invalid mode, perhaps", False),
        ("ValueError: no such thing here, after the model has been loaded", "ValueError: no such thing here!", True),
        ("AssertionError: got x=... and size()=...", "AssertionError: got x=3 and size()=4", True),
        ("the run ends; or ValueError: it cannot be told", "ValueError: it cannot be told", True),
    ],
)
def test_values_marks_and_remarks_do_not_matter_and_words_do(native: str, text: str, recognised: bool) -> None:
    (pattern,) = quotations(native)
    assert (re.search(pattern, text) is not None) == recognised


@pytest.mark.parametrize("native", [None, lambda facts: "ValueError: x", "ValueError", "ZeroDivisionError, or so", "-"])
def test_what_has_no_message_is_quoted_nowhere(native: object) -> None:
    assert list(quotations(native)) == []


def test_a_text_of_its_own_goes_before_the_rules_quotation_and_names_the_rule() -> None:
    (found,) = doctor("ValueError: generation_batch_size (12) must be divisible by num_generations (8).")
    assert found.text.name == "trl-generation-batch"
    assert "BB-TRL-021" in found.codes
    assert found.to_dict()["codes"] == list(found.codes)


def test_a_long_text_of_fragments_is_read_quickly() -> None:
    began = time.process_time()
    doctor("INFO something ( ( ((( [actor] ValueError: Rollout must be (x) divisible by \n" * 14_000)
    assert time.process_time() - began < 5  # 0.4 s of CPU; 20 s with patterns that began with anything


def test_an_adapter_whose_rows_fail_does_not_keep_the_others_away(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: object) -> list[RuleRow]:
        raise RuntimeError("no rows")

    monkeypatch.setattr(type(plugins.adapters()["verl"]), "rows", broken)
    frameworks = {text.framework for text in quoted_texts()}
    assert "verl" not in frameworks
    assert {"trl", "openrlhf"} <= frameworks
