"""Which code of EasyR1 the running trainer was proven on, function by function.

EasyR1's version says little: 0.3.3.dev0 has named every commit since September 2025, and forks keep it. So each
function that is patched, replaced or relied upon is compared by its text (comments and blank lines aside).
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from pathlib import Path

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
    "protocol.py": ("DataProto.chunk", "DataProto.concat", "DataProto.index_select", "DataProto.split"),
}
"""File of the package -> functions."""


@lru_cache(maxsize=4)
def digests(package: Path) -> Mapping[str, str]:
    """`file: function` -> digest of its text; empty text where it is missing."""
    found = {}
    for file, names in SEAMS.items():
        try:
            text = (package / file).read_text(encoding="utf-8")
            functions = dict(_functions(ast.parse(text)))
        except (OSError, ValueError, SyntaxError):
            text, functions = "", {}
        lines = text.splitlines()
        for name in names:
            node = functions.get(name)
            source = [] if node is None else [line.rstrip() for line in lines[node.lineno - 1 : node.end_lineno]]
            kept = "\n".join(line for line in source if line and not line.lstrip().startswith("#"))
            found[f"{file}: {name}"] = hashlib.blake2b(kept.encode(), digest_size=8).hexdigest() if kept else ""
    return found


def _functions(module: ast.Module) -> list[tuple[str, ast.FunctionDef]]:
    found = []
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            found.append((node.name, node))
        elif isinstance(node, ast.ClassDef):
            found += [(f"{node.name}.{inner.name}", inner) for inner in node.body if isinstance(inner, ast.FunctionDef)]
    return found


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
    have = digests(package)
    other = sorted(seam for seam, digest in proven[version].items() if have.get(seam) != digest)
    if not other:
        return None
    return (
        f"EasyR1 {version} with other code than the proofs ran on: {', '.join(other[:4])}"
        f"{f' and {len(other) - 4} more' if len(other) > 4 else ''}; use the tag v0.3.2, or commit b44b311"
    )
