"""Open-R1's GRPO recipes for BatchBridge. Importing this module imports nothing that takes time."""

from __future__ import annotations

from batchbridge import AdapterEntry, DetectionFacts, hookimpl
from batchbridge_trl import TELLS as TRL

TELLS = DetectionFacts(
    programs={
        r"\A(.*\n)?.*open_r1/grpo\.py$": 0.97,
        r"\A(.*\n)?.*open_r1/sft\.py$": 0.95,
    },
    # No TRL script takes these, and published recipes hold them.
    own=dict.fromkeys(
        (
            *("dataset_prompt_column", "code_language", "benchmarks", "hub_model_revision", "system_prompt"),
            *("code_eval_test_batch_size", "code_eval_scoring_mode", "parallel_code_exec_per_proc", "dataset_mixture"),
            *("overwrite_hub_revision", "push_to_hub_revision", "cosine_max_len", "soft_punish_cache"),
        ),
        0.1,
    ),
    file_option="config",
    classes=(("open_r1.", ""), ("open_r1.", "GRPOConfig")),
    trainers=(),  # it trains with TRL's, which TRL's adapter takes
    upon=TRL,
)
"""The facts by which a configuration is known to be one of Open-R1's, and not TRL's."""


@hookimpl
def batchbridge_adapters() -> list[AdapterEntry]:
    """The adapter of framework `open_r1`, which is imported when it is needed."""
    return [AdapterEntry("open_r1", "batchbridge_open_r1.config:OpenR1Adapter", TELLS)]
