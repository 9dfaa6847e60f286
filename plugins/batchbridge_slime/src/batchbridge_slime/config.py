"""slime's adapter: its command, and what the tables do not say. Imports neither slime, Megatron nor SGLang."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, ClassVar

from batchbridge import Behaviour, Source
from batchbridge.kit.argparse_adapter import ArgparseAdapter
from batchbridge.kit.key_table import Codes, Key
from batchbridge.kit.values import FieldValue
from batchbridge_slime import SLIME_TELLS
from batchbridge_slime.meaning import slime_fields
from batchbridge_slime.rules import RULES
from batchbridge_slime.settings import CONSTANTS, KEYS, OPTIONS, SERVERS, in_time
from batchbridge_slime.writing import options_of


class SlimeAdapter(ArgparseAdapter):
    """Framework `slime`."""

    framework = "slime"
    distribution = "slime"
    checkout = ("setup.py", "slime/utils/arguments.py", "slime/utils/dp_schedule.py")
    versions = ">=0.3.1"
    releases = ("0.3.1",)
    newest_version = "0.3.1"
    keys = KEYS
    constants = CONSTANTS
    follows: ClassVar[Mapping[str, Sequence[str]]] = {"eps-clip-high": ("eps-clip",)}
    codes = Codes.of("BB-SLIME")
    outside = "batchbridge_slime.outside:OUTSIDE"
    rules = RULES
    no_run = ("BB-SLIME-060",)
    tells = SLIME_TELLS
    start = "python3 {program}"
    options = OPTIONS
    ignores_unknown = True
    abbreviates = False
    launched: ClassVar[Mapping[str, str]] = {"program": "program"}  # no number of a launcher: a word of `start`
    parser = "slime 0.3.1 utils/arguments.py parse_args, Megatron's parse_known_args"

    def settings_of(self, source: Source, rows: Mapping[str, Key]) -> Source:
        """The options of a command without those of the engines, and the program that it starts."""
        words = tuple(_without(source.argv, SERVERS))
        found = super().settings_of(replace(source, argv=words), rows)
        names = (PurePosixPath(word).name for word in words)
        started = next((name for name in names if name in ("train.py", "train_async.py")), None)
        return replace(found, values={"program": started, **found.values}) if started else found

    def filled(self, native: Mapping[str, Any]) -> Mapping[str, Any]:
        """Source: slime_validate_args: one token is left to generate."""
        total = native["rollout-max-context-len"]
        return {} if total is None or total < 2 else {"rollout-max-prompt-len": total - 1}

    def derive(self, native: Mapping[str, Any]) -> Mapping[str, FieldValue]:
        return slime_fields(native)

    restate = staticmethod(options_of)

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        per_token = native["calculate-per-token-loss"]
        shuffled = "permutations of random.Random(seed + epoch)" if native["rollout-shuffle"] else "the file's order"
        return Behaviour(
            order=f"{shuffled}; a rollout goes on into the next epoch",
            membership="completions in the order of their prompts, cut into steps; a remainder is dropped",
            denominator_scope="optimizer_step",
            denominator_formula="1 / tokens of the step" if per_token else "1 / (completions of the step x own tokens)",
            lr_tick="optimizer step",
            resume="the place in the dataset and its epoch; the optimizer, where it was saved",
            undecided=("which prompts a rollout has: those whose groups end first",) if in_time(native) else (),
            source="slime 0.3.1 utils/dp_schedule.build_dp_schedule, megatron_utils/loss.loss_function",
        )


def _without(words: Sequence[str], beginnings: Sequence[str]) -> Iterator[str]:
    """The words without options that begin so, and without what stands behind these."""
    left_out = False
    for word in words:
        if word.startswith("--"):
            left_out = word[2:].startswith(tuple(beginnings))
        if not left_out:
            yield word
