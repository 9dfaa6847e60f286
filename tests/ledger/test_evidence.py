"""What the ledger and the report say of the framework's code, and ledgers that are older than that."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from scripted_ledger import SPEC, header, record, rows_of

from batchbridge.cli.main import main
from batchbridge.contract.attachment import Attachment, Request
from batchbridge.contract.evidence import Evidence
from batchbridge.contract.reading import Reading
from batchbridge.ledger import Writer, diff, read_headers, read_steps

MEASURED = Evidence(
    grade="measured", labels={"trl": None, "accelerate": "1.15.0"}, loss=("trl trainer/grpo_trainer.py: compute_loss",)
)


def write(folder: Path, evidence: Evidence | None, *, old: bool = False) -> Path:
    with Writer(folder, header(evidence=None if evidence is None else evidence.to_dict())) as writer:
        writer.append(record(0, rows_of(0)))
    if old:
        file = folder / "rank-00000.jsonl"
        first, *others = file.read_text().splitlines()
        made = json.loads(first)
        del made["evidence"]
        file.write_text("\n".join([json.dumps(made), *others]) + "\n")
    return folder


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Callable[[Path], list[str]]:
    """The lines of `batchbridge ledger show`."""

    def show(folder: Path) -> list[str]:
        assert main(["ledger", "show", str(folder)]) == 0
        return capsys.readouterr().out.splitlines()

    return show


def test_the_header_has_the_grade_the_labels_and_the_functions(tmp_path: Path) -> None:
    (found,) = read_headers(write(tmp_path, MEASURED))
    assert found["evidence"] == MEASURED.to_dict()


def test_show_begins_with_the_grade_and_the_labels(tmp_path: Path, shown: Callable[[Path], list[str]]) -> None:
    assert shown(write(tmp_path, MEASURED))[0] == "code measured  trl unrecorded, accelerate 1.15.0"


@pytest.mark.parametrize("old", [False, True])
def test_a_ledger_that_says_nothing_of_the_code_is_read_as_ever(
    tmp_path: Path, shown: Callable[[Path], list[str]], old: bool
) -> None:
    folder = write(tmp_path / "old", None, old=old)
    assert shown(folder)[0].startswith("step 0")
    assert len(list(read_steps(folder))) == 1
    found = diff(folder, write(tmp_path / "new", MEASURED))
    assert found.equal
    assert (found.a.code, found.b.code) == (None, "measured")


def test_a_difference_of_runs_names_each_ones_grade(tmp_path: Path) -> None:
    proven = Evidence(grade="proven", labels={"trl": "1.16.0"})
    text = diff(write(tmp_path / "a", proven), write(tmp_path / "b", MEASURED)).text()
    assert "a: trl 1.16.0 (code: proven), enforce" in text
    assert "b: trl 1.16.0 (code: measured), enforce" in text


def test_broken_evidence_ends_no_reader(tmp_path: Path, shown: Callable[[Path], list[str]]) -> None:
    folder = write(tmp_path, MEASURED)
    file = folder / "rank-00000.jsonl"
    text = file.read_text()
    for broken in ('"evidence":7', '"evidence":{"grade":7}', '"evidence":{"grade":"x","labels":7}'):
        made = json.loads(text.splitlines()[0])
        whole = '"evidence":' + json.dumps(made["evidence"], separators=(",", ":"))
        assert whole in text
        file.write_text(text.replace(whole, broken))
        assert any(line.startswith("step 0") for line in shown(folder))


def test_the_report_says_what_speaks_for_the_code() -> None:
    reading = Reading(framework="trl", framework_version="1.16.0", spec=SPEC)
    request = Request(spec=SPEC, plan=None, reading=reading, mode="observe", evidence=MEASURED)
    made = Attachment(
        framework="trl",
        framework_version="1.16.0",
        request=request,
        changes=(),
        detach=lambda: None,
    )
    assert (
        "code: measured (trl unrecorded, accelerate 1.15.0); "
        "a loss that is not known: trl trainer/grpo_trainer.py: compute_loss" in made.report()
    )
