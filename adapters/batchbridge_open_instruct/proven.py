"""Which code of Open-Instruct the running trainer was proven on, function by function.

Open-Instruct is used from a checkout, and a checkout has no version: each function that is patched, replaced or relied
upon is compared by its text (comments and blank lines aside).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path

from batchbridge import fingerprints

SEAMS: Mapping[str, tuple[str, ...]] = {
    "grpo_fast.py": (
        "ModelGroup.__init__",
        "PolicyTrainerRayProcess.__init__",
        "PolicyTrainerRayProcess.broadcast_to_vllm",
        "PolicyTrainerRayProcess.from_pretrained",
        "PolicyTrainerRayProcess.step",
        "WeightSyncTrigger.__init__",
        "WeightSyncTrigger.get_step_and_clear",
        "WeightSyncTrigger.notify",
        "create_model_and_optimizer",
        "main",
        "one_training_step",
        "run_training",
        "weight_sync_thread",
    ),
    "data_loader.py": (
        "DataPreparationActor.__init__",
        "DataPreparationActor._data_preparation_loop",
        "DataPreparationActor.get_data",
        "DataPreparationActor.get_state",
        "DataPreparationActor.set_state",
        "DataPreparationActor.start",
        "StreamingDataLoader._iter_batches",
        "accumulate_inference_batches",
        "add_prompt_to_generator",
        "collate_fn",
        "make_batch_from_groups",
        "prepare_collated_data_for_workers",
        "process_group",
    ),
    "rl_utils.py": ("masked_mean", "pack_sequences", "reset_position_ids"),
    "grpo_utils.py": (
        "calculate_token_counts",
        "compute_grpo_loss",
        "compute_logprobs",
        "compute_rho_correction",
        "forward_for_logprobs",
        "mask_logprobs",
        "perform_weight_sync",
        "resolve_old_logprob",
    ),
    "model_utils.py": ("estimate_kl", "log_softmax_and_gather"),
    "data_types.py": ("CollatedBatchData.__getitem__", "CollatedBatchData.__len__", "CollatedBatchData.to"),
    "vllm_utils.py": ("LLMRayActor.update_weights", "add_request", "broadcast_weights_to_vllm"),
    "utils.py": ("check_oe_eval_internal",),
}
"""File of the package `open_instruct` -> functions."""


@lru_cache(maxsize=4)
def digests(package: Path) -> Mapping[str, str]:
    """Of `SEAMS`; see `fingerprints.digests`."""
    return fingerprints.digests(package, SEAMS)


@lru_cache(maxsize=1)
def _proven() -> Mapping[str, Mapping[str, str]]:
    """By checkout. Made by tests/adapters/open_instruct/native/record_seams.py."""
    text = resources.files("batchbridge_open_instruct").joinpath("proven.json").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, str]] = json.loads(text)
    return found


def checkout_in(package: Path) -> tuple[str | None, str]:
    """The proven checkout whose code `package` has; None and why, where it has another's."""
    have = digests(package)
    reasons = []
    for checkout, wanted in _proven().items():
        if not (other := fingerprints.difference(have, wanted)):
            return checkout, ""
        reasons.append(f"it differs from {checkout} in {other}")
    return None, f"the training step of this open-instruct is not proven: {'; '.join(reasons)}; use commit e6c3044"
