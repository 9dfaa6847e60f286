"""The recipe that a command line names: `trl grpo --config recipe.yaml --learning_rate 1e-6`.

Source: trl 1.16.0 TrlParser.parse_args_and_config: the file's values become argparse's defaults, so arguments win.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from batchbridge import Finding, Fix, Source, Where
from batchbridge.kit import folders_above, load_source, near_file
from batchbridge_trl import OF_SFT, SWIFT

KEY = "config"
OF_FILTERS = frozenset({"pass_rate_min", "pass_rate_max"})
"""Keys of Open-R1's PassRateScriptArguments. Source: open-r1 1416fa0 scripts/pass_rate_filtering."""
_OF_GRPO = frozenset(
    {
        *("num_generations", "steps_per_generation", "generation_batch_size", "num_iterations", "scale_rewards"),
        *("max_completion_length", "reward_funcs", "reward_weights", "epsilon", "use_vllm"),
    }
)
PLACES = ("src/open_r1/grpo.py", "open_r1/grpo.py", "src/*/grpo.py")
"""Places of a recipe's program: Open-R1's own, and that of what was made of it."""


def programs_near(recipe: Path) -> Iterator[Path]:
    """The files that stand where the program of a recipe does, from the recipe's folder upwards."""
    for folder in folders_above(recipe):
        for place in PLACES:
            yield from sorted(folder.glob(place))


def recipe_of(source: Source) -> tuple[Source, Source | None, Finding | None]:
    """(`source` without `--config`, the recipe it names, what is wrong with that). Only a command line names one;
    ms-swift's as its first argument, too."""
    named, swifts = source.values.get(KEY), starts_swift(source.argv, source.values)
    if swifts:
        from batchbridge_trl import swift_files

        source = swift_files.in_environment(source)
        named = named or swift_files.file_of(source.argv)
    if not source.argv or (named is None and KEY not in source.values):
        return source, None, None
    rest = dataclasses.replace(source, values={key: value for key, value in source.values.items() if key != KEY})
    path = near_file(named, source.path) if isinstance(named, str) else None
    if path is None:
        file = None if source.path is None else str(source.path)
        where = Where(KEY, named if isinstance(named, str) else repr(named)[:60], file, source.lines.get(KEY))
        message = f"the recipe {where.value} is not found from here, and holds settings"
        fix = Fix("run from the folder where the command would run, or check the recipe itself")
        return rest, None, Finding("BB-TRL-009", "error", "config", message, (where,), (fix,), undecided=True)
    recipe = load_source(path)
    if swifts:
        recipe = swift_files.in_environment(recipe)
        rest = dataclasses.replace(rest, launcher={**recipe.launcher, **rest.launcher})
    return rest, recipe, None


def name_of(program: str) -> str:
    """A program's name without its folder."""
    return program.rpartition("/")[2]


def starts(argv: Sequence[str], command: str, *scripts: str) -> bool:
    """Whether words start a command of TRL (`trl grpo`, `python -m trl.scripts.grpo`), or one of further scripts."""
    program = tuple(argv[1:] if argv and name_of(argv[0]).startswith("python") else argv)
    if not program:
        return False
    named = name_of(program[0]) == "trl" and program[1:2] == (command,)
    module = program[:2] == ("-m", f"trl.scripts.{command}")
    return named or module or program[0].endswith((f"trl/scripts/{command}.py", *scripts))


def fine_tunes(argv: Sequence[str]) -> bool:
    """Whether words start the SFT script of TRL or of Open-R1."""
    return starts(argv, "sft", "open_r1/sft.py")


OF_SWIFT = "rlhf_type"
"""ms-swift's option for the method: grpo, or one of many without rewards (gkd, dpo, kto, ...). Source: ms-swift 6900832
swift/llm/argument/rlhf_args.py (RLHFArguments)."""


def starts_swift(argv: Sequence[str], keys: Collection[str]) -> bool:
    """Whether words start ms-swift's training from rewards or preferences, or settings are its own."""
    named = [name_of(word) for word in argv[:2]] == [SWIFT, "rlhf"]
    return OF_SWIFT in keys or named or any(word.endswith("swift/cli/rlhf.py") for word in argv[:3])


def not_judged(argv: Sequence[str], places: Mapping[str, Where]) -> Finding | None:
    """The finding that settings (by key) are supervised fine-tuning's, by the script or by their keys; else None."""
    told = OF_SFT & set(places)
    message = (
        "supervised fine-tuning (SFTConfig), which has no rollouts and no groups of completions: no batch rule of GRPO "
        "applies, and nothing of it is judged"
    )
    if "beta" in places and not fine_tunes(argv):
        message = message.replace("supervised fine-tuning (SFTConfig)", "preference tuning (DPO: beta, and no rewards)")
    if (of_swift := places.get(OF_SWIFT)) is not None and of_swift.value != "grpo":
        told = frozenset((OF_SWIFT,))
        message = f"ms-swift's {of_swift.value}, which is not its GRPO: nothing of it is judged"
    elif filters := OF_FILTERS & set(places):
        told = filters
        message = "a filter of prompts by their pass rate, which trains nothing: nothing of it is judged"
    elif not fine_tunes(argv) and (not told or _OF_GRPO & set(places)):
        return None
    where = tuple(places[key] for key in sorted(told))
    return Finding("BB-TRL-081", "error", "config", message, where, undecided=True)
