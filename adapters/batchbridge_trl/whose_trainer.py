"""The question whose trainer a run builds: TRL's own, one that people know, or one that nobody here has read."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

from batchbridge import Source, Where
from batchbridge.kit import BuiltTrainer, Condition, parse_scalar
from batchbridge.kit.known_programs import CountedSizes, KnownProgram, condition, known_program, positive
from batchbridge_trl.recipe import name_of
from batchbridge_trl.settings import is_old_code
from batchbridge_trl.sizes import ACCUMULATION, GENERATIONS, MICRO
from batchbridge_trl.starting import is_trls, needed
from batchbridge_trl.world import KEY as WORLD


def condition_of(
    source: Source, script: str | None, native: Mapping[str, Any], version: str | None = None
) -> Condition | None:
    """The condition that the run of a source rests on; None: TRL's own trainer runs, or none is named.

    script: what its command starts, where that is not TRL's own program. version: of TRL, where it is said.
    """
    if script is None and source.construction is None and not is_old_code(version):
        return None
    if source.trainers is None and (script or "").endswith("open_r1/grpo.py") and not is_old_code(version):
        return None  # Open-R1's own program; a copy that lies here is read
    built = source.trainers or ()
    strange = [one for one in built if not _is_stock(one)]
    if is_old_code(version) and not strange:
        who, where = f"trl {version}", Where(file=None if source.path is None else str(source.path), line=None)
        return condition("TRL", "GRPOTrainer", who, "it is not read here", REPEATS_ROWS, native, where)
    if source.construction is not None and not strange:
        return None
    if built and not strange:
        return None
    names = list(dict.fromkeys(one.name.rpartition(".")[2] for one in strange))
    repeats = bool(strange) and all(GENERATIONS in one.repeated_over for one in strange)
    native = {**native, **_of_its_own(source)}  # a program that lies here has declared their defaults
    known = REPEATS_ROWS if repeats else known_program(KNOWN, names, source.argv, source.values)
    program = name_of(script or "") or str(source.path)
    if strange:
        where = strange[0].place
        why = f"{where.file} trains with {names[0]}, which is not TRL's own"
        if any(is_trls(base) for base in strange[0].bases):
            why = f"{names[0]} replaces {', '.join(_replaced(strange[0]))} of TRL's GRPOTrainer"
        return condition("TRL", "GRPOTrainer", names[0], why, known, native, where)
    why = f"{program} is not here" if source.trainers is None else f"{program} names no trainer that is known"
    where = Where(file=None if source.path is None else str(source.path), line=None)
    return condition("TRL", "GRPOTrainer", program, why, known, native, where)


def _of_its_own(source: Source) -> dict[str, Any]:
    """The settings that known programs have beside TRL's, as their command says them: a flag is True."""
    found: dict[str, Any] = {}
    words = [*source.argv, "--"]
    for word, behind in pairwise(words):
        name, equals, text = word.removeprefix("--").partition("=")
        if word.startswith("--") and name in (_PRUNING, _ALLOCATION):
            said = text if equals else "true" if behind.startswith("--") else behind
            found[name] = parse_scalar(said)
    return found


def _is_stock(built: BuiltTrainer) -> bool:
    """Whether a trainer is TRL's, Unsloth's in its place, or a class that is derived from it and leaves everything
    alone that decides a batch."""
    if is_trls(built.name) or built.name.startswith("unsloth") or (built.name == "GRPOTrainer" and not built.bases):
        return True
    return any(map(is_trls, built.bases)) and not _replaced(built)


def _replaced(built: BuiltTrainer) -> list[str]:
    return sorted(built.methods & {"__init__", "train", *needed()})


def _each_row_repeated(native: Mapping[str, Any]) -> str:
    return f"each device repeats each of its rows {native.get(GENERATIONS) or GENERATIONS} times"


def _rows_repeated(native: Mapping[str, Any]) -> CountedSizes | None:
    found = positive(native, MICRO, WORLD, ACCUMULATION, GENERATIONS)
    if found is None:
        return None
    micro, world, accumulation, group = found
    prompts = micro * world * accumulation
    return CountedSizes(prompts, group, prompts * group, prompts * group)


def _pruned(native: Mapping[str, Any]) -> str:
    more = ", for which more prompts are taken" if native.get(_ALLOCATION) else ""
    return f"{native.get(_PRUNING, 0)} of each device's completions are pruned before the step ({_PRUNING}){more}"


def _pruned_sizes(native: Mapping[str, Any]) -> CountedSizes | None:
    """The sizes as its trainer counts them: with --allocation a batch has prompts for groups that are pruned."""
    found, share = positive(native, MICRO, WORLD, ACCUMULATION, GENERATIONS), native.get(_PRUNING, 0.0)
    if found is None or not isinstance(share, (int, float)) or not 0 <= share < 1:
        return None
    micro, world, accumulation, group = found
    kept = int(group * (1 - share)) if native.get(_ALLOCATION) else group
    repeated = int(1 / (1 - share)) if native.get(_ALLOCATION) else 1
    if not kept or (micro * world * accumulation) % kept:
        return None
    rows = micro * repeated
    step = world * accumulation * (rows - int(rows * share))
    return CountedSizes(micro * world * accumulation // kept, kept * repeated, step, step)


def _as_trl(native: Mapping[str, Any]) -> str:
    return "its trainer is derived from TRL's, and takes batches as TRL does"


_PRUNING, _ALLOCATION = "pruning", "allocation"
_ABOUT_SIZES = frozenset({"BB-TRL-021"})
"""Rules about groups that a micro-batch, or a rollout, is to hold whole."""
REPEATS_ROWS = KnownProgram(
    "a trainer as TRL 0.14's, R1-V's and their copies'",
    _each_row_repeated,
    "trl 0.14.0 trainer/grpo_trainer.py (compute_loss), and the sources of R1-V's copies below",
    sizes=_rows_repeated,
    silent=_ABOUT_SIZES,
)
"""A trainer whose code is here, and repeats the rows of a micro-batch itself."""
KNOWN = (
    KnownProgram(
        "R1-V and its copies (Video-R1, VideoChat-R1, Time-R1, R1-Omni)",
        _each_row_repeated,
        "Video-R1 59d65c3 src/r1-v/src/open_r1/trainer/grpo_trainer.py (num_return_sequences, repeat_interleave); "
        "VideoChat-R1 73b2ea9 src/open_r1/trainer/grpo_tasks_trainer.py:342-543",
        classes=r"(Qwen\w*VL|HumanOmni\w*|TimeR1_|Qwen2VL)GRPO(VLLM)?Trainer\w*|TimeR1_Trainer\w*",
        program=r"grpo_custom_video|src/r1-v/|grpo_video_\w+\.py",
        keys=frozenset({"temporal", "len_control"}),
        sizes=_rows_repeated,
        silent=_ABOUT_SIZES,
    ),
    KnownProgram(
        "CPPO",
        _pruned,
        "CPPO 52faeb3 src/open_r1/grpo_trainer_gsm.py, grpo_trainer_math.py",
        keys=frozenset({"pruning", "metric"}),
        program=r"open_r1/grpo_(gsm|math)\.py",
        sizes=_pruned_sizes,
        silent=_ABOUT_SIZES,
    ),
    KnownProgram(
        "ms-swift",
        _as_trl,
        "ms-swift 1d1bb2f swift/trainers/rlhf_trainer/grpo_trainer.py",
        program=r"(^|[/ ])swift (cli/)?rlhf|swift[./]cli[./]rlhf|swift[./]cli[./]main rlhf",
        keys=frozenset({"rlhf_type"}),
        # It evaluates where it has data for that, which no setting here says, corrects vLLM's sampling by itself, and
        # has losses of its own (BB-TRL-105).
        silent=frozenset({"BB-TRL-020", "BB-TRL-038", "BB-TRL-097", "BB-TRL-098"}),
    ),
)
"""Trainers and programs that are read as TRL's and are other people's."""
