"""The functions of Open-Instruct and DeepSpeed that a wrapped learner depends on.

Open-Instruct is used from a checkout, and a checkout has no version: its label is the date of the commit whose code it
has. `proven.json` beside this file records them; tests/upstream/record.py writes it.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from batchbridge.kit import Code, Package
from batchbridge.kit.deepspeed import ENGINE
from batchbridge.kit.proven import evidence_here

OPEN_INSTRUCT = Package(
    "open_instruct",
    None,
    title="open-instruct",
    control={
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
        "rl_utils.py": ("pack_sequences", "reset_position_ids"),
        "grpo_utils.py": ("calculate_token_counts", "compute_logprobs", "perform_weight_sync"),
        "data_types.py": (
            "CollatedBatchData.__getitem__",
            "CollatedBatchData.__len__",
            "CollatedBatchData.to",
        ),
        "vllm_utils.py": ("LLMRayActor.update_weights", "add_request", "broadcast_weights_to_vllm"),
        "utils.py": ("check_oe_eval_internal",),
    },
    loss={
        "rl_utils.py": ("masked_mean",),
        "grpo_utils.py": (
            "compute_grpo_loss",
            "compute_rho_correction",
            "forward_for_logprobs",
            "mask_logprobs",
            "resolve_old_logprob",
        ),
        "model_utils.py": ("estimate_kl", "log_softmax_and_gather"),
    },
)

CODE = Code(framework="open_instruct", home="batchbridge_open_instruct", packages=(OPEN_INSTRUCT, ENGINE))


@lru_cache(maxsize=4)
def checkout_of(package: Path) -> str | None:
    """The recorded checkout whose code the folder `package` has, and no other; None where there is none."""
    return evidence_here(CODE, folders={OPEN_INSTRUCT.name: package}).labels[OPEN_INSTRUCT.title]
