"""Which code of EasyR1 the running trainer was proven on, function by function.

EasyR1's version says little: 0.3.3.dev0 has named every commit since September 2025, and forks keep it. So each
function that is patched, replaced or relied upon is compared by its text (comments and blank lines aside).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path

from batchbridge import fingerprints

SEAMS: Mapping[str, tuple[str, ...]] = {
    "workers/actor/dp_actor.py": (
        "DataParallelPPOActor._optimizer_step",
        "DataParallelPPOActor.compute_log_prob",
        "DataParallelPPOActor.update_policy",
    ),
    "workers/fsdp_workers.py": (
        "FSDPWorker.compute_log_probs",
        "FSDPWorker.compute_ref_log_probs",
        "FSDPWorker.generate_sequences",
        "FSDPWorker.init_model",
        "FSDPWorker.update_actor",
    ),
    "trainer/core_algos.py": ("average_loss", "compute_kl", "compute_policy_loss"),
    "trainer/ray_trainer.py": (
        "RayPPOTrainer._balance_batch",
        "RayPPOTrainer._load_checkpoint",
        "RayPPOTrainer._make_batch_data",
        "RayPPOTrainer._save_checkpoint",
        "RayPPOTrainer.fit",
        "RayPPOTrainer.init_workers",
        "apply_kl_penalty",
        "compute_advantage",
    ),
    "utils/seqlen_balancing.py": ("prepare_dynamic_batch", "rearrange_micro_batches"),
    "workers/rollout/vllm_rollout_spmd.py": ("vLLMRollout.generate_sequences",),
    "protocol.py": ("DataProto.chunk", "DataProto.concat", "DataProto.index_select", "DataProto.split"),
}
"""File of the package -> functions."""


@lru_cache(maxsize=4)
def digests(package: Path) -> Mapping[str, str]:
    """Of `SEAMS`; see `fingerprints.digests`."""
    return fingerprints.digests(package, SEAMS)


@lru_cache(maxsize=1)
def _proven() -> Mapping[str, Mapping[str, str]]:
    """By version. Made by tests/adapters/easyr1/native/record_seams.py."""
    text = resources.files("batchbridge_easyr1").joinpath("proven.json").read_text(encoding="utf-8")
    found: Mapping[str, Mapping[str, str]] = json.loads(text)
    return found


def doubts(package: Path, version: str | None) -> str | None:
    """Why the EasyR1 in `package` is not proven; None where it is."""
    proven = _proven()
    if version is None or version not in proven:
        return f"EasyR1 {version}: its training step is not proven; proven: {', '.join(proven)}"
    if not (other := fingerprints.difference(digests(package), proven[version])):
        return None
    return f"EasyR1 {version} with other code than the proofs ran on: {other}; use the tag v0.3.2, or commit b44b311"
