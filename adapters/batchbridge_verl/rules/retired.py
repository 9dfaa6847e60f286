"""Rules that only repeated what `validate_config` says itself of settings that decide nothing of what is trained: no
check judges them any more, `doctor` knows their texts, and their codes are never used again.

Its own file: rows that no check judges stand apart from those that one does.
"""

from __future__ import annotations

from batchbridge.kit.rule_table import retired
from batchbridge_verl.rules import printed
from batchbridge_verl.rules.validated import VALIDATE
from batchbridge_verl.settings import REFERENCE, ROLLOUT

RETIRED = (
    *(
        retired(
            code,
            *(f"{role}log_prob_micro_batch_size_per_gpu", f"{role}log_prob_micro_batch_size"),
            native=f"ValueError: [{role[:-1]}] Please set at least one of ...; or: You have set both ...",
            source=VALIDATE,
            text=printed.NO_MICRO_BATCH,
        )
        for code, role in (("BB-VERL-018", REFERENCE), ("BB-VERL-016", ROLLOUT))
    ),
    retired(
        "BB-VERL-064",
        *("reward_model.micro_batch_size_per_gpu", "reward_model.micro_batch_size"),
        native="ValueError: [reward_model] Please set at least one of ...; or: You have set both ...",
        source="verl 0.4.0 to 0.7.0 validate_config",
        versions="<0.7.1",
        text=printed.NO_MICRO_BATCH,
    ),
)
