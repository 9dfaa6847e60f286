"""SkyRL's adapter: its command, and what the tables do not say. Imports neither SkyRL, Ray nor torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchbridge import Behaviour, Finding, Source, Where
from batchbridge.kit.config_texts import shell_word
from batchbridge.kit.key_table import Codes, Key, settings_in
from batchbridge.kit.omegaconf import typed
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge.kit.values import FieldValue, shown
from batchbridge_skyrl.meaning import derive, is_async
from batchbridge_skyrl.rules import RULES
from batchbridge_skyrl.settings import DECLARED, ENTRIES, FACTS, KEYS, MAIN, TOGETHER, SkyRLRun
from batchbridge_skyrl.writing import restate


class SkyRLAdapter(TableAdapter):
    """Framework `skyrl`."""

    framework = "skyrl"
    distribution = "skyrl"
    versions = ">=0.3"
    newest_version = "0.4.0"
    keys = KEYS
    declared = DECLARED
    together = TOGETHER
    constants = FACTS["constants"]
    follows = FACTS["follows"]
    codes = Codes.of("BB-SKYRL")
    outside = "batchbridge_skyrl.settings:OUTSIDE"
    no_file = "SkyRL has no configuration file of its own; its command line says everything"
    rules = RULES
    restate = staticmethod(restate)

    def detect(self, source: Source) -> float:
        """Certain of a program that is known; else the share of keys that are SkyRL's."""
        if _program(source) in ENTRIES:
            return 1.0
        ours = {row.key for row in (*DECLARED, *KEYS)}
        said = [key in ours for key, _ in settings_in(source.values, ours)]
        return 0.95 * sum(said) / len(said) if said else 0.0

    def settings_of(self, source: Source, rows: Mapping[str, Key]) -> Source:
        """Values as `OmegaConf.from_cli` reads them, a renamed setting under its new name, and the program.

        Programs beside main_base add settings of their own; these are said and left out.
        Source: SkyRLTrainConfig.from_cli_overrides.
        """
        values, problems, program = dict(source.values), list(source.problems), _program(source)
        if source.argv:
            values = {key: typed(value) for key, value in values.items()}
        if "trainer.use_sample_packing" in values:
            values.setdefault("trainer.remove_microbatch_padding", values.pop("trainer.use_sample_packing"))
        if values.get("generator.inference_engine.async_engine") is True:
            del values["generator.inference_engine.async_engine"]
        for key in [key for key in values if program not in (None, MAIN)]:
            if not any(key == row or key.startswith(f"{row}.") for row in rows):
                place = Where(key[:60], shown(values.pop(key)), str(source.path or "") or None, source.lines.get(key))
                text = f"{key[:60]} is a setting of {program} itself, whose code is not read"
                problems.append(Finding(self.codes.unknown_key, "warning", "config", text, (place,)))
        values |= {"entrypoint": program} if program else {}
        return replace(source, values=values, problems=tuple(problems))

    def derive(self, native: Mapping[str, Any]) -> Mapping[str, FieldValue]:
        return derive(SkyRLRun(native))

    def behaviour_of(self, native: Mapping[str, Any], version: str) -> Behaviour:
        run, timed = SkyRLRun(native), is_async(SkyRLRun(native))
        return Behaviour(
            order="permutations by a torch.Generator of trainer.seed, which goes on from epoch to epoch",
            membership="groups as they finish" if timed else "consecutive groups, the same in every pass",
            denominator_scope="micro_batch" if run["loss_reduction"].endswith("legacy") else "optimizer_step",
            denominator_formula=f"{run['loss_reduction']}, multiplied into the advantages",
            lr_tick="optimizer step",
            resume="exact at the end of a rollout",
            undecided=("which groups a step has: those that finish first",) if timed else (),
            source="skyrl 0.3.0 trainer_utils.build_dataloader, trainer._normalize_advantages",
        )

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        """The command, as SkyRL's examples have it."""
        extra = "megatron" if values["trainer.strategy"] == "megatron" else "fsdp"
        head = f"uv run --isolated --extra {extra} -m {values['entrypoint']}"
        words = [shell_word(f"{key}={json.dumps(value)}") for key, value in values.items() if key != "entrypoint"]
        return {"command": " \\\n  ".join([head, *words]) + "\n"}


def _program(source: Source) -> str | None:
    """The module that a command runs; None without a command."""
    words = [word for word in source.argv if not word.startswith("-") and "." in word and "=" not in word]
    return words[0].removesuffix(".py").replace("/", ".") if words else None
