"""Open-R1 recipes: TRL's settings, with keys of their own that say nothing about batches.

Open-R1 has no release; what a recipe means is decided by the TRL version that runs it, and that is this framework's
version. Its own pin (trl 0.18.0) is older than what is read here: an unknown version fails closed, and under a known
one the keys that TRL has dropped since are findings, as TrlParser refuses them. The batch rules are checked anyway.
Where a recipe lies in a `recipes` folder, the world size comes from `recipes/accelerate_configs` beside it.
"""

from __future__ import annotations

from typing import ClassVar

from batchbridge.kit.key_table import Key
from batchbridge.kit.parser_kinds import BOOL, FLOAT, INT, MAPPING, OPTIONAL_TEXT, TEXT, TEXTS
from batchbridge_open_r1 import TELLS
from batchbridge_trl import settings as trl
from batchbridge_trl.config import TrlAdapter
from batchbridge_trl.tables import SettingGroup

OWN = SettingGroup(
    "open_r1.configs at 8d139cb and 078c5e1, and the keys of its published recipes",
    (
        Key("benchmarks", TEXTS, None),
        Key("callbacks", TEXTS, None),
        Key("chat_template", OPTIONAL_TEXT, None),
        Key("system_prompt", OPTIONAL_TEXT, None),
        Key("hub_model_revision", OPTIONAL_TEXT, "main"),
        Key("num_completions_to_print", INT, 0),
        Key("overwrite_hub_revision", BOOL, False),
        Key("push_to_hub_revision", BOOL, False),
        Key("wandb_entity", OPTIONAL_TEXT, None),
        Key("wandb_project", OPTIONAL_TEXT, None),
        Key("wandb_run_group", OPTIONAL_TEXT, None),
        Key("wandb_log_unique_prompts", BOOL, True),
        Key("dataset_mixture", MAPPING, None),
        Key("dataset_prompt_column", TEXT, "prompt"),
        Key("reward_funcs", TEXTS, None),
        Key("cosine_min_value_wrong", FLOAT, 0.0),
        Key("cosine_max_value_wrong", FLOAT, -0.5),
        Key("cosine_min_value_correct", FLOAT, 0.5),
        Key("cosine_max_value_correct", FLOAT, 1.0),
        Key("cosine_max_len", INT, 1000),
        Key("repetition_n_grams", INT, 3),
        Key("repetition_max_penalty", FLOAT, -1.0),
        Key("code_language", TEXT, "python"),
        Key("code_eval_test_batch_size", INT, 1),
        Key("code_eval_scoring_mode", TEXT, "weighted_sum"),
        Key("parallel_code_exec_per_proc", INT, 2),
        Key("e2b_router_url", OPTIONAL_TEXT, None),
        Key("morph_router_url", OPTIONAL_TEXT, None),
        Key("code_provider", OPTIONAL_TEXT, "e2b"),
        Key("ioi_provider", OPTIONAL_TEXT, "piston"),
        Key("max_completion_len", INT, 16384),
        Key("soft_punish_cache", INT, 4096),
    ),
)
"""Keys that Open-R1 adds to TRL's."""


class OpenR1Adapter(TrlAdapter):
    """Framework `open_r1`: recipes of huggingface/open-r1; its version is TRL's."""

    framework: ClassVar[str] = "open_r1"
    tries = ""
    tells = TELLS
    groups: ClassVar[tuple[SettingGroup, ...]] = (
        OWN,
        *trl.TRAINER_GROUPS,
        trl.SCRIPT_ARGUMENTS,
        trl.MODEL_CONFIG,
        trl.ENVIRONMENT,
    )
