"""The question whose trainer a run builds: TRL's own, one that people know, or one that nobody here has read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchbridge import Source, Where
from batchbridge.kit import BuiltTrainer, Condition
from batchbridge.kit.known_programs import KnownProgram, condition, known_program
from batchbridge.kit.versions import includes
from batchbridge_trl.recipe import name_of
from batchbridge_trl.sizes import ACCUMULATION, GENERATIONS, MICRO
from batchbridge_trl.starting import is_trls, needed
from batchbridge_trl.world import KEY as WORLD


def condition_of(source: Source, script: str | None, native: Mapping[str, Any]) -> Condition | None:
    """The condition that the run of a source rests on; None: TRL's own trainer runs, or none is named.

    script: what its command starts, where that is not TRL's own program.
    """
    if script is None and source.construction is None:
        return None
    if source.trainers is None and (script or "").endswith("open_r1/grpo.py"):
        return None  # Open-R1's own program; a copy that lies here is read
    built = source.trainers or ()
    strange = [one for one in built if not _is_stock(one)]
    if source.construction is not None and not strange:
        return None
    if built and not strange:
        return None
    names = list(dict.fromkeys(one.name.rpartition(".")[2] for one in strange))
    known = known_program(KNOWN, names, source.argv, source.values)
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


def of_old_code(version: str | None) -> Condition | None:
    """The condition of a run of TRL 0.14, whose code is read alone: nothing of it was run here. Source: trl 0.14.0
    GRPOTrainer.compute_loss (repeat_interleave; `generate` with num_return_sequences), grpo_config.py; with G rows for
    each of a device's, rollout, step and token weights are those of 0.15.0 RepeatRandomSampler and compute_loss."""
    if version is None or not includes(">=0.14,<0.15", version):
        return None
    why = (
        "each device repeats the prompts of its batch num_generations times, as is counted; its code was read, not run"
    )
    return Condition(f"trl {version} trains as 0.15.0 does with whole groups on each device", "trl 0.15.0", why)


def _is_stock(built: BuiltTrainer) -> bool:
    """Whether a trainer is TRL's, Unsloth's in its place, or a class that is derived from it and leaves everything
    alone that decides a batch."""
    if is_trls(built.name) or built.name.startswith("unsloth") or (built.name == "GRPOTrainer" and not built.bases):
        return True
    return any(map(is_trls, built.bases)) and not _replaced(built)


def _replaced(built: BuiltTrainer) -> list[str]:
    return sorted(built.methods & {"__init__", "train", *needed()})


def _each_row_repeated(native: Mapping[str, Any]) -> str:
    said = "each device repeats each of its rows num_generations times"
    micro, world, steps, group = (native.get(key) for key in (MICRO, WORLD, ACCUMULATION, GENERATIONS))
    sizes = [one for one in (micro, world, steps, group) if isinstance(one, int) and one > 0]
    if len(sizes) < 4:
        return said
    prompts = sizes[0] * sizes[1] * sizes[2]
    return (
        f"{said}, so that an optimizer step has {prompts:,} prompts x {sizes[3]:,} = {prompts * sizes[3]:,} completions"
    )


def _pruned(native: Mapping[str, Any]) -> str:
    return "its trainer trains on the part of each group that --metric and --pruning keep, and on as many fewer rows"


def _as_trl(native: Mapping[str, Any]) -> str:
    return "its trainer is derived from TRL's, and takes batches as TRL does"


KNOWN = (
    KnownProgram(
        "R1-V and its copies (Video-R1, VideoChat-R1, Time-R1, R1-Omni)",
        _each_row_repeated,
        "Video-R1 59d65c3 src/r1-v/src/open_r1/trainer/grpo_trainer.py (num_return_sequences, repeat_interleave); "
        "VideoChat-R1 73b2ea9 src/open_r1/trainer/grpo_tasks_trainer.py:342-543",
        classes=r"(Qwen\w*VL|HumanOmni\w*|TimeR1_|Qwen2VL)GRPO(VLLM)?Trainer\w*|TimeR1_Trainer\w*",
        program=r"grpo_custom_video|src/r1-v/|grpo_video_\w+\.py",
        keys=frozenset({"temporal", "len_control"}),
    ),
    KnownProgram(
        "CPPO",
        _pruned,
        "CPPO 52faeb3 src/open_r1/grpo_trainer_gsm.py, grpo_trainer_math.py",
        keys=frozenset({"pruning", "metric"}),
        program=r"open_r1/grpo_(gsm|math)\.py",
    ),
    KnownProgram(
        "ms-swift",
        _as_trl,
        "ms-swift 1d1bb2f swift/trainers/rlhf_trainer/grpo_trainer.py",
        program=r"(^|[/ ])swift (cli/)?rlhf|swift[./]cli[./]rlhf|swift[./]cli[./]main rlhf",
        keys=frozenset({"rlhf_type"}),
    ),
)
"""Trainers and programs that are read as TRL's and are other people's."""
