"""`--json` of every command: one envelope, and the published schema describes all that stands in it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

import batchbridge
from batchbridge.cli._exit_codes import EXIT_MEANINGS
from batchbridge.cli.main import COMMANDS, cli, main
from batchbridge.cli.schema import output_schema
from batchbridge.render.json import LAYOUT

jsonschema = pytest.importorskip("jsonschema", reason="the schema is checked against the jsonschema package")

VALID = "num_generations: 8\nper_device_train_batch_size: 8\nlearning_rate: 1.0e-6\n"
TRL = ("--framework", "trl", "--framework-version", "1.16.0")
ON = (*TRL, "--world-size", "4")
SCENES = {
    "explain": [
        ("r.yaml", *ON),
        ("bad.yaml", *ON),
        ("r.yaml", *TRL),
        ("r.yaml",),
        ("nothing.yaml",),
    ],
    "check": [("r.yaml", *ON), ("bad.yaml", *ON), ("r.yaml", *TRL), ("r.yaml", "bad.yaml"), (".",), ("nothing.yaml",)],
    "plan": [("r.yaml", *ON, "--dataset-size", "64"), ("r.yaml", *ON), ("bad.yaml", *ON), ("r.yaml", *TRL)],
    "diff": [
        ("r.yaml", "r.yaml", *ON),
        ("r.yaml", "--set-b", "beta=0.1", *ON),
        ("r.yaml", "bad.yaml", *ON),
        ("r.yaml", *TRL),
    ],
    "convert": [
        ("r.yaml", *ON, "--to", "open_r1", "--to-version", "1.16.0"),
        ("r.yaml", *ON, "--to", "verl", "--dry-run"),
        ("r.yaml", *ON, "--to", "trl", "--into", "into.yaml", "--dry-run"),
        ("bad.yaml", *ON, "--to", "verl"),
        ("r.yaml", *TRL, "--to", "verl"),
    ],
    "scale": [
        ("r.yaml", *TRL, "--from", "4", "--world-size", "8"),
        ("r.yaml", *TRL, "--from", "4", "--world-size", "7"),
        ("r.yaml", *TRL, "--from", "4", "--world-size", "8", "--apply", "1", "-o", "applied.yaml"),
        ("bad.yaml", *TRL, "--from", "4", "--world-size", "8"),
        ("r.yaml", *TRL, "--world-size", "8"),
    ],
    "doctor": [
        ("AssertionError: only support equal chunk. Got size of DataProto 6 and chunk 4.",),
        ("generation_batch_size (20) must be divisible by num_generations (8).", "--config", "bad.yaml", *ON),
        ("nothing that anybody knows",),
    ],
    "rule": [("BB-TRL-021",), ("BB101",)],
    "adapters": [()],
    "ledger show": [("ledger",), ("ledger", "--step", "1"), ("torn",), ("missing",)],
    "ledger diff": [("ledger", "ledger"), ("ledger", "other"), ("ledger", "missing")],
    "ledger verify": [("ledger",), ("missing",)],
}
"""Command to arguments: what is valid, invalid and undecided, and what cannot be read."""


def walk(command: click.Command, name: str = "") -> Iterator[tuple[str, click.Command]]:
    """Every command that does something, by its words."""
    if not isinstance(command, click.Group):
        yield name, command
        return
    with click.Context(command) as context:
        for word in command.list_commands(context):
            found = command.get_command(context, word)
            assert found is not None
            yield from walk(found, f"{name} {word}".strip())


def closed(schema: Any) -> Any:
    """The schema with nothing allowed that it does not name: what is printed must be described."""
    if isinstance(schema, list):
        return [closed(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(part) for name, part in schema.items()}
    if made.get("type") == "object" and "properties" in made:
        made.setdefault("additionalProperties", False)
    return made


@pytest.fixture(scope="module")
def validator() -> Any:
    schema = output_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    beside = {name: {} for branch in schema["allOf"] for name in branch["then"]["required"]}
    schema["properties"] |= beside
    return jsonschema.Draft202012Validator(closed(schema))


@pytest.fixture
def inputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from batchbridge import Spec
    from batchbridge.ledger import Header, StepRecord, Writer
    from batchbridge.meaning.weights import Normaliser

    monkeypatch.chdir(tmp_path)
    Path("r.yaml").write_text(VALID, encoding="utf-8")
    Path("bad.yaml").write_text(VALID.replace("num_generations: 8", "num_generations: 7\nlose_type: grpo"))
    Path("into.yaml").write_text("# mine\nnum_generations: 4\nper_device_train_batch_size: 8\n", encoding="utf-8")
    Path("other.yaml").write_text("image: debian\n", encoding="utf-8")
    spec = Spec.from_dict(
        {
            "topology": {"world_size": 1},
            "rollout": {"prompts_per_rollout": 1, "completions_per_prompt": 2},
            "optimizer_step": {"completions_per_step": 2},
            "loss": {"policy": {"aggregation": "token_mean"}},
            "horizon": {"optimizer_steps": 2},
        }
    )
    for folder, last in (("ledger", 1), ("other", 2), ("torn", 1)):
        said = {"framework": "toy", "framework_version": "2.0", "mode": "verify"}
        header = Header(**said, spec=spec, dataset_size=9, world_size=1, rank=0)  # type: ignore[arg-type]  # as written
        with Writer(Path(folder), header) as writer:
            for step in range(2):
                prompt = last if step else 0
                writer.append(
                    StepRecord(
                        step=step,
                        epoch=0,
                        normaliser=Normaliser(aggregation="token_mean", completions=2, tokens=7),
                        learning_rate=0.5,
                        gradient_norm=None,
                        skipped=False,
                        lr_tick=True,
                        rollout=[step, step],
                        pass_index=[0, 0],
                        prompt=[prompt, prompt],
                        sample=[0, 1],
                        prompt_fingerprint=["0" * 16] * 2,
                        completion_fingerprint=["1" * 16, "2" * 16],
                        response_tokens=[3, 4],
                        reward=[float("nan"), 1.0],
                        advantage=[-1.0, 1.0],
                        old_logprobs=[None, None],
                        generated_at_step=[step, step],
                    )
                )
    (file,) = Path("torn").iterdir()
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    file.write_text("".join([*lines[:-1], lines[-1].replace('"skipped"', '"skiped"')]), encoding="utf-8")


def test_every_command_with_json_has_its_scenes_and_its_result_in_the_schema() -> None:
    has = {name for name, body in walk(cli) if any("--json" in option.opts for option in body.params)}
    assert has == set(SCENES) == set(output_schema()["properties"]["command"]["enum"])
    assert len(COMMANDS) > 10, "the walk sees the commands"


@pytest.mark.parametrize(("command", "words"), [(name, words) for name, scenes in SCENES.items() for words in scenes])
def test_what_a_command_prints_is_what_the_schema_says(
    command: str, words: tuple[str, ...], validator: Any, inputs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    code = main([*command.split(), *words, "--json"])
    printed = json.loads(capsys.readouterr().out)
    errors = [f"{'/'.join(map(str, one.absolute_path))}: {one.message:.200}" for one in validator.iter_errors(printed)]
    assert errors == []
    assert (printed["layout"], printed["tool_version"]) == (LAYOUT, batchbridge.__version__)
    assert (printed["command"], printed["exit_code"]) == (command, code)
    assert printed["exit_meaning"] == EXIT_MEANINGS[code]
    assert printed["results"] or printed["error"]


@pytest.mark.parametrize("command", SCENES)
def test_the_scenes_of_a_command_end_differently(
    command: str, inputs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a command could forget the envelope where something is wrong."""
    codes = {main([*command.split(), *words, "--json"]) for words in SCENES[command]}
    wanted = {
        "rule": {0},
        "adapters": {0},
        "doctor": {0, 4},
        "ledger show": {0, 2},
        "ledger diff": {0, 2, 3},
        "ledger verify": {2, 3},
    }
    rest = {"diff": {0, 2, 3, 4}, "convert": {0, 2, 3, 4}, "scale": {0, 2, 3, 4}}
    assert codes == {**wanted, **rest}.get(command, {0, 2, 4})


def test_records_before_a_broken_one_are_printed_with_what_broke_them_off(
    inputs: None, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["ledger", "show", "torn", "--json"]) == 2
    printed = json.loads(capsys.readouterr().out)
    assert [record["step"] for record in printed["results"]] == [0]
    assert ":3" in printed["error"], printed["error"]


def test_files_of_a_folder_that_are_no_run_are_named(inputs: None, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", ".", "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert [one["file"] for one in printed["skipped"]] == ["other.yaml"]
    assert {Path(one["file"]).name for one in printed["results"]} == {"r.yaml", "bad.yaml", "into.yaml"}


BROKEN: list[tuple[str, Callable[[dict[str, Any]], object]]] = [
    ("a layout of tomorrow", lambda said: said.update(layout="batchbridge/json/2")),
    ("no command", lambda said: said.pop("command")),
    ("a command that is not known", lambda said: said.update(command="frobnicate")),
    ("one result alone", lambda said: said.update(results=said["results"][0])),
    ("no file", lambda said: said["results"][0].pop("file")),
    ("a new name", lambda said: said["results"][0].update(colour="green")),
    ("another verdict", lambda said: said["results"][0].update(verdict="fine")),
    ("a finding without a code", lambda said: said["results"][0]["findings"][0].pop("code")),
    ("a size that is text", lambda said: said["results"][0]["spec"]["rollout"].update(completions_per_prompt="8")),
    ("the exit code of a shell", lambda said: said.update(exit_code=1)),
]


@pytest.mark.parametrize(("what", "tamper"), BROKEN, ids=[what for what, _ in BROKEN])
def test_the_schema_notices(
    what: str,
    tamper: Callable[[dict[str, Any]], object],
    validator: Any,
    inputs: None,
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["check", "r.yaml", *ON, "--json"])
    printed = json.loads(capsys.readouterr().out)
    assert validator.is_valid(printed)
    broken = copy.deepcopy(printed)
    tamper(broken)
    assert not validator.is_valid(broken)


def test_readers_of_this_layout_may_meet_new_names(inputs: None, capsys: pytest.CaptureFixture[str]) -> None:
    main(["check", "r.yaml", *ON, "--json"])
    printed = json.loads(capsys.readouterr().out)
    printed["results"][0]["colour"] = "green"
    jsonschema.Draft202012Validator(output_schema()).validate(printed)
