"""Open-R1 recipes: TRL's settings, with keys of their own that say nothing about batches.

Open-R1 has no release; what a recipe means is decided by the TRL version that runs it, and that is this framework's
version. Its own pin (trl 0.18.0) is older than what is read here: an unknown version fails closed, and under a known
one the keys that TRL has dropped since are findings, as TrlParser refuses them. The batch rules are checked all the
same. Where a recipe lies in a `recipes` folder, the world size comes from `recipes/accelerate_configs` beside it.
"""

from __future__ import annotations

from typing import ClassVar

from batchbridge import Source
from batchbridge_trl import settings as trl
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.tables import Group, Setting

OWN = Group(
    "GRPOConfig, GRPOScriptArguments",
    "open_r1.configs at 8d139cb and 078c5e1, and the keys of its published recipes",
    (
        Setting("benchmarks", "list", None),
        Setting("callbacks", "list", None),
        Setting("chat_template", "str?", None),
        Setting("system_prompt", "str?", None),
        Setting("hub_model_revision", "str?", "main"),
        Setting("num_completions_to_print", "int", 0),
        Setting("overwrite_hub_revision", "bool", False),
        Setting("push_to_hub_revision", "bool", False),
        Setting("wandb_entity", "str?", None),
        Setting("wandb_project", "str?", None),
        Setting("wandb_run_group", "str?", None),
        Setting("wandb_log_unique_prompts", "bool", True),
        Setting("dataset_mixture", "dict?", None),
        Setting("dataset_prompt_column", "str", "prompt"),
        Setting("reward_funcs", "list", None),
        Setting("cosine_min_value_wrong", "float", 0.0),
        Setting("cosine_max_value_wrong", "float", -0.5),
        Setting("cosine_min_value_correct", "float", 0.5),
        Setting("cosine_max_value_correct", "float", 1.0),
        Setting("cosine_max_len", "int", 1000),
        Setting("repetition_n_grams", "int", 3),
        Setting("repetition_max_penalty", "float", -1.0),
        Setting("code_language", "str", "python"),
        Setting("code_eval_test_batch_size", "int", 1),
        Setting("code_eval_scoring_mode", "str", "weighted_sum"),
        Setting("parallel_code_exec_per_proc", "int", 2),
        Setting("e2b_router_url", "str?", None),
        Setting("morph_router_url", "str?", None),
        Setting("code_provider", "str?", "e2b"),
        Setting("ioi_provider", "str?", "piston"),
        Setting("max_completion_len", "int", 16384),
        Setting("soft_punish_cache", "int", 4096),
    ),
)
"""Keys that Open-R1 adds to TRL's."""

_UNMISTAKABLE = frozenset(
    {"dataset_prompt_column", "code_language", "benchmarks", "hub_model_revision", "code_eval_test_batch_size"}
)
"""Keys that no TRL script takes and that published recipes hold."""


class OpenR1Adapter(TrlAdapter):
    """Framework `open_r1`: recipes of huggingface/open-r1; its version is TRL's."""

    framework: ClassVar[str] = "open_r1"
    groups: ClassVar[tuple[Group, ...]] = (
        OWN,
        *trl.TRAINER_GROUPS,
        trl.SCRIPT_ARGUMENTS,
        trl.MODEL_CONFIG,
        trl.ENVIRONMENT,
    )

    def detect(self, source: Source) -> float:
        """As TRL's, above it where a key is Open-R1's own, and below it elsewhere."""
        if source.native is not None:
            return 1.0 if any(cls.__module__.startswith("open_r1.") for cls in type(source.native).__mro__) else 0.0
        if any(word.endswith("open_r1/grpo.py") for word in source.argv[:2]):
            return 0.97
        if not (likely := super().detect(source)):
            return 0.0
        return min(1.0, likely + 0.1) if _UNMISTAKABLE & set(source.values) else likely / 2

    def owns(self, trainer: object) -> bool:
        """A `GRPOTrainer` whose config is Open-R1's; TRL's adapter takes all others."""
        return super().owns(trainer) and self.detect(Source(native=getattr(trainer, "args", None))) == 1.0
