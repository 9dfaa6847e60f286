"""From what a run left behind to a `Source`: folders and files of W&B, trackio, Hydra and transformers.

A folder is a run where it has one of the files that are named here. Nothing in them runs, and nothing is written beside
them. What a record says of versions and devices goes with its settings (`RunRecord`).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeGuard

from batchbridge.contract.reading import RecordedNumber, RunRecord, Source
from batchbridge.meaning.findings import Finding, Fix, Where
from batchbridge.reading.arguments import argument_keys, parse_arguments
from batchbridge.reading.documents import parse_document, read_text
from batchbridge.reading.yaml_json import RefusedFile, refuse

ARGUMENTS, STATE = "training_args.bin", "trainer_state.json"
HYDRA = ".hydra"
OFFLINE, DATA_BASE = ".wandb", ".db"
_OF_HYDRA = ("config.yaml", "overrides.yaml")
FILES = frozenset({ARGUMENTS, STATE})
SUFFIXES = frozenset({OFFLINE, DATA_BASE})
"""Names and suffixes of files that are records, whatever is in them."""
DEEPEST, MOST_FOLDERS = 6, 5000
"""Levels below a folder in which runs are looked for, and folders that are looked into."""
MOST_NAMED = 8
_WANDB = re.compile(r"(offline-)?run-\d{8}_\d{6}-\w+")
_CHECKPOINT = re.compile(r"checkpoint-(\d+)")
_LARGEST_STATE = 64 << 20
"""Largest state of a trainer (bytes): it has every metric that was logged."""


def is_run(folder: Path) -> bool:
    """Whether a folder is itself what is left of a run."""
    try:
        return _marker(folder) is not None
    except OSError:
        return False


def _marker(folder: Path) -> Path | None:
    """The file or folder that says so."""
    for place in (folder, folder / HYDRA):
        if place.name == HYDRA and any((place / name).is_file() for name in _OF_HYDRA):
            return place
    for place in (folder, folder / "files"):
        of_wandb = _WANDB.fullmatch(place.parent.name) and place.name == "files"
        of_wandb = of_wandb or any((place / name).is_file() for name in ("wandb-metadata.json", "wandb-summary.json"))
        if of_wandb and (place / "config.yaml").is_file():
            return place / "config.yaml"
    if (folder / ARGUMENTS).is_file():
        return folder / ARGUMENTS
    if (folder / STATE).is_file():
        return folder / STATE
    return next((one for one in sorted(folder.glob(f"*{OFFLINE}")) if one.is_file()), None)


def runs_below(folder: Path) -> list[Path]:
    """The folders of runs in a folder and below it, links not followed; of a run's checkpoints the last one."""
    found: list[Path] = []
    left = MOST_FOLDERS
    for place, folders, _ in os.walk(folder):
        here = Path(place)
        left -= 1
        if left < 0:
            break
        if is_run(here):
            found.append(here)
            folders[:] = []
        elif len(here.relative_to(folder).parts) >= DEEPEST:
            folders[:] = []
        folders[:] = sorted(name for name in folders if not (here / name).is_symlink())
    last: dict[Path, tuple[int, Path]] = {}
    for one in found:
        step = _CHECKPOINT.fullmatch(one.name)
        key = one.parent / "checkpoint" if step else one
        last[key] = max(last.get(key, (-1, one)), (int(step[1]) if step else 0, one))
    return [one for _, one in last.values()]


def load_folder(folder: Path, chosen: int | None = None) -> Source:
    """The `Source` of a run's folder, or of the one run below a folder. chosen: which of several, from 1.

    Raises `RefusedFile`.
    """
    marker = _marker(folder)
    if marker is None:
        below = runs_below(folder)
        if not below:
            what = "this is a directory, and no run was left in it; a file was expected"
            refuse("BB001", f"{what} (batchbridge check takes folders, too)", str(folder))
        if len(below) > 1 and (chosen is None or chosen > len(below)):
            names = ", ".join(str(one) for one in below[:MOST_NAMED])
            more = f" and {len(below) - MOST_NAMED} more" if below[MOST_NAMED:] else ""
            text = f"{len(below)} runs were left in this folder: {names}{more}"
            fix = Fix("name one of them, or its number: --command NUMBER")
            raise RefusedFile(
                Finding("BB012", "error", "config", text, (Where(file=str(folder)),), (fix,), undecided=True)
            )
        return load_folder(below[(chosen or 1) - 1])
    if marker.name == HYDRA:
        return _of_hydra(marker)
    return _load(marker, chosen)


def load_file(path: Path, chosen: int | None = None) -> Source | None:
    """The `Source` of a file that is a record by its name; None where it is not. Raises `RefusedFile`."""
    if path.name in FILES or path.suffix in SUFFIXES:
        return _load(path, chosen)
    if path.parent.name == HYDRA and path.name in _OF_HYDRA:
        return _of_hydra(path.parent, overrides=path.name == "overrides.yaml")
    return None


def as_recorded(source: Source) -> Source:
    """`source`, read from a file; where it is W&B's record, or trackio's export, with that said."""
    from batchbridge.reading import wandb_runs

    if wandb_runs.is_record(source.values):
        values, lines = wandb_runs.unwrapped(source.values, source.lines)
        record = wandb_runs.record_of(source.values, None if source.path is None else source.path.parent)
        return replace(source, values=values, lines=lines, record=record)
    if wandb_runs.is_flat_record(source.values):
        record = wandb_runs.record_of(source.values, None, wandb_runs.FLAT)
        values = {key: value for key, value in source.values.items() if key != wandb_runs.OWN}
        return replace(source, values=values, record=record)
    return source


def _load(path: Path, chosen: int | None) -> Source:
    """The source of a file that was found by its name."""
    if path.name == ARGUMENTS:
        return _of_arguments(path)
    if path.name == STATE:
        return _of_state(path)
    if path.suffix == OFFLINE:
        return _of_offline(path)
    if path.suffix == DATA_BASE:
        return _of_data_base(path, chosen)
    values, lines, problems = _settings(path)
    return as_recorded(Source(values=values, lines=lines, path=path, problems=problems))


def _settings(path: Path) -> tuple[dict[str, Any], Mapping[str, int], tuple[Finding, ...]]:
    """(values, lines, problems) of a file of settings. Raises `RefusedFile`."""
    document = parse_document(read_text(path, str(path)), path.suffix, str(path))
    values = document.value if isinstance(document.value, dict) else {}
    return values, document.lines, tuple(document.problems)


# ---- W&B's offline runs, and trackio


def _of_offline(path: Path) -> Source:
    from batchbridge.reading import wandb_runs

    values = wandb_runs.read_offline(path, str(path))
    if not values:
        refuse("BB005", "this run of W&B has logged no settings", str(path))
    settings = {key: wandb_runs.as_data(value) for key, value in values.items() if key != wandb_runs.OWN}
    record = wandb_runs.record_of(values, path.parent / "files", "W&B's record of an offline run")
    record = replace(record, has_lines=False)
    return Source(values=settings, lines=dict.fromkeys(settings, 1), path=path, record=record)


def _of_data_base(path: Path, chosen: int | None) -> Source:
    from batchbridge.reading.trackio_runs import read_runs

    runs = read_runs(path, str(path))
    if not runs or (chosen or 1) > len(runs):
        refuse("BB012", f"this data base of trackio has {len(runs)} runs with settings", str(path))
    if len(runs) > 1 and chosen is None:
        names = ", ".join(f"{number} {name}" for number, (name, _) in enumerate(runs[:MOST_NAMED], 1))
        text = f"this data base of trackio has {len(runs)} runs: {names}{', ...' if runs[MOST_NAMED:] else ''}"
        fix = Fix("name one by its number: --command NUMBER")
        raise RefusedFile(Finding("BB012", "error", "config", text, (Where(file=str(path)),), (fix,), undecided=True))
    name, values = runs[(chosen or 1) - 1]
    from batchbridge.reading.wandb_runs import record_of

    record = replace(record_of(values, None, f"trackio's record of the run {name}"), has_lines=False)
    return Source(values=values, lines=dict.fromkeys(values, 1), path=path, record=record)


# ---- Hydra


def _of_hydra(folder: Path, *, overrides: bool = False) -> Source:
    """The configuration that Hydra composed; where only the overrides are asked for, or there, the words."""
    composed, words = folder / "config.yaml", folder / "overrides.yaml"
    if not overrides and composed.is_file():
        values, lines, problems = _settings(composed)
        record = RunRecord(kind="the configuration that Hydra composed for a run")
        return Source(values=values, lines=lines, path=composed, problems=problems, record=record)
    document = parse_document(read_text(words, str(words)), ".yaml", str(words))
    given = document.value
    if given is None or not isinstance(given, list) or not all(isinstance(word, str) for word in given):
        refuse("BB005", "the file holds no list of overrides, which Hydra writes there", str(words))
    program, named = _told_by_hydra(folder)
    flags = [f"--config-name={named}"] if named else []
    lines = {key: place + 1 for place, word in enumerate(given) for key, _, _ in argument_keys([word])}
    return of_overrides(given, lines, words, "the overrides that a run of Hydra was given", program, flags)


def of_overrides(
    given: Sequence[str],
    lines: Mapping[str, int],
    path: Path | None,
    kind: str,
    program: str | None,
    flags: Sequence[str] = (),
) -> Source:
    """The source of a run's overrides. program: the file of the program whose configuration they change; None: nobody
    says it, so that the defaults of what they do not name are open. flags: Hydra's own."""
    argv = (*(["python3", program] if program else []), *flags, *given)
    kind = kind if program else f"{kind}, without a word of its program"
    record = RunRecord(kind=kind, partial=program is None)
    return Source(values=parse_arguments(argv), lines=lines, path=path, argv=argv, record=record)


def _told_by_hydra(folder: Path) -> tuple[str | None, str | None]:
    """The program that Hydra composed for, and the name of its configuration: of its own record, else of the log that
    it names by the program. The configurations of a program stand beside it, in a folder that says so."""
    try:
        values, _, _ = _settings(folder / "hydra.yaml")
    except RefusedFile:
        logs = [file.stem for file in sorted(folder.parent.glob("*.log")) if file.is_file()]
        return (f"{logs[0]}.py" if len(logs) == 1 else None), None
    job, name, place = _at(values, "hydra", "job"), None, ""
    sources = _at(values, "hydra", "runtime").get("config_sources")
    for one in sources if isinstance(sources, list) else ():
        if isinstance(one, Mapping) and one.get("provider") == "main" and isinstance(one.get("path"), str):
            place = one["path"].replace(".", "/") if one.get("schema") == "pkg" else one["path"]
    above, _, last = place.rstrip("/").rpartition("/")
    if isinstance(job.get("name"), str) and job["name"]:
        name = f"{above}/{job['name']}.py" if above and last in _CONFIGURATIONS else f"{job['name']}.py"
    config = job.get("config_name")
    return name, config if isinstance(config, str) else None


_CONFIGURATIONS = frozenset({"config", "configs", "conf"})


def _at(values: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """The mapping below keys; an empty one where there is none."""
    found: Any = values
    for key in keys:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found if isinstance(found, Mapping) else {}


# ---- transformers' checkpoints


def _of_arguments(path: Path) -> Source:
    from batchbridge.reading.pickled import plain, read_pickle

    made = read_pickle(path, str(path))
    if made is None:
        refuse("BB005", "this file holds no settings of a trainer", str(path))
    values = plain(made, str(path))
    state = values.pop("distributed_state", None)
    values = {key: value for key, value in values.items() if not key.startswith("_")}
    processes = state.get("num_processes") if isinstance(state, Mapping) else None
    beside = _state_of(path.parent / STATE)
    steps = beside.get("max_steps")
    record = RunRecord(
        kind=f"the settings of a run beside its checkpoint ({made.name})",
        built=made.name,
        versions=_model_card(path.parent),
        world_size=RecordedNumber(processes, f"{path}, num_processes") if _is_size(processes) else None,
        steps=RecordedNumber(steps, str(path.parent / STATE)) if _is_size(steps) else None,
        told=tuple(_progress(beside)),
        has_lines=False,
    )
    return Source(values=values, lines=dict.fromkeys(values, 1), path=path, record=record)


def _of_state(path: Path) -> Source:
    """The settings beside a trainer's state, which says little of them itself."""
    arguments = path.parent / ARGUMENTS
    if arguments.is_file():
        return _of_arguments(arguments)
    state = _state_of(path)
    if not _is_size(state.get("max_steps")):
        refuse("BB005", "this is no state of a trainer", str(path))
    said = "; ".join(_progress(state))
    text = f"this is how far a run came ({said}), not what it was told: {ARGUMENTS}, which says that, is not beside it"
    raise RefusedFile(Finding("BB010", "error", "config", text, (Where(file=str(path)),), undecided=True))


def _state_of(path: Path) -> dict[str, Any]:
    """The first level of a trainer's state; its long history of metrics is not looked at."""
    import json

    try:
        text = read_text(path, str(path), _LARGEST_STATE)
        state = json.loads(text)
    except (RefusedFile, ValueError, RecursionError):
        return {}
    return {key: value for key, value in state.items() if key != "log_history"} if isinstance(state, dict) else {}


def _progress(state: Mapping[str, Any]) -> Iterator[str]:
    step, steps, epoch = (state.get(key) for key in ("global_step", "max_steps", "epoch"))
    if _is_size(step) and _is_size(steps):
        yield f"optimizer step {step} of {steps}"
    if isinstance(epoch, int | float) and not isinstance(epoch, bool):
        yield f"epoch {epoch:.4g}"


def _is_size(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


_CARD = re.compile(r"^- ([\w-]+): ([0-9][\w.+!-]*)\s*$", re.MULTILINE)
"""A line of the model card that TRL writes: `- TRL: 0.18.0`."""


def _model_card(folder: Path) -> dict[str, tuple[str, str]]:
    """Distributions to their versions, of the model card beside the settings, or above a checkpoint."""
    for place in (folder, *([folder.parent] if _CHECKPOINT.fullmatch(folder.name) else [])):
        try:
            text = read_text(place / "README.md", str(place / "README.md"))
        except RefusedFile:
            continue
        start = text.find("Framework versions")
        found = {one[1].lower(): (one[2], str(place / "README.md")) for one in _CARD.finditer(text, max(start, 0))}
        if start >= 0 and found:
            return found
    return {}
