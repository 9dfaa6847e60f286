"""What a run left behind, read as what it is: W&B, trackio, Hydra, checkpoints, logs; and hostile ones, refused.

The specimens in past_runs are what the real frameworks wrote; see make_past_runs.py.
"""

from __future__ import annotations

import io
import json
import pickle
import shutil
import sqlite3
import zipfile
from pathlib import Path
from typing import Any

import pytest

from batchbridge import check, diff, doctor, explain
from batchbridge.reading import past_runs
from batchbridge.reading.files import load_source
from batchbridge.reading.pickled import MAX_BYTES, PickledObject, plain, read_pickle
from batchbridge.reading.read import read
from batchbridge.reading.wandb_runs import namespace_in, read_offline

RUNS = Path(__file__).parent / "past_runs"
CHECKPOINT = RUNS / "trl" / "checkpoint-2"
WANDB = RUNS / "trl" / "wandb" / "run-20261128_120000-abcd1234"
HYDRA = RUNS / "verl" / "outputs" / "2026-11-28" / "12-00-00"
TRL, VERL = {"version": "1.16.0"}, {"version": "0.9.1"}


def codes(found: Any) -> list[str]:
    return [finding.code for finding in found.findings]


def test_a_folder_of_wandb_says_settings_devices_and_version_itself() -> None:
    found = check(WANDB)
    assert (found.verdict, found.reading.framework_version) == ("valid", "1.16.0")
    spec = found.reading.spec
    assert spec is not None
    assert (spec.topology.world_size, spec.rollout.completions_per_prompt) == (1, 4)
    assert spec.optimizer_step.completions_per_step == 8
    assert found.reading.provenance["topology.world_size"].origin == "derived"
    origin = found.reading.provenance["rollout.completions_per_prompt"]
    line = (WANDB / "files" / "config.yaml").read_text(encoding="utf-8").splitlines()[(origin.line or 0) - 1]
    assert line == "num_generations:"


def test_keys_of_the_model_are_no_errors_and_are_named() -> None:
    (left_out,) = (one for one in check(WANDB).findings if one.code == "BB026" and "not settings" in one.message)
    assert "32 keys of the record are not settings of trl 1.16.0" in left_out.message
    assert left_out.severity == "note"
    assert "vocab_size" not in check(WANDB).reading.given


def test_a_recipe_with_a_key_that_is_no_setting_is_still_an_error(tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("per_device_train_batch_size: 8\nnum_generations: 8\nvocab_size: 64\nnum_train_epochs: 1\n")
    assert "BB-TRL-003" in codes(check(recipe, world_size=1, **TRL))


@pytest.mark.parametrize("devices", [1, 3, 8])
def test_the_devices_of_a_record_follow_from_the_sizes_that_it_holds(devices: int, tmp_path: Path) -> None:
    """generation_batch_size is filled in from the devices: it says them, and is no second size of a rollout."""
    sizes = {"per_device_train_batch_size": 4, "steps_per_generation": 2, "gradient_accumulation_steps": 2}
    held = {**sizes, "generation_batch_size": 8 * devices, "num_generations": 8, "learning_rate": 1e-6}
    file = tmp_path / "config.yaml"
    wrapped = {"_wandb": {"cli_version": "0.26.1"}, **held}
    file.write_text(json.dumps({key: {"value": value} for key, value in wrapped.items()}))
    found = read(file, framework="trl", **TRL)
    assert found.verdict == "valid", found.findings
    assert found.spec is not None
    assert found.spec.topology.world_size == devices
    assert read(file, framework="trl", world_size=2 * devices, **TRL).spec.topology.world_size == 2 * devices


def test_the_version_that_is_installed_here_is_not_the_runs(tmp_path: Path) -> None:
    """The list of what was installed there decides; without it nobody names a version."""
    shutil.copytree(WANDB, tmp_path / WANDB.name)
    requirements = tmp_path / WANDB.name / "files" / "requirements.txt"
    requirements.write_text(requirements.read_text().replace("trl==1.16.0", "trl==0.22.2"))
    assert read(tmp_path / WANDB.name).framework_version == "0.22.2"
    requirements.unlink()
    found = read(tmp_path / WANDB.name)
    assert found.framework_version is None
    assert any("does not say the version of trl" in one.message for one in found.findings)


def test_an_export_without_wraps_is_a_record_too(tmp_path: Path) -> None:
    """W&B's `run.config`: the model's own configuration stands beside the settings."""
    held = load_source(WANDB)
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**held.values, "world_size": 4, "generation_batch_size": 32}))
    found = read(file, **TRL)
    assert found.spec is not None
    assert found.spec.topology.world_size == 4
    assert found.verdict == "valid", found.findings


def test_a_checkpoint_says_what_it_was_trained_with() -> None:
    found = explain(CHECKPOINT, **TRL)
    assert found.verdict == "valid"
    assert found.reading.spec == explain(WANDB).reading.spec
    assert "optimizer step 2 of 2" in "".join(one.message for one in found.findings)
    assert not any(where.line for where in found.reading.given.values()), "a binary file has no lines"


def test_the_state_of_a_trainer_leads_to_the_settings_beside_it(tmp_path: Path) -> None:
    assert read(CHECKPOINT / "trainer_state.json", **TRL).spec == read(CHECKPOINT, **TRL).spec
    shutil.copy(CHECKPOINT / "trainer_state.json", tmp_path)
    found = read(tmp_path / "trainer_state.json")
    assert found.verdict == "undecided"
    assert "optimizer step 2 of 2" in found.findings[0].message


def test_a_model_card_above_a_checkpoint_says_the_version(tmp_path: Path) -> None:
    shutil.copytree(CHECKPOINT, tmp_path / CHECKPOINT.name)
    (tmp_path / "README.md").write_text("# A model\n\n### Framework versions\n\n- TRL: 1.6.0\n- Transformers: 5.1.0\n")
    assert read(tmp_path / CHECKPOINT.name).framework_version == "1.6.0"
    assert read(tmp_path).framework_version == "1.6.0"


def test_what_hydra_composed_and_what_it_was_given_mean_the_same() -> None:
    readings = [read(HYDRA, **VERL), read(HYDRA / ".hydra" / "overrides.yaml", **VERL)]
    assert [one.verdict for one in readings] == ["valid", "valid"]
    assert readings[0].spec == readings[1].spec
    assert readings[1].spec is not None
    assert readings[1].spec.topology.world_size == 8
    assert readings[1].provenance["rollout.completions_per_prompt"].line == 8


@pytest.mark.parametrize(
    ("left", "verdict", "codes_of"),
    [
        (("overrides.yaml", "hydra.yaml"), "valid", set()),
        (("overrides.yaml",), "undecided", {"BB027"}),
        (("overrides.yaml", "../main_ppo.log"), "undecided", {"BB-VERL-089"}),
    ],
    ids=lambda value: "-".join(value).replace("../", "") if isinstance(value, tuple) else None,
)
def test_overrides_alone_are_those_of_the_program_that_the_folder_names(
    tmp_path: Path, left: tuple[str, ...], verdict: str, codes_of: set[str]
) -> None:
    """Whose defaults they change, they do not say; a program of the user's own may count otherwise."""
    kept = tmp_path / "run" / ".hydra"
    kept.mkdir(parents=True)
    for name in left:
        there = HYDRA / ".hydra" / name
        (kept / name).write_text(there.read_text(encoding="utf-8") if there.is_file() else "", encoding="utf-8")
    found = read(tmp_path / "run", **VERL)
    assert found.verdict == verdict
    assert {"BB027", "BB-VERL-089"} & set(codes(found)) == codes_of
    assert found.spec == read(HYDRA, **VERL).spec
    assert past_runs.runs_below(tmp_path) == [tmp_path / "run"]


def test_an_error_that_the_rest_of_the_configuration_may_lift_is_none_yet(tmp_path: Path) -> None:
    """Without a micro-batch verl's own defaults end the run; those of a user's configuration need not."""
    (tmp_path / ".hydra").mkdir()
    kept = tmp_path / ".hydra" / "overrides.yaml"
    told = (HYDRA / ".hydra" / "overrides.yaml").read_text(encoding="utf-8")
    lines = [line for line in told.splitlines(keepends=True) if "micro_batch_size" not in line]
    kept.write_text("".join(lines), encoding="utf-8")
    assert len(lines) < len(told.splitlines())
    found = read(tmp_path, **VERL)
    assert found.verdict == "undecided"
    (missing,) = [one for one in found.findings if one.code == "BB-VERL-013"]
    assert missing.message.startswith("unless the rest of the run's configuration says otherwise: ")


@pytest.mark.parametrize(
    ("traceback", "verdict"),
    [
        (['  File "/there/verl/trainer/main_ppo.py", line 42, in main'], "valid"),
        (
            ['  File "/a/runpy.py", line 1, in _run', '  File "/x/verl/trainer/main_ppo.py", line 2, in main'],
            "valid",
        ),
        (['  File "/there/recipe/dapo/main_dapo.py", line 42, in main'], "undecided"),
        (['  File "/there/verl/workers/fsdp_workers.py", line 1, in __init__'], "undecided"),
        ([], "undecided"),
    ],
)
def test_an_error_of_hydras_is_that_of_the_program_in_its_traceback(
    tmp_path: Path, traceback: list[str], verdict: str
) -> None:
    """DAPO's recipe drops groups, and counts what is left: verl's numbers are not its own."""
    lines = (RUNS / "verl" / "error.log").read_text(encoding="utf-8").splitlines()
    (tmp_path / "error.log").write_text("\n".join([*lines[:2], *traceback, lines[3]]), encoding="utf-8")
    assert read(tmp_path / "error.log", **VERL).verdict == verdict


def test_the_one_run_below_a_folder_is_it_and_of_several_one_is_named(tmp_path: Path) -> None:
    assert read(RUNS / "verl" / "outputs", **VERL).spec == read(HYDRA, **VERL).spec
    found = read(RUNS)
    assert (found.verdict, codes(found)) == ("undecided", ["BB012"])
    assert "3 runs were left in this folder" in found.findings[0].message
    assert read(RUNS, command=2, **TRL).spec == read(WANDB, **TRL).spec
    found = read(tmp_path)
    assert codes(found) == ["BB001"]


def test_of_a_runs_checkpoints_the_last_one_is_read(tmp_path: Path) -> None:
    for step in (2, 10, 9):
        shutil.copytree(CHECKPOINT, tmp_path / f"checkpoint-{step}")
    assert past_runs.runs_below(tmp_path) == [tmp_path / "checkpoint-10"]


@pytest.mark.parametrize("log", ["job.log", "error.log"])
def test_a_log_says_what_its_driver_printed(log: str) -> None:
    found = read(RUNS / "verl" / log, **VERL)
    assert found.verdict == "valid", found.findings
    assert found.spec == read(HYDRA, **VERL).spec


def test_a_log_of_several_processes_is_read_by_the_mark_of_the_one_that_printed() -> None:
    text = (RUNS / "verl" / "job.log").read_text(encoding="utf-8")
    assert "(WorkerDict pid=4243) a line of another process" in text
    origin = read(RUNS / "verl" / "job.log", **VERL).provenance["rollout.completions_per_prompt"]
    assert "'n': 4" in text.splitlines()[(origin.line or 0) - 1]


def test_of_several_printed_configurations_the_last_counts_and_that_is_said(tmp_path: Path) -> None:
    log = tmp_path / "two.log"
    text = (RUNS / "verl" / "error.log").read_text(encoding="utf-8")
    log.write_text(text + text.replace("rollout.n=4", "rollout.n=8"))
    found = read(log, **VERL)
    assert found.spec is not None
    assert found.spec.rollout.completions_per_prompt == 8
    assert "BB012" in codes(found)


def test_a_block_of_transformers_says_a_part_and_no_more() -> None:
    """What it does not say is not taken at its default without a word; a maintainer did, and was wrong."""
    found = read(RUNS / "trl" / "run.log", framework="trl", **TRL)
    assert (found.verdict, found.spec) == ("undecided", None)
    assert "BB027" in codes(found)
    named = check(load_source(RUNS / "trl" / "run.log", overrides={"num_generations": 4}), framework="trl", **TRL)
    assert named.verdict == "undecided"
    assert named.reading.spec is not None
    assert named.reading.spec.topology.world_size == 1
    assert named.reading.derived["total_optimizer_steps"] == 2
    assert named.reading.dataset_size == 6


def test_a_run_and_the_configuration_of_today_are_told_apart(tmp_path: Path) -> None:
    other = json.loads(json.dumps(load_source(WANDB).values)) | {"num_generations": 8}
    (tmp_path / "today.json").write_text(json.dumps(other))
    found = diff(read(WANDB), read(tmp_path / "today.json", **TRL))
    assert {one.field for one in found.differences if not one.field.startswith("outside")} >= {
        "rollout.completions_per_prompt"
    }


# ---- trackio, offline runs


def trackio(file: Path, *configs: dict[str, Any], kind: str = "TABLE") -> Path:
    """A data base as trackio 0.43 makes it, by its own statement."""
    connection = sqlite3.connect(file)
    if kind == "TABLE":
        connection.execute(
            "CREATE TABLE configs (id INTEGER PRIMARY KEY AUTOINCREMENT, run_id TEXT NOT NULL, run_name TEXT NOT NULL, "
            "config TEXT NOT NULL, created_at TEXT NOT NULL, UNIQUE(run_id))"
        )
        for number, config in enumerate(configs):
            row = (f"id{number}", f"run-{number}", json.dumps(config), "now")
            connection.execute("INSERT INTO configs (run_id, run_name, config, created_at) VALUES (?, ?, ?, ?)", row)
    else:
        endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT x, x FROM n"
        connection.execute(f"CREATE VIEW configs (run_name, config) AS {endless}")
    connection.commit()
    connection.close()
    return file


def test_trackios_runs_are_named_by_number(tmp_path: Path) -> None:
    held = dict(load_source(WANDB).values)
    file = trackio(tmp_path / "project.db", held, {**held, "num_generations": 2})
    several = read(file)
    assert (several.verdict, codes(several)) == ("undecided", ["BB012"])
    assert "1 run-0, 2 run-1" in several.findings[0].message
    found = read(file, command=2, **TRL)
    assert found.spec is not None
    assert found.spec.rollout.completions_per_prompt == 2
    assert sorted(one.name for one in tmp_path.iterdir()) == ["project.db"], "nothing is written beside it"


def test_a_view_in_the_place_of_the_table_is_refused(tmp_path: Path) -> None:
    found = read(trackio(tmp_path / "project.db", kind="VIEW"))
    assert codes(found) == ["BB004"]


def offline(file: Path, settings: dict[str, Any]) -> Path:
    """A file as an offline run of W&B leaves it; long messages go over a block's end."""

    def number(value: int) -> bytes:
        more = value >> 7
        return bytes([value & 0x7F | 0x80]) + number(more) if more else bytes([value])

    def part(field: int, content: bytes) -> bytes:
        return number(field << 3 | 2) + number(len(content)) + content

    items = [part(1, part(1, key.encode()) + part(16, json.dumps(value).encode())) for key, value in settings.items()]
    message = part(5, b"".join(items))
    data, kind = b":W&B\xe1\xbe\x00", 2
    while message:
        room = 32768 - len(data) % 32768 - 7
        if room < 0:
            data += bytes(room + 7)
            continue
        piece, message = message[:room], message[room:]
        kind = {(2, True): 2, (2, False): 1, (3, True): 3, (3, False): 4}[kind, bool(message)]
        data += bytes(4) + len(piece).to_bytes(2, "little") + bytes([kind]) + piece
        kind = 3
    file.write_bytes(data)
    return file


def test_an_offline_run_of_wandb_is_read_from_its_one_file(tmp_path: Path) -> None:
    held = {**load_source(WANDB).values, "note": "x" * 40_000}
    folder = tmp_path / "offline-run-20261128_120000-abcd1234"
    folder.mkdir()
    file = offline(folder / "run-abcd1234.wandb", held)
    assert read_offline(file, "")["note"] == held["note"]
    assert read(folder, **TRL).spec == read(WANDB).spec
    file.write_bytes(file.read_bytes()[:5000])
    assert read(folder, **TRL).verdict != "valid"


def test_a_namespace_that_was_logged_as_text_is_settings_again() -> None:
    text = "Namespace(batch_size=128, lr=1e-06, adam=namespace(betas=(0.9, 0.95)), path='a)', kind=<Kind.A: 1>)"
    assert namespace_in(text) == text, "what is no literal is left as it is"
    assert namespace_in("Namespace(batch_size=128, adam=namespace(betas=[0.9, 0.95], path='a)'))") == {
        "batch_size": 128,
        "adam": {"betas": [0.9, 0.95], "path": "a)"},
    }


# ---- hostile files


class Hostile:
    """An object whose unpickling writes a file."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.file,))


def zipped(data: bytes, file: Path, compression: int = zipfile.ZIP_STORED) -> Path:
    with zipfile.ZipFile(file, "w", compression) as archive:
        archive.writestr("training_args/data.pkl", data)
    return file


@pytest.mark.parametrize("protocol", range(2, 6))
@pytest.mark.parametrize("packed", [False, True])
def test_a_hostile_pickle_runs_nothing(tmp_path: Path, protocol: int, packed: bool) -> None:
    trap, file = tmp_path / "trap", tmp_path / "training_args.bin"
    data = pickle.dumps({"per_device_train_batch_size": 8, "evil": Hostile(trap)}, protocol=protocol)
    if packed:
        zipped(data, file)
    else:
        file.write_bytes(data)
    found = read(file, framework="trl", **TRL)
    assert not trap.exists()
    assert found.verdict != "valid"
    pickle.loads(data)
    assert trap.exists(), "the pickle would have written the file"


def test_an_archive_that_unpacks_to_far_more_is_refused_with_its_size(tmp_path: Path) -> None:
    file = zipped(b"\0" * (MAX_BYTES + 1), tmp_path / "training_args.bin", zipfile.ZIP_DEFLATED)
    assert file.stat().st_size < 10_000
    (finding,) = read(file).findings
    assert finding.code == "BB002"
    assert f"{MAX_BYTES + 1:,} bytes" in finding.message


def test_an_archive_that_lies_about_its_size_is_bounded(tmp_path: Path) -> None:
    file = zipped(b"\0" * (2 * MAX_BYTES), tmp_path / "training_args.bin", zipfile.ZIP_DEFLATED)
    data = bytearray(file.read_bytes())
    for place in [at for at in range(len(data)) if data[at : at + 4] == (2 * MAX_BYTES).to_bytes(4, "little")]:
        data[place : place + 4] = (100).to_bytes(4, "little")
    file.write_bytes(data)
    assert codes(read(file))[0] in ("BB002", "BB004")


def test_a_huge_file_is_refused_with_its_size(tmp_path: Path) -> None:
    for name in ("training_args.bin", "run.wandb", "project.db", "run.log"):
        with (tmp_path / name).open("wb") as stream:
            stream.truncate(1 << 30)
        (finding,) = read(tmp_path / name).findings
        assert (finding.code, "1,073,741,824 bytes" in finding.message) == ("BB002", True), name


def test_shared_parts_that_expand_without_end_are_refused(tmp_path: Path) -> None:
    nested: Any = ["x"]
    for _ in range(40):
        nested = [nested, nested]
    file = tmp_path / "training_args.bin"
    file.write_bytes(pickle.dumps(PickledObjectOfATest(nested)))
    assert "BB007" in codes(read(file))
    endless: dict[str, Any] = {}
    endless["self"] = endless
    file.write_bytes(pickle.dumps(PickledObjectOfATest(endless)))
    assert "BB007" in codes(read(file))


class PickledObjectOfATest:
    """An object with a state."""

    def __init__(self, part: Any) -> None:
        self.part = part


def test_a_pickle_is_followed_as_pickle_would_write_it() -> None:
    """Every value of plain data that pickle writes in any protocol comes back."""
    values = {"a": [1, 2.5, -(2**40), "text", None, True], "b": ({"c": (1, 2, 3, 4)}, (), []), "d": frozenset({7})}
    for protocol in range(2, 6):
        data = pickle.dumps(PickledObjectOfATest(values), protocol=protocol)
        made = read_pickle_of(data)
        assert plain(made, "")["part"] == {"a": values["a"], "b": [{"c": [1, 2, 3, 4]}, [], []], "d": [7]}


def read_pickle_of(data: bytes) -> PickledObject:
    from batchbridge.reading import pickled

    (made,) = (one for one in pickled._objects(io.BytesIO(data).getvalue(), "") if one.state)
    return made


def test_cut_off_specimens_are_refused_and_never_crash(tmp_path: Path) -> None:
    whole = (CHECKPOINT / "training_args.bin").read_bytes()
    file = tmp_path / "training_args.bin"
    for size in range(0, len(whole), 97):
        file.write_bytes(whole[:size])
        assert read(file, framework="trl", **TRL).verdict != "valid" or size > 6000
    inside = zipfile.ZipFile(io.BytesIO(whole)).read("training_args/data.pkl")
    for size in range(0, len(inside), 61):
        file.write_bytes(inside[:size])
        with pytest.MonkeyPatch.context():
            read(file, framework="trl", **TRL)
    assert read_pickle(CHECKPOINT / "training_args.bin", "") is not None


# ---- doctor


def test_doctor_takes_its_numbers_from_the_log_before_it_asks() -> None:
    (found,) = doctor((RUNS / "verl" / "error.log").read_text(encoding="utf-8"))
    assert found.asks == ()
    assert found.reading is not None
    assert found.reading.native["actor_rollout_ref.rollout.n"] == 4
    (without,) = doctor("AssertionError: only support equal chunk. Got size of DataProto 256 and chunk 6.")
    assert [ask.name for ask in without.asks] == ["n"]


@pytest.mark.parametrize(
    ("said", "word", "devices", "way"),
    [
        ("", "${NODES:-1}", 16, "the default of NODES in line 2: --env NODES=2"),
        ("NODES=${NODES:-1}\n", "$NODES", 32, "the default of NODES in line 2: --env NODES=4"),
        ("NODES=1\n", "$NODES", 16, ""),
        ("", "1", 16, ""),
        ("", "${NODES:-1}", 12, ""),  # no whole number of nodes
    ],
)
def test_doctor_names_the_line_and_the_variable_that_decides_the_number(
    tmp_path: Path, said: str, word: str, devices: int, way: str
) -> None:
    script = tmp_path / "run.sh"
    command = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.rollout.name=vllm"
    script.write_text(
        f"#!/bin/bash\n{said}{command} trainer.n_gpus_per_node=8 trainer.nnodes={word}\n", encoding="utf-8"
    )
    text = f"AssertionError: real_train_batch_size (1024) must be divisible by minimal possible batch size ({devices})"
    (found,) = doctor(text, readings=[read(script, framework="verl", version="0.9.1")])
    nodes = next(place for one in found.differs for place in one.split("; ") if "trainer.nnodes" in place)
    number, _, behind = nodes.partition(f"{script}:{3 if said else 2}: trainer.nnodes = ")[2].partition(", ")
    assert (number, behind) == ("1", way)


def test_doctor_says_which_numbers_of_the_text_and_the_configuration_differ() -> None:
    text = "AssertionError: real_train_batch_size (256) must be divisible by minimal possible batch size (16)"
    (found,) = doctor(text, readings=[read(RUNS / "verl" / "error.log", **VERL)])
    (differs,) = found.differs
    log = RUNS / "verl" / "error.log"
    assert differs == (
        "the text counts 16 devices that hold copies of the policy, the configuration 8; "
        f"{log}:1: trainer.nnodes = 2; {log}:1: trainer.n_gpus_per_node = 4"
    )
    (same,) = doctor(text.replace("(16)", "(8)"), readings=[read(RUNS / "verl" / "error.log", **VERL)])
    assert same.differs == ()
