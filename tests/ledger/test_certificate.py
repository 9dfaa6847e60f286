"""A certificate says what its ledger says, and a change of either is named."""

from __future__ import annotations

import copy
import json
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from scripted_ledger import ORDERED, header, record, rows_of

from batchbridge.cli.main import main
from batchbridge.errors import LedgerError
from batchbridge.ledger import COLUMNS, SCALARS, Writer
from batchbridge.ledger.certificates import PARTS, WIDEST_TOLERANCE, certificate, sealed, verify
from batchbridge.meaning.plan import Plan
from batchbridge.render.model_card import section

EVIDENCE = {"grade": "proven", "labels": {"trl": "1.16.0", "transformers": "5.23.0"}, "control": [], "loss": []}
Ledger = Callable[..., Path]


@pytest.fixture
def two(ledger: Ledger) -> Path:
    """A run of two ranks and four steps."""
    return ledger("run", world_size=2, spec=ORDERED, evidence=EVIDENCE)


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def rewrite(path: Path, records: list[Any]) -> None:
    path.write_text("".join(json.dumps(each) + "\n" for each in records), encoding="utf-8")


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The places of a document's values, empty ones included."""
    entries = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = [leaf for name, item in entries for leaf in leaves(item, (*path, name))]
    yield from found or [path]


def other(value: Any) -> Any:
    """A value of the same kind that is another one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return value + 1
    if isinstance(value, str):
        return f"{value[:-1]}{'a' if value[-1:] != 'a' else 'b'}"
    return [1] if isinstance(value, list) else {"x": 1} if isinstance(value, dict) else 1


def changed(document: Any, path: tuple[Any, ...]) -> Any:
    """The document with another value there."""
    found = copy.deepcopy(document)
    target = found
    for name in path[:-1]:
        target = target[name]
    target[path[-1]] = other(target[path[-1]])
    return found


def said(path: tuple[Any, ...]) -> str:
    """How a difference names a place; records are named by their steps."""
    if path[:2] == ("records", "parts"):
        return "records.parts"
    return "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path).lstrip(".")


# ---- what it says


def test_it_says_what_the_ledger_recorded(two: Path) -> None:
    found = certificate(two)
    assert found["specs"] == {ORDERED.digest(): ORDERED.to_dict()}
    assert found["completions"] == 16
    assert found["response_tokens"] == 4 * 10
    assert found["completions_per_step"] == [4, 4]
    assert found["world_sizes"] == [2]
    assert found["steps"] == {
        "first": 0,
        "stop": 4,
        "planned": 4,
        "skipped": 0,
        "skipped_ranges": [],
        "incomplete": None,
    }
    assert found["records"]["count"] == 8
    assert [(part["first"], part["stop"]) for part in found["records"]["parts"]] == [(s, s + 1) for s in range(4)]
    (start,) = found["starts"]
    assert start["code"] == {"grade": "proven", "releases": EVIDENCE["labels"]}
    assert (start["mode"], start["framework"], start["framework_version"]) == ("enforce", "trl", "1.16.0")
    assert found["verification"] == {
        "every_step": True,
        "steps": 4,
        "membership_recomputed": 4,
        "without_a_weight": 0,
        "largest_drift": 0.0,
        "largest_drift_step": 0,
        "departures": 0,
        "first_departures": [],
    }
    assert verify(found, two).holds
    assert json.loads(json.dumps(found)) == found


def test_the_scripted_run_is_its_plans(two: Path) -> None:
    """Else the membership that is computed again would show nothing."""
    steps = [Plan(ORDERED, 8).step(step).members for step in range(4)]
    mine = [[(row["rollout"], 0, row["prompt"], row["sample"]) for row in rows_of(step)] for step in range(4)]
    assert [sorted(tuple(member)[:4] for member in step) for step in steps] == mine


def of_step(wanted: int, **values: Any) -> Callable[..., None]:
    def edit(step: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
        if step == wanted:
            for row in rows:
                row |= {name: value for name, value in values.items() if name in row}
            scalars |= {name: value for name, value in values.items() if name not in rows[0]}

    return edit


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"mode": "observe"}, "mode observe"),
        ({"edit": of_step(2, weights=0.2)}, "weighs otherwise"),
        ({"edit": of_step(2, weights=float("nan"))}, "weighs otherwise"),
        ({"edit": of_step(2, prompt=7)}, "other completions than the plan"),
        ({"dataset_size": 7}, "other completions than the plan"),
        ({"spec": ORDERED.replace(**{"horizon.optimizer_steps": 3})}, "the plan ends before it"),
        ({"spec": ORDERED.replace(**{"rollout.prompts_per_rollout": None})}, "no plan"),
    ],
)
def test_a_run_that_was_not_held_against_its_plan_is_not_called_verified(
    ledger: Ledger, how: dict[str, Any], what: str
) -> None:
    found = certificate(ledger("run", world_size=2, **{"spec": ORDERED, **how}))["verification"]
    assert found["every_step"] is False
    assert found["departures"] >= 1
    assert found["steps"] == 4 - found["departures"]
    assert what in found["first_departures"][0]["what"]
    if "edit" in how:
        assert [each["step"] for each in found["first_departures"]] == [2]


def test_a_doubled_weight_shows_as_a_drift_of_one(ledger: Ledger) -> None:
    found = certificate(ledger("run", spec=ORDERED, edit=of_step(2, weights=0.2)))["verification"]
    assert (found["largest_drift"], found["largest_drift_step"]) == (1.0, 2)
    nothing = certificate(ledger("none", spec=ORDERED, edit=of_step(2, weights=float("nan"))))["verification"]
    assert (nothing["largest_drift"], nothing["largest_drift_step"]) == ("inf", 2)


def test_what_rounding_explains_is_verified(ledger: Ledger) -> None:
    near = 0.1 * (1 + WIDEST_TOLERANCE / 2)
    found = certificate(ledger("run", spec=ORDERED, edit=of_step(2, weights=near)))["verification"]
    assert found["every_step"]
    assert found["largest_drift"] == pytest.approx(WIDEST_TOLERANCE / 2)


def test_steps_that_show_no_weight_and_those_without_an_update_are_counted(ledger: Ledger) -> None:
    shown = of_step(1, skipped=True)

    def edit(step: int, rows: list[dict[str, Any]], scalars: dict[str, Any]) -> None:
        shown(step, rows, scalars)
        if step == 2:
            rows[0]["weights"] = None  # the scripted ledger then leaves the column out: nothing was measured

    found = certificate(ledger("run", spec=ORDERED, edit=edit))
    assert found["verification"]["without_a_weight"] == 1
    assert (found["steps"]["skipped"], found["steps"]["skipped_ranges"]) == (1, [[1, 1]])


# ---- digests


def test_the_records_digest_knows_neither_the_order_of_rows_nor_a_lines_spelling(two: Path) -> None:
    before = certificate(two)
    path = two / "rank-00001.jsonl"
    told = lines(path)
    for one in told[1:]:
        for name in COLUMNS:
            if one[name] is not None:
                one[name] = one[name][::-1]
    rewrite(path, [dict(sorted(one.items(), reverse=True)) for one in told])
    assert certificate(two) == before


def test_the_records_digest_knows_no_spelling_of_a_number(two: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before, path = certificate(two), two / "rank-00000.jsonl"
    whole = path.read_text(encoding="utf-8")
    path.write_text(whole.replace('"reward":[1.0,', '"reward":[1,').replace('"advantage":[0.7', '"advantage":[7e-1'))
    assert path.read_text(encoding="utf-8") != whole
    assert certificate(two) == before
    path.write_text(whole.replace('"reward":[1.0,', '"reward":[100000000000000000000,'))
    fast = certificate(two)
    monkeypatch.setattr("batchbridge.ledger.speedups.orjson", None)
    assert certificate(two) == fast


def test_a_resumed_run_that_trained_the_same_has_the_same_records_and_another_start(
    ledger: Ledger, tmp_path: Path
) -> None:
    whole = certificate(ledger("whole", spec=ORDERED, start_id="a"))
    killed = ledger("killed", spec=ORDERED, start_id="a", steps=3)
    with (killed / "rank-00000.jsonl").open("ab") as file:
        file.write(b'{"record":"step","step":3,"ep')  # torn
    with Writer(killed, header(spec=ORDERED, started="resumed", at_step=2, start_id="b")) as writer:
        for step in (2, 3):
            writer.append(record(step, rows_of(step)))
    resumed = certificate(killed)
    assert resumed["records"] == whole["records"]
    assert [(start["started"], start["at_step"]) for start in resumed["starts"]] == [("fresh", 0), ("resumed", 2)]
    assert resumed["verification"]["every_step"]
    assert not verify(whole, killed).holds


def test_of_a_long_run_each_part_is_several_steps_and_memory_does_not_grow(tmp_path: Path) -> None:
    def peak(name: str, steps: int) -> tuple[dict[str, Any], int]:
        spec = ORDERED.replace(**{"horizon.optimizer_steps": steps})
        with Writer(tmp_path / name, header(spec=spec, dataset_size=2 * steps)) as writer:
            for step in range(steps):
                writer.append(record(step, rows_of(step)))
        tracemalloc.start()
        try:
            return certificate(tmp_path / name), tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    _, small = peak("small", PARTS)
    found, large = peak("large", 4 * PARTS - 2)
    assert found["verification"]["every_step"]
    assert found["completions"] == 4 * (4 * PARTS - 2)
    parts = found["records"]["parts"]
    assert [(part["first"], part["stop"]) for part in parts[:2]] == [(0, 4), (4, 8)]
    assert parts[-1]["stop"] == 4 * PARTS - 2
    assert len(parts) == PARTS
    assert large < 1.5 * small, "blocks of lines, and never the run"
    path = tmp_path / "large" / "rank-00000.jsonl"
    told = path.read_text(encoding="utf-8").splitlines(keepends=True)
    told[1 + 6] = told[1 + 6].replace('"learning_rate":0.001', '"learning_rate":0.002')
    path.write_text("".join(told), encoding="utf-8")
    named = verify(found, path.parent).differences
    assert "records.parts: a record of steps 4 to 7 is another one in the ledger" in named


# ---- tampering


def test_every_claim_that_is_changed_is_named_also_where_the_document_is_sealed_anew(two: Path) -> None:
    document = certificate(two)
    places = [place for place in leaves(document) if place != ("digest",)]
    assert len(places) > 60
    for place in places:
        wrong = changed(document, place)
        found = verify(wrong, two)
        assert any(line.startswith("digest: ") for line in found.differences), place
        again = sealed({name: value for name, value in wrong.items() if name not in ("schema", "digest")})
        again = {**again, "schema": wrong["schema"]}
        named = verify(again, two).differences
        assert any(line.startswith(said(place)) for line in named), (place, named)


def test_records_in_another_order_are_named(two: Path) -> None:
    document = certificate(two)
    document["records"]["parts"].reverse()
    again = sealed({name: value for name, value in document.items() if name not in ("schema", "digest")})
    assert verify(again, two).differences == ("records.parts: the entries are in another order",)


def test_a_claim_that_is_left_out_or_added_is_named(two: Path) -> None:
    document = certificate(two)
    for name in [name for name in document if name not in ("schema", "digest")]:
        claims = {key: value for key, value in document.items() if key not in ("schema", "digest", name)}
        assert any(line.startswith(f"{name}: missing") for line in verify(sealed(claims), two).differences)
    more = sealed({**{k: v for k, v in document.items() if k not in ("schema", "digest")}, "signed_by": "us"})
    assert "signed_by: us, which no ledger says" in verify(more, two).differences


@pytest.mark.parametrize("name", [*SCALARS, *COLUMNS])
def test_every_value_of_a_record_that_is_changed_is_named_by_its_step(two: Path, name: str) -> None:
    document, path = certificate(two), two / "rank-00001.jsonl"
    told = lines(path)
    one = told[1 + 2]
    if name in SCALARS:
        one[name] = {"aggregation": "x"} if name == "normaliser" else other(one[name])
    elif name.endswith("fingerprint") or name == "old_logprobs":
        one[name][0] = "0" * 16
    else:
        one[name][0] = other(one[name][0])
    rewrite(path, told)
    if name == "step":  # no ledger any more
        with pytest.raises(LedgerError, match="step 3, where step 2 should follow"):
            verify(document, two)
        return
    assert "records.parts: a record of step 2 is another one in the ledger" in verify(document, two).differences


@pytest.mark.parametrize("name", ["framework", "framework_version", "mode", "spec_digest", "spec", "dataset_size",
                                  "started", "start_id", "evidence"])  # fmt: skip
def test_every_field_of_a_header_that_is_changed_is_named(two: Path, name: str) -> None:
    document = certificate(two)
    for path in sorted(two.iterdir()):
        told = lines(path)
        another = ORDERED.replace(**{"loss.policy.aggregation": "sequence_mean"})
        told[0][name] = another.to_dict() if name == "spec" else other(told[0][name])
        if name == "mode":
            told[0][name] = "observe"
        rewrite(path, told)
    found = verify(document, two).differences
    assert any(line.startswith("starts[0].headers_digest") for line in found)
    again = certificate(two)["verification"]["every_step"]
    assert again == (name not in ("mode", "spec_digest", "spec"))


def test_the_headers_of_one_rank_alone_count_too(two: Path) -> None:
    document, path = certificate(two), two / "rank-00001.jsonl"
    told = lines(path)
    told[0]["framework_version"] = "1.15.0"
    rewrite(path, told)
    found = verify(document, two).differences
    assert any(line.startswith("starts[0].headers_digest") for line in found)
    assert "the headers of its ranks differ" in json.dumps(certificate(two)["verification"])


def test_a_record_that_is_missing_or_was_added_is_named(two: Path, ledger: Ledger) -> None:
    document = certificate(two)
    longer = ledger("longer", world_size=2, spec=ORDERED, evidence=EVIDENCE, steps=5)
    found = verify(document, longer).differences
    assert "records.parts: step 4 in the ledger, and not in the certificate" in found
    assert "steps.stop: 4; the ledger says 5" in found
    for path in sorted(two.iterdir()):
        rewrite(path, lines(path)[:-1])
    found = verify(document, two).differences
    assert "records.parts: steps 3 to 4 (exclusive) are not in the ledger" in found
    rewrite(two / "rank-00001.jsonl", lines(two / "rank-00001.jsonl")[:-1])
    assert any(line.startswith("steps.incomplete") for line in verify(document, two).differences)


def test_a_record_that_moved_to_another_rank_is_named(two: Path) -> None:
    document = certificate(two)
    paths = sorted(two.iterdir())
    told = [lines(path) for path in paths]
    told[0][2], told[1][2] = told[1][2], told[0][2]
    for path, records in zip(paths, told, strict=True):
        rewrite(path, records)
    assert "records.parts: a record of step 1 is another one in the ledger" in verify(document, two).differences


# ---- the command


Run = Callable[..., tuple[int, str]]


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `batchbridge ledger WORDS`; gives the exit code and what was printed."""

    def invoke(*words: str) -> tuple[int, str]:
        code = main(["ledger", *words])
        return code, "".join(capsys.readouterr())

    return invoke


def test_the_commands_write_one_and_compare_it(two: Path, tmp_path: Path, run: Run) -> None:
    file = tmp_path / "certificate.json"
    assert run("certificate", str(two), "-o", str(file)) == (0, "")
    code, text = run("verify", str(file), str(two))
    assert code == 0
    assert "every step was held against the plan" in text
    assert "nothing is signed" in text
    assert run("verify", str(file))[0] == 4, "nothing to compare it with"
    beside = two / "certificate.json"
    assert run("certificate", str(two), "-o", str(beside))[0] == 0
    assert run("verify", str(beside))[0] == 0, "in the run's own folder"
    code, text = run("certificate", str(two), "-o", str(file))
    assert (code, "--overwrite replaces it" in text) == (64, True), "a README is not a file to be replaced unasked"
    assert run("certificate", str(two), "-o", str(file), "--overwrite") == (0, "")
    code, text = run("certificate", str(two), "-o", str(tmp_path / "nowhere" / "run.json"))
    assert (code, "run.json: cannot be written: No such file or directory" in text) == (64, True)
    document = json.loads(file.read_text())
    document["completions"] = 17
    file.write_text(json.dumps(document))
    code, text = run("verify", str(file), str(two))
    assert code == 3
    assert "completions: 17; the ledger says 16" in text
    code, text = run("verify", str(file))
    assert code == 3
    assert "it was changed" in text


@pytest.mark.parametrize(
    "text",
    ["", "{", "[" * 100_000, '{"a": NaN}', '{"schema": 1, "schema": 2}', "\ud800", "1" * 5000, '"\\ud800'],
)
def test_what_is_no_json_is_refused(tmp_path: Path, text: str, two: Path, run: Run) -> None:
    file = tmp_path / "certificate.json"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    code, said = run("verify", str(file), str(two))
    assert code == 2
    assert "is not a certificate" in said


@pytest.mark.parametrize("text", ["[]", "3", "null", '"x"', "{}", '{"schema": "batchbridge-certificate/1"}'])
def test_json_that_is_no_certificate_is_not_believed(tmp_path: Path, text: str, two: Path, run: Run) -> None:
    file = tmp_path / "certificate.json"
    file.write_text(text)
    assert run("verify", str(file), str(two))[0] == 3
    assert run("verify", str(file))[0] == 3


def test_a_folder_without_a_ledger_is_refused(tmp_path: Path, run: Run) -> None:
    assert run("certificate", str(tmp_path))[0] == 2
    assert run("certificate", str(tmp_path / "none"))[0] == 2


def test_a_model_card_says_it_in_markdown_and_no_text_of_a_ledger_is_markup(ledger: Ledger, run: Run) -> None:
    hostile = "<b>1|2</b>\n# x\x1b[1m"
    evidence = {"grade": "proven", "labels": {"[a](b)": "`c`"}}
    folder = ledger("run", world_size=2, spec=ORDERED, framework_version=hostile, evidence=evidence)
    text = section(certificate(folder))
    code, printed = run("certificate", str(folder), "--model-card")
    assert code == 0
    assert "\x1b" not in printed
    assert text.startswith("## What was trained\n")
    assert f"| specification | `{ORDERED.digest()}` |" in text
    assert "| completions per optimizer step | 4 |" in text
    assert "| verified | every step was held against the plan before its update" in text
    assert "\\<b\\>1\\|2\\</b\\> \\# x" in text
    assert "\\[a\\]\\(b\\) \\`c\\`" in text
    assert all(line.count("|") - line.count("\\|") == 3 for line in text.splitlines() if line.startswith("|"))


def test_no_text_of_a_ledger_ends_a_line_of_a_card(ledger: Ledger, run: Run, tmp_path: Path) -> None:
    """In a file, too, which nobody cleans for a terminal."""
    evidence = {"grade": "a\rb", "labels": {"c\u2028d": "e\x0bf"}}
    folder = ledger("run", spec=ORDERED, framework_version="1\r\r# x\x1b[1m", evidence=evidence)
    assert run("certificate", str(folder), "--model-card", "-o", str(tmp_path / "card.md")) == (0, "")
    (line,) = [line for line in (tmp_path / "card.md").read_bytes().decode().split("\n") if "| framework |" in line]
    assert line == r"| framework | trl 1\\r\\r\# x\\x1b\[1m (code a\\rb: c\\u2028d e\\x0bf) |"


def test_every_certificate_has_the_published_form(ledger: Ledger, two: Path) -> None:
    jsonschema = pytest.importorskip("jsonschema", reason="the schema is checked against the jsonschema package")
    published = json.loads((Path(__file__).parents[2] / "docs" / "certificate.schema.json").read_text("utf-8"))
    checker = jsonschema.Draft202012Validator(published)
    checker.check_schema(published)
    odd = ledger("odd", mode="observe", spec=ORDERED, edit=of_step(2, weights=float("nan"), skipped=True))
    resumed = ledger("resumed", spec=ORDERED.replace(**{"rollout.prompts_per_rollout": None}), at_step=2, steps=3,
                     started="resumed")  # fmt: skip
    for folder in (two, odd, resumed):
        document = certificate(folder)
        checker.validate(document)
        for place in [place for place in leaves(document) if place[0] not in ("specs", "starts")][:40]:
            shorter = copy.deepcopy(document)
            target = shorter
            for name in place[:-1]:
                target = target[name]
            if isinstance(target, dict):
                del target[place[-1]]
                assert not checker.is_valid(shorter), place
