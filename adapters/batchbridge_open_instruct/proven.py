"""The functions of Open-Instruct, and of what trains the model (DeepSpeed, or OLMo-core), that a wrapped learner
depends on.

Open-Instruct is used from a checkout, and a checkout has no version: its label is the date of the commit whose code it
has. `proven.json` beside this file records them; tests/upstream/record.py writes it.
"""

from __future__ import annotations

import dataclasses
from functools import lru_cache
from pathlib import Path

from batchbridge.kit import Code, Package
from batchbridge.kit.deepspeed import ENGINE
from batchbridge.kit.proven import evidence_here, methods

OPEN_INSTRUCT = Package(
    "open_instruct",
    None,
    title="open-instruct",
    control={
        "grpo_fast.py": (
            "ModelGroup.__init__",
            *methods("PolicyTrainerRayProcess", "__init__", "broadcast_to_vllm", "from_pretrained", "step"),
            *methods("WeightSyncTrigger", "__init__", "get_step_and_clear", "notify"),
            *("create_model_and_optimizer", "main", "one_training_step", "run_training"),
            *("save_final_model", "weight_sync_thread"),
        ),
        "data_loader.py": (
            *methods("DataPreparationActor", "__init__", "_data_preparation_loop", "get_data"),
            *methods("DataPreparationActor", "get_state", "set_state", "start"),
            "StreamingDataLoader._iter_batches",
            *("accumulate_inference_batches", "add_prompt_to_generator", "collate_fn", "make_batch_from_groups"),
            *("prepare_collated_data_for_workers", "process_group"),
        ),
        "rl_utils.py": ("pack_sequences", "reset_position_ids"),
        "grpo_utils.py": ("calculate_token_counts", "compute_logprobs", "perform_weight_sync"),
        "data_types.py": methods("CollatedBatchData", "__getitem__", "__len__", "to"),
        "grpo.py": ("main",),
        "grpo_olmo_core_actor.py": methods(
            "PolicyTrainerOLMoCoreProcess", "__init__", "fit", "run_initial_weight_sync", "setup_model"
        ),
        "grpo_callbacks.py": (
            *methods("DataPreparationActorCheckpointCallback", "load_state_dict", "state_dict"),
            "VLLMWeightSyncCallback.post_step",
        ),
        "olmo_core_train_modules.py": methods(
            "GRPOTrainModule", "__init__", "_do_optim_step", "optim_step", "train_batch", "zero_grads"
        ),
        "olmo_core_utils.py": ("doc_lens_from_attention_mask",),
        "vllm_utils.py": ("LLMRayActor.update_weights", "add_request", "broadcast_weights_to_vllm"),
        "utils.py": ("UlyssesSPSplitter.split_collated_batch", "check_oe_eval_internal", "get_train_ds_config"),
    },
    loss={
        "rl_utils.py": ("masked_mean",),
        "grpo_utils.py": (
            *("compute_grpo_loss", "compute_rho_correction", "forward_for_logprobs"),
            *("mask_logprobs", "resolve_old_logprob"),
        ),
        "model_utils.py": ("estimate_kl", "log_softmax_and_gather"),
    },
)

DEEPSPEED = dataclasses.replace(
    ENGINE,
    control={
        **ENGINE.control,
        "runtime/sequence_parallel/ulysses_sp.py": methods(
            "UlyssesSPAttentionHF",
            "_combine_local_sequences",
            "_partition_global_sequence",
            "forward",
            "register_with_transformers",
        ),
        "runtime/comm/coalesced_collectives.py": ("reduce_scatter_coalesced",),
        "sequence/layer.py": methods("_DimZeroAllToAll", "backward", "forward"),
    },
    optional=True,
)
"""The known DeepSpeed code, with what multiplies a gradient where ranks share rows."""

OLMO_CORE = Package(
    "olmo_core",
    "ai2-olmo-core",
    title="OLMo-core",
    control={
        "train/trainer.py": methods("Trainer", "_dry_run_batch", "_fit_epoch", "_iter_batches", "fit"),
        "train/train_module/transformer/train_module.py": methods(
            "TransformerTrainModule", "__init__", "_clip_grad_norm", "_get_state_dict", "dp_process_group"
        ),
        "train/train_module/transformer/common.py": ("parallelize_model",),
        "data/data_loader.py": ("DataLoaderBase.__iter__",),
        "nn/transformer/model.py": methods(
            "Transformer", "_prepare_inputs", "apply_fsdp", "forward", "post_optim_step"
        ),
        "optim/scheduler.py": ("Scheduler.set_lr",),
    },
    optional=True,
)

CODE = Code(framework="open_instruct", home="batchbridge_open_instruct", packages=(OPEN_INSTRUCT, DEEPSPEED, OLMO_CORE))


@lru_cache(maxsize=4)
def checkout_of(package: Path) -> str | None:
    """The recorded checkout whose code the folder `package` has, and no other; None where there is none."""
    return evidence_here(CODE, folders={OPEN_INSTRUCT.name: package}).labels[OPEN_INSTRUCT.title]
