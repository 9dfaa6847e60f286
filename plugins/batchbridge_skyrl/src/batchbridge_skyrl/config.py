"""SkyRL's settings, and the command that carries them. Pure: nothing here imports SkyRL, Ray or torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchbridge import Behaviour, Finding, Source, Spec, Where
from batchbridge.kit.config_texts import shell_word
from batchbridge.kit.key_table import Codes, Key, settings_in
from batchbridge.kit.omegaconf import typed
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge.kit.values import Told, shown
from batchbridge_skyrl.meaning import ENTRIES, MAIN, derive, is_async
from batchbridge_skyrl.rules import RULES
from batchbridge_skyrl.settings import ALGORITHM, ALL, ENTRY, INPUT_TOKENS, PROMPT_TOKENS, REDUCTION, SAMPLES
from batchbridge_skyrl.writing import restate

NAMES = frozenset(row.key for row in ALL)
OWN = (
    "trainer.placement.",
    "trainer.policy.",
    "trainer.algorithm.",
    "generator.",
    "environment.",
    "trainer.train_batch_size",
)
"""Groups that no other framework's configurations have."""
DEPRECATED = {"trainer.use_sample_packing": "trainer.remove_microbatch_padding"}
"""Source: skyrl 0.3.0 SkyRLTrainConfig.from_cli_overrides."""
ALWAYS = "generator.inference_engine.async_engine"
"""A former setting that may still be given as true. Source: the same."""


class SkyRLAdapter(TableAdapter):
    """Framework `skyrl`."""

    framework = "skyrl"
    distribution = "skyrl"
    versions = ">=0.3,<0.4"
    newest_version = "0.3.0"
    keys = ALL
    constants = {
        "order.last_optimizer_step": "error",
        "carried.optimizer": "adamw",
        "carried.optimizer_epsilon": 1e-8,
        "carried.precision": "bf16",
        "carried.dropout": "on",
    }
    codes = Codes.of("BB-SKYRL")
    rules = RULES

    def detect(self, source: Source) -> float:
        """Certain of SkyRL's own programs; else the share of keys that are SkyRL's alone."""
        if _entry(source) in ENTRIES:
            return 1.0
        said = [key for key, _ in settings_in(source.values, NAMES)]
        ours = [key for key in said if key in NAMES and key.startswith(OWN)]
        return 0.95 * len([key for key in said if key in NAMES]) / len(said) if ours else 0.0

    def settings_of(self, source: Source, rows: Mapping[str, Key]) -> Source:
        """Values as `OmegaConf.from_cli` reads them, renamed settings under their new names, and the program.

        Programs other than main_base bring settings of their own: those are said, and left out.
        """
        values, problems, entry = dict(source.values), list(source.problems), _entry(source)
        if source.argv:
            values = {key: typed(value) for key, value in values.items()}
        for old, new in DEPRECATED.items():
            if old in values and new not in values:
                values[new] = values.pop(old)
        if values.get(ALWAYS) is True:
            del values[ALWAYS]
        if entry is None:
            return replace(source, values=values, problems=tuple(problems))
        for key in [key for key in values if entry != MAIN and not _known(key, rows)]:
            place = Where(key[:60], shown(values.pop(key)), source.path and str(source.path), source.lines.get(key))
            text = f"{key[:60]} is a setting of {entry} itself, whose code is not read"
            problems.append(Finding(self.codes.unknown_key, "warning", "config", text, (place,)))
        return replace(source, values={ENTRY: entry, **values}, problems=tuple(problems))

    def filled(self, native: Mapping[str, Any]) -> Mapping[str, Any]:
        """Source: SkyRLTrainConfig.__post_init__, TrainerConfig.__post_init__."""
        return {
            INPUT_TOKENS: native[PROMPT_TOKENS],
            f"{ALGORITHM}.temperature": native[f"{SAMPLES}.temperature"],
            "data.dataloader.num_workers": 8,
            "trainer.ref.model.path": native["trainer.policy.model.path"],
        }

    def derive(self, native: Mapping[str, Any]) -> Mapping[str, Told]:
        return derive(native)

    def restate(self, spec: Spec) -> Mapping[str, Any]:
        return restate(spec)

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        """Source: trainer_utils.build_dataloader, trainer._execute_training_step, FSDPStrategy.optimizer_step."""
        legacy, asynchronous = native[REDUCTION] == "token_mean_legacy", is_async(native)
        return Behaviour(
            order="a permutation by torch's generator of trainer.seed, which goes on from epoch to epoch",
            membership="groups as they finish" if asynchronous else "consecutive groups, the same in every pass",
            denominator_scope="micro_batch" if legacy else "optimizer_step",
            denominator_formula="tokens of each slice of micro_train_batch_size_per_gpu completions, then the mean"
            if legacy
            else f"{native[REDUCTION]} of the mini-batch, multiplied into the advantages",
            lr_tick="optimizer step",
            resume="exact at a rollout's end, by the data loader's state",
            undecided=("which groups a step has depends on when they finish",) if asynchronous else (),
            source="skyrl 0.3.0 trainer_utils.build_dataloader, trainer._normalize_advantages",
        )

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        """The command, as SkyRL's own examples write it."""
        words = [shell_word(f"{key}={json.dumps(value)}") for key, value in values.items() if key != ENTRY]
        extra = "megatron" if values.get("trainer.strategy") == "megatron" else "fsdp"
        head = f"uv run --isolated --extra {extra} -m {values.get(ENTRY) or MAIN}"
        return {"command": " \\\n  ".join([head, *words]) + "\n"}


def _entry(source: Source) -> str | None:
    """The module that the command runs; None where nothing says a program."""
    for word in source.argv:
        if "=" in word:
            return None
        module = word.removesuffix(".py").replace("/", ".")
        if "." in module and not word.startswith("-"):
            return module
    return None


def _known(key: str, rows: Mapping[str, Key]) -> bool:
    """Whether `key` is a setting, or stands below one that takes mappings."""
    return any(key == row or (key.startswith(f"{row}.") and rows[row].kind.takes({})) for row in rows)
