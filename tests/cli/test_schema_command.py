"""`batchbridge schema --framework`: which version is taken, where it goes, what is refused; and any table adapter's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from batchbridge import Source
from batchbridge.cli.main import main
from batchbridge.cli.schema import key_rows
from batchbridge.contract import plugins
from batchbridge.contract.reading import Behaviour, Context
from batchbridge.kit.key_table import Codes, Key
from batchbridge.kit.kinds import anything, flag, natural, one_of, optional, real
from batchbridge.kit.table_adapter import TableAdapter

jsonschema = pytest.importorskip("jsonschema", reason="schemas are checked by the jsonschema package")
TRL = ("schema", "--framework", "trl", "--framework-version", "0.18.0")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def title(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[str, str]:
    assert main(["schema", *words]) == 0
    captured = capsys.readouterr()
    return json.loads(captured.out)["title"], captured.err


def test_a_schema_says_what_it_is_and_how_it_is_used(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(TRL) == 0
    schema = json.loads(capsys.readouterr().out)
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    assert schema["$id"] == "urn:batchbridge:schema:trl:0.18.0"
    assert "# yaml-language-server: $schema=" in schema["$comment"]
    jsonschema.Draft7Validator.check_schema(schema)
    assert main(["schema", "--help"]) == 0
    assert "# yaml-language-server: $schema=" in capsys.readouterr().out


def test_it_goes_to_a_file_that_is_not_replaced_unasked(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*TRL, "-o", "trl.json"]) == 0
    assert capsys.readouterr().out == ""
    assert json.loads(Path("trl.json").read_text(encoding="utf-8"))["title"] == "Configuration of trl 0.18.0"
    Path("trl.json").write_text("mine", encoding="utf-8")
    assert main([*TRL, "-o", "trl.json"]) == 64
    assert Path("trl.json").read_text(encoding="utf-8") == "mine"
    assert main([*TRL, "-o", "trl.json", "--overwrite"]) == 0
    assert main([*TRL, "-o", "no/such/folder.json"]) == 64
    assert "cannot be written" in capsys.readouterr().err


def test_the_version_is_the_one_that_is_pinned_here(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "requirements.txt").write_text("trl==0.22.0\n", encoding="utf-8")
    assert title(capsys, "--framework", "open-r1") == (
        "Configuration of open_r1 under trl 0.22.0",
        "Configuration of open_r1 under trl 0.22.0: requirements.txt:1 pins it\n",
    )
    assert title(capsys, "--framework", "TRL", "--framework-version", "0.18.0")[0] == "Configuration of trl 0.18.0"
    (folder / "batchbridge.toml").write_text('framework_version = "0.28.0"\n', encoding="utf-8")
    assert title(capsys, "--framework", "trl") == (
        "Configuration of trl 0.28.0",
        "Configuration of trl 0.28.0: as the project's settings say\n",
    )


def test_without_a_pin_it_is_the_newest_and_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    said, told = title(capsys, "--framework", "easyr1")
    assert said == "Configuration of EasyR1 0.3.3.dev0"
    assert "the newest that is known; --framework-version chooses another" in told


def test_a_version_newer_than_the_tables_has_the_newest_schema(capsys: pytest.CaptureFixture[str]) -> None:
    said, told = title(capsys, "--framework", "trl", "--framework-version", "99.0.0")
    assert said == "Configuration of trl 1.16.0"
    assert told == f"{said}: 99.0.0 is newer than all that are known, and read as this one\n"


@pytest.mark.parametrize("framework", ["trl", "verl", "easyr1"])
def test_the_table_of_a_framework_s_keys_has_those_of_its_schema(
    framework: str, capsys: pytest.CaptureFixture[str]
) -> None:
    adapter = plugins.adapters()[framework]
    rows = {row[0]: row[1] for row in key_rows(adapter.file_schema(adapter.newest_version) or {})}
    assert len(rows) > 180
    assert set(FIELDS[framework].items()) <= set(rows.items())
    assert main(["schema", "--framework", framework, "--framework-version", adapter.newest_version, "--table"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in printed] == ["key", *rows]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--framework", "trl", "--framework-version", "0.1.0"), "trl 0.1.0 is not known; known are >=0.15"),
        (("--framework", "trl", "--framework-version", "x"), "trl x is not known"),
        (("--framework", "verl", "--framework-version", "9" * 5000), f"verl {'9' * 40} is not known"),
        (("--framework", "openrlhf"), "OpenRLHF has no configuration file of its own"),
        (("--framework", "open-instruct"), "Open-Instruct has no configuration file of its own"),
        (("--framework", "trll"), "tip: a similar framework exists: 'trl'"),
        (("--json-output", "--table"), "give --json-output without --framework and --table"),
        (("--framework", "openrlhf", "--table"), "OpenRLHF has no configuration file of its own"),
        (("--framework-version", "1.0"), "--framework-version needs --framework NAME"),
    ],
)
def test_what_has_no_schema_is_refused_by_name(
    words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["schema", *words]) == 64
    captured = capsys.readouterr()
    assert said in " ".join(captured.err.split())
    assert captured.out == ""


FIELDS = {
    "trl": {"adam_beta1": "carried.beta1", "num_generations": "rollout.completions_per_prompt"},
    "verl": {"actor_rollout_ref.rollout.n": "rollout.completions_per_prompt"},
    "easyr1": {"worker.rollout.n": "rollout.completions_per_prompt"},
}
"""Some keys and the canonical fields that they say alone."""
LOSSES = {"mean": "token_mean", "sum": "token_sum"}


class Tabled(TableAdapter):
    """An adapter that says nothing of schemas."""

    framework = "tabled"
    versions = ">=1,<3"
    newest_version = "2.1"
    codes = Codes.of("BB-TABLED")
    keys = (
        Key("train.batch", natural, 512, "optimizer_step.completions_per_step", unit="completions"),
        Key("train.loss", one_of(*LOSSES), "mean", "loss.policy.aggregation", LOSSES),
        Key("train.lr", real(0, 1), 1e-6, "carried.learning_rate"),
        Key("train.seed", optional(natural), None),
        Key("train.fast", flag, False, versions=">=2", meaning="Whether it is fast."),
        Key("extra", anything, {}),
    )

    def behaviour_of(self, native: Any, version: str) -> Behaviour:
        raise NotImplementedError


class Loose(Tabled):
    framework = "loose"
    strict = ("train.",)
    interpolates = True


class Bare(Tabled):
    framework = "bare"
    no_file = "it has none"


FITTING = (
    {"train": {"batch": 8, "loss": "sum", "lr": 0.5, "seed": None, "fast": True}, "extra": {"any": {"thing": 1}}},
    {},
)
WRONG = (
    {"train": {"bach": 8}},
    {"train": {"batch": 0}},
    {"train": {"batch": "8"}},
    {"train": {"loss": "none"}},
    {"train": {"lr": 1.5}},
    {"train": {"fast": None}},
    {"train": 5},
)


@pytest.mark.parametrize("adapter", [Tabled, Loose])
def test_a_table_adapter_has_a_schema_of_its_rows_for_nothing(adapter: type[TableAdapter]) -> None:
    schema = jsonschema.Draft7Validator(adapter().file_schema("2.1"))
    assert all(schema.is_valid(values) for values in FITTING)
    assert [values for values in WRONG if schema.is_valid(values)] == []
    for values in WRONG:
        reading = Tabled().read(Source(values=values), Context(framework_version="2.1", world_size=2))
        assert {one.code for one in reading.findings} & {"BB-TABLED-004", "BB-TABLED-005"}
    batch = schema.schema["properties"]["train"]["properties"]["batch"]
    assert (batch["x-unit"], batch["default"]) == ("completions", 512)
    assert '"minimum": 1' in json.dumps(batch)
    assert batch["description"].endswith("Unit: completions. Default: 512.")


def test_a_key_of_another_version_is_refused_and_says_which() -> None:
    schema = Tabled().file_schema("1.0")
    assert schema is not None
    fast = schema["properties"]["train"]["properties"]["fast"]
    assert fast["description"] == "tabled 1.0 has no setting train.fast; tabled has it under >=2."
    assert not jsonschema.Draft7Validator(schema).is_valid({"train": {"fast": True}})


def test_an_adapter_says_where_other_keys_are_taken_and_where_values_may_follow_others() -> None:
    strict, loose = (jsonschema.Draft7Validator(adapter().file_schema("2.1")) for adapter in (Tabled, Loose))
    for values in ({"other": 1}, {"train": {"batch": "${x.y}"}}, {"train": {"lr": "1e-6"}}, {"train": {"seed": "???"}}):
        assert loose.is_valid(values)
        assert not strict.is_valid(values)
    assert not loose.is_valid({"train": {"other": 1}})
    assert not loose.is_valid({"train": {"batch": "???"}})


def test_a_framework_without_a_file_has_no_schema() -> None:
    assert Bare().file_schema("2.1") is None
    with pytest.raises(ValueError, match=r"bare 0\.9 is not known; known are >=1,<3"):
        Bare().file_schema("0.9")
