"""The functions of EasyR1 that a wrapped trainer depends on.

EasyR1's version says little: 0.3.3.dev0 has named every commit since September 2025, and forks keep it. `proven.json`
beside this file records the tag v0.3.2 and commit b44b311; tests/upstream/record.py writes it.
"""

from __future__ import annotations

from batchbridge.kit import Code, Package
from batchbridge.kit.proven import methods

CODE = Code(
    framework="easyr1",
    home="batchbridge_easyr1",
    packages=(
        Package(
            "verl",
            None,
            title="EasyR1",
            marker="trainer/data_loader.py",
            control={
                "workers/actor/dp_actor.py": methods(
                    "DataParallelPPOActor", "_optimizer_step", "compute_log_prob", "update_policy"
                ),
                "workers/fsdp_workers.py": (
                    *methods("FSDPWorker", "_process_multi_modal_inputs", "compute_log_probs", "compute_ref_log_probs"),
                    *methods("FSDPWorker", "generate_sequences", "init_model", "update_actor"),
                ),
                "trainer/ray_trainer.py": (
                    *methods("RayPPOTrainer", "_balance_batch", "_load_checkpoint", "_make_batch_data"),
                    *methods("RayPPOTrainer", "_save_checkpoint", "fit", "init_workers"),
                    "apply_kl_penalty",
                    "compute_advantage",
                ),
                "utils/seqlen_balancing.py": ("prepare_dynamic_batch", "rearrange_micro_batches"),
                "workers/sharding_manager/fsdp_ulysses.py": methods(
                    "FSDPUlyssesShardingManager", "postprocess_data", "preprocess_data"
                ),
                # What multiplies a gradient below the log-probabilities, where nothing is measured.
                "utils/ulysses.py": ("Gather.backward", "Gather.forward", "gather_outputs_and_unpad"),
                "workers/rollout/vllm_rollout_spmd.py": ("vLLMRollout.generate_sequences",),
                "protocol.py": (
                    *methods("DataProto", "chunk", "concat", "index_select", "split"),
                    "all_gather_data_proto",
                ),
            },
            loss={
                "workers/actor/dp_actor.py": ("DataParallelPPOActor._forward_micro_batch",),
                "trainer/core_algos.py": ("average_loss", "compute_kl", "compute_policy_loss"),
            },
        ),
    ),
)
