"""Tinker's adapter: the settings of a training loop, which is written as a Python program. Imports neither Tinker's SDK
nor torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchbridge import Behaviour, Finding, Source, Spec
from batchbridge.kit import Context
from batchbridge.kit.frame import RunReading
from batchbridge.kit.key_table import Codes
from batchbridge.kit.table_adapter import TableAdapter
from batchbridge.kit.writing import Problems
from batchbridge_tinker import TINKER_TELLS
from batchbridge_tinker.program import program
from batchbridge_tinker.rules import RULES
from batchbridge_tinker.settings import CONSTANTS, KEYS, LoopSettings

NONE_OF_IT: Mapping[str, tuple[Any, str]] = {
    "objective.kl_placement": ("none", "the service's losses have no reference: forward_backward_custom takes a KL"),
    "objective.entropy_coefficient": (0.0, "the service gives no entropies"),
    "objective.dual_clip": (None, "the service's ppo has one clip"),
    "objective.ratio_level": ("token", "the service's ppo and cispo take the ratio of a token"),
    "objective.sampler_correction": (None, "a correction is no loss of the service; take old_logprobs = sampler"),
    "objective.reward_clip": (None, "clip in the loop's own `reward`"),
    "carried.temperature": (1.0, "the service scores at temperature 1, whatever it samples at"),
    "carried.optimizer": ("adamw", "the service's optimizer is AdamW"),
    "carried.precision": (None, "the service decides it, and does not say"),
    "carried.dropout": (None, "the service decides it, and does not say"),
    "objective.nonfinite_step": (None, "the service decides it, and does not say"),
}
"""Canonical field: the only value that a loop has, and why or what to do."""


class TinkerAdapter(TableAdapter):
    """Framework `tinker`."""

    framework = "tinker"
    title = "Tinker"
    distribution = "tinker"
    versions = ">=0.38"
    releases = ("0.38.0",)
    newest_version = "0.38.0"
    keys = KEYS
    constants = CONSTANTS
    codes = Codes.of("BB-TINKER")
    outside = "batchbridge_tinker.outside:OUTSIDE"
    rules = RULES
    tells = TINKER_TELLS
    no_file = "Tinker has no configuration file: a loop is a Python program, which `convert --to tinker` writes"

    def detect(self, source: Source) -> float:
        return TINKER_TELLS.certainty(source)

    def alone(self, world: int) -> Mapping[str, Any]:
        return {"horizon.epochs": 1.0}

    def read_settings(self, source: Source, context: Context, version: str, found: list[Finding]) -> RunReading:
        """The reading; a loop has one device, the service, where nobody says another number."""
        return super().read_settings(source, replace(context, world_size=context.world_size or 1), version, found)

    def settings_for(self, spec: Spec, problems: Problems, version: str) -> dict[str, Any]:
        said = spec.values
        for path, (only, why) in NONE_OF_IT.items():
            problems.fits(said.get(path) in (None, only), path, why, (only,))
        return super().settings_for(spec, problems, version)

    def behaviour_of(self, native: LoopSettings, version: str) -> Behaviour:
        return Behaviour(
            order="the plan's",
            membership="the plan's",
            denominator_scope="optimizer_step",
            denominator_formula=f"the plan's weights of {native['loss.policy.aggregation']}, in the advantages",
            lr_tick=native["horizon.lr_tick"].replace("_", " "),
            resume="none: a loop that ends begins again",
            source="the loop that `convert --to tinker` writes; tinker 0.38.0 TrainingClient",
        )

    def texts_of(self, values: Mapping[str, Any], version: str) -> Mapping[str, str]:
        return {"python": program({**{row.key: row.default for row in KEYS}, **values})}
